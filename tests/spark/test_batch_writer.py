"""`batch_writer`: rows of output mode update, and what it refuses. `tests/kills` kills its drivers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import wal_sink
from tests.spark.conftest import ROWS_PER_FILE, Shop
from tests.spark.tables import Table, options
from wal_sink import errors
from wal_sink.spark.batch_writer import BatchWriter, conformed
from wal_sink.spark.internals import python_worker
from wal_sink.spark.query_errors import failure_in
from wal_sink.wal.location import locate

pytestmark = [pytest.mark.spark, pytest.mark.cassandra, pytest.mark.timeout(300)]

GROUPS, FILES = 5, 2
Function = Callable[[DataFrame, int], None]


def run(rows: DataFrame, function: Function, checkpoint: str, mode: str = "update") -> str:
    """Run a query to its end, or to its failure; return its id."""
    writer = rows.writeStream.outputMode(mode).foreachBatch(function)
    writer = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True)
    query = writer.start()
    query.awaitTermination()
    return str(query.id)


def test_batch_writer_writes_two_targets_in_update_mode(shop: Shop) -> None:
    """The query has an operation column and an epoch column."""
    spark, cassandra, keyspace = shop.spark, shop.table.cassandra, shop.table.keyspace
    shop.add_files(FILES)
    stream = shop.rows
    counts = (
        stream.groupBy((stream.id % GROUPS).alias("k"))
        .count()
        .selectExpr(
            "k",
            "count AS n",
            "timestamp_seconds(count) AS at",
            f"IF(k = 0 AND count > {ROWS_PER_FILE // GROUPS}, 'gone', 'stays') AS op",
        )
    )
    for name in ("live", "copy"):
        cassandra.execute(
            f"CREATE TABLE {keyspace}.{name} (k bigint PRIMARY KEY, n bigint, at timestamp, epoch bigint)"
        )
    targets: dict[str, object] = {
        "targets": "live,copy",
        "epochColumn": "epoch",
        **{
            f"{name}.{option}": value
            for name in ("live", "copy")
            for option, value in {
                "target": "cassandra",
                "operationColumn": "op",
                "operations": '{"stays": "upsert", "gone": "delete"}',
                **options(Table(cassandra, keyspace, f"{name}_")),
                "table": name,
            }.items()
        },
    }
    place = str(shop.folder / "a checkpoint")
    zone = str(spark.conf.get("spark.sql.session.timeZone"))
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")  # another zone than the plan's
    with wal_sink.register(spark) as sink:
        write = wal_sink.batch_writer(spark, checkpointLocation=place, **targets)
        epochs: list[int] = []

        def count_and_write(batch: DataFrame, epoch: int) -> None:
            epochs.append(batch.count())
            write(batch, epoch)

        run(counts, count_and_write, place)
        flushed = wal_sink.await_flushed(place)
    spark.conf.set("spark.sql.session.timeZone", zone)
    assert epochs == [GROUPS] * FILES
    assert (flushed.epoch, sink.queries.is_finished()) == (FILES - 1, True)
    n = FILES * ROWS_PER_FILE // GROUPS
    at = datetime(1970, 1, 1) + timedelta(seconds=n)  # noqa: DTZ001 - the driver returns such times
    for name in ("live", "copy"):
        result = cassandra.execute(f"SELECT k, n, at, epoch FROM {keyspace}.{name}")
        assert sorted(map(tuple, result)) == [(k, n, at, FILES - 1) for k in range(1, GROUPS)]


def test_tasks_get_equal_rows_in_every_time_zone(spark: SparkSession) -> None:
    """The rows have every type. Another setting lets Spark send Arrow's large texts."""
    rows = spark.sql(
        """
        SELECT id = 1 AS b, CAST(id AS tinyint) AS t, CAST(id AS smallint) AS s, CAST(id AS int) AS i, id,
            CAST(id AS float) / 3 AS f, id / 3D AS d, CAST(id AS decimal(30, 3)) AS n,
            IF(id = 1, NULL, 'text') AS text, CAST('bytes' AS binary) AS bytes, DATE'2024-02-29' AS day,
            timestamp_seconds(id) AS at, TIMESTAMP_NTZ'2024-02-29 12:00:00' AS local,
            make_dt_interval(id) AS lasting, array('a', NULL) AS list, map('k', timestamp_seconds(id)) AS map,
            named_struct('at', array(timestamp_seconds(id)), 'x', 'inner') AS inside
        FROM range(0, 7, 1, 3)
        """
    )
    schema = python_worker.arrow_schema(rows.schema)

    def as_text(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        table = pa.Table.from_batches((conformed(batch, schema) for batch in batches), schema)
        yield pa.RecordBatch.from_pydict({"text": [repr(table.to_pylist())]})

    def texts() -> list[str]:
        return [
            row.text for row in python_worker.map_in_arrow(rows, as_text, "text string").collect()
        ]

    settings = {
        "spark.sql.session.timeZone": "America/New_York",
        "spark.sql.execution.arrow.useLargeVarTypes": "true",
    }
    try:
        answers = [texts()]
        for key, value in settings.items():
            spark.conf.set(key, value)
            answers.append(texts())
    finally:
        for key in settings:
            spark.conf.unset(key)
    assert len(answers[0]) == rows.rdd.getNumPartitions()
    assert "'inner'" in answers[0][0]
    assert answers == [answers[0]] * len(answers)


def test_batch_writer_refuses_each_mistake(shop: Shop) -> None:
    """Each mistake has a checkpoint of its own. Nothing is flushed."""
    shop.add_files(FILES)

    def writer(name: str, **more: Any) -> BatchWriter:
        settings = options(shop.table) | more
        place = str(shop.folder / name)
        return wal_sink.batch_writer(shop.spark, checkpointLocation=place, **settings)

    def refused(
        error: type[errors.WalSinkError],
        text: str,
        function: Function,
        name: str,
        mode: str = "append",
        rows: DataFrame | None = None,
    ) -> None:
        with pytest.raises(PySparkException) as caught:
            run(shop.rows if rows is None else rows, function, str(shop.folder / name), mode)
        failure = failure_in(str(caught.value))
        assert type(failure) is error
        assert text in str(failure)

    with pytest.raises(errors.OptionError, match="no batch of a query"):
        writer("early")(shop.spark.range(1).toDF("id"), 0)
    with pytest.raises(errors.OptionError, match="Did you mean keyspace"):
        writer("misspelt", keyspac="shop")
    once = writer("skip")

    def skip_first(batch: DataFrame, epoch: int) -> None:
        if epoch:
            once(batch, epoch)

    with (
        pytest.raises(errors.NotDrained, match="no manifest in the log"),
        wal_sink.register(shop.spark),
    ):
        refused(errors.MissingManifest, "Epoch 0 has no manifest in the log", skip_first, "skip")
    twice, wrong, grouped = writer("twice"), writer("wrong number"), writer("grouped")

    def write_twice(batch: DataFrame, epoch: int) -> None:
        twice(batch.where("id % 2 = 0"), epoch)
        twice(batch.where("id % 2 = 1"), epoch)

    def in_a_group(batch: DataFrame, epoch: int) -> None:
        shop.spark.sparkContext.setJobGroup("reports", "jobs of the application")
        batch.count()
        grouped(batch, epoch)

    def wrong_number(batch: DataFrame, _epoch: int) -> None:
        wrong(batch, 7)

    whole = shop.rows.groupBy("key", "id", "text").count().drop("count")
    null_key = shop.rows.repartition(2).selectExpr("IF(id = 3, NULL, key) AS key", "id", "text")
    with wal_sink.register(shop.spark):
        refused(errors.AlreadyPublished, "union", write_twice, "twice")
        refused(errors.OptionError, "with batch 7, while", wrong_number, "wrong number")
        refused(errors.OptionError, "before setJobGroup", in_a_group, "grouped")
        same = "Give both the same location: the query by"
        refused(errors.OptionError, same, writer("one place"), "another place")
        refused(
            errors.OptionError,
            'outputMode("update")',
            writer("complete"),
            "complete",
            "complete",
            whole,
        )
        refused(errors.InvalidRow, "Drop such rows", writer("poison"), "poison", rows=null_key)
        for name, manifests in {"twice": 1, "complete": 0, "poison": 0}.items():
            location = locate(str(shop.folder / name))
            store = location.open_log(location.open_checkpoint().query_id())
            assert len(store.list("manifests/")) == manifests
            assert store.list("segments/") == []
    assert shop.table.ids() == []

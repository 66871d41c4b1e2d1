"""Queries in one session: what a user sees of the sink, beside SIGKILL."""

from __future__ import annotations

import gc
import shutil
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.functions import expr, udf

import wal_sink
from tests.spark.conftest import ROWS_PER_FILE, write_source
from tests.spark.tables import Table, start, stream
from tests.support.waiting import until
from wal_sink.demo.servers.cassandra import EmbeddedCassandra, Node
from wal_sink.wal.location import locate
from wal_sink.wal.states import newest

pytestmark = [pytest.mark.spark, pytest.mark.cassandra]


@pytest.fixture
def table(cassandra: Node, keyspace: str) -> Table:
    return Table(cassandra, keyspace)


def run(
    spark: SparkSession, source: str, table: Table, checkpoint: str, **options: object
) -> wal_sink.Status:
    """Run a query to its end under a handle of its own; return its status after the block."""
    with wal_sink.register(spark):
        start(stream(spark, source), table, checkpoint, **options).awaitTermination()
    return wal_sink.status(checkpoint, wal=str(options["wal.location"]) if options else None)


def files(count: int) -> list[int]:
    """The ids in the first `count` source files."""
    return list(range(count * ROWS_PER_FILE))


def test_leaving_the_block_everything_checkpointed_is_flushed(
    spark: SparkSession, table: Table, checkpoint: str, tmp_path: Path
) -> None:
    """Each row is there once, the log is trimmed, and `status` says so; here with a log of its own place."""
    status = run(
        spark,
        write_source(tmp_path / "source", 3),
        table,
        checkpoint,
        **{"wal.location": tmp_path / "log", "wal.compression": "zstd", "wal.retention": 0},
    )
    assert table.ids() == files(3)
    assert (status.checkpointed, status.published, status.flushed) == (2, 2, 2)
    assert (status.pending_epochs, status.pending_rows, status.safe_to_delete) == (0, 0, True)
    log = locate(checkpoint, str(tmp_path / "log")).open_log(status.query_id)
    state = newest(log)
    assert state is not None
    assert log.backend.list("segments/") == log.backend.list("manifests/") == []
    assert state.targets[0].mark.sums.rows == 3 * ROWS_PER_FILE


def test_await_flushed_waits_for_what_is_checkpointed_when_called(
    spark: SparkSession, table: Table, checkpoint: str, tmp_path: Path
) -> None:
    """By the query, by the handle, and from the checkpoint's location alone."""
    source = write_source(tmp_path / "source", 2)
    with wal_sink.register(spark) as sink:
        query = start(stream(spark, source), table, checkpoint)
        query.awaitTermination()
        flushed = sink.await_flushed(query, timeout=60)
        assert table.ids() == files(2)
        assert flushed.epoch == 1
        again = wal_sink.await_flushed(query, timeout=0)
        assert (again.epoch, again.rows) == (1, 0)
        assert sink.status(query).flushed == 1
    assert wal_sink.await_flushed(checkpoint).epoch == 1
    assert wal_sink.await_flushed(f"file://{checkpoint}").rows == 0


def test_failed_query_is_flushed_to_its_last_checkpoint(
    spark: SparkSession, table: Table, checkpoint: str, tmp_path: Path
) -> None:
    """The query's own exception goes through the block; what it checkpointed arrives."""
    source = write_source(tmp_path / "source", 3)
    rows = stream(spark, source).withColumn(
        "text", expr(f"IF(id = {2 * ROWS_PER_FILE + 7}, raise_error('bad row'), text)")
    )
    with pytest.raises(StreamingQueryException, match="bad row"), wal_sink.register(spark):
        start(rows, table, checkpoint).awaitTermination()
    assert table.ids() == files(2)


def test_garbage_collection_of_a_worker_skips_imported_modules(
    spark: SparkSession, table: Table, checkpoint: str, tmp_path: Path
) -> None:
    """Garbage is collected after each: what was imported in a task's worker is not in it any more."""
    run(spark, write_source(tmp_path / "source", 1), table, checkpoint)
    frozen = udf(lambda _: gc.get_freeze_count(), "long", useArrow=False)
    rows = spark.range(6, numPartitions=6).select(frozen("id")).collect()
    assert max(count for (count,) in rows) > 10_000


def test_query_moves_from_foreach_batch_with_its_checkpoint(
    spark: SparkSession, table: Table, checkpoint: str, tmp_path: Path
) -> None:
    """It goes on at the source's next offset; what `foreachBatch` had written is not written again."""
    source = write_source(tmp_path / "source", 2)
    frozen_counts: list[int] = []
    written = stream(spark, source).writeStream.option("checkpointLocation", checkpoint)
    written = written.foreachBatch(lambda _rows, epoch: frozen_counts.append(epoch))
    written.trigger(availableNow=True).start().awaitTermination()
    add_file(source, 2)
    status = run(spark, source, table, checkpoint)
    assert (frozen_counts, status.flushed) == ([0, 1], 2)
    assert table.ids() == files(3)[2 * ROWS_PER_FILE :]


def test_checkpoint_by_any_name_is_the_same(
    spark: SparkSession, table: Table, tmp_path: Path
) -> None:
    """Blanks, percent signs, umlauts, a trailing slash: Spark and the sink mean one folder."""
    source = write_source(tmp_path / "source", 1)
    checkpoint = str(tmp_path / "odd %20 näme+1")
    for form in ("{0}", "file:{0}", "file://{0}/"):
        assert run(spark, source, table, form.format(checkpoint)).flushed == 0
    assert table.ids() == files(1)


@pytest.mark.timeout(600)
def test_cassandra_may_be_away(spark: SparkSession, tmp_path: Path, checkpoint: str) -> None:
    """Killed in mid-stream, and away until the query that was started again reports it: no query fails.

    The table is complete when it is back, without any action of an operator.
    """
    source = write_source(tmp_path / "source", 4)
    with EmbeddedCassandra() as node, wal_sink.register(spark, drain_timeout=120) as sink:
        node.create_keyspace("shop")
        table = Table(node, "shop")
        first = start(stream(spark, source), table, checkpoint, **{"cassandra.requestTimeout": 2})
        until(lambda: sink.status(first).flushed >= 0)
        node.kill()
        first.awaitTermination()
        assert locate(checkpoint).open_checkpoint().last_commit() == 3
        assert sink.status(first).flushed < 3
        add_file(source, 4)
        again = start(stream(spark, source), table, checkpoint, **{"cassandra.requestTimeout": 2})
        again.awaitTermination()
        assert again.exception() is None
        until(lambda: sink.status(again).last_error is not None)
        node.start()
        assert sink.await_flushed(again, timeout=90).epoch == 4
        assert table.ids() == files(5)
        assert sink.status(again).last_error is None


def add_file(source: str, number: int) -> None:
    """Write one more source file."""
    more = Path(source).parent / f"more-{number}"
    write_source(more, number + 1)
    name = f"{number:04}.parquet"
    shutil.copy(more / name, Path(source) / name)

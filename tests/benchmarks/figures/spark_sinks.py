"""The parts `kafka` and `lakes`: wal_sink and the sinks that people would use instead.

Kafka is compared with Spark's sink; Delta and Iceberg with delta-rs and pyiceberg in `foreachBatch`, which
append a repeated micro-batch twice. The module `jdbc` has the SQL databases.
"""

from __future__ import annotations

from collections.abc import Callable

import deltalake
import numpy as np
from pyspark.sql import DataFrame
from pyspark.sql.streaming.readwriter import DataStreamWriter

from tests.benchmarks.bench import Bench
from tests.benchmarks.contenders.contender import Contender, Store
from tests.benchmarks.contenders.ours import NAME
from tests.benchmarks.figure import Figure, Target, at_least, figure
from tests.benchmarks.figures.rounds import RATE, Round, ratios, rounds
from tests.benchmarks.rows import Source
from tests.benchmarks.table import RowsWrong
from wal_sink.demo.kafka import Broker
from wal_sink.options import parse
from wal_sink.targets.iceberg.catalog import catalog_of
from wal_sink.targets.iceberg.options import IcebergOptions
from wal_sink.targets.iceberg.plan import iceberg_schema

_LIBRARY = "the library in foreachBatch"
_KAFKA = "Spark's Kafka sink"


def sink(options: Callable[[str], dict[str, str]], name: str = NAME) -> Contender:
    """Return wal_sink as a contender, with options for the table or topic of a name."""

    def writer(rows: DataFrame, table: str) -> DataStreamWriter:
        return rows.writeStream.format("wal_sink").options(**options(table))

    return Contender(name, writer, flushes=True)


def _library(append: Callable[[DataFrame, str], None]) -> Contender:
    """Return a library in `foreachBatch` as a contender."""

    def writer(rows: DataFrame, table: str) -> DataStreamWriter:
        return rows.writeStream.foreachBatch(lambda batch, _epoch: append(batch, table))

    return Contender(_LIBRARY, writer)


def _counted(count: Callable[[str], int]) -> Callable[[str, Source], None]:
    """Return a check of the number of rows."""

    def check(table: str, source: Source) -> None:
        if (rows := count(table)) != source.rows:
            raise RowsWrong(f"{table} has {rows} rows, not {source.rows}")

    return check


def lakes(bench: Bench) -> list[Figure]:
    """Compare rows a second and CPU for Delta and Iceberg tables in local files."""
    source = Source(shape="grouped", rows=bench.sizes.scattered)
    schema = source.table(np.arange(0)).schema
    folder = bench.new_folder()
    folder.mkdir()
    options = {
        "iceberg.catalog.type": "sql",
        "iceberg.catalog.uri": f"sqlite:///{folder}/catalog.db",
        "iceberg.catalog.warehouse": f"file://{folder}/warehouse",
    }
    catalog = catalog_of(parse({"table": "shop.t", **options}, IcebergOptions))
    catalog.create_namespace("shop")

    def make_delta() -> str:
        path = str(folder / bench.new_name("delta"))
        deltalake.DeltaTable.create(path, deltalake.Schema.from_arrow(schema))
        return path

    def make_iceberg() -> str:
        name = f"shop.{bench.new_name('t')}"
        catalog.create_table(name, iceberg_schema(schema))
        return name

    delta = rounds(
        bench,
        Store("delta", make_delta, _counted(lambda path: deltalake.DeltaTable(path).count())),
        source,
        [
            sink(lambda path: {"target": "delta", "delta.path": path}),
            _library(
                lambda batch, path: deltalake.write_deltalake(path, batch.toArrow(), mode="append")
            ),
        ],
        bench.sizes.side_rounds,
    )
    iceberg = rounds(
        bench,
        Store(
            "iceberg", make_iceberg, _counted(lambda name: catalog.load_table(name).scan().count())
        ),
        source,
        [
            sink(lambda name: {"target": "iceberg", "table": name, **options}),
            _library(
                lambda batch, name: catalog.load_table(name).append(batch.toArrow().cast(schema))
            ),
        ],
        bench.sizes.side_rounds,
    )
    return [*figures("Delta", delta, _LIBRARY), *figures("Iceberg", iceberg, _LIBRARY)]


def kafka(bench: Bench) -> list[Figure]:
    """Compare rows a second and CPU for Kafka; wal_sink uses transactions, Spark's sink does not."""
    source = Source(shape="grouped", rows=bench.sizes.scattered)
    with Broker() as broker:

        def make() -> str:
            topic = bench.new_name("topic")
            broker.create_topic(topic, 2)
            return topic

        def contender(name: str, **target: str) -> Contender:
            def writer(rows: DataFrame, topic: str) -> DataStreamWriter:
                records = rows.selectExpr("device AS key", "note AS value").writeStream
                options = {"kafka.bootstrap.servers": broker.address, "topic": topic}
                return records.format("wal_sink" if target else "kafka").options(
                    **options, **target
                )

            return Contender(name, writer, flushes=bool(target))

        store = Store(
            "kafka", make, _counted(lambda topic: len(broker.records(topic))), server=broker
        )
        contenders = [contender(NAME, target="kafka"), contender(_KAFKA)]
        result = rounds(bench, store, source, contenders, bench.sizes.side_rounds)
    return figures("Kafka", result, _KAFKA, at_least(0.8))


def figures(
    title: str, result: list[Round], other: str, target: Target | None = None, ours: str = NAME
) -> list[Figure]:
    """Return the figures of wal_sink over another contender."""
    cpu = ratios(result, ours, other, lambda run: run.client_us + run.server_us)
    return [
        figure(f"{title}: rows/s over {other}", ratios(result, ours, other, RATE), "x", target),
        figure(f"{title}: CPU of client and server over {other}", cpu, "x"),
    ]

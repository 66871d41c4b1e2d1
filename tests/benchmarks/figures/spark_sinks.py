"""The parts `kafka` and `lakes`: wal_sink and the sinks that people would use instead.

Kafka is compared with Spark's sink; Delta and Iceberg with delta-rs and pyiceberg in `foreachBatch`, which
append a repeated micro-batch twice. The module `jdbc` has the SQL databases.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from typing import NamedTuple

import deltalake
import numpy as np
from pyspark.sql import DataFrame
from pyspark.sql.streaming.readwriter import DataStreamWriter

from tests.benchmarks import cpu
from tests.benchmarks.bench import Bench
from tests.benchmarks.contenders.job import Stream
from tests.benchmarks.contenders.ours import to_the_last_flush
from tests.benchmarks.figure import Figure, Target, at_least, figure
from tests.benchmarks.figures.rates import Round, ratios
from tests.benchmarks.rows import Source
from tests.benchmarks.run import Run, Taken
from wal_sink.demo.servers.kafka import Broker
from wal_sink.demo.servers.process import Child
from wal_sink.options import parse
from wal_sink.targets.iceberg.options import IcebergOptions
from wal_sink.targets.iceberg.plan import iceberg_schema
from wal_sink.targets.iceberg.table import catalog_of

OURS = "wal_sink"
LIBRARY = "the library in foreachBatch"
KAFKA = "Spark's Kafka sink"


class Way(NamedTuple):
    """A way to stream rows into a new table or topic."""

    name: str
    writer: Callable[[DataFrame, str], DataStreamWriter]
    """Returns a writer of these rows to the table or topic of this name."""


def lakes(bench: Bench) -> list[Figure]:
    """Compare rows a second and CPU for Delta and Iceberg tables in local files."""
    source = Source(shape="grouped", rows=bench.sizes.scattered)
    schema = source.table(np.arange(0)).schema
    folder = bench.new_folder()
    catalog = {
        "iceberg.catalog.type": "sql",
        "iceberg.catalog.uri": f"sqlite:///{folder}/catalog.db",
        "iceberg.catalog.warehouse": f"file://{folder}/warehouse",
    }
    folder.mkdir()

    def identified(name: str) -> IcebergOptions:
        return parse({"table": f"shop.{name}", **catalog}, IcebergOptions)

    opened = catalog_of(identified("t"))
    opened.create_namespace("shop")

    def into_delta(batch: DataFrame, name: str) -> None:
        deltalake.write_deltalake(str(folder / name), batch.toArrow(), mode="append")

    def into_iceberg(batch: DataFrame, name: str) -> None:
        opened.load_table(f"shop.{name}").append(batch.toArrow().cast(schema))

    def library(add: Callable[[DataFrame, str], None]) -> Way:
        return Way(
            LIBRARY,
            lambda rows, name: rows.writeStream.foreachBatch(
                lambda batch, _epoch: add(batch, name)
            ),
        )

    def ours(options: Callable[[str], dict[str, str]]) -> Way:
        return Way(
            OURS, lambda rows, name: rows.writeStream.format("wal_sink").options(**options(name))
        )

    def wrong(count: Callable[[str], int]) -> Callable[[str], str | None]:
        return lambda name: None if count(name) == source.rows else f"{count(name)} rows"

    delta = rounds(
        bench,
        source,
        None,
        "delta",
        [ours(lambda t: {"target": "delta", "delta.path": str(folder / t)}), library(into_delta)],
        lambda t: deltalake.DeltaTable.create(str(folder / t), deltalake.Schema.from_arrow(schema)),
        wrong(lambda t: deltalake.DeltaTable(str(folder / t)).count()),
    )
    iceberg = rounds(
        bench,
        source,
        None,
        "iceberg",
        [
            ours(lambda t: {"target": "iceberg", "table": f"shop.{t}", **catalog}),
            library(into_iceberg),
        ],
        lambda t: opened.create_table(f"shop.{t}", iceberg_schema(schema)),
        wrong(lambda t: opened.load_table(f"shop.{t}").scan().count()),
    )
    return [*figures("Delta", delta, LIBRARY), *figures("Iceberg", iceberg, LIBRARY)]


def kafka(bench: Bench) -> list[Figure]:
    """Compare rows a second and CPU for Kafka; wal_sink uses transactions, Spark's sink does not."""
    source = Source(shape="grouped", rows=bench.sizes.scattered)
    with Broker() as broker:

        def wrong(topic: str) -> str | None:
            result = len(broker.records(topic))
            return None if result == source.rows else f"{result} records, not {source.rows}"

        def writer(sink: str) -> Callable[[DataFrame, str], DataStreamWriter]:
            def write(rows: DataFrame, topic: str) -> DataStreamWriter:
                records = rows.selectExpr("device AS key", "note AS value").writeStream
                options = {"kafka.bootstrap.servers": broker.address, "topic": topic}
                target = {"target": "kafka"} if sink == "wal_sink" else {}
                return records.format(sink).options(**options, **target)

            return write

        ways = [Way(OURS, writer("wal_sink")), Way(KAFKA, writer("kafka"))]
        result = rounds(
            bench, source, broker, "topic", ways, lambda t: broker.create_topic(t, 2), wrong
        )
    return figures("Kafka", result, KAFKA, at_least(0.8))


def rounds(
    bench: Bench,
    source: Source,
    server: Child | None,
    what: str,
    ways: list[Way],
    make: Callable[[str], object],
    wrong: Callable[[str], str | None],
) -> list[Round]:
    """Run the ways in turn, each into a new table or topic; the first round only warms up.

    :param make: makes a table or topic.
    :param wrong: returns a description of wrong rows, or None.
    """
    result = []
    for number in range(-1 if bench.sizes.warm_up else 0, bench.sizes.side_rounds):
        bench.say(f"{what}, round {number + 1} of {bench.sizes.side_rounds}")
        runs = []
        for place, way in enumerate(ways[number % len(ways) :] + ways[: number % len(ways)]):
            name = f"{what}_{number + 1}_{place}"
            make(name)
            run = _run(bench, source, server, way, name, number, what)
            if (problem := wrong(name)) is not None:
                bench.wrong.append(f"{way.name}, {what}: {problem}")
                continue
            bench.say(
                f"  {way.name}: {run.rows_per_s:,.0f} rows/s, CPU {run.client_us:.1f} us a row and"
                f" {run.server_us:.1f} of the server"
            )
            runs.append(run)
        if number >= 0:
            bench.runs += runs
            result.append({run.contender: run for run in runs})
    return result


def _run(
    bench: Bench, source: Source, server: Child | None, way: Way, name: str, number: int, what: str
) -> Run:
    checkpoint = bench.new_folder()
    epochs = bench.sizes.micro_batches
    source.files(epochs)
    job = Stream(bench.spark, source, epochs, checkpoint)
    writer = way.writer(job.rows(), name)
    client, served = _client_s(bench, server), _server_s(server)
    if way.name.startswith(OURS):
        taken = to_the_last_flush(job, writer)
    else:
        job.run(writer)
        taken = Taken(job.committed_s() - job.began_s())
    used = _client_s(bench, server) - client
    shutil.rmtree(checkpoint)
    return Run(
        contender=way.name,
        shape=what,
        rows=source.rows,
        round=number,
        seconds=taken.seconds,
        client_cpu_s=used,
        server_cpu_s=_server_s(server) - served,
        warnings=0,
    )


def _server_s(server: Child | None) -> float:
    return cpu.of_tree(server.pid) if server else 0


def _client_s(bench: Bench, server: Child | None) -> float:
    """Return the CPU seconds of all processes except the servers."""
    servers = _server_s(server) + cpu.of_tree(bench.server.pid)
    return cpu.of_tree(os.getpid()) - servers


def figures(
    name: str, rounds: list[Round], other: str, target: Target | None = None, ours: str = OURS
) -> list[Figure]:
    return [
        figure(
            f"{name}: rows/s over {other}",
            ratios(rounds, ours, other, lambda run: run.rows_per_s),
            "x",
            target,
        ),
        figure(
            f"{name}: CPU of client and server over {other}",
            ratios(rounds, ours, other, lambda run: run.client_us + run.server_us),
            "x",
        ),
    ]

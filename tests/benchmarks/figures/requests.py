"""What a row costs the client by pipelined requests, beside futures of the driver with its own batches.

Both are taken in this process, without the log: encoded, sent and acknowledged over one connection.
"""

from __future__ import annotations

import time

import numpy as np

from tests.benchmarks.bench import Bench
from tests.benchmarks.contenders import ours
from tests.benchmarks.figure import Figure, at_most, figure
from tests.benchmarks.rows import Name, Source
from tests.benchmarks.run import Run, Taken
from tests.benchmarks.table import Table
from wal_sink.model.plan import plan_key
from wal_sink.observer import Observer
from wal_sink.options import parse
from wal_sink.targets.base import RowSlice
from wal_sink.targets.cassandra import CassandraOptions, CassandraTarget
from wal_sink.targets.cassandra.driver.connection import connect
from wal_sink.targets.cassandra.write.writer import Writer

_SLICE = 10_000
PIPELINED = "writer, pipelined requests"
FUTURES = "writer, futures of the driver"


def requests(bench: Bench) -> list[Figure]:
    """Client CPU a row, both ways, of scattered and grouped rows."""
    figures = []
    shapes: dict[Name, int] = {"scattered": bench.sizes.shapes, "grouped": bench.sizes.shapes}
    for shape, rows in shapes.items():
        bench.say(f"pipelined requests, {shape}, {rows:,} rows")
        pairs = [
            (_run(bench, shape, rows, number, PIPELINED), _run(bench, shape, rows, number, FUTURES))
            for number in range(-1, bench.sizes.rounds)
        ]
        both = [(pipelined, futures) for pipelined, futures in pairs[1:] if pipelined and futures]
        what = f"pipelined requests, {shape}: client CPU"
        figures += [
            figure(
                f"{what} a row",
                [pipelined.client_us for pipelined, _ in both],
                "us/row",
                at_most(3) if shape == "scattered" else None,
            ),
            figure(
                f"{what} over the driver's futures",
                [pipelined.client_us / futures.client_us for pipelined, futures in both],
                "x",
                at_most(0.125) if shape == "scattered" else None,
            ),
        ]
    return figures


def _run(bench: Bench, shape: Name, rows: int, number: int, contender: str) -> Run | None:
    source = Source(shape=shape, rows=rows, **_partitions(shape, rows))
    return bench.write(
        contender,
        source,
        number,
        lambda table: _written(source, table, pipelined=contender == PIPELINED),
    )


def _partitions(shape: Name, rows: int) -> dict[str, int]:
    return {"partitions": rows} if shape == "scattered" else {}


def _written(source: Source, table: Table, *, pipelined: bool) -> Taken:
    options = parse(ours.options(table), CassandraOptions)
    target = CassandraTarget(options)
    slices = source.table(np.arange(source.rows)).combine_chunks().to_batches(_SLICE)
    schema = slices[0].schema
    plan = target.plan(schema, plan_key(schema, target.name, target.shape))
    checked = [target.check(batch, plan) for batch in slices]
    first_us = time.time_ns() // 1_000
    with connect(options) as connection:
        writer = Writer(connection, options, Observer())
        if not pipelined:
            writer._sender._in_flight._pipelined = None
        used, began = time.process_time(), time.perf_counter()
        for number, batch in enumerate(checked):
            writer.write(plan, RowSlice(0, batch, first_us + number * _SLICE))
        writer.drain()
        return Taken(time.perf_counter() - began, time.process_time() - used)

"""The parts about the flush alone: the cost of a row, and the cost of many small epochs."""

from __future__ import annotations

import shutil
from collections.abc import Callable

from tests.benchmarks import backlog
from tests.benchmarks.bench import Bench
from tests.benchmarks.contenders import ours
from tests.benchmarks.figure import Figure, at_most, figure
from tests.benchmarks.figures.rounds import smaller
from tests.benchmarks.flush import flush
from tests.benchmarks.rows import Source
from tests.benchmarks.run import Run, Taken
from tests.benchmarks.sizes import PARTITIONS
from tests.benchmarks.table import Table, cassandra

NAME = "wal_sink, flush alone"


def alone(bench: Bench) -> list[Figure]:
    """Measure the cost of a row in the flush, grouped and scattered."""
    rows = bench.sizes.scattered
    sources = (
        Source(shape="grouped", rows=bench.sizes.grouped),
        Source(shape="scattered", rows=rows, partitions=rows),
    )
    return [_row_of(bench, source) for source in sources]


def _row_of(bench: Bench, source: Source) -> Figure:
    bench.say(f"flush alone, {source.shape}, {source.rows:,} rows")
    epochs = bench.sizes.micro_batches
    if bench.sizes.warm_up:
        flushed(bench, smaller(source, bench.sizes.warm_up), epochs, -1)
    runs = [flushed(bench, source, epochs, number) for number in range(bench.sizes.rounds)]
    spent = [run.client_us for run in runs if run is not None]
    return figure(f"flush alone, {source.shape}: client CPU", spent, "us/row", at_most(5))


def pending(bench: Bench) -> list[Figure]:
    """Compare the flush of many small epochs with the flush of one large epoch."""
    epochs, rows = bench.sizes.pending
    source = _of_size(bench, epochs * rows)
    bench.say(f"backlog of {epochs:,} epochs of {rows:,} rows")
    numbers = range(bench.sizes.side_rounds)
    pairs = [[flushed(bench, source, n, number) for n in (1, epochs)] for number in numbers]
    time = [many.seconds / one.seconds for one, many in pairs if one and many]
    cpu = [many.client_us / one.client_us for one, many in pairs if one and many]
    epochs_compared = f"{epochs:,} epochs of {rows:,} over one of as many rows"
    return [
        figure(f"pending: client CPU, {epochs_compared}", cpu, "x", at_most(1.5)),
        figure(f"pending: time, {epochs_compared}", time, "x", at_most(2)),
    ]


def flushed(bench: Bench, source: Source, epochs: int, number: int) -> Run | None:
    """Make a backlog and flush it."""
    folder = bench.new_folder()

    def prepare(table: Table) -> Callable[[], Taken]:
        pending = backlog.make(folder, ours.options(table), source, epochs)
        return lambda: flush(pending)

    name = NAME if epochs == bench.sizes.micro_batches else f"{NAME}, epochs: {epochs:,}"
    run = bench.measure(name, cassandra(bench.server, source), source, number, prepare)
    shutil.rmtree(folder, ignore_errors=True)
    return run


def _of_size(bench: Bench, rows: int) -> Source:
    """Return a source whose partitions are as large as those of the grouped run."""
    rows_each = max(1, bench.sizes.grouped // PARTITIONS)
    return Source(shape="grouped", rows=rows, partitions=max(1, rows // rows_each))

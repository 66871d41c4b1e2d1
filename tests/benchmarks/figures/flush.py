"""The flush alone: beside the server's limit, over sizes, and over many small epochs."""

from __future__ import annotations

import shutil

from tests.benchmarks import backlog
from tests.benchmarks.bench import Bench
from tests.benchmarks.contenders import ours, raw
from tests.benchmarks.figure import Figure, Target, at_least, at_most, figure
from tests.benchmarks.figures.rates import at_limit, limit, ratios, smaller
from tests.benchmarks.flush import flush
from tests.benchmarks.rows import Source
from tests.benchmarks.run import Run, Taken
from tests.benchmarks.sizes import PARTITIONS
from tests.benchmarks.table import Table

NAME = "wal_sink, flush alone"


def alone(bench: Bench) -> list[Figure]:
    """How much of what the server can take the flush uses, and what it costs, grouped and scattered."""
    grouped = Source(shape="grouped", rows=bench.sizes.grouped)
    rows = bench.sizes.scattered
    scattered = Source(shape="scattered", rows=rows, partitions=rows)
    return [*_beside_limit(bench, grouped, at_most(5)), *_beside_limit(bench, scattered)]


def _beside_limit(bench: Bench, source: Source, most_us: Target | None = None) -> list[Figure]:
    bench.say(f"flush alone, {source.shape}, {source.rows:,} rows")
    best = limit(bench, source)
    result, epochs = [], bench.sizes.micro_batches
    if bench.sizes.warm_up:
        flushed(bench, smaller(source, bench.sizes.warm_up), epochs, -1)
    for number in range(bench.sizes.rounds):
        runs = [flushed(bench, source, epochs, number), at_limit(bench, source, best, number)]
        result.append({run.contender: run for run in runs if run is not None})
    return [
        figure(
            f"flush alone, {source.shape}: rows/s over the server's limit",
            ratios(result, NAME, raw.NAME, lambda run: run.rows_per_s),
            "x",
            at_least(0.9),
            "; ".join(f"{run.contender}: {_sum(run)}" for run in result[-1].values()),
        ),
        figure(
            f"flush alone, {source.shape}: client CPU",
            [item[NAME].client_us for item in result if NAME in item],
            "us/row",
            most_us,
        ),
    ]


def _sum(run: Run) -> str:
    both = run.client_us + run.server_us
    return f"client {run.client_us:.1f} + server {run.server_us:.1f} = {both:.1f} us of CPU a row"


def pending(bench: Bench) -> list[Figure]:
    """Return True if many small epochs that wait cost much more than one large one."""
    epochs, rows = bench.sizes.pending
    source = _of_size(bench, epochs * rows)
    bench.say(f"backlog of {epochs:,} epochs of {rows:,} rows")
    numbers = range(bench.sizes.side_rounds)
    pairs = [[flushed(bench, source, n, number) for n in (1, epochs)] for number in numbers]
    time = [many.seconds / one.seconds for one, many in pairs if one and many]
    what = f"{epochs:,} epochs of {rows:,} over one of as many rows"
    return [
        figure(
            f"pending: client CPU, {what}",
            _growth(pairs),
            "x",
            at_most(1.5),
            _excess(pairs, epochs),
        ),
        figure(f"pending: time, {what}", time, "x", at_most(2)),
    ]


def flushed(bench: Bench, source: Source, epochs: int, number: int) -> Run | None:
    """Make a backlog and flush it."""
    folder = bench.new_folder()

    def what(table: Table) -> Taken:
        return flush(backlog.make(folder, ours.options(table), source, epochs))

    name = NAME if epochs == bench.sizes.micro_batches else f"{NAME}, epochs: {epochs:,}"
    run = bench.write(name, source, number, what)
    shutil.rmtree(folder, ignore_errors=True)
    return run


def _of_size(bench: Bench, rows: int) -> Source:
    """Return rows in partitions as large as those of the grouped run."""
    item = max(1, bench.sizes.grouped // PARTITIONS)
    return Source(shape="grouped", rows=rows, partitions=max(1, rows // item))


def _excess(pairs: list[list[Run | None]], epochs: int) -> str:
    """Say what an epoch costs beside its rows, in the last round."""
    one, many = pairs[-1]
    if not one or not many:
        return ""
    return (
        f"rows {1e3 * one.client_cpu_s / epochs:.2f} + epoch"
        f" {1e3 * (many.client_cpu_s - one.client_cpu_s) / epochs:.2f} ="
        f" {1e3 * many.client_cpu_s / epochs:.2f} ms of client CPU for each of {epochs:,};"
        f" of the server {1e3 * many.server_cpu_s / epochs:.2f}, for one large epoch"
        f" {1e3 * one.server_cpu_s / epochs:.2f}"
    )


def _growth(pairs: list[list[Run | None]]) -> list[float]:
    return [large.client_us / small.client_us for small, large in pairs if small and large]

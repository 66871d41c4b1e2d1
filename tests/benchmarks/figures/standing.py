"""What a target that stands still costs the other one: epochs that wait in the log, and tries."""

from __future__ import annotations

import shutil

from tests.benchmarks import backlog
from tests.benchmarks.bench import Bench
from tests.benchmarks.contenders import ours, standing
from tests.benchmarks.figure import Figure, at_most, figure
from tests.benchmarks.flush import flush
from tests.benchmarks.rows import Source
from tests.benchmarks.run import Run, Taken
from tests.benchmarks.sizes import PARTITIONS
from tests.benchmarks.table import Table

ALONE = "wal_sink, flush alone, the only target"
BESIDE = "wal_sink, flush alone, another target stands still"


def standing_still(bench: Bench) -> list[Figure]:
    """Whether one of two targets is flushed as fast when the other one takes nothing."""
    epochs, rows = bench.sizes.pending
    source = Source(
        shape="grouped", rows=epochs * rows, partitions=max(1, PARTITIONS * rows // 1_000)
    )
    bench.say(f"two targets, {epochs:,} epochs of {rows:,} rows")
    pairs = [
        [_flushed(bench, name, source, epochs, number) for name in (ALONE, BESIDE)]
        for number in range(bench.sizes.side_rounds)
    ]
    both = [(alone, beside) for alone, beside in pairs if alone and beside]
    time = [beside.seconds / alone.seconds for alone, beside in both]
    cpu = [beside.client_us / alone.client_us for alone, beside in both]
    return [
        figure("two targets, one stands still: time of the other", time, "x", at_most(1.05)),
        figure("two targets, one stands still: client CPU", cpu, "x"),
    ]


def _flushed(bench: Bench, name: str, source: Source, epochs: int, number: int) -> Run | None:
    """Make a backlog for one target or two, and flush it to the first."""
    folder = bench.new_folder()

    def what(table: Table) -> Taken:
        options = {"targets": "one"} | _named("one", {"target": "cassandra"} | ours.options(table))
        if name == BESIDE:
            away = {"target": standing.NAME} | ours.options(Table(bench.server, source.columns))
            options |= {"targets": "one,away"} | _named("away", away)
        return flush(backlog.make(folder, options, source, epochs))

    run = bench.write(name, source, number, what)
    shutil.rmtree(folder, ignore_errors=True)
    return run


def _named(name: str, options: dict[str, str]) -> dict[str, str]:
    return {f"{name}.{option}": value for option, value in options.items()}

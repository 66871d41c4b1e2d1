"""Rows a second from grouped to scattered rows: how many partitions a micro-batch has."""

from __future__ import annotations

from tests.benchmarks.bench import Bench
from tests.benchmarks.contenders.connector import DEFAULTS, TUNED
from tests.benchmarks.contenders.ours import Ours
from tests.benchmarks.figure import Figure, figure
from tests.benchmarks.figures.rates import ratios
from tests.benchmarks.rows import Source

_ROWS_OF_EACH = (1_000, 100, 10, 3, 1)
"""Rows of a partition in a micro-batch."""


def partitions(bench: Bench) -> list[Figure]:
    """Let ours and both connectors take turns; rows of different partitions take turns, too."""
    rows, within = bench.sizes.shapes, bench.sizes.shapes // bench.sizes.micro_batches
    contenders = [each for each in (Ours(), DEFAULTS, TUNED) if bench.can(each)]
    figures = []
    for count in (max(1, within // each) for each in _ROWS_OF_EACH):
        bench.say(f"partitions: {count:,} in each micro-batch of {within:,} rows")
        source = Source(shape="interleaved", rows=rows, partitions=count)
        rounds = []
        for number in range(bench.sizes.side_rounds):
            runs = [bench.stream(each, source, number) for each in contenders]
            rounds.append({run.contender: run for run in runs if run is not None})
        for other in (DEFAULTS, TUNED):
            values = ratios(rounds, Ours.name, other.name, lambda run: run.rows_per_s)
            name = f"partitions: {count:,} a micro-batch, rows/s over {other.name}"
            figures.append(figure(name, values, "x"))
    return figures

"""Rows a second from grouped to scattered rows: how many partitions a micro-batch has."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.benchmarks import drawing
from tests.benchmarks.bench import Bench
from tests.benchmarks.contenders.connector import DEFAULTS, TUNED
from tests.benchmarks.contenders.ours import Ours
from tests.benchmarks.figure import Figure, figure
from tests.benchmarks.figures.rates import Round, ratios
from tests.benchmarks.rows import Source

_ROWS_OF_EACH = (1_000, 100, 10, 3, 1)
"""Rows of a partition in a micro-batch."""


def partitions(bench: Bench) -> list[Figure]:
    """Let ours and both connectors take turns; rows of different partitions take turns, too."""
    rows, within = bench.sizes.shapes, bench.sizes.shapes // bench.sizes.micro_batches
    contenders = [each for each in (Ours(), DEFAULTS, TUNED) if bench.can(each)]
    found: dict[int, list[Round]] = {}
    for count in (max(1, within // each) for each in _ROWS_OF_EACH):
        bench.say(f"partitions: {count:,} in each micro-batch of {within:,} rows")
        source = Source(shape="interleaved", rows=rows, partitions=count)
        found[count] = []
        for number in range(bench.sizes.side_rounds):
            runs = [bench.stream(each, source, number) for each in contenders]
            found[count].append({run.contender: run for run in runs if run is not None})
    bench.plotted.append(bench.plots / "partitions.svg")
    drawn = [each.name for each in contenders]
    what = f"{rows:,} rows in {bench.sizes.micro_batches} micro-batches"
    draw(bench.plotted[-1], found, drawn, what, f"partitions in a micro-batch of {within:,} rows")
    return [
        figure(
            f"partitions: {count:,} a micro-batch, rows/s over {other.name}",
            ratios(rounds, Ours.name, other.name, lambda run: run.rows_per_s),
            "x",
        )
        for count, rounds in found.items()
        for other in contenders[1:]
    ]


def draw(
    path: Path, found: Mapping[int, Sequence[Round]], contenders: Sequence[str], what: str, by: str
) -> None:
    """Draw the rows a second of each contender over the partitions of a micro-batch."""
    picture, (axes,) = drawing.grid(1, 1, (8, 5))
    across = sorted(found)
    for name in contenders:
        rates = [[each[name].rows_per_s for each in found[count]] for count in across]
        drawing.curve(axes, name, across, [statistics.median(each) for each in rates], "o")
        drawing.spread(axes, across, rates)
    drawing.logarithmic(axes, across)
    title = f"rows a second, end to end: {what}\nmedian, lowest and highest round"
    drawing.label(axes, title, by, "rows a second")
    drawing.legend(axes)
    drawing.save(picture, path)

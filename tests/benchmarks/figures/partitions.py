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
    contenders = [item for item in (Ours(), DEFAULTS, TUNED) if bench.can(item)]
    result: dict[int, list[Round]] = {}
    for count in (max(1, within // item) for item in _ROWS_OF_EACH):
        bench.say(f"partitions: {count:,} in each micro-batch of {within:,} rows")
        source = Source(shape="interleaved", rows=rows, partitions=count)
        result[count] = []
        for number in range(bench.sizes.side_rounds):
            runs = [bench.stream(contender, source, number) for contender in contenders]
            result[count].append({run.contender: run for run in runs if run is not None})
    bench.plotted.append(bench.plots / "partitions.svg")
    drawn = [contender.name for contender in contenders]
    what = f"{rows:,} rows in {bench.sizes.micro_batches} micro-batches"
    draw(bench.plotted[-1], result, drawn, what, f"partitions in a micro-batch of {within:,} rows")
    return [
        figure(
            f"partitions: {count:,} a micro-batch, rows/s over {other.name}",
            ratios(rounds, Ours.name, other.name, lambda run: run.rows_per_s),
            "x",
        )
        for count, rounds in result.items()
        for other in contenders[1:]
    ]


def draw(
    path: Path, result: Mapping[int, Sequence[Round]], contenders: Sequence[str], what: str, by: str
) -> None:
    """Draw the rows a second of each contender over the partitions of a micro-batch."""
    picture, (axes,) = drawing.grid(1, 1, (8, 5))
    across = sorted(result)
    for name in contenders:
        rates = [[item[name].rows_per_s for item in result[count]] for count in across]
        drawing.curve(axes, name, across, [statistics.median(rate) for rate in rates], "o")
        drawing.spread(axes, across, rates)
    drawing.logarithmic(axes, across)
    title = f"rows a second, end to end: {what}\nmedian, lowest and highest round"
    drawing.label(axes, title, by, "rows a second")
    drawing.legend(axes)
    drawing.save(picture, path)

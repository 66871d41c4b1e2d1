"""Rows a second and CPU of several contenders, in rounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tests.benchmarks.bench import Bench
from tests.benchmarks.contenders.job import Contender
from tests.benchmarks.rows import Source
from tests.benchmarks.run import Run

Round = dict[str, Run]
"""The runs of one round, by contender."""


def rounds(
    bench: Bench,
    source: Source,
    contenders: Sequence[Contender],
    count: int,
) -> list[Round]:
    """Run the contenders in turn, in several rounds."""
    bench.say(f"{source.shape}, {source.rows:,} rows")
    turns = [contender for contender in contenders if bench.can(contender)]
    if bench.sizes.warm_up:
        for contender in turns:
            bench.stream(contender, smaller(source, bench.sizes.warm_up), -1)
    result: list[Round] = []
    for number in range(count):
        bench.say(f" round {number + 1} of {count}")
        first = number % len(turns)
        order = [*turns[first:], *turns[:first]]
        runs = [bench.stream(contender, source, number) for contender in order]
        result.append({run.contender: run for run in runs if run is not None})
    return result


def smaller(source: Source, rows: int) -> Source:
    """Return a source with fewer rows and partitions of the same size."""
    rows = min(rows, source.rows)
    partitions = max(1, source.partitions * rows // source.rows)
    return Source(shape=source.shape, rows=rows, partitions=partitions)


def ratios(
    result: Sequence[Round], one: str, other: str, what: Callable[[Run], float]
) -> list[float]:
    """Return the figure of `one` divided by that of `other`, for each round that has both."""
    return [what(item[one]) / what(item[other]) for item in result if one in item and other in item]

"""Rows a second and CPU of all contenders on one shape, in rounds that take turns."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence

from tests.benchmarks.bench import Bench
from tests.benchmarks.contenders import raw
from tests.benchmarks.contenders.job import Contender
from tests.benchmarks.rows import Source
from tests.benchmarks.run import Run

Round = dict[str, Run]
"""Runs of one round, by contender."""


def rounds(
    bench: Bench,
    source: Source,
    contenders: Sequence[Contender],
    count: int,
    *,
    slow: Sequence[Contender] = (),
) -> list[Round]:
    """Let the contenders take turns, and the server's limit with them.

    :param slow: get fewer rows.
    """
    bench.say(f"{source.shape}, {source.rows:,} rows")
    best = limit(bench, source)
    plan: list[tuple[Contender, Source]] = [(contender, source) for contender in contenders]
    plan += [(item, smaller(source, bench.sizes.grouped_slow)) for item in slow]
    plan = [(entry, rows) for entry, rows in plan if bench.can(entry)]
    if bench.sizes.warm_up:
        for entry, rows in plan:
            bench.stream(entry, smaller(rows, bench.sizes.warm_up), -1)
    result: list[Round] = []
    for number in range(count):
        bench.say(f" round {number + 1} of {count}")
        runs = [bench.stream(entry, rows, number) for entry, rows in plan[number % len(plan) :]]
        runs += [bench.stream(entry, rows, number) for entry, rows in plan[: number % len(plan)]]
        runs.append(at_limit(bench, source, best, number))
        result.append({run.contender: run for run in runs if run is not None})
    return result


def limit(bench: Bench, source: Source) -> raw.Setting:
    """Find the setting with which the server takes most rows a second; once for each shape."""
    if source.shape in bench.limits:
        return bench.limits[source.shape]
    few = smaller(source, bench.sizes.sweep)
    tried: dict[raw.Setting, float] = {}
    for setting in raw.settings(source)[: bench.sizes.settings]:
        run = at_limit(bench, few, setting, -1)
        if run is not None:  # otherwise it was too much for the server
            tried[setting] = run.rows_per_s
    if not tried:
        raise RuntimeError("the server took no rows at all at its limit")
    bench.limits[source.shape] = max(tried.items(), key=operator.itemgetter(1))[0]
    bench.say(f" {raw.NAME}: {bench.limits[source.shape]}, the best of {len(tried)} settings")
    return bench.limits[source.shape]


def at_limit(bench: Bench, source: Source, setting: raw.Setting, number: int) -> Run | None:
    """Send a source as fast as the server takes it."""
    return bench.write(raw.NAME, source, number, lambda table: raw.run(source, table, setting))


def smaller(source: Source, rows: int) -> Source:
    """Return fewer rows with partitions of the same size."""
    rows = min(rows, source.rows)
    partitions = max(1, source.partitions * rows // source.rows)
    return Source(shape=source.shape, rows=rows, partitions=partitions)


def ratios(
    result: Sequence[Round], one: str, other: str, what: Callable[[Run], float]
) -> list[float]:
    """Return `one` over `other` in each round that has both."""
    return [what(item[one]) / what(item[other]) for item in result if one in item and other in item]

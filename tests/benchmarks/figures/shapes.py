"""The parts `grouped` and `scattered`: wal_sink and the connector."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import attrgetter

from tests.benchmarks.bench import Bench
from tests.benchmarks.contenders.connector import DEFAULTS, TUNED
from tests.benchmarks.contenders.counting import Counting
from tests.benchmarks.contenders.ours import Ours
from tests.benchmarks.figure import Figure, at_least, at_most, figure
from tests.benchmarks.figures.rates import ratios, rounds
from tests.benchmarks.rows import Source
from tests.benchmarks.run import Run

_RATE, _CLIENT, _SERVER = map(attrgetter, ("rows_per_s", "client_us", "server_us"))


def grouped(bench: Bench) -> list[Figure]:
    """Compare rows whose partitions have many rows in sequence."""
    source = Source(shape="grouped", rows=bench.sizes.grouped)
    contenders = (Ours(), DEFAULTS, Counting())
    result = rounds(bench, source, contenders, bench.sizes.rounds)
    ours, others = Ours.name, DEFAULTS.name
    return [
        figure(
            f"grouped: rows/s over {others}", ratios(result, ours, others, _RATE), "x", at_least(3)
        ),
        figure(
            f"grouped: client CPU over {others}",
            ratios(result, ours, others, _CLIENT),
            "x",
            at_most(0.33),
        ),
        figure(
            f"grouped: server CPU over {others}",
            ratios(result, ours, others, _SERVER),
            "x",
            at_most(1),
        ),
        figure(
            "grouped: rows/s over a sink that only counts",
            ratios(result, ours, Counting.name, _RATE),
            "x",
        ),
    ]


def scattered(bench: Bench) -> list[Figure]:
    """Compare rows that have a partition each."""
    rows = bench.sizes.scattered
    source = Source(shape="scattered", rows=rows, partitions=rows)
    contenders = (Ours(), DEFAULTS, TUNED, Counting())
    result = rounds(bench, source, contenders, bench.sizes.rounds)
    both = [item for item in result if DEFAULTS.name in item and TUNED.name in item]

    def beside(what: Callable[[Run], float]) -> Iterator[tuple[float, ...]]:
        over = [ratios(both, Ours.name, other.name, what) for other in (DEFAULTS, TUNED)]
        return zip(*over, strict=True)

    return [
        figure(
            "scattered: rows/s over the better connector",
            [min(pair) for pair in beside(_RATE)],
            "x",
            at_least(1.5),
        ),
        figure(
            "scattered: client CPU over the better connector",
            [max(pair) for pair in beside(_CLIENT)],
            "x",
            at_most(0.33),
            "over the one with less client CPU in each round",
        ),
    ]

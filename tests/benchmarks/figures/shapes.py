"""The parts `grouped` and `scattered`: wal_sink and the connector."""

from __future__ import annotations

from tests.benchmarks.bench import Bench
from tests.benchmarks.contenders.connector import DEFAULTS, TUNED
from tests.benchmarks.contenders.contender import Contender
from tests.benchmarks.contenders.counting import COUNTING
from tests.benchmarks.contenders.ours import OURS
from tests.benchmarks.figure import Figure, at_least, at_most, figure
from tests.benchmarks.figures.rounds import CLIENT, RATE, SERVER, Round, ratios, rounds
from tests.benchmarks.rows import Source
from tests.benchmarks.table import cassandra


def grouped(bench: Bench) -> list[Figure]:
    """Compare rows whose partitions have many rows in sequence."""
    source = Source(shape="grouped", rows=bench.sizes.grouped)
    result = _rounds(bench, source, [DEFAULTS])
    return [
        figure(
            f"grouped: {name} over {DEFAULTS.name}",
            ratios(result, OURS.name, DEFAULTS.name, value),
            "x",
            target,
        )
        for name, value, target in (
            ("rows/s", RATE, at_least(3)),
            ("client CPU", CLIENT, at_most(0.33)),
            ("server CPU", SERVER, at_most(1)),
        )
    ]


def scattered(bench: Bench) -> list[Figure]:
    """Compare rows that have a partition each with the better connector of each round."""
    rows = bench.sizes.scattered
    source = Source(shape="scattered", rows=rows, partitions=rows)
    result = _rounds(bench, source, [DEFAULTS, TUNED])
    rates, clients = (
        [ratios(result, OURS.name, other.name, value) for other in (DEFAULTS, TUNED)]
        for value in (RATE, CLIENT)
    )
    return [
        figure(
            "scattered: rows/s over the better connector", [*map(min, *rates)], "x", at_least(1.5)
        ),
        figure(
            "scattered: client CPU over the better connector",
            [*map(max, *clients)],
            "x",
            at_most(0.33),
        ),
    ]


def _rounds(bench: Bench, source: Source, connectors: list[Contender]) -> list[Round]:
    store = cassandra(bench.server, source)
    return rounds(bench, store, source, [OURS, *connectors, COUNTING], bench.sizes.rounds)

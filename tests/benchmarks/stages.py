"""Whose CPU a row takes, from Spark's hand-over to the server: what the parts have measured, added up."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from tests.benchmarks.contenders import raw
from tests.benchmarks.contenders.connector import DEFAULTS, TUNED
from tests.benchmarks.contenders.counting import Counting
from tests.benchmarks.contenders.ours import Ours
from tests.benchmarks.figures import flush
from tests.benchmarks.run import Run

HAND_OVER, LOG, FLUSH, CLIENT, SERVER = (
    "Spark's hand-over",
    "log",
    "flush",
    "client, not split",
    "server",
)
STAGES = (HAND_OVER, LOG, FLUSH, CLIENT, SERVER)

_CONNECTORS = (DEFAULTS.name, TUNED.name)


class Split(NamedTuple):
    """One contender's microseconds of CPU a row of one shape."""

    shape: str
    contender: str
    us: dict[str, float]
    """By stage; a contender has those of `STAGES` that were told apart."""

    @property
    def total(self) -> float:
        """Microseconds of client and server together."""
        return sum(self.us.values())

    def __str__(self) -> str:
        parts = " + ".join(f"{stage} {us:.1f}" for stage, us in self.us.items())
        return f"{parts} = {self.total:.1f} us"


class Costs(NamedTuple):
    """What a row of one shape takes."""

    ours: Split
    connectors: Sequence[Split]
    limit_us: float | None
    """The server's CPU at its limit, if that was measured."""


def costs(runs: Iterable[Run]) -> list[Costs]:
    """Add up, for each shape of which the sink that only counts and ours had the same rows.

    What a sink pays that only counts is Spark's hand-over, and what the flush alone takes is the flush's; of
    our CPU, what is left is the log's: segments, manifests, and the handling of a few more epochs.
    """
    found: dict[tuple[str, int], dict[str, list[Run]]] = {}
    for run in runs:
        found.setdefault((run.shape, run.rows), {}).setdefault(run.contender, []).append(run)
    return [
        _costs(shape, by_contender)
        for (shape, _), by_contender in found.items()
        if {Ours.name, Counting.name} <= by_contender.keys()
    ]


def said(cost: Costs) -> list[str]:
    """Say the sums in words, and what is the most that they allow on processors that all of them share."""
    lines = [f"{each.shape}, {each.contender}: {each}" for each in (cost.ours, *cost.connectors)]
    if cost.limit_us is None or not cost.connectors:
        return lines
    arrow_batching = cost.ours.us[HAND_OVER]
    least = arrow_batching + cost.limit_us
    cheapest = min(cost.connectors, key=lambda each: each.total)
    client = min(each.us[CLIENT] for each in cost.connectors)
    bound = (
        f"{cost.ours.shape}: the hand-over, and the server at its limit ({cost.limit_us:.1f}), are"
        f" {least:.1f} us: at most {cheapest.total / least:.2f} times the rows/s of {cheapest.contender}"
        " where client and server share the processors, and at least"
        f" {arrow_batching / client:.2f} of a connector's client CPU"
    )
    return [*lines, bound]


def _costs(shape: str, runs: dict[str, list[Run]]) -> Costs:
    def of(contender: str, what: Callable[[Run], float]) -> float:
        return statistics.median(what(run) for run in runs[contender])

    client = of(Ours.name, _client)
    us = {HAND_OVER: min(client, of(Counting.name, _client))}
    left = client - us[HAND_OVER]
    if flush.NAME in runs:
        us[LOG] = max(0.0, left - of(flush.NAME, _client))
        us[FLUSH] = left - us[LOG]
    else:
        us[CLIENT] = left
    us[SERVER] = of(Ours.name, _server)
    return Costs(
        Split(shape, Ours.name, us),
        [
            Split(shape, each, {CLIENT: of(each, _client), SERVER: of(each, _server)})
            for each in _CONNECTORS
            if each in runs
        ],
        of(raw.NAME, _server) if raw.NAME in runs else None,
    )


def _client(run: Run) -> float:
    return run.client_us


def _server(run: Run) -> float:
    return run.server_us

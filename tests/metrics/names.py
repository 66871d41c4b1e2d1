"""The names of all series, from what is exposed; and those that a PromQL expression mentions."""

from __future__ import annotations

import re

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from tests.metrics.watched import Watched, new_world

TIMES = "_created"
"""When a counter was made: prometheus_client adds it, and no dashboard needs it."""


def exposed() -> set[str]:
    """Names of series as Prometheus stores them, of a query that has flushed something."""
    world = new_world()
    world.run().batch([("a", 1)])
    it = Watched(world)
    it.flush()
    text = generate_latest(it.metrics.registry).decode()
    world.forget()
    samples = [s.name for family in text_string_to_metric_families(text) for s in family.samples]
    return {name for name in samples if not name.endswith(TIMES)}


def base(name: str) -> str:
    """The metric that a series belongs to."""
    return re.sub(r"_(bucket|sum|count)$", "", name)


def mentioned(expression: str) -> set[str]:
    """Return the names in an expression."""
    return set(re.findall(r"wal_sink_\w+", expression))

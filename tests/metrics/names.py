"""The names of the exposed series, and the names in a PromQL expression."""

from __future__ import annotations

import re

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from tests.metrics.watched import Watched, new_world

TIMES = "_created"
"""Suffix of the time at which a counter was made. prometheus_client adds it; no dashboard needs it."""


def exposed() -> set[str]:
    """Return the names of the series of a query that has flushed something."""
    world = new_world()
    world.run().batch([("a", 1)])
    watched = Watched(world)
    watched.flush()
    text = generate_latest(watched.metrics.registry).decode()
    world.forget()
    samples = [s.name for family in text_string_to_metric_families(text) for s in family.samples]
    return {name for name in samples if not name.endswith(TIMES)}


def base(name: str) -> str:
    """Return the metric that a series belongs to."""
    return re.sub(r"_(bucket|sum|count)$", "", name)


def mentioned(expression: str) -> set[str]:
    """Return the names of metrics in an expression."""
    return set(re.findall(r"wal_sink_\w+", expression))

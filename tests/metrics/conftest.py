"""The fixture that finds Prometheus, and a query to count."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.metrics.server import promtool  # noqa: F401 - a fixture
from tests.metrics.watched import new_world
from tests.protocol.engine import World


@pytest.fixture
def world() -> Iterator[World]:
    """Return a new query, in memory."""
    world = new_world()
    yield world
    world.forget()

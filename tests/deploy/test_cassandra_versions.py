"""The contracts of the Cassandra target with older servers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import pytest

# The imported tests use the fixture `cassandra` of this module.
from tests.cassandra.test_target_contract import (  # noqa: F401
    TestCassandra,
    TestCassandraDeletes,
    TestCassandraUpdates,
    keyspace,
)
from tests.cassandra.test_target_outage import test_node_restart_keeps_whole_windows  # noqa: F401
from wal_sink.demo.cassandra import EmbeddedCassandra, Node

pytestmark = [pytest.mark.test_all, pytest.mark.cassandra, pytest.mark.timeout(600)]


class OlderCassandra(EmbeddedCassandra):
    """A node of an older version, with the settings of that version."""

    def __init__(self, version: str) -> None:
        super().__init__(version=version)
        if version.startswith("4.0."):
            self._settings = in_4_0(self._settings)


def in_4_0(settings: Mapping[str, object]) -> dict[str, object]:
    """Return settings for Cassandra 4.0, where the name of a duration ends with its unit, as in `_in_ms`."""
    settings_in_4_0: dict[str, object] = {}
    for name, value in settings.items():
        duration = re.fullmatch(r"(\d+)(ms|s)", str(value))
        if duration:
            milliseconds = int(duration[1]) * (1 if duration[2] == "ms" else 1_000)
            settings_in_4_0[f"{name}_in_ms"] = milliseconds
        else:
            settings_in_4_0[name] = value
    return settings_in_4_0


@pytest.fixture(scope="module", params=["4.0.18", "4.1.10"])
def cassandra(request: pytest.FixtureRequest) -> Iterator[Node]:
    """Start a node of each version."""
    with OlderCassandra(request.param) as node:
        yield node


@pytest.fixture
def node(cassandra: Node) -> Node:
    """Return the node of the module. Only the last test restarts it."""
    cassandra.create_keyspace("ks")
    return cassandra

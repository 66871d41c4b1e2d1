"""The contracts of the Cassandra target with older servers."""

from __future__ import annotations

from collections.abc import Iterator

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


@pytest.fixture(scope="module", params=["4.0.18", "4.1.10"])
def cassandra(request: pytest.FixtureRequest) -> Iterator[Node]:
    """Start a node of each version."""
    with EmbeddedCassandra(version=request.param) as node:
        yield node


@pytest.fixture
def node(cassandra: Node) -> Node:
    """Return the node of the module. Only the last test restarts it."""
    cassandra.create_keyspace("ks")
    return cassandra

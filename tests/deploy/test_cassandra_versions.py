"""The contracts of the Cassandra target over an older server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

# They take the fixture `cassandra` of this module.
from tests.cassandra.test_target_contract import (  # noqa: F401
    TestCassandra,
    TestCassandraDeletes,
    TestCassandraUpdates,
)
from wal_sink.testing.servers.cassandra import EmbeddedCassandra, Node

pytestmark = [pytest.mark.test_all, pytest.mark.cassandra, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def cassandra() -> Iterator[Node]:
    """Cassandra 4.1."""
    with EmbeddedCassandra(version="4.1.10") as node:
        yield node

"""Fixtures for several modules."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.deploy.cassandra_nodes import CassandraCluster


@pytest.fixture(scope="session")
def cluster() -> Iterator[CassandraCluster]:
    """Return a running cluster of three nodes. A test leaves all nodes up."""
    with CassandraCluster() as cluster:
        yield cluster

"""What several tests of deployments share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.deploy.cassandra_nodes import CassandraCluster


@pytest.fixture(scope="session")
def cluster() -> Iterator[CassandraCluster]:
    """Three nodes of Cassandra; a test leaves them up."""
    with CassandraCluster() as cluster:
        yield cluster

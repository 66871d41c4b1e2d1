"""Fixtures of a Cassandra container, whichever node the other tests use."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.servers import docker
from tests.support.servers.cassandra_container import IMAGE, CassandraContainer
from tests.support.servers.docker import DockerNotUsable


@pytest.fixture(scope="session")
def engine() -> str:
    """Return the version of the Docker engine; skip the test with the reason if there is none."""
    try:
        return docker.find(IMAGE)
    except DockerNotUsable as error:
        pytest.skip(error.what)


@pytest.fixture(scope="session")
def cassandra(engine: str) -> Iterator[CassandraContainer]:
    """Start a container."""
    with CassandraContainer() as node:
        yield node

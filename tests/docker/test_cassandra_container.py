"""`CassandraContainer` publishes its port locally, and removes its container and volume."""

from __future__ import annotations

import pytest

import docker
from tests.support.servers.cassandra_container import (
    CassandraContainer,
    DockerNotUsable,
    find_engine,
)
from wal_sink.demo.server import DidNotStart

pytestmark = [pytest.mark.docker, pytest.mark.cassandra, pytest.mark.usefixtures("engine")]


@pytest.fixture(scope="module")
def engine() -> str:
    """Return the version of the Docker engine; skip the test with the reason if there is none."""
    try:
        return find_engine()
    except DockerNotUsable as error:
        pytest.skip(error.what)


def test_container_is_local_and_leaves_nothing() -> None:
    """Docker's own client lists ports, containers and volumes."""
    client = docker.from_env()
    with CassandraContainer() as node:
        assert node.execute("SELECT key FROM system.local") == [("local",)]
        (container,) = client.containers.list(filters={"publish": node.port})
        published = {key: value for key, value in container.ports.items() if value}
        assert published == {"9042/tcp": [{"HostIp": "127.0.0.1", "HostPort": str(node.port)}]}
        (volume,) = [m["Name"] for m in container.attrs["Mounts"] if m["Type"] == "volume"]
    assert not node.running
    assert client.containers.list(filters={"id": container.id}, all=True) == []
    assert volume not in {volume.id for volume in client.volumes.list()}
    client.close()


def test_error_names_an_image_that_does_not_exist() -> None:
    node = CassandraContainer("wal-sink.invalid/no-such-image:1")
    with pytest.raises(DidNotStart, match=r"wal-sink\.invalid/no-such-image:1"):
        node.start()
    assert not node.running
    node.close()

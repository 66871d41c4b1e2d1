"""`CassandraContainer` keeps the contract of nodes, and removes its container and volume."""

from __future__ import annotations

import gc
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import docker
from tests.cassandra.node_contract import NodeContract
from tests.support.servers.cassandra_container import CassandraContainer
from wal_sink.demo.cassandra import Node
from wal_sink.demo.server import DidNotStart

pytestmark = [pytest.mark.docker, pytest.mark.cassandra, pytest.mark.usefixtures("engine")]

# A program that starts a container and ends without `close`.
_FORGETFUL = """
from tests.support.servers.cassandra_container import CassandraContainer
node = CassandraContainer()
node._launch()
print(node._container.get_container_id(), flush=True)
"""


def containers(**filters: object) -> list[Any]:
    """Return the containers of a filter, by Docker's own client."""
    client = docker.from_env()
    try:
        return list(client.containers.list(filters=filters, all=True))
    finally:
        client.close()


@pytest.mark.test_all
class TestCassandraContainer(NodeContract):
    """The contract of nodes, which the embedded node keeps, too."""

    def new(self, folder: Any, **settings: object) -> CassandraContainer:
        return CassandraContainer(settings=settings)

    def processes(self, node: Node) -> list[int]:
        """Return the process ids of the containers that publish the node's port."""
        result = [container.attrs["State"]["Pid"] for container in containers(publish=node.port)]
        return [pid for pid in result if pid]

    def log(self, node: Node) -> str:
        (container,) = self._all(node)
        return str(container.logs().decode())

    def test_closed_container_leaves_nothing(self, tmp_path: Any) -> None:
        with self.new(tmp_path) as node:
            (container,) = self._all(node)
            (volume,) = [m["Name"] for m in container.attrs["Mounts"] if m["Type"] == "volume"]
            assert volume in volumes()
        assert self._all(node) == []
        assert volume not in volumes()
        with pytest.raises(RuntimeError, match="closed"):
            node.start()

    def _all(self, node: Node) -> list[Any]:
        assert isinstance(node, CassandraContainer)
        return containers(id=node._container.get_container_id())


def volumes() -> set[str]:
    """Return the names of all volumes."""
    client = docker.from_env()
    try:
        return {volume.id for volume in client.volumes.list()}
    finally:
        client.close()


def test_container_publishes_only_on_the_loopback_address(cassandra: CassandraContainer) -> None:
    (container,) = containers(publish=cassandra.port)
    published = {key: value for key, value in container.ports.items() if value}
    assert published == {"9042/tcp": [{"HostIp": cassandra.host, "HostPort": str(cassandra.port)}]}
    assert cassandra.host == "127.0.0.1" or cassandra.host.startswith("172.")
    with socket.create_connection((cassandra.host, cassandra.port), timeout=5):
        pass


def test_unclosed_container_ends_with_the_process() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", _FORGETFUL],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    assert len(done.stdout.strip()) == 64
    assert containers(id=done.stdout.strip()) == []


def test_unclosed_container_ends_with_its_object() -> None:
    node = CassandraContainer()
    node._launch()
    identity = node._container.get_container_id()
    assert len(containers(id=identity)) == 1
    del node
    gc.collect()
    assert containers(id=identity) == []


def test_error_names_an_image_that_does_not_exist() -> None:
    node = CassandraContainer("wal-sink.invalid/no-such-image:1")
    with pytest.raises(DidNotStart, match=r"wal-sink\.invalid/no-such-image:1"):
        node.start()
    assert not node.running
    node.close()

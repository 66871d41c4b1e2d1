"""Runs a real Cassandra node in a Docker container, for tests: the official image, by testcontainers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from wal_sink.testing.cassandra.node import (
    QUICK_START,
    CommitlogSync,
    Node,
    cassandra_yaml,
)
from wal_sink.testing.servers.container import Container

if TYPE_CHECKING:
    from collections.abc import Mapping

    from testcontainers.core.container import DockerContainer

IMAGE = "cassandra:5.0"
_YAML = "/etc/cassandra/wal_sink.yaml"
# The image's own options come first and choose G1, which would touch all of its heap at the start.
_FLAGS = f"-Dcassandra.config=file://{_YAML} -XX:-UseG1GC -XX:-AlwaysPreTouch {QUICK_START}"


class CassandraContainer(Container, Node):
    """One Cassandra node in a container, with the interface of `EmbeddedCassandra`.

    :param image: the official one or one that behaves like it, at least Cassandra 5.0; pulled at
        the first start.
    :param heap: of the Java heap, in Java's notation.
    :param commitlog_sync: as for `EmbeddedCassandra`.
    :param settings: entries of cassandra.yaml; they override the choices made here.
    :raises DockerNotUsable: no Docker engine answers.
    """

    def __init__(
        self,
        image: str = IMAGE,
        *,
        heap: str = "512M",
        commitlog_sync: CommitlogSync = "batch",
        settings: Mapping[str, object] = {},
    ) -> None:
        super().__init__(image)
        yaml = cassandra_yaml(commitlog_sync, rpc_address="0.0.0.0", port=9042, storage_port=7000)  # noqa: S104
        self._is_to_run(_configured(image, heap, json.dumps({**yaml, **settings})), 9042)


def _configured(image: str, heap: str, yaml: str) -> DockerContainer:
    """Describe the container; nothing is started, and `start` waits for nothing."""
    from testcontainers.community.cassandra import CassandraContainer as Official  # noqa: PLC0415
    from testcontainers.core.waiting_utils import WaitStrategy  # noqa: PLC0415

    class Afterwards(WaitStrategy):
        """`Node.start` waits, also when the container is started again."""

        def wait_until_ready(self, container: object) -> None:
            """Return."""

    return (
        Official(image)
        .with_envs(MAX_HEAP_SIZE=heap, HEAP_NEWSIZE="128M", JVM_OPTS="", JVM_EXTRA_OPTS=_FLAGS)
        .with_copy_into_container(yaml.encode(), _YAML)
        .waiting_for(Afterwards())
    )

"""A Cassandra node in a container, and the choice between it and the embedded node."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from tests.support.servers.docker import Container, DockerNotUsable, no_wait
from wal_sink.demo.cassandra import (
    QUICK_START,
    VERSION,
    EmbeddedCassandra,
    Node,
    cassandra_yaml,
)
from wal_sink.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from testcontainers.core.container import DockerContainer

IMAGE = "cassandra:5.0"
_YAML = "/etc/cassandra/wal_sink.yaml"
# The image's own options come first and select G1, which would touch its whole heap at the start.
_CONTAINER_FLAGS = (
    f"-Dcassandra.config=file://{_YAML} -XX:-UseG1GC -XX:-AlwaysPreTouch {QUICK_START}"
)


class CassandraContainer(Container, Node):
    """A Cassandra node in a container, with the interface of `EmbeddedCassandra`.

    :param image: an image of Cassandra 5.0 or later, which is pulled at the first start.
    :param heap: the size of the Java heap, in Java's notation.
    :param settings: entries of cassandra.yaml, which override the defaults here.
    :param java_options: more options of Java, separated by blanks.
    :raises DockerNotUsable: if no Docker engine answers.
    """

    def __init__(
        self,
        image: str = IMAGE,
        *,
        heap: str = "512M",
        settings: Mapping[str, object] = {},
        java_options: str = "",
    ) -> None:
        super().__init__(image)
        yaml = cassandra_yaml(rpc_address="0.0.0.0", port=9042, storage_port=7000)
        flags = f"{_CONTAINER_FLAGS} {java_options}"
        self._is_to_run(_configured(image, heap, flags, json.dumps({**yaml, **settings})), 9042)


def _configured(image: str, heap: str, flags: str, yaml: str) -> DockerContainer:
    """Describe the container, without starting it."""
    from testcontainers.community.cassandra import CassandraContainer as Official  # noqa: PLC0415

    return (
        Official(image)
        .with_envs(MAX_HEAP_SIZE=heap, HEAP_NEWSIZE="128M", JVM_OPTS="", JVM_EXTRA_OPTS=flags)
        .with_copy_into_container(yaml.encode(), _YAML)
        .waiting_for(no_wait())
    )


VARIABLE = "WAL_SINK_TEST_CASSANDRA"


class Choice(NamedTuple):
    """A class of nodes, and a line for pytest's header with its name and the reason for the choice."""

    node: Callable[..., Node]
    said: str


def choose(wanted: str, find: Callable[[str], str]) -> Choice:
    """Choose the container if Docker can run it, otherwise the embedded node.

    :param wanted: `auto`; or `docker` or `embedded` to force one.
    :param find: `docker.find`.
    :raises DockerNotUsable: if a container is forced, and Docker cannot run it.
    :raises OptionError: if `wanted` is another word.
    """
    embedded = f"embedded node {VERSION}"
    if wanted == "embedded":
        return Choice(EmbeddedCassandra, f"{embedded}, as {VARIABLE} says")
    if wanted not in {"auto", "docker"}:
        raise OptionError(f"{VARIABLE} is {wanted!r}.", "Set it to auto, docker or embedded.")
    try:
        engine = find(IMAGE)
    except DockerNotUsable as error:
        if wanted == "docker":
            raise DockerNotUsable(
                f"{VARIABLE} is docker, and {error.what}.",
                f"{error.remedy} Or set {VARIABLE} to auto or embedded.",
            ) from error
        return Choice(EmbeddedCassandra, f"{embedded}, since {error.what}")
    return Choice(CassandraContainer, f"container {IMAGE} (Docker {engine})")

"""Chooses which Cassandra the tests of a run use: a container, or the embedded node."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from wal_sink.errors import OptionError
from wal_sink.testing.cassandra.container import IMAGE, CassandraContainer
from wal_sink.testing.cassandra.embedded import VERSION, EmbeddedCassandra
from wal_sink.testing.cassandra.node import Node
from wal_sink.testing.docker_engine import DockerNotUsable

VARIABLE = "WAL_SINK_TEST_CASSANDRA"


class Choice(NamedTuple):
    """Which node, and a line that says which and why."""

    node: Callable[[], Node]
    said: str


def choose(wanted: str, find: Callable[[str], str]) -> Choice:
    """Choose the container where Docker can run it, and the embedded node otherwise.

    :param wanted: `auto`, or `docker` or `embedded` to force one.
    :param find: `docker_engine.find`.
    :raises DockerNotUsable: a container is forced and there is none to be had.
    :raises OptionError: anything else is wanted.
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

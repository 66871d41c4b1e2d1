"""Runs a real Cassandra node in a Docker container, for tests: the official image, by testcontainers."""

from __future__ import annotations

import contextlib
import json
import weakref
from typing import TYPE_CHECKING, Any

from wal_sink.testing import docker_engine, free_port
from wal_sink.testing.cassandra.node import (
    QUICK_START,
    CassandraDidNotStart,
    CommitlogSync,
    Node,
    cassandra_yaml,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from testcontainers.core.container import DockerContainer

IMAGE = "cassandra:5.0"
_YAML = "/etc/cassandra/wal_sink.yaml"
# The image's own options come first and choose G1, which would touch all of its heap at the start.
_FLAGS = f"-Dcassandra.config=file://{_YAML} -XX:-UseG1GC -XX:-AlwaysPreTouch {QUICK_START}"


class CassandraContainer(Node):
    """One Cassandra node in a container, with the interface of `EmbeddedCassandra`.

    The container lives, stopped or running, until `close`; its data goes with it. If this process
    ends before, the container is removed at the interpreter's exit, and after a SIGKILL by
    testcontainers' ryuk unless that is disabled. Its port is published on the loopback address,
    except for an engine on another machine.

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
        place = docker_engine.place()
        super().__init__(f"Container {image}", place.host, free_port.choose("127.0.0.1"))
        self.image = image
        yaml = cassandra_yaml(commitlog_sync, rpc_address="0.0.0.0", port=9042, storage_port=7000)  # noqa: S104
        self._container = _configured(image, heap, json.dumps({**yaml, **settings}))
        # testcontainers' type knows no address; what it hands on to Docker does.
        self._container.ports = {"9042/tcp": (place.bind, self.port)}  # type: ignore[dict-item]
        self._remove = weakref.finalize(self, _remove, self._container)

    @property
    def running(self) -> bool:
        """Whether the container runs, be it paused."""
        return self._status() in {"running", "paused"}

    def stop(self) -> None:
        """Shut the node down as an operator would; kill it if that takes over 30 seconds."""
        self._close_session()
        if self._thaw():
            self._docker.stop(timeout=30)

    def kill(self) -> None:
        """End the node at once, as a crash does; what was acknowledged must survive."""
        self._close_session()
        if self._thaw():
            self._docker.kill()
            self._docker.wait()

    def pause(self) -> None:
        """Freeze the container: connections stay open and nothing answers."""
        self._require_running()
        self._docker.pause()

    def resume(self) -> None:
        """Go on after `pause`."""
        self._require_running()
        self._docker.unpause()

    def close(self) -> None:
        """Remove the container and its data."""
        self._close_session()
        self._remove()

    @property
    def _docker(self) -> Any:
        return self._container.get_wrapped_container()

    def _status(self) -> str:
        import docker.errors  # noqa: PLC0415

        if not self._container._container or not self._remove.alive:  # noqa: SLF001
            return "missing"
        try:
            self._docker.reload()
        except docker.errors.NotFound:
            return "missing"
        return str(self._docker.status)

    def _thaw(self) -> bool:
        """Return whether it runs; a paused container takes no signal, so it runs on for a moment."""
        status = self._status()
        if status == "paused":
            self._docker.unpause()
        return status in {"running", "paused"}

    def _launch(self) -> None:
        import docker.errors  # noqa: PLC0415

        if not self._remove.alive:
            raise RuntimeError(f"{self.title} is closed: make a new one.")
        try:
            if self._status() == "missing":
                self._container.start()
            else:
                self._docker.start()
        except docker.errors.APIError as error:
            raise CassandraDidNotStart(
                f"Docker could not run {self.title.lower()} on port {self.port}: {error.explanation}",
                "See to what Docker says; if the port is taken, find out what listens there.",
            ) from error

    def _printed(self) -> str:
        return str(self._docker.logs(tail=40).decode(errors="replace"))


def _configured(image: str, heap: str, yaml: str) -> DockerContainer:
    """Describe the container; nothing is started, and `start` waits for nothing."""
    from testcontainers.community.cassandra import CassandraContainer as Container  # noqa: PLC0415
    from testcontainers.core.waiting_utils import WaitStrategy  # noqa: PLC0415

    class Afterwards(WaitStrategy):
        """`Node.start` waits, also when the container is started again."""

        def wait_until_ready(self, container: object) -> None:
            """Return."""

    return (
        Container(image)
        .with_envs(MAX_HEAP_SIZE=heap, HEAP_NEWSIZE="128M", JVM_OPTS="", JVM_EXTRA_OPTS=_FLAGS)
        .with_copy_into_container(yaml.encode(), _YAML)
        .waiting_for(Afterwards())
    )


def _remove(container: DockerContainer) -> None:
    import docker.errors  # noqa: PLC0415

    with contextlib.suppress(docker.errors.NotFound):  # it was removed from outside
        container.stop()

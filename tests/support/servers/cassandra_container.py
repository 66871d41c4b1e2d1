"""A Cassandra node in a container by testcontainers, and the choice between it and the embedded node."""

from __future__ import annotations

import contextlib
import gc
import json
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

from wal_sink.demo.cassandra import (
    QUICK_START,
    VERSION,
    EmbeddedCassandra,
    Node,
    cassandra_yaml,
)
from wal_sink.demo.server import HOST, DidNotStart, choose_port
from wal_sink.errors import OptionError, WalSinkError

IMAGE = "cassandra:5.0"
_YAML = "/etc/cassandra/wal_sink.yaml"
# The image's own options come first and select G1, which would touch its whole heap at the start.
_FLAGS = f"-Dcassandra.config=file://{_YAML} -XX:-UseG1GC -XX:-AlwaysPreTouch {QUICK_START}"


class DockerNotUsable(WalSinkError):
    """No Docker engine on this machine answers, or it cannot get an image."""

    exit_code = 4


class CassandraContainer(Node):
    """A Cassandra node in a container of a Docker engine on this machine.

    The port is published on the loopback address. The end of the node removes the container and its data.

    :param image: an image of Cassandra 5.0 or later, which is pulled at the start.
    :param java_options: more options of Java, separated by blanks.
    """

    def __init__(self, image: str = IMAGE, *, java_options: str = "") -> None:
        from testcontainers.community.cassandra import CassandraContainer as Official  # noqa: PLC0415
        from testcontainers.core.waiting_utils import WaitStrategy  # noqa: PLC0415

        class NoWait(WaitStrategy):
            def wait_until_ready(self, container: object) -> None:
                """Return, since `AnyServer.start` waits for the server."""

        super().__init__(f"Container {image}", HOST, choose_port(HOST))
        yaml = cassandra_yaml(rpc_address="0.0.0.0", port=9042, storage_port=7000)
        flags = f"{_FLAGS} {java_options}"
        self._container = (
            Official(image)
            .with_envs(MAX_HEAP_SIZE="512M", HEAP_NEWSIZE="128M", JVM_OPTS="", JVM_EXTRA_OPTS=flags)
            .with_copy_into_container(json.dumps(yaml).encode(), _YAML)
            .waiting_for(NoWait())
        )
        # Docker accepts an address, but the type of testcontainers does not have it.
        self._container.ports = {"9042/tcp": (HOST, self.port)}  # type: ignore[dict-item]

    @property
    def running(self) -> bool:
        """Return True if the container runs or is paused."""
        if not self._container._container:
            return False
        self._docker.reload()
        return self._docker.status in {"running", "paused"}

    def kill(self) -> None:
        """Remove the container and its data."""
        self._disconnect()
        if self._container._container:
            self._container.stop()
            self._container._container = None

    close = kill

    def pause(self) -> None:
        """Freeze the container: connections stay open, and the server does not answer."""
        self._docker.pause()

    def resume(self) -> None:
        """Continue after `pause`."""
        self._docker.unpause()

    @property
    def _docker(self) -> Any:
        return self._container.get_wrapped_container()

    def _launch(self) -> None:
        import docker.errors  # noqa: PLC0415

        try:
            self._container.start()
        except docker.errors.APIError as error:
            raise DidNotStart(
                f"Docker could not run {self.title.lower()} on port {self.port}: {error.explanation}",
                "Act on what Docker says; if the port is taken, find out what listens there.",
            ) from error

    def _printed(self) -> str:
        return str(self._docker.logs(tail=40).decode(errors="replace"))


VARIABLE = "WAL_SINK_TEST_CASSANDRA"


class Choice(NamedTuple):
    """A class of nodes, and a line for pytest's header with its name and the reason for the choice."""

    node: Callable[..., Node]
    said: str


def choose(wanted: str, find: Callable[[str], str]) -> Choice:
    """Choose the container if Docker can run it, otherwise the embedded node.

    :param wanted: `auto`; or `docker` or `embedded` to force one.
    :param find: `find_engine`.
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


def find_engine(image: str = IMAGE) -> str:
    """Return the version of a Docker engine on this machine that can run `image`; start and pull nothing.

    :raises DockerNotUsable: if there is no such engine.
    """
    import docker.errors  # noqa: PLC0415
    import requests  # noqa: PLC0415 - docker raises its timeout
    from testcontainers.core.config import testcontainers_config as config  # noqa: PLC0415

    images = [config.hub_image_name_prefix + image]
    if not config.ryuk_disabled:
        images.append(config.ryuk_image)
    with contextlib.closing(_connect()) as client:
        if not client.api.base_url.startswith("http+docker"):
            raise DockerNotUsable(
                f"the Docker engine is at {client.api.base_url}", "Unset DOCKER_HOST."
            )
        for name in images:
            try:
                client.images.get(name)
            except docker.errors.ImageNotFound:
                try:
                    client.images.get_registry_data(name)
                except (docker.errors.APIError, requests.RequestException) as error:
                    ryuk = "; testcontainers can do without its ryuk: TESTCONTAINERS_RYUK_DISABLED=true"
                    raise DockerNotUsable(
                        f"the Docker engine has no image {name} and cannot pull it ({_innermost(error)})",
                        f"Make sure that `docker pull {name}` works{ryuk if 'ryuk' in name else ''}.",
                    ) from error
        return str(client.version()["Version"])


def _connect() -> Any:
    """Return a client of the Docker engine."""
    import docker.errors  # noqa: PLC0415

    reason = ""
    # docker does not close the socket of a failed connection, so the garbage collector warns.
    with warnings.catch_warnings(action="ignore", category=ResourceWarning):
        try:
            return docker.from_env(timeout=5)
        except docker.errors.DockerException as error:
            reason = _innermost(error)
        gc.collect()
    raise DockerNotUsable(
        f"no Docker engine answers ({reason})",
        "Start Docker, or set DOCKER_HOST; `docker version` has to name a server.",
    )


def _innermost(error: BaseException) -> str:
    """Return the innermost cause of an error, in one line."""
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    return " ".join(str(getattr(error, "explanation", None) or error).split())

"""A server in a Docker container, by testcontainers, with the interface of a child process."""

from __future__ import annotations

import contextlib
import gc
import socket
import warnings
import weakref
from collections.abc import Iterator
from ipaddress import ip_network
from typing import TYPE_CHECKING, Any, NamedTuple

from wal_sink.demo.server import AnyServer, DidNotStart, choose_port
from wal_sink.errors import WalSinkError

if TYPE_CHECKING:
    from testcontainers.core.container import DockerContainer

_PATIENCE_S = 5
"""The timeout of requests to the engine, in seconds."""


class DockerNotUsable(WalSinkError):
    """No Docker engine answers, or it cannot get an image."""

    exit_code = 4


class Place(NamedTuple):
    """The address at which a container's port is published, and the host at which this process reaches it."""

    bind: str
    host: str


def find(image: str) -> str:
    """Return the version of an engine that can run `image`; start and pull nothing.

    :raises DockerNotUsable: if there is no such engine.
    """
    from testcontainers.core.config import testcontainers_config as config  # noqa: PLC0415

    images = [config.hub_image_name_prefix + image]
    if not config.ryuk_disabled:
        images.append(config.ryuk_image)
    with _connect() as client:
        for name in images:
            _require_image(client, name)
        return str(client.version()["Version"])


def place() -> Place:
    """Return the addresses for published ports, which other machines should not reach.

    :raises DockerNotUsable: if no engine answers.
    """
    from testcontainers.core.docker_client import DockerClient  # noqa: PLC0415
    from testcontainers.core.utils import inside_container  # noqa: PLC0415

    loopback = "127.0.0.1"
    with _connect() as client:
        host = DockerClient().host()
        if host not in {"localhost", loopback, "::1"}:
            return Place("0.0.0.0", host)
        if not inside_container():
            return Place(loopback, loopback)
        bridge = client.networks.get("bridge").attrs["IPAM"]["Config"][0]
        # Without a configured gateway the engine uses the first address, and does not report it.
        gateway = bridge.get("Gateway") or str(next(ip_network(bridge["Subnet"]).hosts()))
        # The host's engine is reached by the bridge, an engine in this container by loopback.
        return Place(loopback, loopback) if _is_local(gateway) else Place(gateway, gateway)


@contextlib.contextmanager
def _connect() -> Iterator[Any]:
    try:
        import docker.errors  # noqa: PLC0415
        from testcontainers.core.docker_client import DockerClient  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise DockerNotUsable(
            f"{error.name} is not installed", "pip install testcontainers."
        ) from error
    client, reason = None, ""
    # docker does not close the socket of a failed connection, so the garbage collector warns.
    with warnings.catch_warnings(action="ignore", category=ResourceWarning):
        try:
            client = DockerClient(timeout=_PATIENCE_S).client
        except docker.errors.DockerException as error:
            reason = _innermost_reason(error)
        gc.collect()
    if client is None:
        raise DockerNotUsable(
            f"no Docker engine answers ({reason})",
            "Start Docker, or set DOCKER_HOST; `docker version` has to name a server.",
        )
    try:
        yield client
    finally:
        client.close()


def _require_image(client: Any, image: str) -> None:
    import docker.errors  # noqa: PLC0415
    import requests  # noqa: PLC0415 - docker raises its timeout

    try:
        client.images.get(image)
    except docker.errors.ImageNotFound:
        try:
            client.images.get_registry_data(image)
        except (docker.errors.APIError, requests.RequestException) as error:
            ryuk = "; testcontainers can do without its ryuk: TESTCONTAINERS_RYUK_DISABLED=true"
            raise DockerNotUsable(
                f"the Docker engine has no image {image} and cannot pull it ({_innermost_reason(error)})",
                f"Make sure that `docker pull {image}` works{ryuk if 'ryuk' in image else ''}.",
            ) from error


def _innermost_reason(error: BaseException) -> str:
    """Return the innermost cause of an error, in one line."""
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    return " ".join(str(getattr(error, "explanation", None) or error).split())


def _is_local(address: str) -> bool:
    """Return True if an address belongs to this machine, or to the container of this process."""
    try:
        socket.create_server((address, 0)).close()
    except OSError:
        return False
    return True


class Container(AnyServer):
    """A server in a container.

    The container stays until `close`, which deletes its data, too. If this process ends without `close`,
    the container is removed at the interpreter's exit; after a SIGKILL testcontainers' ryuk removes it,
    unless ryuk is disabled. The port is published on the loopback address, unless the engine is on another
    machine.

    :param image: the image, which is pulled at the first start.
    :raises DockerNotUsable: if no Docker engine answers.
    """

    def __init__(self, image: str) -> None:
        engine = place()
        super().__init__(f"Container {image}", engine.host, choose_port("127.0.0.1"))
        self.image = image
        self._bind = engine.bind

    def _is_to_run(self, container: DockerContainer, port: int) -> None:
        """Set the container; a subclass calls this in its constructor.

        :param container: described, not started; its `start` waits for nothing.
        :param port: the port of the server in the container.
        """
        self._container = container
        # Docker accepts an address, but the type of testcontainers does not have it.
        self._container.ports = {f"{port}/tcp": (self._bind, self.port)}  # type: ignore[dict-item]
        self._remove = weakref.finalize(self, _remove, container)

    @property
    def running(self) -> bool:
        """Return True if the container runs or is paused."""
        return self._status() in {"running", "paused"}

    def stop(self) -> None:
        """Shut the server down normally; kill it after 30 seconds."""
        self._disconnect()
        if self._thaw():
            self._docker.stop(timeout=30)

    def kill(self) -> None:
        """Kill the container, as a crash does."""
        self._disconnect()
        if self._thaw():
            self._docker.kill()
            self._docker.wait()

    def pause(self) -> None:
        """Freeze the container: connections stay open, and the server does not answer."""
        self._require_running()
        self._docker.pause()

    def resume(self) -> None:
        """Continue after `pause`."""
        self._require_running()
        self._docker.unpause()

    def close(self) -> None:
        """Remove the container and its data."""
        self._disconnect()
        self._remove()

    @property
    def _docker(self) -> Any:
        return self._container.get_wrapped_container()

    def _status(self) -> str:
        import docker.errors  # noqa: PLC0415

        if not self._container._container or not self._remove.alive:
            return "missing"
        try:
            self._docker.reload()
        except docker.errors.NotFound:
            return "missing"
        return str(self._docker.status)

    def _thaw(self) -> bool:
        """Unpause a paused container, since it takes no signal; return True if the container runs."""
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
            raise DidNotStart(
                f"Docker could not run {self.title.lower()} on port {self.port}: {error.explanation}",
                "Act on what Docker says; if the port is taken, find out what listens there.",
            ) from error

    def _printed(self) -> str:
        return str(self._docker.logs(tail=40).decode(errors="replace"))


def no_wait() -> Any:
    """Return a strategy of testcontainers that waits for nothing; `AnyServer.start` waits for the server."""
    from testcontainers.core.waiting_utils import WaitStrategy  # noqa: PLC0415

    class Afterwards(WaitStrategy):
        def wait_until_ready(self, container: object) -> None:
            """Return."""

    return Afterwards()


def _remove(container: DockerContainer) -> None:
    import docker.errors  # noqa: PLC0415

    with contextlib.suppress(docker.errors.NotFound):  # another program has removed the container
        container.stop()

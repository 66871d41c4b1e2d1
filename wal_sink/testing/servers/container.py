"""A server in a Docker container, by testcontainers, with the interface of a child process."""

from __future__ import annotations

import contextlib
import weakref
from typing import TYPE_CHECKING, Any

from wal_sink.testing import docker_engine, free_port
from wal_sink.testing.servers.any_server import AnyServer

if TYPE_CHECKING:
    from testcontainers.core.container import DockerContainer


class Container(AnyServer):
    """One server in a container.

    The container lives, stopped or running, until `close`; its data goes with it. If this process ends
    before, the container is removed at the interpreter's exit, and after a SIGKILL by testcontainers' ryuk
    unless that is disabled. Its port is published on the loopback address, except for an engine on another
    machine.

    :param image: pulled at the first start.
    :raises DockerNotUsable: no Docker engine answers.
    """

    def __init__(self, image: str) -> None:
        place = docker_engine.place()
        super().__init__(f"Container {image}", place.host, free_port.choose("127.0.0.1"))
        self.image = image
        self._bind = place.bind

    def _is_to_run(self, container: DockerContainer, port: int) -> None:
        """Say which container it is, before anything else.

        :param container: described, not started; its `start` waits for nothing.
        :param port: where the server listens inside.
        """
        self._container = container
        # testcontainers' type knows no address; what it hands on to Docker does.
        self._container.ports = {f"{port}/tcp": (self._bind, self.port)}  # type: ignore[dict-item]
        self._remove = weakref.finalize(self, _remove, container)

    @property
    def running(self) -> bool:
        """Whether the container runs, be it paused."""
        return self._status() in {"running", "paused"}

    def stop(self) -> None:
        """Shut the server down as an operator would; kill it if that takes over 30 seconds."""
        self._disconnect()
        if self._thaw():
            self._docker.stop(timeout=30)

    def kill(self) -> None:
        """End the container at once, as a crash does; what was acknowledged must survive."""
        self._disconnect()
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
        self._disconnect()
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
            raise self.did_not_start(
                f"Docker could not run {self.title.lower()} on port {self.port}: {error.explanation}",
                "See to what Docker says; if the port is taken, find out what listens there.",
            ) from error

    def _printed(self) -> str:
        return str(self._docker.logs(tail=40).decode(errors="replace"))


def _remove(container: DockerContainer) -> None:
    import docker.errors  # noqa: PLC0415

    with contextlib.suppress(docker.errors.NotFound):  # it was removed from outside
        container.stop()

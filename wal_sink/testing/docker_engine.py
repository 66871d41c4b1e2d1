"""Asks the Docker engine that testcontainers would use whether it answers, and for images and ports."""

from __future__ import annotations

import contextlib
import gc
import socket
import warnings
from collections.abc import Iterator
from ipaddress import ip_network
from typing import Any, NamedTuple

from wal_sink.errors import WalSinkError

_PATIENCE_S = 5
"""For an engine to answer, and for a registry to be found by it."""


class DockerNotUsable(WalSinkError):
    """No Docker engine answers, or an image is neither there nor to be had."""

    exit_code = 4


class Place(NamedTuple):
    """Where a container's ports are published, and where they are reached from here."""

    bind: str
    host: str


def find(image: str) -> str:
    """Return the version of an engine that can run `image`; nothing is started or pulled.

    :raises DockerNotUsable: there is none.
    """
    from testcontainers.core.config import testcontainers_config as config  # noqa: PLC0415

    images = [config.hub_image_name_prefix + image]
    if not config.ryuk_disabled:
        images.append(config.ryuk_image)
    with _connect() as client:
        for each in images:
            _require_image(client, each)
        return str(client.version()["Version"])


def place() -> Place:
    """Find out where ports are to be published, so that they are reached from here and no further.

    :raises DockerNotUsable: no engine answers.
    """
    from testcontainers.core.docker_client import DockerClient  # noqa: PLC0415
    from testcontainers.core.utils import inside_container  # noqa: PLC0415

    loopback = "127.0.0.1"
    with _connect() as client:
        host = DockerClient().host()
        if host not in {"localhost", loopback, "::1"}:
            return Place("0.0.0.0", host)  # noqa: S104 - an engine elsewhere
        if not inside_container():
            return Place(loopback, loopback)
        bridge = client.networks.get("bridge").attrs["IPAM"]["Config"][0]
        # An engine that was never asked for a gateway takes the first address, and does not say so.
        gateway = bridge.get("Gateway") or str(next(ip_network(bridge["Subnet"]).hosts()))
        # In a container the engine of the host is reached at the bridge, one in here also at home.
        return Place(loopback, loopback) if _is_local(gateway) else Place(gateway, gateway)


@contextlib.contextmanager
def _connect() -> Iterator[Any]:
    try:
        import docker.errors  # noqa: PLC0415
        from testcontainers.core.docker_client import DockerClient  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise DockerNotUsable(
            f"{error.name} is not installed", "pip install 'wal_sink[testing]'."
        ) from error
    client, why = None, ""
    # docker leaves the socket of a failed connection to the garbage collector, which warns of it.
    with warnings.catch_warnings(action="ignore", category=ResourceWarning):
        try:
            client = DockerClient(timeout=_PATIENCE_S).client
        except docker.errors.DockerException as error:
            why = _innermost_reason(error)
        gc.collect()
    if client is None:
        raise DockerNotUsable(
            f"no Docker engine answers ({why})",
            "Start Docker, or set DOCKER_HOST; `docker version` has to name a server.",
        )
    try:
        yield client
    finally:
        client.close()


def _require_image(client: Any, image: str) -> None:
    import docker.errors  # noqa: PLC0415
    import requests  # noqa: PLC0415 - what docker raises when it has no patience left

    try:
        client.images.get(image)
    except docker.errors.ImageNotFound:
        try:
            client.images.get_registry_data(image)
        except (docker.errors.APIError, requests.RequestException) as error:
            ryuk = "; testcontainers can do without its ryuk: TESTCONTAINERS_RYUK_DISABLED=true"
            raise DockerNotUsable(
                f"the Docker engine has no image {image} and cannot pull it ({_innermost_reason(error)})",
                f"See to it that `docker pull {image}` works{ryuk if 'ryuk' in image else ''}.",
            ) from error


def _innermost_reason(error: BaseException) -> str:
    """Return the innermost reason, in one line."""
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    return " ".join(str(getattr(error, "explanation", None) or error).split())


def _is_local(address: str) -> bool:
    """Whether an address belongs to this machine, or to the container that we are in."""
    try:
        socket.create_server((address, 0)).close()
    except OSError:
        return False
    return True

"""Serves the metrics at `http://<host>:<port>/metrics`: counts and names, no secrets.

By default the port answers only this host. It asks for no login. The server is prometheus_client's, which is
imported when the first port is opened.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, NamedTuple

from wal_sink.errors import OptionError

if TYPE_CHECKING:
    from wsgiref.simple_server import WSGIServer

    from wal_sink.metrics.prometheus import Metrics

logger = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
"""The default address: only processes of this host reach it."""

_MOST_PORT = 65_535


class _Port(NamedTuple):
    """An open port; it answers in threads of its own."""

    metrics: Metrics
    host: str
    server: WSGIServer
    thread: threading.Thread
    shares: set[Exposition]


class Exposition:
    """A handle's share in an open port; made by `expose`."""

    def __init__(self, served: _Port) -> None:
        self.served = served
        self.port, self.host = int(served.server.server_port), served.host
        self.watch = served.metrics.watch
        """Adds a query to the metrics; see `Metrics.watch`."""
        served.shares.add(self)

    def close(self) -> None:
        """Give the share up; the last share closes the port.

        Idempotent. After a call that was interrupted, the next call does the rest.
        """
        served = self.served
        with _LOCK:
            served.shares.discard(self)
            if served.shares:
                return
            if _PORTS.get(self.port) is served:
                del _PORTS[self.port]
        served.server.shutdown()
        served.server.server_close()
        served.thread.join()


_PORTS: dict[int, _Port] = {}
_LOCK = threading.Lock()


def expose(port: int, host: str = LOOPBACK) -> Exposition:
    """Open a port of this process; handles that ask for the same port share it.

    A notebook that starts a new session needs this: the handle of the stopped session has the port, and may
    still be flushing.

    :param port: the port; 0 for a free one.
    :param host: the address to listen on; 0.0.0.0 for all addresses of this host.
    :raises OptionError: the number is not a port, or the port is taken, or open on another address.
    """
    if not 0 <= port <= _MOST_PORT:
        raise OptionError(
            f"{port} is not a port for metrics.",
            f"Give 1 to {_MOST_PORT}, or 0 for one that is free.",
        )
    with _LOCK:
        served = _PORTS.get(port)
        if served is None:
            exposition = Exposition(_serve(port, host))
            _PORTS[exposition.port] = exposition.served
            logger.info("metrics are on %s, port %d, at /metrics", host, exposition.port)
            return exposition
        if served.host != host:
            raise OptionError(
                f"Metrics are on port {port} of {served.host} already, not of {host}.",
                "Give the same host, or another port.",
            )
        return Exposition(served)


def _serve(port: int, host: str) -> _Port:
    from prometheus_client import start_http_server  # noqa: PLC0415 - only where it is wanted

    from wal_sink.metrics.prometheus import Metrics  # noqa: PLC0415 - it imports prometheus_client

    metrics = Metrics()
    try:
        server, thread = start_http_server(port, host, metrics.registry)
    except OSError as error:
        raise OptionError(
            f"Metrics cannot be served on {host}, port {port}: {error.strerror or error}.",
            "Give an address of this host, and a port that is free, or 0 to have one chosen.",
        ) from error
    return _Port(metrics, host, server, thread, set())

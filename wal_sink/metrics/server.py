"""Serves the metrics at `http://<host>:<port>/metrics`: counts and names, no secrets.

The port answers this host alone unless it is told otherwise, and asks for no login.

prometheus_client and http.server are imported when metrics are wanted: a process without them does not load
them.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from wal_sink.errors import OptionError

if TYPE_CHECKING:
    from wal_sink.metrics.bounded_server import BoundedServer
    from wal_sink.metrics.prometheus import Metrics

logger = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
"""Where the port listens by default: only processes of this host reach it."""

_MOST_PORT = 65_535


class Exposition:
    """A share in a port that answers; made by `expose`, one for each handle."""

    def __init__(self, server: _Server) -> None:
        self._server = server
        self.watch = server.metrics.watch
        """Shows a query from now on, and returns what its flush reports to; see `Metrics.watch`."""
        server.shares.add(self)

    @property
    def port(self) -> int:
        """The port that answers; the one that was chosen, where 0 was asked for."""
        return self._server.port

    @property
    def host(self) -> str:
        """The address that it listens on."""
        return self._server.host

    def close(self) -> None:
        """Give the share up; the last one stops the port.

        Idempotent, and a call that was interrupted is made good by the next one.
        """
        with _LOCK:
            self._server.shares.discard(self)
            if self._server.shares:
                return
            if _SERVERS.get(self.port) is self._server:
                del _SERVERS[self.port]
        self._server.close()


class _Server:
    """A port that answers, in threads of its own."""

    def __init__(self, metrics: Metrics, host: str, server: BoundedServer) -> None:
        self.metrics = metrics
        self.host = host
        self.port = int(server.server_port)
        self.shares: set[Exposition] = set()
        self._server = server
        self._thread = threading.Thread(
            target=server.serve_forever, name="wal_sink metrics", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Free the port; return at once when that was done."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


_SERVERS: dict[int, _Server] = {}
_LOCK = threading.Lock()


def expose(port: int, host: str = LOOPBACK) -> Exposition:
    """Let a port of this process answer; two handles that ask for one port share it.

    That is how a notebook goes on under a new session: the handle of the stopped one has the port, and may
    still flush.

    :param port: 0 for one that is free.
    :param host: the address to listen on; 0.0.0.0 for all of this host's.
    :raises OptionError: it is not a port, or taken, or answers on another address already, or
        prometheus_client is missing.
    """
    if not 0 <= port <= _MOST_PORT:
        raise OptionError(
            f"{port} is not a port for metrics.",
            f"Give 1 to {_MOST_PORT}, or 0 for one that is free.",
        )
    with _LOCK:
        server = _SERVERS.get(port)
        if server is None:
            server = _serve(port, host)
            _SERVERS[server.port] = server
            logger.info("metrics are on %s, port %d, at /metrics", host, server.port)
        elif server.host != host:
            raise OptionError(
                f"Metrics are on port {port} of {server.host} already, not of {host}.",
                "Give the same host, or another port.",
            )
        return Exposition(server)


def _serve(port: int, host: str) -> _Server:
    try:
        from prometheus_client import make_wsgi_app  # noqa: PLC0415 - only where it is wanted

        from wal_sink.metrics.bounded_server import BoundedServer  # noqa: PLC0415 - it imports http.server
        from wal_sink.metrics.prometheus import Metrics  # noqa: PLC0415 - it imports prometheus_client
    except ModuleNotFoundError as error:
        if error.name != "prometheus_client":
            raise
        raise OptionError(
            "Metrics need the package prometheus_client, which is not installed.",
            "Run `pip install prometheus_client` here, or leave the port for metrics out.",
        ) from error
    metrics = Metrics()
    try:
        server = BoundedServer(host, port, make_wsgi_app(metrics.registry))
    except OSError as error:
        raise OptionError(
            f"Metrics cannot be served on {host}, port {port}: {error.strerror or error}.",
            "Give an address of this host, and a port that is free, or 0 to have one chosen.",
        ) from error
    return _Server(metrics, host, server)

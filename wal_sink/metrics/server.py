"""Serves the metrics at `http://<host>:<port>/metrics`: counts and names, no secrets.

By default only this host can reach the port. No login is needed. The server is that of prometheus_client. The
library is imported when a port is opened.
"""

from __future__ import annotations

import logging

from wal_sink.errors import OptionError

logger = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
"""The default address: only processes of this host reach it."""

_MOST_PORT = 65_535


class Exposition:
    """An open port of this process, which serves the metrics of all queries that it watches.

    :param port: 0 for a free port.
    :param host: the address to listen on; 0.0.0.0 for all addresses of this host.
    :raises OptionError: the number is not a port, or the port is taken, or the host has no such address.
    """

    def __init__(self, port: int, host: str = LOOPBACK) -> None:
        from prometheus_client import start_http_server  # noqa: PLC0415 - only for metrics

        from wal_sink.metrics.prometheus import Metrics  # noqa: PLC0415 - imports prometheus_client

        if not 0 <= port <= _MOST_PORT:
            raise OptionError(
                f"{port} is not a port for metrics.",
                f"Give 1 to {_MOST_PORT}, or 0 for one that is free.",
            )
        metrics = Metrics()
        try:
            self._server, self._thread = start_http_server(port, host, metrics.registry)
        except OSError as error:
            raise OptionError(
                f"Metrics cannot be served on {host}, port {port}: {error.strerror or error}.",
                "Give an address of this host, and a port that is free, or 0 to have one chosen.",
            ) from error
        self.port, self.host = int(self._server.server_port), host
        self.watch = metrics.watch
        """Adds a query to the metrics; see `Metrics.watch`."""
        logger.info("metrics are on %s, port %d, at /metrics", host, self.port)

    def close(self) -> None:
        """Close the port. Idempotent. If a call was interrupted, the next call does the rest."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

"""The Cassandra node of the benchmark, configured as in production."""

from __future__ import annotations

from wal_sink.demo.cassandra import EmbeddedCassandra

_FOR_TESTS = {"-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-ea"}
"""Java options that start a test's node quickly, but slow the server down."""

_SETTINGS = {
    "commitlog_sync": "periodic",  # Cassandra's default
    "commitlog_sync_period": "10000ms",
    "range_request_timeout": "300s",
    "read_request_timeout": "300s",
}
"""Cassandra's default commit log, and long timeouts for the checks, which read whole tables."""


class Server(EmbeddedCassandra):
    """A node with Java's optimizing compiler and default collector."""

    def __init__(self) -> None:
        super().__init__(heap="2g", settings=_SETTINGS)

    def _command(self) -> list[str]:
        return [flag for flag in super()._command() if flag not in _FOR_TESTS]

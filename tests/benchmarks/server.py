"""The one Cassandra node of a benchmark, set as in production and not as for tests."""

from __future__ import annotations

from tests.benchmarks import cpu
from wal_sink.demo.servers.cassandra import EmbeddedCassandra

_FOR_TESTS = {"-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-ea"}
"""What starts a test's node quickly would cap the server: the optimising compiler is off in it."""

_SETTINGS = {
    "commitlog_sync": "periodic",  # as by default
    "commitlog_sync_period": "10000ms",
    "range_request_timeout": "300s",
    "read_request_timeout": "300s",
}
"""The time-outs are for the checks, which read whole tables; writes keep Cassandra's default."""


class Server(EmbeddedCassandra):
    """A node with Java's optimising compiler and default collector, and Cassandra's default commit log."""

    def __init__(self) -> None:
        super().__init__(heap="2g", settings=_SETTINGS)

    def cpu_s(self) -> float:
        """Return the CPU seconds that it has used."""
        return cpu.of(self.pid)

    def warnings(self) -> int:
        """Count the batches of which its log has said so far that they are too large."""
        return self._printed().count("exceeding specified threshold")

    def _command(self) -> list[str]:
        return [flag for flag in super()._command() if flag not in _FOR_TESTS]

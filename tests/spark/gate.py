"""A target that lets every writer of rows wait, in any process, until a test opens a gate."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

from wal_sink.model.plan import Plan
from wal_sink.targets.base import IdempotentSession, RowSlice
from wal_sink.targets.cassandra import CassandraTarget
from wal_sink.targets.cassandra.options import Login, login
from wal_sink.testing.faults import Faults, FaultyIdempotentSession

GATED_TARGET = "tests.spark.gate:GatedTarget"
"""For option `target`."""

_CLOSED = "closed"


class Gate:
    """The gate of a keyspace: a folder in which writers leave their process ids.

    :param keyspace: the keyspace of the table. Each test has its own.
    """

    def __init__(self, keyspace: str) -> None:
        self._folder = Path(tempfile.gettempdir()) / f"wal_sink-gate-{keyspace}"
        self._folder.mkdir(exist_ok=True)

    def close(self) -> None:
        """Let every writer wait."""
        (self._folder / _CLOSED).touch()

    def open(self) -> None:
        """Let the writers continue."""
        (self._folder / _CLOSED).unlink(missing_ok=True)

    def writers(self) -> set[int]:
        """Return the processes that have reached the gate."""
        return {int(file.name) for file in self._folder.iterdir() if file.name.isdigit()}

    def note(self, used: Login | None) -> None:
        """Record the login that this process uses."""
        (self._folder / f"login-{os.getpid()}").write_text(repr(used and tuple(used)))

    def logins(self) -> list[str]:
        """Return the login of each process."""
        return [file.read_text() for file in self._folder.glob("login-*")]

    def remove(self) -> None:
        """Delete the folder."""
        for file in self._folder.iterdir():
            file.unlink()
        self._folder.rmdir()

    def enter(self) -> None:
        """Record this process, and wait until the gate is open."""
        (self._folder / str(os.getpid())).touch()
        while (self._folder / _CLOSED).exists():
            time.sleep(0.02)


class GatedTarget(CassandraTarget):
    """Cassandra, whose writes wait at a gate."""

    def connect(self, query_id: str) -> IdempotentSession:
        """See `Target`."""
        Gate(self.options.keyspace).note(login(self.options))
        session = super().connect(query_id)
        return _GatedSession(session, Gate(self.options.keyspace))


class _GatedSession(FaultyIdempotentSession):
    def __init__(self, inner: IdempotentSession, gate: Gate) -> None:
        super().__init__(inner, Faults())
        self._gate = gate

    def write(self, plan: Plan, rows: RowSlice) -> None:
        if rows.batch.num_rows:  # else the driver checks the table for a job
            self._gate.enter()
        self.inner.write(plan, rows)

"""What operators do to a query of the engine: commands, backups, edits of its files."""

from __future__ import annotations

import pytest

from state_backends import StateBackend, open_backend
from tests.protocol.engine import NOW_US, World
from wal_sink.admin.query import Query
from wal_sink.admin.rewind import Rewound, plan_rewind
from wal_sink.admin.skip import plan_skip
from wal_sink.admin.verify import Verified, verify
from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.errors import WalSinkError
from wal_sink.model.records import Decision
from wal_sink.testing.faults import Faults, FaultyBackend
from wal_sink.wal.log import Log


def edit(backend: StateBackend, path: str, change: bytes | None) -> None:
    """Do as a disk or an operator does: delete a file, or put another content there."""
    backend.delete([path])
    if change is not None:
        backend.create(path, change)


def query(world: World) -> Query:
    """Return the query as an operator sees it."""
    return Query(world.query_id, Checkpoint(world.checkpoint), world.log)


def look(world: World) -> Verified:
    """`wal-sink verify`."""
    return verify(query(world), lambda: world.target, NOW_US)


def stuck(world: World, error: type[WalSinkError]) -> str:
    """Flush twice: the flush stops at the same place; return what the error says."""
    with pytest.raises(error):
        world.flush()
    with pytest.raises(error) as caught:
        world.flush()
    return str(caught.value)


Files = dict[str, bytes]


def files(backend: StateBackend) -> Files:
    """Return the content of a store: its backup."""
    return {path: backend.read(path) for path in backend.list()}


def restore(backend: StateBackend, backup: Files) -> None:
    """Put a backup back."""
    backend.delete(backend.list())
    for path, data in backup.items():
        backend.create(path, data)


class Backup:
    """Checkpoint and log, as `docs/deploy.md` asks to copy them: no run, no flusher."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._log, self._checkpoint = files(world.log_backend), files(world.checkpoint)
        self._committed = dict(world.committed)

    def restore(self) -> None:
        """Put both back; the target stays as it is."""
        restore(self._world.log_backend, self._log)
        restore(self._world.checkpoint, self._checkpoint)
        self._world.committed = dict(self._committed)


def rewind(world: World, to: int, *, restored: bool = False) -> Rewound:
    """Rewind as the error says; any flusher has been dead for long."""
    now_us = world.clock.us + 600_000_000
    plan = plan_rewind(query(world), world.target, to, now_us, restored=restored)
    return plan.carry_out(now_us)


def stops(world: World) -> WalSinkError:
    """Flush; return the error at which the flush stops. Nothing is deleted from the log meanwhile."""
    before = set(world.log_backend.list())
    with pytest.raises(WalSinkError) as caught:
        world.flush()
    assert before <= set(world.log_backend.list())
    return caught.value


def skip(world: World, epoch: int, to: str | None = None, *, begun: bool = False) -> Decision:
    """Give an epoch up; any flusher has been dead for long."""
    now_us = world.clock.us + 600_000_000
    place = open_backend(to) if to else None
    return (
        plan_skip(query(world), world.target, epoch, place, now_us, begun=begun)
        .carry_out(now_us)
        .decision
    )


def faulty(world: World, faults: Faults, target: str = "") -> Query:
    """The query, or one of its targets, as a process sees it whose operations fail."""
    return Query(
        world.query_id,
        Checkpoint(FaultyBackend(world.checkpoint, faults)),
        Log(FaultyBackend(world.log_backend, faults), target),
    )

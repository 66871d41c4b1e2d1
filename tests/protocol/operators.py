"""Acts of operators on a played query: backups, and edits of its files."""

from __future__ import annotations

import pytest

from state_backends import StateBackend
from tests.protocol.engine import World
from wal_sink.errors import WalSinkError
from wal_sink.model.ledger import LedgerRow
from wal_sink.testing.memory_target import Row


def edit(backend: StateBackend, path: str, change: bytes | None) -> None:
    """Delete a file, or give it another content."""
    backend.delete([path])
    if change is not None:
        backend.create(path, change)


Files = dict[str, bytes]


def files(backend: StateBackend) -> Files:
    """Return the content of a store by path."""
    return {path: backend.read(path) for path in backend.list()}


def restore(backend: StateBackend, backup: Files) -> None:
    """Replace the content of a store by a backup."""
    backend.delete(backend.list())
    for path, data in backup.items():
        backend.create(path, data)


class Backup:
    """A backup of checkpoint and log, while neither a run nor a flusher works."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._log, self._checkpoint = files(world.log_backend), files(world.checkpoint)
        self._committed, self._keepers = dict(world.committed), dict(world.keepers)

    def restore(self) -> None:
        """Restore checkpoint and log. The target stays as it is."""
        restore(self._world.log_backend, self._log)
        self.restore_checkpoint()

    def restore_checkpoint(self) -> None:
        """Restore the checkpoint alone."""
        restore(self._world.checkpoint, self._checkpoint)
        self._world.committed = dict(self._committed)
        self._world.keepers = dict(self._keepers)


class TargetBackup:
    """A backup of the target's rows and ledger row."""

    def __init__(self, world: World) -> None:
        self._target = world.store_target
        self._table: dict[tuple[object, ...], Row] = dict(self._target.table)
        self._deleted = dict(self._target.deleted)
        self._ledger: dict[str, LedgerRow] = dict(self._target.ledger)

    def restore(self) -> None:
        """Restore rows and ledger row, in place."""
        target = self._target
        for now, then in (
            (target.table, self._table),
            (target.deleted, self._deleted),
            (target.ledger, self._ledger),
        ):
            now.clear()
            now.update(then)  # type: ignore[arg-type]


def stops(world: World, error: type[WalSinkError] = WalSinkError) -> WalSinkError:
    """Flush twice; return the error that stops the flush. Nothing is deleted from the log meanwhile."""
    earlier = {path for path in world.log_backend.list() if not path.startswith("state/")}
    for _ in range(2):
        with pytest.raises(error) as caught:
            world.flush()
    assert earlier <= set(world.log_backend.list())
    assert caught.value.remedy
    return caught.value

"""Two processes that act at the same time raise no false error."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from state_backends import StateBackend, open_backend
from tests.protocol.engine import World
from wal_sink.admin.query import Query
from wal_sink.admin.repair import give_up
from wal_sink.checkpoint import checkpoint
from wal_sink.progress.status import read_status
from wal_sink.testing.faults import Faults, FaultyBackend
from wal_sink.wal.store import newest


class Interrupted(FaultyBackend):
    """A store that lets another process act once, before the first access to a path."""

    def __init__(self, backend: StateBackend, path: str, act: Callable[[], object]) -> None:
        super().__init__(backend, Faults())
        self._path, self._act = path, act
        self._acted = False

    def _let_act(self, path: str) -> None:
        if path == self._path and not self._acted:
            self._acted = True
            self._act()

    def list(self, prefix: str = "") -> list[str]:
        self._let_act(prefix)
        return super().list(prefix)

    def read(self, path: str) -> bytes:
        self._let_act(path)
        return super().read(path)


def test_log_created_between_two_listings_raises_no_error(world: World) -> None:
    """The reader lists `state/` before the first run publishes, and `manifests/` after."""
    backend = Interrupted(world.log_backend, "manifests/", lambda: world.run().publish([("a", 1)]))
    state = newest(backend)
    assert state is not None
    assert state.last.epoch == 0


def test_log_created_during_a_read_is_not_deleted(world: World) -> None:
    """The flusher finds no state, and then the URL of the log that the first run has just created."""
    place = checkpoint.Checkpoint.LOG_URL
    world.checkpoint = Interrupted(world.checkpoint, place, lambda: world.run().batch([("a", 1)]))
    world.flush()
    assert world.flushed() == {"a": 1}


@pytest.fixture
def synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the list of synced files of the checkpoint, in order."""
    files: list[str] = []

    def sync(path: Path) -> bool:
        if path.is_file():
            files.append(str(path.relative_to(tmp_path / "checkpoint")))
        return path.exists()

    monkeypatch.setattr(checkpoint, "sync", sync)
    return files


def test_checkpoint_is_synced_in_the_order_of_spark(tmp_path: Path, synced: list[str]) -> None:
    """Spark continues after the newest file of `offsets/`, so the commit before it must be durable first."""
    world = World(open_backend(str(tmp_path / "checkpoint")), open_backend(str(tmp_path / "log")))
    run = world.run().batches([("a", 1)])
    synced.clear()
    run.publish([("b", 2)])
    assert synced == ["commits/0", "offsets/1"]


def test_metadata_is_durable_before_a_run_opens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without metadata Spark would continue as another query."""
    world = World(open_backend(str(tmp_path / "checkpoint")), open_backend(str(tmp_path / "log")))
    states: list[int] = []

    def sync(path: Path) -> bool:
        if path.name == "metadata":
            states.append(len(world.log_backend.list("state/")))
        return path.exists()

    monkeypatch.setattr(checkpoint, "sync", sync)
    world.run().batch([("a", 1)])
    assert states == [0]


def test_epoch_given_up_as_missing_is_synced_in_checkpoint(
    tmp_path: Path, synced: list[str]
) -> None:
    """Otherwise a power loss could leave the log ahead of the checkpoint."""
    world = World(open_backend(str(tmp_path / "checkpoint")), open_backend(str(tmp_path / "log")))
    run = world.run().batches([("a", 1)])
    run.write_offsets()
    run.write_commit([])
    synced.clear()
    query = Query(world.query_id, checkpoint.Checkpoint(world.checkpoint), world.log_backend)
    give_up(query, 1, "")
    assert synced == ["commits/0", "offsets/1", "commits/1"]


def test_log_whose_targets_are_all_given_up_is_trimmed(world: World) -> None:
    run = world.run()
    run.batch([("a", 1)])
    query = Query(world.query_id, checkpoint.Checkpoint(world.checkpoint), world.log_backend)
    give_up(query, None, "memory")
    run.batch([("b", 2)])
    world.flush()
    assert not world.log_backend.list("manifests/")
    status = read_status(query.checkpoint, world.log_backend)
    assert (status.pending_epochs, status.given_up) == (0, ("memory",))

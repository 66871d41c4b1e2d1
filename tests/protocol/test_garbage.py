"""What is flushed, late, or half written leaves the log, and never stands in the way of what is committed."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import pytest

from state_backends import open_backend
from tests.protocol.engine import World, until_rest
from tests.protocol.operations import At
from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.errors import Fenced
from wal_sink.flush.flusher import Flusher, Pipeline
from wal_sink.flush.run_history import RunHistory
from wal_sink.model import paths
from wal_sink.model.manifest import Attempt
from wal_sink.model.records import Stop
from wal_sink.testing.faults import Faults, FaultyBackend
from wal_sink.wal.log import Log

STORES = ("memory", "local")


class Undeletable(FaultyBackend):
    """A bucket whose policy denies deletion, until it is lifted."""

    denied = True

    def delete(self, paths: Iterable[str]) -> None:
        """See `StateBackend.delete`."""
        found = list(paths)
        if found and self.denied:
            raise PermissionError(13, "Permission denied")
        super().delete(found)


def test_rule_18_garbage_that_cannot_be_deleted_holds_up_no_epoch(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Committed rows become visible; the garbage goes when it can be deleted."""
    run = world.run()
    backend = Undeletable(world.log_backend, Faults())
    flusher = Flusher(
        Pipeline(world.query_id, Log(backend), Checkpoint(world.checkpoint), world.target),
        clock_us=world.clock,
        run_history=RunHistory(),
    )
    for epoch in range(5):
        run.batch([(f"k{epoch}", epoch)])
    until_rest(flusher)
    for epoch in range(5, 8):
        run.batch([(f"k{epoch}", epoch)])
        until_rest(flusher)
    assert world.table() == world.expected()
    assert len({attempt.epoch for attempt in world.log.attempts()}) == 8
    assert "cannot be deleted" in caplog.text

    backend.denied = False
    monkeypatch.setattr("wal_sink.flush.trimmer.DELETE_AGAIN_S", -1.0)
    until_rest(flusher)
    assert world.log.attempts() == ()
    assert world.log.segments() == []


def test_rule_18_a_manifest_that_comes_a_thousand_epochs_late_lost(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver stands still right before its manifest is created, while another goes on for long."""
    monkeypatch.setattr("wal_sink.wal.trim.RECORDS_KEPT", 3)

    def the_other_goes_on() -> None:
        other = world.run()
        for epoch in range(1, 9):
            other.flushed_batches([(f"b{epoch}", epoch)])

    zombie = world.run(At(f"create {paths.MANIFEST.path(Attempt(1, 1))}", the_other_goes_on))
    zombie.batch([("a", 0)])
    with pytest.raises(Fenced):
        zombie.publish([("zombie", 1)])
    assert Attempt(1, 1) in world.log.attempts()
    world.run().batch([("new", 1)])
    assert world.flushed() == world.expected()
    assert "zombie" not in world.table()
    assert world.log.attempts() == ()


def test_what_comes_late_is_swept_while_the_flusher_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flusher that runs for a year sweeps every hour, not at its first step alone."""
    world = World(open_backend(str(tmp_path / "checkpoint")), open_backend(str(tmp_path / "log")))
    run = world.run()
    flusher = world.flusher()
    run.batch([("a", 0)])
    until_rest(flusher)
    world.log_backend.create(
        paths.SEGMENT.path(paths.SegmentName(0, 7, 0, "late", "0" * 32)), b"of a zombie task"
    )
    half = tmp_path / "log" / paths.segment_folder(1) / f".{os.urandom(16).hex()}.tmp"
    half.parent.mkdir(parents=True, exist_ok=True)
    half.write_bytes(b"half")
    os.utime(half, (1, 1))
    until_rest(flusher)
    assert half.exists(), "not yet"
    monkeypatch.setattr("wal_sink.flush.trimmer.SWEEP_EVERY_S", -1.0)
    until_rest(flusher)
    assert not half.exists()
    assert world.log.segments() == []
    assert flusher.trimmer.half_written == 1


def test_a_year_of_killed_and_late_tasks_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One flusher that never starts again: half-written files, late segments, their folders go (rule 18)."""
    world = World(open_backend(str(tmp_path / "checkpoint")), open_backend(str(tmp_path / "log")))
    monkeypatch.setattr("wal_sink.flush.trimmer.SWEEP_EVERY_S", -1.0)
    flusher = world.flusher()
    run = world.run()
    segments = tmp_path / "log" / paths.SEGMENT.folder
    for epoch in range(20):
        run.batch([(f"k{epoch}", epoch)])
        half = tmp_path / "log" / paths.segment_folder(epoch) / f".{os.urandom(16).hex()}.tmp"
        half.write_bytes(b"of a task that was killed")
        os.utime(half, (1, 1))
        until_rest(flusher)
        world.log_backend.create(
            paths.SEGMENT.path(paths.SegmentName(epoch, 7, 0, "late", "0" * 32)),
            b"of a zombie task",
        )
        (tmp_path / "log" / paths.segment_folder(max(epoch - 1, 0))).mkdir(exist_ok=True)
    until_rest(flusher)
    assert not segments.exists()
    assert world.table() == world.expected()


def test_rule_20_a_segment_that_another_flusher_trims_meanwhile_is_no_error(world: World) -> None:
    """The window is begun, and another flusher finishes and trims it before the first segment is read."""
    world.run().batch([("a", 1)])
    slow = world.flusher(At(f"read {paths.SEGMENT.folder}", world.flush))
    until_rest(slow)
    assert world.table() == {"a": 1}
    assert world.log.flushed_epochs() == [0]


def test_rule_2_a_run_that_is_told_to_stop_can_still_prove_its_epoch(world: World) -> None:
    """It comes to its next epoch, is fenced, and leaves the note that Spark has kept the one before."""
    world.run().batch([("z", 0)])
    kept = world.run()
    kept.publish([("kept", 1)])
    other = world.run()
    other.publish([("other", 1)])
    kept.write_commit([[("kept", 1)]], heard=False)
    kept.write_offsets()
    tasks = kept.tasks([("n", 2)])
    world.log.create(paths.STOP, kept.run_id, Stop(run_id=kept.run_id))
    with pytest.raises(Fenced):
        kept.commit(tasks)
    assert world.flushed() == world.expected() == {"z": 0, "kept": 1}

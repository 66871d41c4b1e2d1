"""The rules of the protocol, each where it could be broken. Marks `rule` name the rules.

Other files test one rule each: `test_lists` and `test_staged_rows` (repeatable), `test_retention` and
`test_garbage` (trim), `test_corruption` (stop), `test_restored` (identity, restored), and `test_two_drivers`.
"""

from __future__ import annotations

import json
import os
import uuid
from pathlib import Path

import pytest

from state_backends import open_backend
from tests.protocol import raw
from tests.protocol.engine import Run, World, flush
from tests.protocol.operations import At
from tests.protocol.operators import edit, stops
from wal_sink import errors
from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.flush import flusher as flushers
from wal_sink.model.ledger import LedgerRow
from wal_sink.testing.faults import AnswerLost, Faults

# --- identity ---


@pytest.mark.rule("identity")
def test_checkpoint_of_another_query_publishes_nothing(world: World) -> None:
    """Given metadata that was replaced after the tasks ran."""
    run = world.run()
    run.write_offsets()
    appended = run.tasks([("a", 1)])
    edit(world.checkpoint, "metadata", json.dumps({"id": str(uuid.uuid4())}).encode())
    with pytest.raises(errors.CheckpointNotVisible, match="metadata"):
        run.commit(appended)
    assert world.log_backend.list("manifests/") == world.log_backend.list("state/") == []


@pytest.mark.rule("identity")
@pytest.mark.parametrize("remaining", ["offsets/", Checkpoint.LOG_URL])
def test_deleted_checkpoint_is_reported_as_deleted(world: World, remaining: str) -> None:
    """Given that offsets or the log's URL are left, the error says how to flush the log."""
    world.run().batch([("a", 1)])
    others = [path for path in world.checkpoint.list() if not path.startswith(remaining)]
    world.checkpoint.delete(others)
    with pytest.raises(errors.CheckpointNotVisible, match="somebody has deleted it") as caught:
        Checkpoint(world.checkpoint).query_id()
    assert "Restore the checkpoint" in caught.value.remedy
    if remaining == Checkpoint.LOG_URL:
        assert errors.stand_in(world.log_backend.url, "LAST") in caught.value.remedy


@pytest.mark.rule("identity")
def test_new_query_in_the_folder_completes_no_old_epoch(world: World) -> None:
    """Given a new query in the same folder that has completed an epoch with the number of a pending one."""
    run = world.run().flushed_batches([("a", 0)])
    run.publish([("never completed", 1)])
    world.checkpoint.delete(world.checkpoint.list())
    world.checkpoint.create("metadata", json.dumps({"id": "another"}).encode())
    world.checkpoint.create("commits/1", b"v1\n{}")
    stops(world, errors.WrongOwner)
    assert world.table() == {"a": 0}
    assert world.state.settled == 0


# --- state ---


@pytest.mark.rule("state")
def test_run_superseded_during_its_publish_is_fenced(world: World) -> None:
    """Given another run that publishes between the older run's read of the state and its `publish`."""
    newer: list[Run] = []

    def supersede() -> None:
        newer.append(world.run())
        newer[0].publish([("b", 2)])

    older = world.run(At("create state/", supersede, 4)).batches([("a", 0)])
    with pytest.raises(errors.Fenced):
        older.publish([("b", 1)])
    newer[0].write_commit([[("b", 2)]])
    assert world.flushed() == {"a": 0, "b": 2}


# --- publish ---


@pytest.mark.rule("segments")
def test_reports_of_another_run_or_epoch_are_refused(world: World) -> None:
    run, other = world.run(), world.run()
    run.write_offsets()
    appended = run.tasks([("a", 1)])
    with pytest.raises(errors.WalSinkError, match="reports of"):
        run.commit([*appended, *other.tasks([("b", 1)])])
    run.next = 1
    run.write_offsets()
    with pytest.raises(errors.WalSinkError, match="reports of"):
        run.commit(appended)
    assert world.log_backend.list("manifests/") == []


@pytest.mark.rule("segments")
@pytest.mark.parametrize("change", [None, b"shorter"])
def test_segment_that_the_driver_does_not_see_is_refused(
    world: World, change: bytes | None
) -> None:
    """Given a log that driver and executors do not share."""
    run = world.run()
    run.write_offsets()
    appended = run.tasks([("a", 1)])
    edit(world.log_backend, appended[0].segments[0].path, change)
    with pytest.raises(errors.SegmentNotVisible) as caught:
        run.commit(appended)
    assert "wal.location" in caught.value.remedy
    assert world.log_backend.list("manifests/") == []


@pytest.mark.rule("publish")
def test_checkpoint_is_durable_before_its_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark does not sync its files, so a power loss could take an epoch before the newest one."""
    folder = tmp_path / "checkpoint"
    world = World(open_backend(str(folder)), open_backend("memory://durable-log"))
    world.forget()
    synced: set[int] = set()
    fsync = os.fsync

    def note(descriptor: int) -> None:
        fsync(descriptor)
        synced.add(os.fstat(descriptor).st_ino)

    monkeypatch.setattr(os, "fsync", note)
    durable: list[set[str]] = []

    def note_durable_files() -> None:
        files = [*folder.glob("offsets/*"), *folder.glob("commits/*"), folder / "offsets"]
        durable.append({str(f.relative_to(folder)) for f in files if f.stat().st_ino in synced})

    run = world.run(At("create manifests/", note_durable_files, 2))
    for epoch in range(2):
        if epoch:
            (folder / "commits" / ".0.crc").write_bytes(b"crc")
        run.batch([("a", epoch)])
    assert durable[0] >= {"offsets", "offsets/1", "commits/0", "commits/.0.crc"}


@pytest.mark.rule("publish")
def test_checkpoint_that_cannot_be_synced_publishes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a disk that fails, the query stops, and its next start publishes the epoch."""
    world = World(open_backend(str(tmp_path / "checkpoint")), open_backend("memory://failing-disk"))
    world.forget()
    run = world.run()
    run.write_offsets()
    appended = run.tasks([("a", 1)])

    def fail(descriptor: int) -> None:
        raise OSError("disk failure")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(OSError, match="disk failure"):
            run.commit(appended)
    assert world.log_backend.list("manifests/") == []
    world.run().batch([("a", 2)])
    assert world.flushed() == {"a": 2}


# --- settle, order ---


@pytest.mark.rule("settle")
def test_published_epoch_waits_for_its_commit(world: World) -> None:
    world.run().publish([("a", 1)])
    assert world.flush()[-1].idle
    assert (world.table(), world.state.settled) == ({}, -1)


@pytest.mark.rule("settle")
@pytest.mark.parametrize("torn", [b"v1", b"v1\n", b"\n", b"v1\n{", b"junk"])
def test_torn_commit_file_completes_no_epoch(world: World, torn: bytes) -> None:
    """Spark runs this epoch again."""
    run = world.run().batches([("a", 1)])
    run.publish([("b", 2)])
    world.checkpoint.create("commits/1", torn)
    assert world.flushed() == {"a": 1}


@pytest.mark.rule("settle")
def test_state_is_read_before_commits(world: World) -> None:
    """In the other order, the commit of an earlier run could settle the attempt of a later run."""
    world.run().batch([("a", 1)])
    operations = Faults()
    world.flusher(operations).run_once()
    names = operations.operations
    assert names.index("list state/") < names.index("list commits/")


@pytest.mark.rule("order")
@pytest.mark.parametrize(
    ("epochs", "size", "ends"),
    [(64, 1 << 20, [4]), (2, 1 << 20, [1, 3, 4]), (64, 1, [0, 1, 2, 3, 4])],
)
def test_windows_follow_each_other_without_gaps(
    world: World, monkeypatch: pytest.MonkeyPatch, epochs: int, size: int, ends: list[int]
) -> None:
    """A window has at most this number of epochs and bytes. A larger epoch has a window of its own."""
    monkeypatch.setattr(flushers, "WINDOW_EPOCHS", epochs)
    monkeypatch.setattr("wal_sink.flush.window.WINDOW_BYTES", size)
    world.run().batches(*([("k", epoch), (f"k{epoch}", epoch)] for epoch in range(5)))
    faults = Faults(matching="finish ")
    world.flush(faults)
    assert faults.operations == [f"finish {end}" for end in ends]
    assert world.table() == world.expected()


@pytest.mark.rule("order")
def test_epoch_without_a_manifest_stops_flush_and_commit(world: World) -> None:
    """A `foreachBatch` function did not call its writer. The epoch does not count as empty."""
    run = world.run().flushed_batches([("a", 0)])
    run.write_offsets()
    run.write_commit([])
    error = stops(world, errors.MissingManifest)
    assert "Epoch 1 has no manifest" in error.what
    assert error.remedy.startswith("A foreachBatch function must call its writer")
    assert "give-up CHECKPOINT --epoch 1" in error.remedy
    run.write_offsets()
    with pytest.raises(errors.MissingManifest, match="Epoch 1"):
        run.commit(run.tasks([("c", 2)]))
    assert world.table() == {"a": 0}


@pytest.mark.rule("order")
def test_log_of_an_old_query_begins_after_its_commits(world: World) -> None:
    world.checkpoint.create("metadata", json.dumps({"id": world.query_id}).encode())
    world.checkpoint.create("commits/41", b"v1\n{}")
    run = world.run()
    assert run.next == 42
    run.batch([("a", 1)])
    world.committed = {42: world.committed[42]}
    assert world.flushed() == {"a": 1}
    assert (world.state.first, world.row.epoch) == (42, 42)


# --- repeatable, ledger ---


@pytest.mark.rule("repeatable")
def test_timestamps_grow_when_the_clock_goes_back(world: World) -> None:
    run = world.run()
    run.flushed_batches([("k", 0), ("k", 1), ("k", 2)])
    world.clock.us -= 3_600_000_000
    run.flushed_batches([("k", 3)])
    world.run().flushed_batches([], [("k", 4)])
    assert world.table() == {"k": 4}
    raw.complete(world, 4, "")


@pytest.mark.rule("ledger")
def test_ledger_row_is_made_before_the_first_epoch(world: World) -> None:
    """Given a ledger row that was lost after a flush, the flush stops."""
    world.run().batch([("a", 1)])
    flusher = world.flusher()
    flusher.run_once()
    assert world.row == LedgerRow(world.query_id, world.state.log_id, -1, "")
    flush(flusher)
    world.store_target.ledger.clear()
    error = stops(world, errors.LedgerBehindLog)
    assert "has no ledger row any more" in error.what
    assert "set-mark CHECKPOINT --to 0" in error.remedy


@pytest.mark.rule("ledger")
def test_finish_without_effect_is_tried_again(world: World) -> None:
    """Given an unknown answer to `finish`, and a row that has not moved, only `finish` is called again."""
    world.run().batch([("a", 1)])
    faults = Faults(0, "before", AnswerLost, "finish 0")
    world.flush(faults)
    assert faults.operations == ["finish 0"] * 2
    assert world.row.epoch == 0

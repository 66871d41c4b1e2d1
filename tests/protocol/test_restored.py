"""Targets, logs and checkpoints that were restored, copied or replaced."""

from __future__ import annotations

import subprocess
import uuid
from pathlib import Path

import pytest

from state_backends import open_backend
from tests.kills.every_fault import EPOCHS, fault, new_world, partitions
from tests.protocol import raw
from tests.protocol.cases import covered
from tests.protocol.damaged import change
from tests.protocol.engine import World, flush, in_memory
from tests.protocol.operators import Backup, TargetBackup, edit, files, restore, stops
from wal_sink import errors
from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.model.ledger import Outcome
from wal_sink.progress.status import read_status
from wal_sink.protocol import state as protocol
from wal_sink.protocol.retention import Retention
from wal_sink.testing.faults import Crash, Faults, different_faults

FOR_EVER = Retention(us=1 << 60, bytes=1 << 60)


# --- the target went back ---


def flushed_world(epochs: int) -> tuple[World, list[TargetBackup]]:
    """Return a query whose epochs all stay in the log, and backups of the target before each epoch."""
    world = new_world()
    world.retention = FOR_EVER
    run = world.run()
    backups = []
    for epoch in range(epochs):
        backups.append(TargetBackup(world))
        run.batch(*partitions(epoch, run.run_id))
        world.flush()
    return world, backups


@pytest.mark.rule("restored")
@pytest.mark.parametrize("to", range(1, EPOCHS))
def test_restored_target_gets_later_epochs_again(to: int, caplog: pytest.LogCaptureFixture) -> None:
    """The rows and their timestamps are the same. A warning names the epochs."""
    world, backups = flushed_world(EPOCHS)
    table = dict(world.store_target.table)
    backups[to].restore()
    world.flush()
    assert world.store_target.table == table
    assert f"went back to epoch {to - 1}" in caplog.text
    assert f"epochs {to} to {EPOCHS - 1} again" in caplog.text
    assert (world.mark(), world.row.epoch) == (EPOCHS - 1, EPOCHS - 1)


@pytest.mark.rule("restored")
@pytest.mark.parametrize("when", ["before", "after", "answer lost"])
def test_restored_target_is_completed_despite_every_fault(when: str) -> None:
    """Given a flusher that dies at each of its operations while it sends the epochs again."""
    world, backups = flushed_world(EPOCHS)
    backups[1].restore()
    whole = Faults()
    world.flush(whole)
    for k in different_faults(whole.operations, when):
        world, backups = flushed_world(EPOCHS)
        table = dict(world.store_target.table)
        backups[1].restore()
        try:
            flush(world.flusher(fault(k, when)))  # type: ignore[arg-type]
        except Crash:
            world.end_sessions()
        raw.safe(world, k)
        world.flush()
        assert world.store_target.table == table, k
        world.forget()
    covered(
        f"fault at every operation of a target that went back, {when}", f"{len(whole.operations)}"
    )


@pytest.mark.rule("restored")
def test_target_restored_beside_an_idle_flusher_is_completed() -> None:
    """The flusher sees the restore before it trims the missing epochs, without a new epoch of Spark."""
    world = new_world()
    world.retention = Retention(us=600_000_000, bytes=1 << 30)
    flusher = world.flusher()
    run = world.run().batches([("a", 1)])
    flush(flusher)
    backup = TargetBackup(world)
    run.batches([("b", 2)])
    flush(flusher)
    backup.restore()
    world.clock.us += 601_000_000
    flush(flusher)
    assert world.table() == world.expected()


# --- checkpoint and log were restored, without the target ---


@pytest.mark.rule("restored")
def test_flush_continues_after_restore_of_log_without_last_mark() -> None:
    """The ledger row fits an epoch of the restored log, so the flusher sets the mark to that epoch."""
    world = new_world()
    world.run().batches([("a", 0)], [("b", 1)])
    backup = Backup(world)
    world.flush()
    backup.restore()
    assert world.flushed() == {"a": 0, "b": 1}
    run = world.run()
    run.batch([("c", 2)])
    assert world.flushed() == {"a": 0, "b": 1, "c": 2}


@pytest.mark.rule("restored")
@pytest.mark.parametrize("spark_goes_on", [False, True])
def test_run_over_log_older_than_the_target_diverges(*, spark_goes_on: bool) -> None:
    """Spark computes other rows for the epochs that the target has."""
    world = new_world()
    run = world.run().flushed_batches([("a", 0)])
    backup = Backup(world)
    run.flushed_batches([("b", 1)], [("c", 2)])
    backup.restore()
    if spark_goes_on:
        world.run().batches([("b", 7)], [("c", 8)])
    error = stops(world, errors.Diverged)
    assert "another history" in error.what
    assert "set-mark CHECKPOINT" in error.remedy
    assert world.table() == {"a": 0, "b": 1, "c": 2}


# --- the checkpoint alone was set back ---


@pytest.mark.rule("publish")
@pytest.mark.parametrize("flushed", [False, True])
def test_run_continues_after_checkpoint_lost_its_newest_commit(
    world: World, caplog: pytest.LogCaptureFixture, *, flushed: bool
) -> None:
    """The settled attempt stays, if Spark computes it again from the same source offsets."""
    run = world.run().flushed_batches([("a", 1)])
    run.batch([("b", 2)])
    if flushed:
        world.flush()
    else:
        flusher = world.flusher(Faults(0, matching="read ledger"))
        with pytest.raises(Crash):
            flush(flusher)
        assert world.state.settled == 1
    edit(world.checkpoint, "commits/1", None)
    again = world.run()
    assert again.next == 1
    segments = world.log_backend.list("segments/")
    assert again.publish([("ghost", 9)]) is None
    assert "not published" in caplog.text
    assert set(world.log_backend.list("segments/")) <= set(segments), "the new rows leave nothing"
    again.write_commit([[("b", 2)]])
    again.batch([("c", 3)])
    assert world.flushed() == {"a": 1, "b": 2, "c": 3}


@pytest.mark.rule("publish")
def test_new_attempt_of_an_unsettled_epoch_replaces_the_first(world: World) -> None:
    """No target has rows of the first attempt."""
    world.run().batches([("a", 1)], [("b", 2)])
    edit(world.checkpoint, "commits/1", None)
    again = world.run()
    again.batch([("b", 3)])
    assert world.flushed() == {"a": 1, "b": 3}


@pytest.mark.rule("publish")
@pytest.mark.parametrize("back", [1, 2])
def test_checkpoint_set_back_to_other_data_diverges(world: World, back: int) -> None:
    """Given other source offsets, or a checkpoint set back by more than its newest epoch."""
    world.run().flushed_batches([("a", 0)], [("b", 1)], [("c", 2)])
    for epoch in range(3 - back, 3):
        edit(world.checkpoint, f"commits/{epoch}", None)
        edit(world.checkpoint, f"offsets/{epoch}", None)
    for _ in range(2):
        with pytest.raises(errors.Diverged, match="set back") as caught:
            world.run().publish([("x", 9)], offset="77")
        assert "start the query with a new one" in caught.value.remedy
    assert world.log_backend.list("segments/") == []
    assert world.flushed() == {"a": 0, "b": 1, "c": 2}


# --- copies ---


def copy_of(world: World) -> World:
    """Return a copy of checkpoint and log at another place, for the same target."""
    copy = World(*in_memory(), world.store_target)
    copy.query_id = world.query_id
    restore(copy.checkpoint, files(world.checkpoint))
    restore(copy.log_backend, files(world.log_backend))
    copy.committed, copy.clock = dict(world.committed), world.clock
    return copy


@pytest.mark.rule("identity")
def test_copied_checkpoint_neither_publishes_nor_flushes(world: World) -> None:
    """Given a staging system that uses a copy of production's checkpoint and log."""
    run = world.run().batches([("a", 1)])
    copy = copy_of(world)
    for log_url in (True, False):
        if not log_url:
            copy.checkpoint.delete([Checkpoint.LOG_URL])
        with pytest.raises(errors.WrongOwner):
            copy.run().publish([("ghost", 9)])
        with pytest.raises(errors.WrongOwner):
            copy.flush()
    status = read_status(Checkpoint(copy.checkpoint), copy.log_backend)
    assert str(status.last_error).startswith("WrongOwner: ")
    assert not status.safe_to_delete
    run.batch([("b", 2)])
    assert world.flushed() == {"a": 1, "b": 2}


@pytest.mark.rule("identity")
def test_query_cannot_start_a_second_log(world: World) -> None:
    """Given a changed `wal.location` while epochs are pending in the first log."""
    world.run().batches([("a", 1)])
    first, world.log_backend = world.log_backend, open_backend(f"memory://{uuid.uuid4().hex}")
    with pytest.raises(errors.WrongOwner, match="The log of") as caught:
        world.run().publish([("b", 2)])
    assert first.url in caught.value.what
    assert world.log_backend.list("segments/") == world.log_backend.list("state/") == []
    world.log_backend = first
    world.run().batch([("b", 2)])
    assert world.flushed() == {"a": 1, "b": 2}


@pytest.mark.rule("identity")
def test_ledger_row_of_another_log_stops_the_flush(world: World) -> None:
    """Given a log that was deleted and created again."""
    world.run().flushed_batches([("a", 1)]).batches([("b", 2)])
    world.store_target.ledger[world.query_id] = world.row._replace(log_id="another")
    error = stops(world, errors.WrongOwner)
    assert "another" in error.what
    assert "wal-sink adopt CHECKPOINT" in error.remedy
    assert world.table() == {"a": 1}


def adopt(world: World, log_id: str) -> None:
    """Do what `wal-sink adopt CHECKPOINT` does."""
    checkpoint = Checkpoint(world.checkpoint)
    change(world, lambda state, actor: protocol.adopt(state, log_id, checkpoint.url, actor))
    checkpoint.replace_log_url(world.log_backend.url)
    with world.target.connect(world.query_id) as session:
        row = session.read()
        assert row is not None
        new = protocol.adopted_row(world.state, row)
        assert session.finish(row, new) is Outcome.APPLIED  # type: ignore[attr-defined]


def test_stand_in_flushes_the_log_of_a_deleted_checkpoint(tmp_path: Path) -> None:
    """The commands of the error create the stand-in."""
    world = World(open_backend(str(tmp_path / "checkpoint")), open_backend(str(tmp_path)))
    world.log_backend = open_backend(f"{tmp_path}/my logs/{world.query_id}")
    world.run().flushed_batches([("a", 1)]).batches([("a", 2)], [("b", 3)])
    world.checkpoint.delete(world.checkpoint.list())
    commands = errors.stand_in(world.log_backend.url, "2").partition(": ")[2].rstrip(".")
    make, *others = commands.split(" && wal-sink ")
    subprocess.run(["sh", "-c", make], cwd=tmp_path, check=True)
    assert others == [
        f"{do} stand-in --wal 'file://{tmp_path}/my logs'" for do in ("adopt", "flush")
    ]
    stand_in = World(open_backend(str(tmp_path / "stand-in")), world.log_backend, world.target)
    stand_in.query_id, stand_in.clock = world.query_id, world.clock
    stops(stand_in, errors.WrongOwner)
    adopt(stand_in, "adopted")
    assert stand_in.flushed() == {"a": 2, "b": 3}

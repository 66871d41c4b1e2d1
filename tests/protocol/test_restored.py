"""Rule 23: a log that the ledger row does not follow, because it was restored from a backup or cloned, stops.

Its rows stay in the log, and `rewind` makes the ledger row follow it.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable

import pytest

from state_backends import StateBackend, open_backend
from tests.protocol.aged_log import leave_in_place
from tests.protocol.engine import World
from tests.protocol.operators import Backup, Files, files, query, restore, rewind, stops
from tests.protocol.state_repartition import repartition
from wal_sink.admin.rewind import plan_rewind
from wal_sink.admin.skip import plan_skip
from wal_sink.admin.verify import verify
from wal_sink.errors import (
    CorruptLog,
    Diverged,
    LedgerBehindLog,
    MissingManifest,
    OptionError,
)
from wal_sink.flush.rows import WindowWrite, WriteInThread
from wal_sink.model import paths

STORES = ("memory", "local")


def mount(world: World, snapshot: tuple[Files, Files]) -> None:
    """Put copies of checkpoint and log where the originals are: under the same URLs, on another host."""
    place = f"memory://{uuid.uuid4().hex}"
    world.checkpoint, world.log_backend = (
        _clone(f"{place}/{number}", backup, of.url)
        for number, (backup, of) in enumerate(
            zip(snapshot, (world.checkpoint, world.log_backend), strict=True)
        )
    )


def _clone(place: str, backup: Files, url: str) -> StateBackend:
    clone = open_backend(place)
    restore(clone, backup)
    clone.url = url
    return clone


@pytest.mark.parametrize("restarts", [0, 1, 3])
@pytest.mark.parametrize("windows", [1, 3])
def test_rule_23_a_restored_log_stops(world: World, restarts: int, windows: int) -> None:
    """The new run takes generations that the lost one had, and publishes other rows under their names."""
    run = world.run().flushed_batches([("a", 0)], [("b", 1)])
    run.end()
    backup = Backup(world)
    for _ in range(restarts):
        died = world.run()
        died.publish([("c", 2)])
        died.end()
    lost = world.run()
    for epoch in range(2, 2 + windows):
        lost.batch([("c", epoch)], offset=f"3{epoch}")
        world.flush()
    lost.end()
    backup.restore()
    found = world.run()
    found.batch([("c", 3), ("d", 4), ("e", 5)], offset="50")
    found.batch([("f", 6)], offset="60")
    error = stops(world)
    assert isinstance(error, Diverged)
    assert "rewind CHECKPOINT --to 1" in error.remedy
    assert {finding.kind for finding in verify(query(world), lambda: world.target, 0).findings} == {
        "Diverged"
    }

    rewind(world, 1)
    assert world.flushed() == world.expected() == {"a": 0, "b": 1, "c": 3, "d": 4, "e": 5, "f": 6}


def test_rule_23_a_restored_log_stops_before_spark_goes_on(world: World) -> None:
    """The flusher is there first: what the ledger says was flushed is not recorded in this log."""
    run = world.run().flushed_batches([("a", 0)])
    backup = Backup(world)
    run.flushed_batches([("lost", 1)])
    run.end()
    backup.restore()
    assert isinstance(stops(world), Diverged)
    assert world.log.flushed_epochs() == [0]

    found = world.run()
    found.batch([("b", 1)], offset="7")
    assert isinstance(stops(world), Diverged)
    rewind(world, 0)
    assert world.flushed() == world.expected() | {"lost": 1}


@pytest.mark.parametrize("goes_on", [False, True])
def test_rule_23_a_log_from_before_a_rewind_is_followed(world: World, *, goes_on: bool) -> None:
    """The row that the lost log's rewind has made names no window, so nothing tells whose epochs it has.

    :param goes_on: Spark has computed them again, so that each can be flushed.
    """
    run = world.run().flushed_batches([("a", 0)])
    backup = Backup(world)
    run.flushed_batches([("b", 1)], [("c", 2)])
    run.end()
    with pytest.raises(MissingManifest) as caught:
        rewind(world, 1)
    assert "--restored" not in caught.value.remedy  # it is of this log
    world.store.ledger.pop(world.query_id)
    rewind(world, 2)
    backup.restore()
    found = world.run()
    found.batch([("b", 3)], offset="9")
    if goes_on:
        found.batch([("c", 4)], offset="10")
    error = stops(world)
    assert isinstance(error, CorruptLog)
    assert "rewind CHECKPOINT --to 0" in error.remedy

    if not goes_on:
        with pytest.raises(MissingManifest) as caught:
            rewind(world, 0)
        assert "--restored" in caught.value.remedy
    rewind(world, 0, restored=not goes_on)
    assert world.flushed() == world.expected() | ({} if goes_on else {"c": 2})


def test_rule_23_an_interrupted_flush_of_the_lost_log_is_not_finished(world: World) -> None:
    """The ledger names a window of the lost log: nothing is written of it, and `rewind` gives it up."""
    run = world.run().flushed_batches([("a", 0)])
    backup = Backup(world)
    run.batch([("b", 1)])
    world.begin_and_die()
    run.end()
    backup.restore()
    found = world.run()
    found.batch([("b", 2), ("c", 3)], offset="9")
    error = stops(world)
    assert "restored" in error.remedy

    with pytest.raises(OptionError, match="is begun") as caught:
        rewind(world, 0)  # it looks like a lost manifest of this log
    assert "--restored" in caught.value.remedy
    rewind(world, 0, restored=True)
    assert world.flushed() == world.expected() == {"a": 0, "b": 2, "c": 3}


def test_rule_23_what_another_log_has_begun_is_not_given_up_here(world: World) -> None:
    """The rows of this log's epoch would wait in the copies, and the flush would miss their manifest."""
    run = world.run().flushed_batches([("a", 0)])
    backup = Backup(world)
    run.flushed_batches([("b", 1)])
    run.batch([("c", 2)])
    world.begin_and_die()
    run.end()
    backup.restore()
    found = world.run()
    found.batch([("b", 3)], offset="9")
    found.batch([("c", 4)], offset="10")
    error = stops(world)
    place = open_backend(f"memory://{uuid.uuid4().hex}")
    now_us = world.clock.us + 600_000_000
    with pytest.raises(Diverged) as caught:
        plan_skip(query(world), world.target, 2, place, now_us, begun=True)
    assert caught.value.remedy in error.remedy
    rewind(world, 0, restored=True)
    assert world.flushed() == world.expected() == {"a": 0, "b": 3, "c": 4}


@pytest.mark.parametrize("finished", [True, False])
@pytest.mark.parametrize("purged", [True, False])
def test_rule_23_what_spark_went_back_behind_is_not_flushed_from_the_ledger_row(
    world: World, *, finished: bool, purged: bool
) -> None:
    """The restored log has the manifest that the row names; the checkpoint is set back behind it."""
    run = world.run().batches([("a", 0)], [("lost", 1)])
    backup = Backup(world)
    flusher = world.flusher()
    if not finished:
        flusher._flush = lambda *args, **kwargs: None  # type: ignore[method-assign]  # it dies
    for _ in range(2):
        flusher.run_once()
    run.end()
    backup.restore()
    world.checkpoint.delete(["commits/1", "offsets/1"])
    run = world.run()
    run.batch([("b", 1)], offset="9")
    run.batch([("c", 2)])
    if purged:
        world.checkpoint.delete(["offsets/0", "offsets/1"])
    error = stops(world)
    assert isinstance(error, Diverged)
    assert "rewind CHECKPOINT --to -1" in error.remedy
    assert world.log.flushed_epochs() == []

    rewind(world, -1)
    assert world.flushed() == world.expected() | ({"lost": 1} if finished else {})


def test_rule_23_a_replay_from_the_same_offsets_is_no_other_history(world: World) -> None:
    """The row names the attempt of before; the one that Spark computed again has the same rows to flush."""
    run = world.run().batches([("a", 0)], [("b", 1)])
    backup = Backup(world)
    world.flush()
    run.end()
    backup.restore()
    world.checkpoint.delete(["commits/1", "offsets/1"])
    run = world.run().batches([("b", 1)], [("c", 2)])
    assert world.flushed() == world.expected() == {"a": 0, "b": 1, "c": 2}


def test_rule_23_a_clone_at_the_same_path_stops_one_of_the_two(world: World) -> None:
    """A volume's snapshot is mounted under the same path elsewhere, with the same ledger."""
    run = world.run().flushed_batches([("a", 0)])
    run.end()
    snapshot = files(world.checkpoint), files(world.log_backend)
    production = world.checkpoint, world.log_backend
    ours = world.run()
    ours.batch([("p1", 11), ("p2", 12)], offset="7")
    expected = world.expected()

    mount(world, snapshot)
    theirs = world.run()
    theirs.batch([("staging", 99)], offset="5")
    world.flush()

    world.checkpoint, world.log_backend = production
    assert isinstance(stops(world), Diverged)
    rewind(world, 0)
    assert world.flushed() == expected | {"staging": 99}


def overtaken_by(
    world: World, original: tuple[StateBackend, StateBackend]
) -> Callable[[WindowWrite], bool]:
    """Return how a clone's flusher writes rows while the other side rewinds, and flushes its own epoch.

    :param original: checkpoint and log of the other side.
    """

    def write(rows: WindowWrite) -> bool:
        done = WriteInThread()(rows)
        cloned = world.checkpoint, world.log_backend
        world.checkpoint, world.log_backend = original
        world.run().batch([("ours", 1)], offset="7")
        rewind(world, 0, restored=True)
        world.flush()
        world.checkpoint, world.log_backend = cloned
        return done

    return write


def test_rule_16_a_row_that_another_log_brought_to_the_same_epoch_is_not_shadowed(
    world: World,
) -> None:
    """The row is at the epoch before the window again, from the other log: no write of the future did that.

    Its remedy, another ledger table, would let both flush.
    """
    run = world.run().flushed_batches([("a", 0)])
    run.end()
    snapshot = files(world.checkpoint), files(world.log_backend)
    production = world.checkpoint, world.log_backend
    mount(world, snapshot)
    run = world.run()
    run.batch([("clone", 1)], offset="5")
    world.flush()
    run.batch([("clone", 2)], offset="6")

    flusher = world.flusher()
    flusher._write_rows = overtaken_by(world, production)
    flusher.run_once()
    assert world.log.flushed_epochs() == [0, 1]
    assert world.state.flushed == 1
    assert isinstance(stops(world), Diverged)
    world.checkpoint, world.log_backend = production
    world.run().batch([("ours", 2)], offset="8")
    assert world.flushed() == {"a": 0, "clone": 2, "ours": 2}


def one_epoch_later(world: World) -> Backup:
    """Flush two epochs, and back up after each; the older backup is restored first, and goes on by itself."""
    world.run().flushed_batches([("a", 0)]).end()
    older = Backup(world)
    world.run().flushed_batches([("b", 1)]).end()
    newer = Backup(world)
    older.restore()
    run = world.run()
    run.batch([("other", 7)], offset="9")
    rewind(world, 0)
    world.flush()
    run.end()
    return newer


def test_rule_23_a_log_that_is_flushed_as_far_as_the_ledger_says_stops_too(world: World) -> None:
    """Both logs are at the same epoch. The next one would follow upon that of the other log."""
    one_epoch_later(world).restore()
    world.run().batch([("c", 2)])
    error = stops(world)
    assert isinstance(error, Diverged)
    assert "rewind CHECKPOINT --to 1" in error.remedy
    rewind(world, 1)
    assert world.flushed() == {"a": 0, "b": 1, "other": 7, "c": 2}


def test_rule_19_a_target_from_before_a_rewind_is_told_by_any_epoch(world: World) -> None:
    """What was flushed since is missing up to the epoch of its row, too: a rewind there leaves that out."""
    world.retention_s = 3_600
    run = world.run().flushed_batches([("a", 0)], [("b", 1)])
    before = dict(world.store.ledger)
    run.flushed_batches([("c", 2)])
    run.end()
    rewind(world, 0)
    world.flush()
    world.store.ledger.update(before)
    error = stops(world)
    assert isinstance(error, LedgerBehindLog)
    assert "from before a rewind" in error.remedy
    assert "--to 1`" not in error.remedy


def test_rule_23_a_lost_record_is_made_from_the_ledger(world: World) -> None:
    """The same log: its manifests are the ones that the ledger names, to the byte."""
    world.run().batches([("a", 0)], [("b", 1)])
    flusher = world.flusher()
    flusher._record = lambda *args: None  # type: ignore[method-assign]  # it dies after finish
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("wal_sink.flush.trimmer.trim", lambda *args: ())
        for _ in range(2):
            flusher.run_once()
    assert world.log.flushed_epochs() == []
    world.flush()
    assert world.log.flushed_epochs() == [0, 1]
    assert world.table() == world.expected()


def test_rule_18_an_attempt_is_told_by_the_digest_of_its_manifest(world: World) -> None:
    """The record says which bytes were flushed; another manifest of that name is not trimmed."""
    world.retention_s = 3_600
    world.run().flushed_batches([("a", 0)])
    leave_in_place(world)
    record = world.log.flushed(0)
    assert record is not None
    path = paths.MANIFEST.path(world.log.attempts()[0])
    data = world.log_backend.read(path)
    world.log.delete([path])
    world.log_backend.create(path, data.replace(b'"nonce": "', b'"nonce": "0'))
    world.retention_s = 0
    assert isinstance(stops(world), Diverged)


def passed_over_in_the_lost_log(world: World) -> Backup:
    """Flush epoch 0; after the backup the lost log gives epoch 1 up, and the ledger says so."""
    run = world.run().flushed_batches([("a", 0)])
    run.write_offsets()
    backup = Backup(world)
    run.batch([("b", 1)])
    world.log.delete(world.log_backend.list(paths.MANIFEST.folder))
    skip = plan_skip(query(world), world.target, 1, None, world.clock.us, begun=False)
    skip.carry_out(world.clock.us)
    world.flush()
    run.end()
    backup.restore()
    return backup


@pytest.mark.parametrize("spark_first", [True, False])
def test_rule_23_an_epoch_that_the_lost_log_gave_up_is_flushed_here(
    world: World, spark_first: bool
) -> None:
    """The decision is lost with the log, and the replay covers the same source offsets."""
    passed_over_in_the_lost_log(world)
    if not spark_first:
        assert isinstance(stops(world), Diverged)
    world.run().batch([("b", 1)])
    assert isinstance(stops(world), Diverged)
    rewind(world, 0)
    assert world.flushed() == world.expected() == {"a": 0, "b": 1}


def test_rule_23_a_lost_manifest_does_not_let_another_attempt_be_flushed(world: World) -> None:
    """The begun attempt is of this log, half of it in the table: `rewind` does not give it up."""
    world.run().flushed_batches([("a", 0)])
    world.run().publish([("x", 1)])
    world.run().batch([("b", 1), ("c", 2)])
    world.begin_and_die()
    world.log.delete([paths.MANIFEST.path(max(world.log.attempts()))])
    with pytest.raises(OptionError, match="is begun"):
        rewind(world, 0)


def test_rule_23_the_mark_before_the_first_epoch_is_named(world: World) -> None:
    """The backup is from before the first flush."""
    run = world.run().batches([("a", 0)])
    backup = Backup(world)
    world.flush()
    run.flushed_batches([("a", 1)])
    run.end()
    backup.restore()
    error = stops(world)
    assert isinstance(error, Diverged)
    assert "rewind CHECKPOINT --to -1" in error.remedy
    rewind(world, -1)
    assert world.flushed() == world.expected() == {"a": 0}


def test_rule_23_a_log_in_which_spark_made_the_epoch_is_another_one(world: World) -> None:
    """The lost log flushed rows as epoch 3, long after the backup; here a state repartition made it."""
    run = world.run().flushed_batches([("a", 0)])
    backup = Backup(world)
    for epoch in range(1, 4):
        run.flushed_batches([("lost", epoch)])
    run.end()
    backup.restore()
    for number, partitions in enumerate((8, 4, 2)):
        repartition(world, last_kept=number, batch=number + 1, partitions=partitions)
    error = stops(world)
    assert isinstance(error, Diverged)
    assert "rewind CHECKPOINT --to 0" in error.remedy
    rewind(world, 0)
    world.run().batch([("b", 4)])
    assert world.flushed() == {"a": 0, "lost": 3, "b": 4}


def test_rule_23_a_log_in_which_spark_left_the_epoch_out_is_another_one(world: World) -> None:
    """The lost log flushed it, from the same offsets; here a run failed, and the repartition went on."""
    run = world.run().flushed_batches([("a", 0)])
    backup = Backup(world)
    run.flushed_batches([("lost", 1)])
    run.end()
    backup.restore()
    world.run().write_offsets()
    world.checkpoint.create("commits/1", b'v1\n{"nextBatchWatermarkMs":0}')
    repartition(world, last_kept=0, batch=2, partitions=8)
    assert isinstance(stops(world), Diverged)
    assert world.log.mark() == 0


def test_rule_23_other_data_that_passed_a_restored_log_by_is_not_taken_for_flushed(
    world: World,
) -> None:
    """A function of foreachBatch kept the error to itself: neither a manifest nor a record tells."""
    world.run().end()
    backup = Backup(world)
    world.run().flushed_batches([("a", 1)])
    backup.restore()
    world.run().write_offsets("7")
    world.checkpoint.create("commits/0", b'v1\n{"nextBatchWatermarkMs":0}')
    with pytest.raises(Diverged):
        world.flush()
    assert world.log.mark() == -1


@pytest.mark.parametrize("torn", [True, False])
def test_rule_23_a_manifest_that_the_backup_lacks_does_not_bar_the_way_back(
    world: World, *, torn: bool
) -> None:
    """The backup of the log is older than that of the checkpoint: it can be given up after the rewind."""
    run = world.run().flushed_batches([("a", 0)]).batches([("gone", 1)])
    backup = Backup(world)
    run.flushed_batches([("lost", 2)])
    run.end()
    backup.restore()
    (attempt,) = world.log.attempts()
    world.log.delete([paths.MANIFEST.path(attempt)])
    if torn:
        world.log_backend.create(paths.MANIFEST.path(attempt), b"{torn")
    world.run().batch([("b", 2)], offset="7")
    assert isinstance(stops(world), CorruptLog if torn else Diverged)
    now_us = world.clock.us + 600_000_000
    plan = plan_rewind(query(world), world.target, 0, now_us, restored=torn)
    assert "no manifest that can be used of these: 1." in plan.consequences
    plan.carry_out(now_us)

    assert isinstance(stops(world), CorruptLog if torn else MissingManifest)
    place = open_backend(f"memory://{uuid.uuid4().hex}") if torn else None
    plan_skip(query(world), world.target, 1, place, now_us, begun=False).carry_out(now_us)
    assert world.flushed() == {"a": 0, "gone": 1, "lost": 2, "b": 2}


def test_rule_18_a_damaged_manifest_of_a_flushed_epoch_goes(world: World) -> None:
    """It does not stop the flush: nothing is needed of it any more."""
    world.retention_s = 3_600
    run = world.run().flushed_batches([("a", 0)])
    leave_in_place(world)
    path = paths.MANIFEST.path(world.log.attempts()[0])
    world.log.delete([path])
    world.log_backend.create(path, b"{torn")
    world.retention_s = 0
    run.batch([("b", 1)])
    assert world.flushed() == {"a": 0, "b": 1}
    assert world.log.attempts() == ()

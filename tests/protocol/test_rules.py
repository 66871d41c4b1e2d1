"""The rules of the protocol, one by one: each test carries the number of the rule that it keeps."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import stat
import threading
import time
import uuid
from pathlib import Path

import msgspec
import pytest

from state_backends import open_backend
from tests.protocol.aged_log import record_each, recorded_in
from tests.protocol.engine import NOW_US, Run, World, a_decision
from tests.protocol.operators import Backup, edit, look
from tests.protocol.state_repartition import pass_over, repartition
from tests.support.waiting import until
from wal_sink import errors
from wal_sink.admin.query import Query
from wal_sink.admin.verify import verify
from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.checkpoint.watcher import EarlySync
from wal_sink.flush.connection import TargetConnection
from wal_sink.flush.report import Reporter
from wal_sink.flush.rows import pieces, read_piece
from wal_sink.flush.run_history import RunHistory
from wal_sink.flush.window import Clocks
from wal_sink.model import paths
from wal_sink.model.ledger import LedgerState, Outcome, Owner
from wal_sink.model.manifest import Attempt
from wal_sink.model.plan import Plan
from wal_sink.model.records import Claim, CommitProof, Decision
from wal_sink.progress.status import read_status
from wal_sink.protocol import windows
from wal_sink.protocol.ledger import CLOCKS_DIFFER_US
from wal_sink.protocol.next_step import (
    Begin,
    CreateLedger,
    Idle,
    Observation,
    PassOver,
    RecordFlushed,
    Resume,
    Stale,
    Step,
    Trim,
)
from wal_sink.targets.base import Session, Slice
from wal_sink.testing.faults import AnswerLost, Faults, FaultyBackend
from wal_sink.testing.memory_target import MemorySession, Shadow


def set_mark(world: World, **changes: object) -> None:
    """Edit the ledger row by hand."""
    row = world.state
    world.store.ledger[world.query_id] = msgspec.structs.replace(row, **changes)


# --- identity -------------------------------------------------------------------------------------


def test_rule_0_publish_refuses_a_checkpoint_of_another_query(world: World) -> None:
    """The metadata that `commit()` reads must be of the query that ran the tasks."""
    run = world.run()
    run.write_offsets()
    appended = run.tasks([("a", 1)])
    edit(world.checkpoint, "metadata", json.dumps({"id": str(uuid.uuid4())}).encode())
    with pytest.raises(errors.CheckpointNotVisible, match="metadata"):
        run.commit(appended)
    assert world.log.attempts() == ()


def test_rule_0_a_checkpoint_that_is_deleted_under_a_query_is_called_so(world: World) -> None:
    """Not a wrong location: Spark writes `offsets/N` into the folder again, and no metadata."""
    run = world.run()
    run.write_offsets()
    appended = run.tasks([("a", 1)])
    world.checkpoint.delete(["metadata"])
    with pytest.raises(errors.CheckpointNotVisible, match="somebody has deleted it") as caught:
        run.commit(appended)
    assert "Restore the checkpoint" in caught.value.remedy
    assert world.log.attempts() == ()


def test_rule_0_a_checkpoint_of_which_our_file_alone_is_left_is_called_so(world: World) -> None:
    """All that Spark wrote was deleted: the error names the log, and how to flush it."""
    world.run().batch([("a", 1)])
    left = Checkpoint.LOG_URL
    world.checkpoint.delete([path for path in world.checkpoint.list() if path != left])
    with pytest.raises(errors.CheckpointNotVisible, match="somebody has deleted it") as caught:
        Checkpoint(world.checkpoint).query_id()
    assert errors.stand_in(world.log.url, "LAST") in caught.value.remedy


def test_rule_1_a_copied_checkpoint_neither_publishes_nor_flushes(world: World) -> None:
    """Staging's copy of checkpoint and log must not touch production's ledger row."""
    run = world.run().batches([("a", 1)])
    identity = world.log.identity()
    assert identity is not None
    moved = msgspec.structs.replace(identity, checkpoint="file:///production")
    edit(world.log_backend, paths.LOG, moved.to_json())
    with pytest.raises(errors.WrongOwner, match="production"):
        run.batch([("b", 2)])
    with pytest.raises(errors.WrongOwner, match="production"):
        world.flush()
    assert world.table() == {}
    seen = read_status(Checkpoint(world.checkpoint), world.log)
    assert seen.last_error is not None, "before any flusher has met it"
    assert seen.last_error.startswith("WrongOwner: ")
    assert not seen.safe_to_delete


def test_rule_1_the_ledger_row_of_another_log_is_not_used(world: World) -> None:
    """A log that was deleted and made anew does not continue the old one's mark."""
    world.run().flushed_batches([("a", 1)]).batches([("b", 2)])
    set_mark(world, log_id="another")
    with pytest.raises(errors.WrongOwner, match="another"):
        world.flush()
    assert world.table() == {"a": 1}


def test_rule_1_a_ledger_row_of_another_checkpoint_is_not_used(world: World) -> None:
    """The log id agrees, the checkpoint does not: the log was copied with its checkpoint."""
    world.run().flushed_batches([("a", 1)]).batches([("b", 2)])
    set_mark(world, checkpoint="file:///production")
    with pytest.raises(errors.WrongOwner, match="production"):
        world.flush()


def test_rule_1_a_query_cannot_start_a_second_log(world: World) -> None:
    """`wal.location` was changed while epochs wait in the first log: they would be lost silently."""
    world.run().batches([("a", 1)])
    first, world.log_backend = world.log_backend, open_backend(f"memory://{uuid.uuid4().hex}")
    with pytest.raises(errors.WrongOwner, match=re.escape(first.url)):
        world.run().batch([("b", 2)])
    with pytest.raises(errors.WrongOwner, match=re.escape(first.url)):
        world.flush()
    world.log_backend = first
    world.run().batch([("b", 2)])
    assert world.flushed() == {"a": 1, "b": 2}


def test_rule_1_a_copy_does_not_fence_the_original(world: World) -> None:
    """A copied checkpoint with the same `wal.location` is refused before it claims a generation."""
    run = world.run().batches([("a", 1)])
    copy = World(open_backend(f"memory://{uuid.uuid4().hex}"), world.log_backend)
    copy.query_id = world.query_id
    for path in world.checkpoint.list():
        copy.checkpoint.create(path, world.checkpoint.read(path))
    with pytest.raises(errors.WrongOwner):
        copy.run().batch([("ghost", 9)])
    copy.checkpoint.delete([Checkpoint.LOG_URL])
    with pytest.raises(errors.WrongOwner):
        copy.run().batch([("ghost", 9)])
    run.batch([("b", 2)])
    assert world.flushed() == {"a": 1, "b": 2}


# --- publish --------------------------------------------------------------------------------------


def test_rule_2_without_a_ticket_nothing_is_published(world: World) -> None:
    """A query that was started before `register` fails at its first commit."""
    with pytest.raises(errors.NotRegistered, match="register"):
        world.run(listening=False).batch([("a", 1)])
    assert world.log.attempts() == ()


def test_rule_2_the_ticket_is_from_before_the_checkpoint_is_read(world: World) -> None:
    """A run that read the checkpoint before a newer run published cannot claim above it."""
    old = world.run()
    world.run().batches([("new", 1)])
    old.next = 0
    with pytest.raises(errors.Fenced):
        old.publish([("old", 1)])


def test_rule_3_of_two_runs_with_one_ticket_one_publishes(world: World) -> None:
    """Both saw generation 0; generation 1 is claimed by atomic create, by one of them."""
    first, second = world.run(), world.run()
    second.publish([("b", 2)])
    with pytest.raises(errors.Fenced, match=second.run_id):
        first.publish([("a", 1)])
    assert world.log.attempts() == (Attempt(0, 1),)


def test_rule_3_an_older_run_is_fenced_by_a_higher_claim(world: World) -> None:
    """A zombie that owns its generation stops as soon as a higher one is claimed."""
    old = world.run().batches([("a", 1)])
    new = world.run()
    new.publish([("b", 2)])
    with pytest.raises(errors.Fenced):
        old.publish([("b", 3)])
    assert [attempt.generation for attempt in world.log.attempts()] == [1, 2]


def test_rule_4_segments_carry_who_wrote_them(world: World) -> None:
    """Messages of two runs, or of another epoch, are never published together."""
    run, other = world.run(), world.run()
    run.write_offsets()
    with pytest.raises(errors.WalSinkError, match="reports of"):
        run.commit([*run.tasks([("a", 1)]), *other.tasks([("b", 1)])])
    assert world.log.attempts() == ()


def test_rule_4_messages_of_another_epoch_are_refused(world: World) -> None:
    """What tasks of epoch 0 wrote is not published as epoch 1."""
    run = world.run()
    run.write_offsets()
    appended = run.tasks([("a", 1)])
    run.next = 1
    run.write_offsets()
    with pytest.raises(errors.WalSinkError, match="reports of"):
        run.commit(appended)
    assert world.log.attempts() == ()


def test_rule_4_a_failing_task_leaves_no_segment(world: World) -> None:
    """What a task wrote before it failed is gone."""
    faults = Faults(at=0, when="before", error=lambda: OSError("disk full"), matching="output")
    run = world.run(faults)
    with pytest.raises(errors.LogUnavailable, match="disk full"):
        run.publish([("a", 1)])
    assert faults.injected is not None
    assert world.log_backend.list(paths.SEGMENT.folder) == []


def test_rule_4_an_unseen_segment_stops_the_publish(world: World) -> None:
    """A log that the driver does not share with the executors is found out before anything is lost."""
    run = world.run()
    run.write_offsets()
    appended = run.tasks([("a", 1)])
    world.log_backend.delete([appended[0].segments[0].path])
    with pytest.raises(errors.SegmentNotVisible, match=r"wal\.location"):
        run.commit(appended)
    assert world.log.attempts() == ()


def test_rule_5_a_checkpointed_epoch_is_not_published(world: World) -> None:
    """A run that comes back from a long pause finds its epoch done by another one."""
    old = world.run()
    old.write_offsets()
    appended = old.tasks([("old", 1)])
    world.checkpoint.create("commits/0", b"v1\n{}")
    with pytest.raises(errors.Fenced, match="checkpointed") as caught:
        old.commit(appended)
    assert "newer" not in caught.value.remedy, "the other run may be an older one"


def test_rule_5_the_replay_of_a_flushed_epoch_is_passed_over(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """An operator deleted `commits/1`: Spark computes it again, the table stays as it is."""
    world.run().flushed_batches([("a", 1)], [("b", 2)])
    edit(world.checkpoint, "commits/1", None)
    again = world.run()
    assert again.next == 1
    assert again.publish([("ghost", 9)]) is None
    assert "not published" in caplog.text
    again.write_commit([[("b", 2)]])
    again.batch([("c", 3)])
    assert world.flushed() == {"a": 1, "b": 2, "c": 3}


@pytest.mark.parametrize(
    ("first", "warning"),
    [("flusher", "are not published"), ("run", "was flushed from another attempt")],
)
def test_rule_5_a_backup_from_before_the_commit_keeps_the_rows_of_the_first_time(
    world: World, caplog: pytest.LogCaptureFixture, first: str, warning: str
) -> None:
    """It was made while the query ran. Spark computes other rows for 1, and those of 2 refer to them."""
    run = world.run().flushed_batches([("s", 0)])
    run.publish([("first", 1)])
    backup = Backup(world)
    run.write_commit([[("first", 1)]])
    world.flush()
    backup.restore()
    if first == "flusher":
        world.flush()
    again = world.run()
    again.batch([("second", 1)])
    world.flush()
    assert warning in caplog.text
    again.batch([("refers to second", 2)])
    assert world.flushed() == {"s": 0, "first": 1, "refers to second": 2}


def test_rule_5_other_offsets_under_a_flushed_epoch_diverge(world: World) -> None:
    """An older checkpoint was restored and Spark plans other data as epoch 1."""
    world.run().flushed_batches([("a", 1)], [("b", 2)])
    edit(world.checkpoint, "commits/1", None)
    edit(world.checkpoint, "offsets/1", None)
    with pytest.raises(errors.Diverged, match="Epoch 1 was flushed"):
        world.run().publish([("x", 9)], offset="77")
    assert world.table() == {"a": 1, "b": 2}


def test_rule_5_a_replay_of_what_was_flushed_long_ago_diverges(world: World) -> None:
    """Its record is gone: nothing says whether it is the same."""
    world.run().flushed_batches([("a", 1)], [("b", 2)])
    record_each(world.log, lost=[0])
    for epoch in range(2):
        edit(world.checkpoint, f"commits/{epoch}", None)
    with pytest.raises(errors.Diverged, match="long ago"):
        world.run().publish([("a", 1)])


def test_rule_5_an_unknown_offsets_format_is_refused(world: World) -> None:
    """The offsets of an epoch are compared, so their format has to be known."""
    run = world.run()
    world.checkpoint.create("offsets/0", b"v9\n{}\n{}")
    with pytest.raises(errors.UnknownOffsetsFormat, match="v9"):
        run.publish([("a", 1)])


def test_rule_5_the_batch_time_is_not_part_of_the_source_offsets(world: World) -> None:
    """Line two of an offsets file differs between replays of the same data."""
    world.checkpoint.create("offsets/0", b'v1\n{"batchTimestampMs":1}\n{"offset":5}')
    world.checkpoint.create("offsets/1", b'v1\n{"batchTimestampMs":2}\n{"offset":5}')
    world.checkpoint.create("offsets/2", b'v1\n{"batchTimestampMs":1}\n{"offset":6}')
    first, second, third = (
        Checkpoint(world.checkpoint).committing_offsets(epoch).digest for epoch in range(3)
    )
    assert first == second != third


def test_rule_6_a_second_publish_with_other_contents_is_refused(world: World) -> None:
    """A manifest is created once; only its own creator may find it there."""
    run = world.run()
    run.publish([("a", 1)])
    with pytest.raises(errors.AlreadyPublished):
        run.publish([("a", 2)])


def test_rule_6_an_epoch_without_rows_is_published(world: World) -> None:
    """Else the rows of an attempt that died would come through in its place."""
    dead = world.run()
    dead.publish([("ghost", 1)])
    alive = world.run()
    alive.batch()
    assert world.flushed() == {}
    assert world.log.newest_flushed() is not None


def test_rule_7_overtaken_while_publishing_is_fenced(world: World) -> None:
    """A higher generation that appears between the checks and the manifest stops the run."""
    run = world.run().batches([("a", 1)])
    run.write_offsets()
    appended = run.tasks([("b", 2)])
    create = run.log.create_manifest

    def claim_first(manifest: object) -> object:
        world.log.create_or_read(
            paths.CLAIM, 2, Claim(run_id="newer", options={}, early=False, epoch=0)
        )
        return create(manifest)  # type: ignore[arg-type]

    run.log.create_manifest = claim_first  # type: ignore[method-assign,assignment]
    with pytest.raises(errors.Fenced, match="overtaken"):
        run.commit(appended)


# --- flush ----------------------------------------------------------------------------------------


def test_rule_8_the_checkpoint_is_durable_before_it_is_acted_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark was not seen to sync its files: a power loss must not take back what is being flushed."""
    folder = tmp_path / "checkpoint"
    world = World(open_backend(str(folder)), open_backend(str(tmp_path / "log")))
    world.run().batches(*([("a", number)] for number in range(4)))
    (folder / "commits" / ".3.crc").write_bytes(b"crc")
    synced: set[int] = set()
    seen: set[str] = set()
    fsync, update = os.fsync, MemorySession.compare_and_set

    def note(descriptor: int) -> None:
        time.sleep(0.02)  # a disk that is slower than all else
        fsync(descriptor)
        synced.add(os.fstat(descriptor).st_ino)

    def look(session: MemorySession, before: LedgerState | None, new: LedgerState) -> Outcome:
        if new.begun is None:
            return update(session, before, new)
        every = [folder / "offsets", folder / "commits", *folder.glob("[oc]*/*")]
        seen.update(str(path.relative_to(folder)) for path in every if path.stat().st_ino in synced)
        assert len(new.begun.epochs) == 4
        return update(session, before, new)

    monkeypatch.setattr(os, "fsync", note)
    monkeypatch.setattr(MemorySession, "compare_and_set", look)
    world.flush()
    newest = {"offsets/2", "commits/2", "offsets/3", "commits/3", "commits/.3.crc"}
    assert seen == {"offsets", "commits", *newest}  # of the others nothing is read again


class Disk:
    """A checkpoint's folder, and what of it is synced how often."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self._synced: list[int] = []
        fsync = os.fsync

        def note(descriptor: int) -> None:
            fsync(descriptor)
            self._synced.append(os.fstat(descriptor).st_ino)

        monkeypatch.setattr(os, "fsync", note)
        for name in ("offsets", "commits"):
            (folder / name).mkdir()

    def write(self, path: str, text: str = "v1") -> None:
        """Write a file as Spark does, by a rename."""
        unfinished, there = self.folder / f"{path}.tmp", self.folder / path
        unfinished.write_text(text)
        if there.exists():  # else another file may get its number, by which syncs are counted
            there.rename(self.folder / f"replaced-{there.stat().st_ino}")
        unfinished.rename(there)

    def syncs(self, path: str) -> int:
        return self._synced.count((self.folder / path).stat().st_ino)


def test_rule_8_what_is_as_it_was_synced_is_not_synced_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two passes the checkpoint may have become another one, with files of the same names."""
    disk = Disk(tmp_path, monkeypatch)
    early = EarlySync(Checkpoint(open_backend(str(tmp_path))))

    def synced() -> None:
        early.start(3)
        early.make_durable({3})

    for folder in ("offsets", "commits"):
        disk.write(f"{folder}/3")
    for _ in range(2):
        synced()
        assert (disk.syncs("offsets/3"), disk.syncs("commits/3")) == (1, 1)
    folders = disk.syncs("offsets"), disk.syncs("commits")
    disk.write("commits/3")
    synced()
    assert (disk.syncs("offsets/3"), disk.syncs("commits/3")) == (1, 1), "it is another file"
    assert (disk.syncs("offsets"), disk.syncs("commits")) == (folders[0], folders[1] + 1)
    time.sleep(0.02)  # the clock of a file system ticks in steps
    (tmp_path / "offsets" / "3").write_text("v2")
    synced()
    assert (disk.syncs("offsets/3"), disk.syncs("commits/3")) == (2, 1)
    (tmp_path / "offsets" / ".3.crc").write_text("late")
    synced()
    assert disk.syncs("offsets/.3.crc") == 1


def test_rule_8_a_file_whose_folder_was_not_synced_is_synced_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its name could be lost."""
    disk = Disk(tmp_path, monkeypatch)
    disk.write("commits/3")
    early = EarlySync(Checkpoint(open_backend(str(tmp_path))))
    fsync = os.fsync

    def fail(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError("disk failure")
        fsync(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        early.start(3)
        with pytest.raises(OSError, match="disk failure"):
            early.make_durable({3})
    time.sleep(0.02)  # the clock of a file system ticks in steps
    disk.write("commits/.4")  # a folder that could not be synced counts again when it has changed
    early.start(3)
    early.make_durable({3})
    assert (disk.syncs("commits/3"), disk.syncs("commits")) == (2, 1)


def test_what_spark_has_written_before_it_checkpoints_is_synced_by_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then two files and a folder are left."""
    disk = Disk(tmp_path, monkeypatch)
    early = EarlySync(Checkpoint(open_backend(str(tmp_path))))
    for epoch in (2, 3):
        disk.write(f"offsets/{epoch}")
    disk.write("commits/2")
    early.start(2)
    early.make_durable({2})
    for _ in range(2):
        early.ahead()
    until(lambda: disk.syncs("offsets") >= 2)
    disk.write("commits/3")
    early.start(3)
    early.make_durable({2, 3})
    found = {
        path: disk.syncs(path) for path in ("offsets/2", "commits/2", "offsets/3", "commits/3")
    }
    assert found == dict.fromkeys(found, 1)
    assert (disk.syncs("offsets"), disk.syncs("commits")) == (2, 2)


def test_rule_8_what_cannot_be_made_durable_is_not_acted_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that fails: nothing is begun."""
    world = World(open_backend(str(tmp_path / "checkpoint")), open_backend("memory://failing-disk"))
    world.run().batch([("a", 1)])

    def fail(descriptor: int) -> None:
        raise OSError("disk failure")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(errors.LogUnavailable, match="disk failure"):
        world.flush()
    assert world.state.begun is None


@pytest.mark.parametrize("repaired", ["by hand", "by later epochs"])
def test_rule_8_a_sync_that_has_failed_is_not_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, repaired: str
) -> None:
    """Linux reports an error of writing once, and drops what it could not write: the next sync succeeds."""
    folder = tmp_path / "checkpoint"
    world = World(open_backend(str(folder)), open_backend("memory://failed-once"))
    run = world.run().batches([("a", 1)])
    commit = folder / "commits" / "0"
    failed, fsync = threading.Event(), os.fsync

    def fail_once(descriptor: int) -> None:
        if not failed.is_set() and os.fstat(descriptor).st_ino == commit.stat().st_ino:
            failed.set()
            raise OSError(errno.EIO, "Input/output error")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fail_once)
    flusher = world.flusher()
    assert isinstance(flusher.run_once(), CreateLedger)  # begins a sync, and asks for no result
    assert failed.wait(10)
    for again in (flusher, flusher, world.flusher()):
        with pytest.raises(errors.LogUnavailable, match=r"commits/0 could not be synced"):
            again.run_once()
    assert (row := world.ledger()) is not None
    assert (row.flushed, row.begun) == (-1, None)
    if repaired == "by hand":
        shutil.copy2(commit, folder / "copy")
        (folder / "copy").replace(commit)
    else:
        run.batch([("b", 2)])
        with pytest.raises(errors.LogUnavailable, match=r"commits/0"):
            flusher.run_once()  # Spark reads this file, too, when it starts behind the next one
        run.batch([("c", 3)])
    assert world.flushed() == world.expected()


def test_rule_8_purged_files_need_not_be_durable(tmp_path: Path) -> None:
    """Spark keeps the newest hundred; a flusher that is further behind flushes all the same."""
    world = World(open_backend(str(tmp_path / "checkpoint")), open_backend("memory://purged"))
    world.run().batches(*([(f"k{epoch}", epoch)] for epoch in range(3)))
    world.checkpoint.delete(["commits/0", "offsets/0", "commits/1", "offsets/1"])
    assert world.flushed() == world.expected()


def test_rule_8_only_what_commits_covers_is_flushed(world: World) -> None:
    """A published epoch without `commits/N` stays in the log."""
    run = world.run()
    run.publish([("a", 1)])
    assert isinstance(world.flush()[-1], Idle)
    assert world.table() == {}


@pytest.mark.parametrize("torn", [b"v1", b"v1\n", b"\n", b"v1\n{", b"junk"])
def test_rule_8_a_torn_commit_file_does_not_count(world: World, torn: bytes) -> None:
    """Spark will run that epoch again."""
    run = world.run().batches([("a", 1)])
    run.publish([("b", 2)])
    world.checkpoint.create("commits/1", torn)
    assert world.flushed() == {"a": 1}


def test_rule_9_commits_are_read_before_manifests(world: World) -> None:
    """In the order commits, metadata, ledger, manifests; and nothing is remembered for the next pass."""
    world.run().batches([("a", 1)])
    faults = Faults()
    flusher = world.flusher(faults)
    flusher.run_once()
    faults.operations.clear()
    flusher.run_once()
    seen = faults.operations
    assert seen.index("read ledger") < seen.index("list manifests/")
    assert seen.index("list commits/") < seen.index("read metadata") < seen.index("list manifests/")


def test_rule_9_a_checkpoint_made_anew_is_not_flushed_by_the_old_flusher(world: World) -> None:
    """The folder was deleted and a new query started in its place."""
    world.run().batches([("a", 1)])
    edit(world.checkpoint, "metadata", json.dumps({"id": "another"}).encode())
    with pytest.raises(errors.WrongOwner, match="another"):
        world.flush()
    assert world.table() == {}


def test_rule_10_what_is_begun_is_finished_exactly(world: World) -> None:
    """A flusher died after `begin`; meanwhile a higher generation appeared: the decision stands."""
    world.run().batches([("first", 1)])
    flush_until(world, "write")
    manifest = world.log.manifest(Attempt(0, 1))
    assert manifest is not None
    later = msgspec.structs.replace(manifest[0], generation=2, nonce="n", segments=())
    world.log.create_manifest(later)
    steps = world.flush()
    assert any(isinstance(step, Resume) for step in steps)
    assert world.table() == {"first": 1}


def flush_until(world: World, operation: str) -> None:
    """Flush, and lose the target at an operation."""
    faults = Faults(at=0, error=ConnectionError, matching=operation)
    with pytest.raises(errors.TargetUnavailable):
        world.flush(faults)
    assert faults.injected is not None


def test_rule_10_a_begun_manifest_is_flushed_to_the_byte(world: World) -> None:
    """The decision was about these bytes; an edited manifest is not flushed in their place."""
    world.run().batch([("a", 1)])
    flush_until(world, "write")
    manifest = world.log.manifest(Attempt(0, 1))
    assert manifest is not None
    edited = msgspec.structs.replace(manifest[0], published_us=1)
    edit(world.log_backend, paths.MANIFEST.path(Attempt(0, 1)), edited.to_json())
    with pytest.raises(errors.CorruptLog, match="changed"):
        world.flush()


def begun(steps: list[Step]) -> list[list[int]]:
    """Return the epochs of each window."""
    return [[a.epoch for a in step.attempts] for step in steps if isinstance(step, Begin)]


def backlog(world: World, epochs: int) -> None:
    """Leave epochs unflushed that write the same key, and one of their own."""
    world.run().batches(*([("k", epoch), (f"k{epoch}", epoch)] for epoch in range(epochs)))


def test_rule_10_a_backlog_is_begun_and_finished_together(world: World) -> None:
    """One `begin` and one `finish`; the last epoch's value stays, and each has its record."""
    backlog(world, 5)
    faults = Faults()
    assert begun(world.flush(faults)) == [[0, 1, 2, 3, 4]]
    updates = [op for op in faults.operations if op.startswith(("begin", "finish"))]
    assert updates == ["begin 0", "finish 4"]
    assert world.table() == {"k": 4, **{f"k{epoch}": epoch for epoch in range(5)}}
    assert world.log.flushed_epochs() == [0, 1, 2, 3, 4]
    assert world.log.attempts() == ()


def test_rule_10_a_manifest_is_read_once_on_the_way_from_choice_to_write(world: World) -> None:
    """The choice carries it. A flusher that resumes remembers nothing, and reads what the ledger names."""
    backlog(world, 5)
    begins, resumes = Faults(), Faults()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MemorySession, "drain", lose_the_target)
        with pytest.raises(errors.TargetUnavailable):
            world.flush(begins)
    world.flush(resumes)
    every = [f"read {paths.MANIFEST.path(Attempt(epoch, 1))}" for epoch in range(5)]
    for faults in (begins, resumes):
        assert [name for name in faults.operations if name in every] == every
    assert world.table() == world.expected()


def lose_the_target(_session: MemorySession) -> None:
    raise ConnectionError


def test_rule_10_windows_follow_each_other_without_gaps(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At most so many epochs each, begun at the mark plus one."""
    monkeypatch.setattr(windows, "WINDOW_EPOCHS", 2)
    backlog(world, 5)
    assert begun(world.flush()) == [[0, 1], [2, 3], [4]]
    assert world.table() == world.expected()


def test_rule_10_a_window_is_bounded_in_bytes(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An epoch above the bound is a window of its own."""
    backlog(world, 3)
    monkeypatch.setattr(windows, "WINDOW_BYTES", 1)
    flusher = world.flusher()
    marks = []
    while not isinstance(flusher.run_once(), Idle):
        marks.append(world.log.mark())
    assert sorted(set(marks)) == [-1, 0, 1, 2]


@pytest.mark.parametrize("damaged", ["manifest", "segment", "plan"])
def test_rule_10_an_epoch_that_stops_the_line_does_not_stop_those_before_it(
    world: World, damaged: str
) -> None:
    """It is left for the next window, and raised there."""
    backlog(world, 4)
    found = world.log.manifest(Attempt(2, 1))
    assert found is not None
    if damaged == "manifest":
        edit(world.log_backend, paths.MANIFEST.path(Attempt(2, 1)), b"{")
    elif damaged == "segment":
        edit(world.log_backend, found[0].segments[0].path, b"torn")
    else:
        other = msgspec.structs.replace(found[0], plan="0" * 32)
        edit(world.log_backend, paths.MANIFEST.path(Attempt(2, 1)), other.to_json())
    with pytest.raises(errors.CorruptLog):
        world.flush()
    assert world.log.flushed_epochs() == [0, 1]
    assert [attempt.epoch for attempt in world.log.attempts()] == [2, 3]


def test_rule_11_the_highest_generation_is_flushed(world: World) -> None:
    """The attempt that Spark kept is the last one, also when the first one published more."""
    world.run().publish([("dead", 1), ("both", 1)])
    world.run().publish([("dead too", 2), ("both", 2)])
    world.run().batch([("both", 3)])
    assert world.flushed() == {"both": 3}


ZOMBIE, RESTARTED = [("zombie", 1), ("both", 1)], [("restarted", 2), ("both", 2)]


def overtaken(world: World, run_history: RunHistory | None = None) -> tuple[Run, Run]:
    """A run publishes epoch 0 and stands still; another one does, too; then the first one commits.

    :param run_history: of the process of the second run; the first one's is another process.
    """
    old = world.run()
    old.publish(ZOMBIE)
    new = world.run(run_history=run_history)
    new.publish(RESTARTED)
    old.write_commit([ZOMBIE])
    with pytest.raises(FileExistsError):
        new.write_commit([RESTARTED])
    new.end()
    return old, new


@pytest.mark.parametrize("foreign", [False, True])
def test_rule_11_a_fenced_run_says_that_its_last_epoch_was_kept(
    world: World, *, foreign: bool
) -> None:
    """The highest generation is not the one that Spark kept: the run that did goes on, and is fenced.

    :param foreign: a log that was restored has a note of that name, about a run of the lost history.
    """
    old, _ = overtaken(world)
    if foreign:
        world.log.create_proof(
            CommitProof(epoch=0, generation=1, run_id="of the lost history", highest=1)
        )
    with pytest.raises(errors.Fenced):
        old.publish([("late", 3)])
    steps = world.flush()
    assert Begin((Attempt(0, 1),)) in steps
    assert world.table() == world.expected() == {"zombie": 1, "both": 1}
    assert world.log_backend.list(paths.PROOF.folder) == []


@pytest.mark.parametrize("proof", ["note", "event"])
def test_rule_11_a_commit_that_is_written_again_after_its_purge_proves_nothing(
    world: World, proof: str
) -> None:
    """The older run wakes between the flusher's listing and its look for proofs."""
    run_history = RunHistory()
    old = world.run(run_history=run_history)
    old.publish(ZOMBIE)
    new = world.run()
    new.publish(RESTARTED)
    new.write_commit([RESTARTED])
    flusher = world.flusher(run_history=run_history)
    assert isinstance(flusher.run_once(), CreateLedger)
    look = flusher._look

    def late() -> Observation:
        view = look()
        if old.next == 0:
            new.batch([("more", 3)])
            new.batch([("and more", 4)])
            for purged in ("commits/0", "offsets/0", "offsets/1"):
                edit(world.checkpoint, purged, None)
            kept = world.committed[0]
            old.write_commit([ZOMBIE], heard=proof == "event")
            world.committed[0] = kept
            if proof == "note":
                with pytest.raises(errors.Fenced):
                    old.publish([("late", 5)])
        return view

    flusher._look = late  # type: ignore[method-assign]
    assert Begin((Attempt(0, 2),)) == flusher.run_once()
    assert (
        world.flushed() == world.expected() == {"restarted": 2, "both": 2, "more": 3, "and more": 4}
    )


def test_rule_11_a_note_that_could_not_be_written_is_said(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """The run is fenced all the same; the choice is unproven then, and that is said, too."""
    old, _ = overtaken(world)
    faults = Faults(
        at=0, error=lambda: OSError("disk full"), matching=f"create {paths.PROOF.folder}"
    )
    old.log.backend = FaultyBackend(world.log_backend, faults)
    with pytest.raises(errors.Fenced):
        old.publish([("late", 3)])
    assert faults.injected is not None
    assert "could not be written to the log" in caplog.text
    assert Begin((Attempt(0, 2),), proven=False) in world.flush()
    assert "unproven" in caplog.text
    assert world.table() in ({"zombie": 1, "both": 1}, {"restarted": 2, "both": 2})


def test_rule_11_a_run_that_cannot_read_its_manifest_is_fenced_all_the_same(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """The error has to say that another run has taken over."""
    old, _ = overtaken(world)
    path = paths.MANIFEST.path(Attempt(0, 1))
    world.log_backend.delete([path])
    world.log_backend.create(path, b"{")
    with pytest.raises(errors.Fenced):
        old.publish([("late", 3)])
    assert "could not be written to the log" in caplog.text


def test_rule_11_no_note_about_an_epoch_of_another_run(world: World) -> None:
    """A run that is fenced at its first epoch has not committed the one before."""
    world.run().batch([("a", 1)])
    old, new = world.run(), world.run()
    new.publish([("b", 2)])
    with pytest.raises(errors.Fenced):
        old.publish([("c", 3)])
    assert world.log_backend.list(paths.PROOF.folder) == []


def test_rule_11_a_progress_event_proves_which_attempt_was_kept(world: World) -> None:
    """The flusher that lives in the process of the run that wrote `commits/0` need not wait."""
    run_history = RunHistory()
    old = world.run(run_history=run_history)
    old.publish(ZOMBIE)
    world.run().publish(RESTARTED)
    old.write_commit([ZOMBIE])
    assert Begin((Attempt(0, 1),)) in world.flush(run_history=run_history)
    assert world.table() == world.expected()


def test_rule_11_a_run_that_gave_way_did_not_write_the_commit(world: World) -> None:
    """Spark says so when it ends; the run that was faster need not have been seen."""
    run_history = RunHistory()
    _, new = overtaken(world, run_history)
    new.end(gave_way=True)
    assert Begin((Attempt(0, 1),)) in world.flush(run_history=run_history)
    assert world.table() == world.expected() == {"zombie": 1, "both": 1}


def test_rule_11_a_run_that_gave_way_later_had_written_its_earlier_commits(world: World) -> None:
    """It found `offsets/1` written by another run; its event for epoch 0 had come before."""
    world.run().publish([("dead", 1)])
    run_history = RunHistory()
    run = world.run(run_history=run_history).batches([("kept", 2)])
    run.end(gave_way=True)
    assert run_history.gave_way(world.query_id, 0, {run.run_id}) == frozenset()
    assert Begin((Attempt(0, 2),)) in world.flush(run_history=run_history)


def test_rule_11_an_event_from_before_the_checkpoint_was_set_back_proves_nothing(
    world: World,
) -> None:
    """`commits/0` was deleted and the query started again in the same process."""
    run_history = RunHistory()
    first = world.run(run_history=run_history).batches([("first", 1)])
    first.end()
    edit(world.checkpoint, "commits/0", None)
    second = world.run(run_history=run_history)
    second.publish([("second", 2)])
    second.write_commit([[("second", 2)]], heard=False)
    assert isinstance(world.flush(run_history=run_history)[-1], Idle)
    assert world.table() == {}
    second.batch([("more", 3)])
    world.flush(run_history=run_history)
    assert world.table() == world.expected() == {"second": 2, "more": 3}


def test_rule_11_without_proof_the_next_epoch_is_waited_for(world: World) -> None:
    """The event was lost; the run lives in this process and publishes the next epoch: it is proven."""
    world.run().publish([("dead", 1)])
    run_history = RunHistory()
    run = world.run(run_history=run_history)
    run.publish([("kept", 2)])
    run.write_commit([[("kept", 2)]], heard=False)
    rest = world.flush(run_history=run_history)[-1]
    assert isinstance(rest, Idle)
    assert "waiting" in rest.why
    assert world.table() == {}
    run.publish([("next", 3)])
    assert Begin((Attempt(0, 2),)) in world.flush(run_history=run_history)
    assert world.table() == world.expected() == {"kept": 2}


def test_rule_11_a_run_that_is_asked_proves_what_its_event_would_have(world: World) -> None:
    """The source is idle: neither the event nor a next epoch comes, and the flush does not rest for ever."""
    world.run().publish([("dead", 1)])
    run_history = RunHistory()
    run = world.run(run_history=run_history)
    run.publish([("kept", 2)])
    run.write_commit([[("kept", 2)]], heard=False)
    assert isinstance(world.flush(run_history=run_history)[-1], Idle)
    assert run_history.caught_up(world.query_id, run.run_id, 0)
    assert Begin((Attempt(0, 2),)) in world.flush(run_history=run_history)
    assert world.table() == world.expected() == {"kept": 2}


def test_rule_11_a_run_that_is_asked_says_nothing_of_what_another_one_committed(
    world: World,
) -> None:
    """It found epoch 0 checkpointed, and is idle: that proves none of the attempts at it."""
    run_history = RunHistory()
    old, _ = overtaken(world, run_history)
    idle = world.run(run_history=run_history)
    assert run_history.caught_up(world.query_id, idle.run_id, 0)
    with pytest.raises(errors.Fenced):
        old.publish([("late", 3)])
    assert Begin((Attempt(0, 1),)) in world.flush(run_history=run_history)
    assert world.table() == world.expected()


@pytest.mark.parametrize("ended", [True, False])
def test_rule_11_when_no_such_run_lives_the_highest_is_taken_unproven(
    world: World, caplog: pytest.LogCaptureFixture, *, ended: bool
) -> None:
    """It ended here with its event lost, or its process is gone: the flush goes on, and says so."""
    world.run().publish([("dead", 1)])
    run_history = RunHistory()
    run = world.run(run_history=run_history)
    run.publish([("kept", 2)])
    run.write_commit([[("kept", 2)]], heard=False)
    if ended:
        run.end()
    assert Begin((Attempt(0, 2),), proven=False) in world.flush(
        run_history=run_history if ended else None
    )
    assert "unproven" in caplog.text
    assert world.table() == {"kept": 2}


def test_rule_11_a_generation_that_falls_is_logged(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """From one epoch to the next; it means that log or checkpoint were edited by hand."""
    dead = world.run()
    dead.publish([("dead", 1)])
    run = world.run().flushed_batches([("a", 1)], [("b", 2)])
    assert "falls" not in caplog.text
    run.batch([("c", 3)])
    manifest = world.log.manifest(Attempt(2, 2))
    assert manifest is not None
    edit(world.log_backend, paths.MANIFEST.path(Attempt(2, 2)), None)
    world.log.create_manifest(msgspec.structs.replace(manifest[0], generation=1))
    world.flush()
    assert "falls from 2 at epoch 1 to 1 at epoch 2" in caplog.text


def test_rule_12_a_batch_of_the_state_repartition_has_no_rows(world: World) -> None:
    """Spark made it without a sink, so it has no manifest; what comes after it is flushed."""
    run = world.run().batches([("a", 1)])
    repartition(world, last_kept=0, batch=1, partitions=8)
    run = world.run()
    assert run.batch([("b", 2)]) == 2
    repartition(world, last_kept=2, batch=3, partitions=4)
    repartition(world, last_kept=3, batch=4, partitions=2)
    assert world.flushed() == {"a": 1, "b": 2}
    assert [(r.epoch, r.rows, r.manifest == "") for r in world.log.flushed_since(-1)] == [
        (0, 1, False),
        (1, 0, True),
        (2, 1, False),
        (3, 0, True),
        (4, 0, True),
    ]


@pytest.mark.parametrize("published", [True, False])
def test_rule_12_what_the_repartition_passed_over_is_not_flushed(
    world: World, *, published: bool
) -> None:
    """It commits the failed batch, too, and plans its data again: flushed, it would be there twice."""
    pass_over(world, published=published)
    run = world.run()
    assert run.batch([("again", 2)], offset="1") == 3
    assert world.flushed() == {"a": 1, "again": 2}
    assert [r.epoch for r in world.log.flushed_since(-1)] == [0, 1, 2, 3]
    assert world.log_backend.list(paths.SEGMENT.folder) == []
    assert world.log.attempts() == ()


def test_rule_12_begun_without_rows_is_resumed(world: World) -> None:
    """A flusher died between `begin` and `finish` of an epoch that has no manifest."""
    world.run().batch([("a", 1)])
    repartition(world, last_kept=0, batch=1, partitions=8)
    flush_until(world, "finish 1")
    assert any(isinstance(step, Resume) for step in world.flush())
    assert world.state.flushed == 1


def test_rule_12_what_spark_went_back_behind_is_never_flushed(world: World) -> None:
    """`offsets/1` was planned anew after a run had published the epoch with other data."""
    world.run().batch([("a", 1)])
    world.run().publish([("behind", 2)])
    edit(world.checkpoint, "offsets/1", None)
    run = world.run()
    run.publish([("b", 2)], offset="77")
    run.write_commit([[("b", 2)]])
    assert world.flushed() == {"a": 1, "b": 2}
    assert world.log.attempts() == ()


def test_rule_12_nothing_is_flushed_when_only_what_spark_went_back_behind_is_there(
    world: World,
) -> None:
    """The epoch was computed anew without the sink: an operator has to decide."""
    world.run().publish([("behind", 1)])
    edit(world.checkpoint, "offsets/0", b'v1\n{}\n{"offset":77}')
    world.checkpoint.create("commits/0", b"v1\n{}")
    with pytest.raises(errors.Diverged, match="Epoch 0"):
        world.flush()
    assert world.table() == {}


def test_rule_12_a_checkpointed_epoch_without_manifest_stops_the_line(world: World) -> None:
    """It is never taken for an empty one, and what follows it waits."""
    world.run().batches(*([(f"k{epoch}", epoch)] for epoch in range(3)))
    world.log_backend.delete([paths.MANIFEST.path(Attempt(1, 1))])
    with pytest.raises(errors.MissingManifest, match="Epoch 1"):
        world.flush()
    assert world.table() == {"k0": 0}


def test_rule_12_a_sink_that_joins_an_old_query_starts_at_its_first_epoch(world: World) -> None:
    """Epochs before the first publish were not this sink's."""
    for epoch in range(3):
        world.checkpoint.create(f"commits/{epoch}", b"v1\n{}")
    run = world.run()
    assert run.batch([("a", 1)]) == 3
    assert CreateLedger(2) in world.flush()
    assert world.table() == {"a": 1}


def test_rule_12_what_a_run_completes_before_the_first_publish_is_missed(world: World) -> None:
    """A function for `foreachBatch` has kept the errors of the first calls to itself."""
    world.checkpoint.create("commits/0", b"v1\n{}")  # of another sink
    run = world.run()
    for epoch in (1, 2):
        run.write_offsets()
        run.write_commit([[(f"k{epoch}", epoch)]])
    status = read_status(Checkpoint(world.checkpoint), world.log)
    assert (status.pending_epochs, status.safe_to_delete) == (2, False)
    with pytest.raises(errors.MissingManifest, match="Epoch 1 "):
        world.flush()
    assert {each.kind for each in look(world).findings} == {"MissingManifest"}
    with pytest.raises(errors.MissingManifest, match=r"Epochs 1 to 2 "):
        world.run()
    assert run.batch([("a", 3)]) == 3, "of a run that goes on"
    with pytest.raises(errors.MissingManifest, match="Epoch 1 "):
        world.flush()
    assert world.table() == {}


def test_rule_12_an_epoch_of_another_sink_between_two_starts_is_asked_about(world: World) -> None:
    """The log without a manifest is deleted, as the error says, and the query goes on behind that epoch."""
    world.run()
    world.flush()
    assert world.ledger() is None, "else the row would name the log that is deleted"
    world.checkpoint.create("commits/0", b"v1\n{}")
    with pytest.raises(errors.MissingManifest, match=r"Epoch 0 .* did not go through this sink"):
        world.run()
    world.log_backend.delete(world.log_backend.list())
    world.checkpoint.delete([Checkpoint.LOG_URL])
    assert world.run().batch([("a", 1)]) == 1
    assert CreateLedger(0) in world.flush()
    assert world.table() == {"a": 1}


def test_rule_1_a_log_that_has_vanished_is_not_begun_anew(world: World) -> None:
    """What was pending in it would be lost without a word, where nothing was flushed yet."""
    run = world.run().batches([("a", 1)])
    kept = {path: world.log_backend.read(path) for path in world.log_backend.list()}
    world.log_backend.delete(kept)
    for act in (world.flush, world.run, lambda: run.batch([("b", 2)])):
        with pytest.raises(errors.CorruptLog, match="not mounted"):
            act()
    query = Query(world.query_id, Checkpoint(world.checkpoint), world.log)
    assert [each.kind for each in verify(query, None, NOW_US).findings] == ["CorruptLog"]
    for path, data in kept.items():
        world.log_backend.create(path, data)
    assert world.flushed() == {"a": 1}


@pytest.mark.parametrize("purged", [False, True])
def test_rule_12_a_repartition_before_the_first_publish_is_not_missed(
    world: World, *, purged: bool
) -> None:
    """Spark has made the epoch, from none of the source's data; once it is flushed, what tells may be gone.

    It could not be noted, as the disk was full.
    """
    world.run().batch([("a", 1)])
    world.log_backend.delete(world.log_backend.list())
    world.checkpoint.delete([Checkpoint.LOG_URL])
    world.run()
    repartition(world, last_kept=0, batch=1, partitions=8)
    if purged:
        world.flush()
        world.checkpoint.delete(["offsets/0"])
    assert world.run().batch([("b", 2)]) == 2
    assert world.flushed() == {"b": 2}


def test_rule_13_the_ledger_is_not_made_anew_when_the_log_knows_of_flushes(world: World) -> None:
    """A truncated ledger table does not flush trimmed epochs as if they were new."""
    world.run().flushed_batches([("a", 1)]).batches([("b", 2)])
    world.store.ledger.clear()
    with pytest.raises(errors.LedgerBehindLog, match="no row"):
        world.flush()
    assert world.store.ledger == {}
    assert world.table() == {"a": 1}


@pytest.mark.parametrize("operation", ["begin 0", "finish 0"])
def test_rule_13_a_lost_answer_is_read_back(world: World, operation: str) -> None:
    """An update whose answer is lost took effect; the flusher finds out by reading, and goes on."""
    world.run().batch([("a", 1)])
    faults = Faults(at=0, when="after", error=AnswerLost, matching=operation)
    world.flush(faults)
    assert faults.injected == operation
    assert world.table() == {"a": 1}
    row = world.state
    assert (row.flushed, row.begun) == (0, None)


@pytest.mark.parametrize("operation", ["begin 0", "create ledger"])
def test_rule_13_an_update_without_effect_is_an_outage(
    world: World, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    """Unanswered and not there: said as an error, which the loop backs off from; never spun on."""
    world.run().batch([("a", 1)])

    class Deaf(MemorySession):
        def compare_and_set(self, seen: LedgerState | None, new: LedgerState) -> Outcome:
            if seen is None and operation != "create ledger":
                return super().compare_and_set(seen, new)
            return Outcome.UNKNOWN

    monkeypatch.setattr(world.store, "connect", lambda owner: Deaf(world.store, owner))
    with pytest.raises(errors.TargetUnavailable, match="could not be"):
        world.flush()
    assert world.table() == {}


def test_rule_14_a_begin_that_another_flusher_won_is_not_written(world: World) -> None:
    """The answer was lost before it took effect, and another flusher began the epoch: look again."""
    world.run().batches([("a", 1)])
    world.flusher().run_once()
    rival = world.flusher(Faults(at=0, error=ConnectionError, matching="write"))
    faults = Faults()
    slow = world.flusher(faults)
    update = MemorySession.compare_and_set

    def lose(session: MemorySession, seen: LedgerState, new: LedgerState) -> Outcome:
        patch.undo()
        with pytest.raises(errors.TargetUnavailable):
            rival.run_once()
        assert update(session, seen, new) is Outcome.CONFLICT
        return Outcome.UNKNOWN

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MemorySession, "compare_and_set", lose)
        slow.run_once()
    assert [name for name in faults.operations if name.startswith("write")] == []
    assert any(isinstance(step, Resume) for step in world.flush())
    assert world.table() == {"a": 1}


def test_rule_14_timestamps_are_fixed_before_the_first_row(world: World) -> None:
    """A flush that is repeated, also by a flusher with another clock, writes the same timestamps."""
    world.run().batch([("a", 1), ("b", 2)])
    flush_until(world, "write")
    begun = world.state.begun
    assert begun is not None
    world.clock.us += 3_600_000_000
    world.flush()
    stamps = {key[0]: row.cells["v"].us for key, row in world.store.table.items()}
    assert stamps == {"a": begun.epochs[0].base_us, "b": begun.epochs[0].base_us + 1}


def test_rule_14_timestamps_grow_over_epochs_when_the_clock_goes_back(world: World) -> None:
    """An epoch published by a driver whose clock is behind still wins over the epoch before."""
    run = world.run().flushed_batches([("k", 1)])
    world.clock.us = NOW_US - 3_600_000_000
    run.batch([("k", 2)])
    assert world.flushed() == {"k": 2}


def test_rule_14_a_publisher_ahead_of_time_does_not_write_into_the_future(world: World) -> None:
    """The flusher's clock caps the timestamps: ordinary writers can still overwrite."""
    world.clock.us = NOW_US + 86_400_000_000
    world.run().batch([("k", 1)])
    world.clock.us = NOW_US
    world.flush()
    (row,) = world.store.table.values()
    assert row.cells["v"].us < NOW_US + 1_000_000


@pytest.mark.parametrize("empty", [False, True])
def test_rule_14_a_glitch_of_the_clock_does_not_stay(
    world: World, caplog: pytest.LogCaptureFixture, *, empty: bool
) -> None:
    """All clocks of the driver's host are ten years ahead for one epoch: the target's clock bounds them."""
    years_us = 10 * 365 * 86_400_000_000
    run = world.run().flushed_batches([("k", 1)])
    world.clock.us += years_us
    world.target_ahead_us = -years_us
    run.batch(*([] if empty else [[("glitch", 2)]]))
    world.flush()
    world.clock.us -= years_us
    world.target_ahead_us = 0
    run.flushed_batches([("k", 3)])
    newest_us = max(row.cells["v"].us for row in world.store.table.values())
    assert newest_us < NOW_US + CLOCKS_DIFFER_US + 1_000_000
    (said,) = [r.getMessage() for r in caplog.records if r.name == "wal_sink.flush.window"]
    assert "2033" in said
    assert "2023" in said
    assert world.table() == world.expected()


def test_rule_14_one_node_with_a_wrong_clock_is_outvoted(world: World) -> None:
    """Each time the target is asked another node answers; the one in the middle is believed."""
    world.run().batch([("k", 1)])
    told = iter([NOW_US - 10**15, NOW_US, NOW_US])
    world.store.clock_us = lambda: next(told)  # from here on the flusher alone asks
    world.flush()
    (row,) = world.store.table.values()
    assert abs(row.cells["v"].us - NOW_US) < 1_000_000
    assert next(told, None) is None


def test_rule_14_a_flusher_asks_for_the_time_now_and_then(world: World) -> None:
    """Every ten seconds at most, and at once when this host's clock jumps."""
    asked: list[int] = []

    def tell() -> int:
        asked.append(world.clock())
        return asked[-1]

    world.store.clock_us = tell
    elapsed_s, owner = 0.0, Owner(world.query_id, "", "")
    target = TargetConnection(world.store, owner, Reporter(None), world.clock)
    clocks = Clocks(target, world.clock, lambda: elapsed_s)
    for elapsed_s, times in ((0.0, 1), (5.0, 1), (9.9, 1), (10.0, 2), (19.9, 2)):
        world.clock.us = NOW_US + int(elapsed_s * 1_000_000)
        clocks.now_us()
        assert len(asked) == times
    world.clock.us += 2 * CLOCKS_DIFFER_US
    clocks.now_us()
    assert len(asked) == 3


def test_rule_14_a_flusher_that_rests_does_not_ask_for_the_time(world: World) -> None:
    """A look costs no request where there is nothing to flush."""
    world.run().batch([("k", 1)])
    faults = Faults(matching="clock")
    flusher = world.flusher(faults)
    for _ in range(20):
        flusher.run_once()
    assert len(faults.operations) == 1


def test_rule_14_timestamps_of_the_future_are_told(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """From before there was a bound, or from a clock of the target: each epoch's lie above those before."""
    run = world.run()
    world.flusher().run_once()
    run.batch([("k", 1)])
    world.flusher().run_once()
    seen = world.state
    future_us = NOW_US + 10**14
    world.store.ledger[world.query_id] = msgspec.structs.replace(seen, last_us=future_us)
    world.flush()
    (row,) = world.store.table.values()
    assert row.cells["v"].us == future_us + 1
    said = [r.getMessage() for r in caplog.records if r.name == "wal_sink.flush.window"]
    assert len(said) == 1
    assert "wal-sink rewind CHECKPOINT --to -1 --reset-timestamps" in said[0]


def test_rule_15_a_late_flusher_cannot_overwrite_a_newer_epoch(world: World) -> None:
    """It stood still before a write while another flusher finished that epoch and the next one."""
    run = world.run().batches([("k", 1)])
    faults = Faults(at=0, error=ConnectionError, matching="write")
    stale = world.flusher(faults)
    stale.run_once()
    with pytest.raises(errors.TargetUnavailable):
        stale.run_once()
    window = world.state.begun
    assert window is not None
    (piece,) = pieces(world.log, window.epochs[0])
    held = list(read_piece(world.log_backend, piece))
    run.flushed_batches([("k", 2)])
    with world.store.connect(Owner(world.query_id, "", "")) as session:
        for rows in held:
            session.write(piece.plan, rows)
        session.drain()
    assert world.table() == {"k": 2}


def test_rule_15_a_flusher_stops_when_another_one_has_finished(world: World) -> None:
    """Between two slices it looks at the ledger again."""
    run = world.run()
    run.batch([("a", 1)], [("b", 2)])
    faults = Faults()
    slow = world.flusher(faults)
    slow.run_once()
    write = world.store.connect(Owner(world.query_id, "", "")).__class__.write
    calls: list[int] = []

    def overtaken(session: object, plan: Plan, rows: Slice) -> None:
        write(session, plan, rows)  # type: ignore[arg-type]
        calls.append(rows.first_us)
        if len(calls) == 2:  # the first slice comes in two halves
            world.clock.us += 2_000_000
            with pytest.MonkeyPatch.context() as kept:
                kept.setattr("wal_sink.flush.trimmer.trim", lambda *args: ())
                world.flusher().run_once()  # finishes it; segments are still there

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("wal_sink.testing.memory_target.MemorySession.write", overtaken)
        slow.run_once()
    assert world.table() == {"a": 1, "b": 2}
    mine = [name for name in faults.operations if name.startswith(("write", "finish"))]
    assert len(mine) == 2, "nothing was written after the other one had finished"


@pytest.mark.parametrize("cells", [("flushed",), ("begun",), LedgerState.__struct_fields__])
def test_rule_16_a_shadowed_ledger_stops_the_line(world: World, cells: tuple[str, ...]) -> None:
    """A cell is from the future, and hides updates that are acknowledged: nothing is recorded."""
    run = world.run().flushed_batches([("a", 1)])
    world.store.shadows[world.query_id] = Shadow(2**62, cells)
    run.batch([("b", 2)])
    for _ in range(2):  # nor is anything begun from a row that was updated in part
        with pytest.raises(errors.LedgerShadowed):
            world.flush()
        newest = world.log.newest_flushed()
        assert newest is not None
        assert newest.epoch == 0


# --- trim -----------------------------------------------------------------------------------------


def test_rule_17_the_record_is_written_before_anything_is_deleted(world: World) -> None:
    """The newest `flushed/` file is the log's mark."""
    world.run().batch([("a", 1)])
    faults = Faults()
    world.flush(faults)
    (path,) = recorded_in(world.log, 0)
    record = faults.operations.index(f"create {path}")
    deletions = [i for i, name in enumerate(faults.operations) if name.startswith("delete")]
    assert deletions
    assert record < min(deletions)
    assert record > faults.operations.index("finish 0")


def test_rule_17_a_record_that_is_missing_is_made_from_the_ledger(world: World) -> None:
    """The flusher died between `finish` and the record; its successor needs nothing else."""
    world.run().batches([("a", 1)])
    with pytest.raises(errors.LogUnavailable):
        world.flush(
            Faults(at=0, error=lambda: OSError("gone"), matching=f"create {paths.FLUSHED.folder}")
        )
    assert world.state.flushed == 0
    assert world.log.newest_flushed() is None
    steps = world.flush()
    assert isinstance(steps[0], RecordFlushed)
    record = world.log.newest_flushed()
    assert record is not None
    assert (record.epoch, record.rows) == (0, 1)


def test_rule_17_a_quick_flusher_between_two_reads_is_no_corruption(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records are read, then connecting takes a while, in which another flusher does several windows."""
    monkeypatch.setattr(windows, "WINDOW_EPOCHS", 2)
    world.run().batches(*([(f"k{epoch}", epoch)] for epoch in range(4)))
    connect = world.store.connect

    def slowly(owner: Owner) -> Session:
        monkeypatch.setattr(world.store, "connect", connect)
        world.flush()
        return connect(owner)

    slow = world.flusher()
    monkeypatch.setattr(world.store, "connect", slowly)
    assert isinstance(slow.run_once(), Stale)
    assert isinstance(slow.run_once(), Idle)
    assert world.table() == world.expected()


def test_rule_17_at_start_up_the_ledger_is_read_in_any_case(world: World) -> None:
    """Finished, not recorded, and `commits/1` lost: the record comes before Spark's replay of it."""
    world.run().flushed_batches([("a", 1)]).batches([("b", 2)])
    with pytest.raises(errors.LogUnavailable):
        world.flush(
            Faults(at=0, error=lambda: OSError("gone"), matching=f"create {paths.FLUSHED.folder}")
        )
    edit(world.checkpoint, "commits/1", None)
    steps = world.flush()
    assert isinstance(steps[0], RecordFlushed)
    assert isinstance(steps[-1], Idle)
    assert steps[-1].warn
    assert world.run().publish([("ghost", 9)]) is None


def test_rule_17_old_records_are_forgotten_the_newest_stay(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder does not grow for ever."""
    monkeypatch.setattr("wal_sink.wal.trim.RECORDS_KEPT", 3)
    run = world.run()
    for epoch in range(6):
        run.flushed_batches([("k", epoch)])
    assert world.log.flushed_epochs() == [3, 4, 5]


def test_rule_17_records_of_a_window_are_forgotten_together(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that share an object stay as long as the newest one of them."""
    monkeypatch.setattr("wal_sink.wal.trim.RECORDS_KEPT", 3)
    run = world.run().flushed_batches(*([("k", epoch)] for epoch in range(4)))
    left = [world.log.flushed_epochs()]
    for epoch in range(4, 7):
        run.flushed_batches([("k", epoch)])
        left.append(world.log.flushed_epochs())
    assert left == [[0, 1, 2, 3], [0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 5], [4, 5, 6]]


def test_rule_18_what_is_flushed_leaves_the_log(world: World) -> None:
    """Segments, named or not, and manifests of all attempts."""
    dead = world.run()
    dead.publish([("ghost", 1)])
    run = world.run()
    run.tasks([("orphan", 1)])
    run.flushed_batches([("a", 1)])
    left = {path.split("/")[0] for path in world.log_backend.list()}
    assert left == {"flushed", "log.json", "plans", "runs", "tickets"}


def test_rule_18_an_interrupted_trim_is_finished(world: World) -> None:
    """Whatever deletion it dies at, the next flusher leaves nothing behind."""
    for at in range(3):
        run = world.run()
        run.batch([(f"a{at}", 1)], [(f"b{at}", 2)])
        faults = Faults(at=at, error=lambda: OSError("gone"), matching="delete")
        world.flush(faults)
        assert faults.injected is not None
        assert any(isinstance(step, Trim) for step in world.flush())
        assert world.log_backend.list(paths.SEGMENT.folder) == []
        assert world.log_backend.list(paths.MANIFEST.folder) == []


def test_rule_18_late_segments_of_a_flushed_epoch_are_swept(world: World) -> None:
    """A zombie's task wrote after the trim; the next flusher that starts deletes it."""
    run = world.run().flushed_batches([("a", 1)])
    run.next = 0
    run.tasks([("late", 1)])
    assert world.log_backend.list(paths.SEGMENT.folder) != []
    run.next = 1
    run.tasks([("not yet flushed", 1)])
    world.flush()
    left = world.log_backend.list(paths.SEGMENT.folder)
    assert [paths.segment_epoch(path) for path in left] == [1]


def orphans(world: World) -> int:
    """Count the segments that no manifest names."""
    return read_status(Checkpoint(world.checkpoint), world.log).orphan_segments


def test_rule_18_orphans_of_unflushed_epochs_are_counted_and_stay(world: World) -> None:
    """Their tasks may be alive; they go with their epoch."""
    run = world.run().batches([("a", 1)])
    run.tasks([("of a failed attempt", 1)], [("too", 2)])
    assert world.log_backend.list(paths.PROOF.folder) == []
    world.flush()
    assert orphans(world) == 2
    run.batch([("b", 2)])
    assert orphans(world) == 2
    assert len(world.log_backend.list(paths.SEGMENT.folder)) == 3
    world.flush()
    assert orphans(world) == 0
    assert world.log_backend.list(paths.SEGMENT.folder) == []


def test_rule_18_late_notes_of_fenced_runs_are_swept(world: World) -> None:
    """Written between the trim of their epoch and its end, they mean nothing any more."""
    run = world.run().flushed_batches([("a", 1)])
    for epoch in (0, 1):
        world.log.create_proof(CommitProof(epoch=epoch, generation=1, run_id=run.run_id, highest=2))
    world.flush()
    assert world.log_backend.list(paths.PROOF.folder) == [paths.PROOF.path(Attempt(1, 1))]


def test_rule_18_a_late_manifest_is_deleted_with_a_warning(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Same source offsets: another attempt at what is flushed."""
    late = late_manifest(world, offsets_digest=None)
    world.flush()
    assert late not in world.log.attempts()
    assert "from another attempt" in caplog.text
    assert world.table() == {"a": 1}


def test_rule_18_a_late_manifest_with_other_offsets_diverges(world: World) -> None:
    """Two histories under one epoch: nothing is deleted, an operator has to decide."""
    late = late_manifest(world, offsets_digest="other")
    with pytest.raises(errors.Diverged, match="source offsets"):
        world.flush()
    assert late in world.log.attempts()


def test_rule_18_a_manifest_put_back_behind_the_records_stays(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What was flushed under its epoch is forgotten: nothing says whether it is that. The flush goes on."""
    monkeypatch.setattr("wal_sink.wal.trim.RECORDS_KEPT", 1)
    path = paths.MANIFEST.path(Attempt(0, 1))
    run = world.run().batches([("a", 1)])
    backup = world.log_backend.read(path)
    world.flush()
    run.flushed_batches([("b", 2)])
    world.log_backend.create(path, backup)
    run.batch([("c", 3)])
    assert world.flushed() == {"a": 1, "b": 2, "c": 3}
    assert re.search(r"(?s)no record of it.*move it away", caplog.text)
    assert world.log_backend.read(path) == backup


def late_manifest(world: World, offsets_digest: str | None) -> Attempt:
    """Flush epoch 0, then publish it once more as generation 2."""
    world.run().batch([("a", 1)])
    manifest = world.log.manifest(Attempt(0, 1))
    assert manifest is not None
    world.flush()
    late = msgspec.structs.replace(
        manifest[0],
        generation=2,
        offsets_digest=offsets_digest or manifest[0].offsets_digest,
    )
    world.log.create_manifest(late)
    return late.attempt


def test_rule_19_a_ledger_behind_the_log_stops_the_line(world: World) -> None:
    """The target was restored from a backup."""
    world.run().flushed_batches([("a", 1)], [("b", 2)]).batches([("c", 3)])
    set_mark(world, flushed=0, last=None)
    with pytest.raises(errors.LedgerBehindLog, match="epoch 0"):
        world.flush()
    assert "c" not in world.table()


def test_rule_19_a_checkpoint_set_back_flushes_nothing_and_says_so(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """The mark is above what `commits/` says."""
    world.run().flushed_batches([("a", 1)], [("b", 2)])
    edit(world.checkpoint, "commits/1", None)
    (step,) = world.flush()
    assert isinstance(step, Idle)
    assert step.warn
    assert "set back" in caplog.text


def test_rule_20_a_missing_segment_stops_the_line(world: World) -> None:
    """It is never taken for flushed as long as the ledger does not say so."""
    run = world.run()
    run.batch([("a", 1)], [("b", 2)])
    run.batch([("c", 3)])
    manifest = world.log.manifest(Attempt(0, 1))
    assert manifest is not None
    world.log_backend.delete([manifest[0].segments[1].path])
    with pytest.raises(errors.MissingSegment, match="Epoch 0"):
        world.flush()
    assert "c" not in world.table()
    assert world.log.newest_flushed() is None


# --- errors ---------------------------------------------------------------------------------------


def test_rule_21_flinks_hole_a_failed_epoch_then_a_good_one(world: World) -> None:
    """Flink's sink goes on after a failed send, and the next success moves the mark past it: lost.

    Here the first failure stops the flush; when the target is well again, both epochs arrive, in order.
    """
    world.run().batches([("failed", 1)], [("good", 2)])
    flusher = world.flusher(Faults(at=0, error=ConnectionError, matching="write"))
    assert flusher.run_once() == CreateLedger(-1)
    with pytest.raises(errors.TargetUnavailable):
        flusher.run_once()
    assert world.table() == {}
    assert world.state.flushed == -1
    while not isinstance(flusher.run_once(), Idle):
        pass
    assert world.table() == {"failed": 1, "good": 2}


# --- ways out -------------------------------------------------------------------------------------


def test_rule_22_an_epoch_is_passed_over_by_a_decision_alone(world: World) -> None:
    """It is begun and finished without rows; the mark moves by one, and a timestamp is used up."""
    world.run().batches(*([(f"k{epoch}", epoch)] for epoch in range(3)))
    world.log.create_decision(decision(1))
    steps = world.flush()
    (passed,) = (step for step in steps if isinstance(step, PassOver))
    assert (passed.epoch, passed.why) == (1, "given up by user@host: damaged")
    assert world.table() == {"k0": 0, "k2": 2}
    records = [world.log.flushed(epoch) for epoch in range(3)]
    assert [record.rows for record in records if record] == [1, 0, 1]
    bases = [record.base_us for record in records if record]
    assert bases == sorted(set(bases))


def test_rule_22_what_is_begun_is_finished_without_further_rows(world: World) -> None:
    """The decision came after the first slice; `begun` in the ledger stays what it was."""
    run = world.run()
    run.batch([("a", 1)], [("b", 1)])
    run.batch([("c", 2)])
    with pytest.raises(errors.TargetUnavailable):
        world.flush(Faults(at=3, error=ConnectionError, matching="write"))
    begun = world.state.begun
    assert begun is not None
    world.log.create_decision(decision(0))
    steps = world.flush()
    assert Resume(begun) in steps
    assert world.table() == {"a": 1, "c": 2}


def test_rule_22_a_decision_is_made_once(world: World) -> None:
    """Of two operators the first one has decided."""
    world.run().batch([("a", 1)])
    first = world.log.create_decision(decision(0))
    again = world.log.create_decision(msgspec.structs.replace(first, by="bert@host"))
    assert again == first == world.log.decision(0)
    assert world.log.decided() == [0]


def test_rule_22_an_unreadable_decision_stops_the_line(world: World) -> None:
    """Whether the epoch is to be flushed is not guessed."""
    world.run().batch([("a", 1)])
    world.log_backend.create(paths.DECISION.path(paths.DecisionName(0, 0)), b"{")
    with pytest.raises(errors.CorruptLog, match="decisions/"):
        world.flush()
    assert world.table() == {}


def test_rule_22_nothing_is_swept_while_the_ledger_lies_behind(world: World) -> None:
    """What an operator has put back for a rewind is still there when the error is read."""
    run = world.run().batches([("a", 1)])
    kept = {
        path: world.log_backend.read(path) for path in world.log_backend.list(paths.SEGMENT.folder)
    }
    world.flush()
    run.batch([("b", 2)])
    for path, data in kept.items():
        world.log_backend.create(path, data)
    set_mark(world, flushed=-1, last=None)
    with pytest.raises(errors.LedgerBehindLog):
        world.flush()
    assert kept.keys() <= set(world.log_backend.list(paths.SEGMENT.folder))


def decision(epoch: int) -> Decision:
    return msgspec.structs.replace(a_decision(epoch), why="damaged", rows=1)

"""`wal.retention`: what is flushed stays for its time, then goes by itself; nothing else changes."""

from __future__ import annotations

import contextlib
import time
from typing import Literal

import msgspec
import pytest

from tests.protocol.aged_log import leave_in_place, recorded_in
from tests.protocol.engine import World, until_rest
from tests.protocol.looks import Looks
from tests.protocol.operators import query
from wal_sink.admin.flush import FlushCommand, preview
from wal_sink.admin.rewind import plan_rewind
from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.errors import LedgerBehindLog
from wal_sink.flush.flusher import Flusher
from wal_sink.model import paths
from wal_sink.model.manifest import Attempt
from wal_sink.progress.status import read_status
from wal_sink.protocol.next_step import Trim
from wal_sink.testing.faults import Crash, Faults, FaultyBackend
from wal_sink.wal.log import Log
from wal_sink.wal.retention import all_records, retain, retained_paths

DELAY_S = 60.0
DELAY_US = 60_000_000


STORES = ("memory", "local")


@pytest.fixture(autouse=True)
def _delayed(world: World) -> None:
    """Let what is flushed stay for a minute."""
    world.retention_s = DELAY_S


def left(world: World) -> list[int]:
    """The epochs that have manifests; each has its segments, and no other has any."""
    epochs = sorted(
        {attempt.epoch for attempt in world.log.attempts()}.union(retained_paths(world.log))
    )
    assert {epoch for epoch, _ in world.log.segments()} == set(epochs)
    return epochs


def fill(world: World, epochs: int, apart_us: int = 0) -> None:
    run = world.run()
    for epoch in range(epochs):
        run.flushed_batches([(f"k{epoch}", epoch)])
        world.clock.us += apart_us


def rest(flusher: Flusher) -> list[type]:
    return [type(step) for step in until_rest(flusher)[:-1]]


def test_it_stays_for_its_time_and_goes_by_itself(world: World) -> None:
    """A flusher that rests trims epoch by epoch, without a new one, without asking the target (rule 18)."""
    fill(world, 3, apart_us=DELAY_US // 4)
    assert left(world) == [0, 1, 2]
    faults = Faults()
    flusher = world.flusher(faults)
    assert rest(flusher) == []
    asked = faults.operations.count("read ledger")
    for gone in range(1, 4):
        world.clock.us += DELAY_US // 4
        assert rest(flusher) == [Trim]
        assert left(world) == list(range(gone, 3))
        assert rest(flusher) == []
    assert faults.operations.count("read ledger") == asked
    assert world.table() == world.expected()


def test_a_look_while_nothing_is_due_reads_one_record_once(world: World) -> None:
    """However many wait: each look may be paid for."""
    fill(world, 20)
    faults = Faults(matching=f"read {paths.FLUSHED.folder}")
    flusher = world.flusher(faults)
    for _ in range(5):
        assert rest(flusher) == []
    (newest,), (oldest,) = recorded_in(world.log, 19), recorded_in(world.log, 0)
    assert [name for name in faults.operations if name != f"read {newest}"] == [f"read {oldest}"]


def test_status_shows_no_difference(world: World) -> None:
    """What is flushed is flushed: it may be deleted with the checkpoint, and nothing waits."""
    fill(world, 2)
    found = read_status(Checkpoint(world.checkpoint), world.log)
    assert (found.flushed, found.pending_epochs, found.pending_bytes) == (1, 0, 0)
    assert (found.safe_to_delete, found.orphan_segments) == (True, 0)


def test_a_replay_meanwhile_is_passed_over(world: World) -> None:
    """The checkpoint lost `commits/1`; the manifest that is still there is not published over."""
    fill(world, 2)
    world.checkpoint.delete(["commits/1"])
    world.run().batches([("k1", 1)])
    assert world.log.attempts() == ()
    assert left(world) == [0, 1]
    assert world.flushed() == {"k0": 0, "k1": 1}
    world.clock.us += DELAY_US
    world.flush()
    assert left(world) == []


def test_late_segments_of_what_stays_stay(world: World) -> None:
    """A flusher that starts sweeps what is due, and no more."""
    fill(world, 2, apart_us=DELAY_US // 2)
    world.flush()
    assert left(world) == [1]
    late = f"{paths.segment_folder(0)}0-0-{'0' * 32}.arrow"
    world.log_backend.create(late, b"late")
    world.flush()
    assert left(world) == [1]


def test_records_of_what_stays_stay(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without them nothing could tell whether their manifests may go."""
    monkeypatch.setattr("wal_sink.wal.trim.RECORDS_KEPT", 2)
    fill(world, 3)
    world.clock.us += DELAY_US // 2
    fill(world, 3)
    world.clock.us += DELAY_US // 2
    world.flush()
    assert left(world) == [3, 4, 5]
    assert world.log.flushed_epochs() == [4, 5]
    assert [*all_records(world.log)] == [3, 4, 5]
    world.clock.us += DELAY_US
    world.flush()
    assert left(world) == []
    assert world.log.flushed_epochs() == [4, 5]


def test_a_clock_that_was_ahead_is_forgiven(world: World) -> None:
    """Its record counts no later than the newest one; one that is behind makes it longer, by no more."""
    world.clock.us += 1_000 * DELAY_US
    fill(world, 1)
    world.clock.us -= 1_000 * DELAY_US
    world.flush()
    assert left(world) == [0]
    world.run().flushed_batches([("later", 1)])
    world.clock.us += DELAY_US
    world.flush()
    assert left(world) == []


def test_what_is_flushed_again_stays_for_its_time_anew(world: World) -> None:
    """Also where the flusher lives on, and has read when the epoch was flushed first."""
    world.run().batch([("a", 1)])
    flusher = world.flusher()
    rest(flusher)
    world.clock.us += DELAY_US // 2
    assert rest(flusher) == []
    plan_rewind(query(world), world.target, -1, world.clock()).carry_out(world.clock())
    rest(flusher)
    world.clock.us += 3 * DELAY_US // 4
    assert rest(flusher) == []
    assert left(world) == [0]


def test_the_command_keeps_the_delay(world: World) -> None:
    """And deletes what is due; 0 deletes the rest."""
    world.clock.us = time.time_ns() // 1_000 - DELAY_US
    fill(world, 1)
    world.clock.us += DELAY_US
    world.retention_s = 3_600.0
    fill(world, 1)
    done = FlushCommand(query(world), world.target, DELAY_S).drain()
    assert paths.RETAINED_MANIFEST.path(Attempt(0, 1)) in {file.path for file in done.trimmed}
    assert left(world) == [1]
    assert preview(query(world), DELAY_S).trimmed == ()
    FlushCommand(query(world), world.target).drain()
    assert left(world) == []


def test_what_is_kept_is_not_listed_with_what_waits(world: World) -> None:
    """A pass lists the manifests, and so many epochs may be kept."""
    fill(world, 3)
    assert world.log.attempts() == ()
    assert list(retained_paths(world.log)) == [0, 1, 2]
    record = world.log.flushed(1)
    assert record is not None
    found = world.log.manifest(Attempt(1, 1))
    assert found is not None
    assert found.digest == record.digest


def test_what_another_flusher_keeps_stays(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A flusher that listed what is kept long ago sweeps: the newer epochs are not its garbage."""
    monkeypatch.setattr("wal_sink.flush.trimmer.SWEEP_EVERY_S", -1.0)
    fill(world, 1)
    older = world.flusher()
    assert rest(older) == []
    world.clock.us += DELAY_US
    fill(world, 2)
    rest(older)
    assert left(world) == [1, 2]
    world.clock.us += DELAY_US
    assert Trim in rest(older)
    assert left(world) == []


def test_what_was_not_moved_is_trimmed_where_it_is(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flusher died before it moved anything, or older code flushed it; its record stays, too (rule 18)."""
    monkeypatch.setattr("wal_sink.wal.trim.RECORDS_KEPT", 1)
    run = world.run()
    for epoch in range(2):
        run.flushed_batches([(f"k{epoch}", epoch)])
        world.clock.us += DELAY_US // 2
    leave_in_place(world)
    run.flushed_batches([("k2", 2)])
    assert [attempt.epoch for attempt in world.log.attempts()] == [1]
    assert left(world) == [1, 2]
    world.clock.us += DELAY_US
    world.flush()
    assert left(world) == []


def test_records_that_were_moved_are_found(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replay of an old epoch is compared with its record, and the query can be rewound to it."""
    monkeypatch.setattr("wal_sink.wal.trim.RECORDS_KEPT", 2)
    fill(world, 6)
    assert world.log.flushed_epochs() == [4, 5]
    before = {epoch: world.log.flushed(epoch) for epoch in range(6)}
    assert None not in before.values()
    world.store.table.clear()
    plan_rewind(query(world), world.target, 1, world.clock()).carry_out(world.clock())
    assert world.log.flushed_epochs() == [1]
    assert list(retained_paths(world.log)) == [0, 1]
    assert [attempt.epoch for attempt in world.log.attempts()] == [2, 3, 4, 5]
    assert world.flushed() == {f"k{epoch}": epoch for epoch in range(2, 6)}
    assert left(world) == list(range(6))
    for epoch in range(2, 6):
        record, older = world.log.flushed(epoch), before[epoch]
        assert record is not None
        assert older is not None
        assert record.base_us > older.base_us, "the copy is that of the last flush"


def test_a_rewind_that_dies_is_run_again(world: World) -> None:
    """At any operation on the log: what was kept is there, and is flushed again."""
    fill(world, 3)
    log = {path: world.log_backend.read(path) for path in world.log_backend.list()}
    ledger = dict(world.store.ledger)
    at, died = 0, True
    while died:
        world.log_backend.delete(world.log_backend.list())
        world.log_backend.create_missing(log)
        world.store.ledger.update(ledger)
        faults = Faults(at=at)
        dying = query(world)._replace(log=Log(FaultyBackend(world.log_backend, faults)))
        with contextlib.suppress(Crash):
            plan_rewind(dying, world.target, 0, world.clock()).carry_out(world.clock())
        with contextlib.suppress(LedgerBehindLog):  # it says to run the command again
            world.flush()
        for row in ("k1", "k2"):
            del world.store.table[(row,)]
        looks = Looks()  # the one that died counts as a flusher until it has been silent for long
        plan = plan_rewind(looks.by(query(world)), world.target, 0, world.clock())
        plan.carry_out(world.clock())
        assert world.flushed() == world.expected(), faults.injected
        assert left(world) == [0, 1, 2], faults.injected
        at, died = at + 1, faults.injected is not None
    assert at > 30


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_flusher_that_dies_while_it_moves_loses_nothing(
    world: World, when: Literal["before", "after"]
) -> None:
    """Manifest and record are there at each moment, in one place or in both (rule 18)."""
    run, epoch = world.run(), 0
    while True:
        run.batch([(f"k{epoch}", epoch)])
        faults = Faults(at=epoch, matching="manifests/", when=when)
        with contextlib.suppress(Crash):
            world.flush(faults)
        assert world.log.flushed(epoch) is None or world.log.manifest(Attempt(epoch, 1)) is not None
        world.flush()
        assert world.log.manifest(Attempt(epoch, 1)) is not None
        epoch += 1
        if not faults.injected:
            break
    assert epoch > 3
    assert left(world) == list(range(epoch))
    world.clock.us += DELAY_US
    world.flush()
    assert left(world) == []
    assert retained_paths(world.log) == {}
    assert world.table() == world.expected()


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_slower_flusher_that_dies_leaves_a_copy_of_the_record(
    world: World, when: Literal["before", "after"]
) -> None:
    """One that stood still over a rewind has left an older copy; without any the epoch would count as due.

    The slower one's record has another time, and the log's counts.
    """
    fill(world, 1)
    record = world.log.flushed(0)
    assert record is not None
    older, later = (
        msgspec.structs.replace(record, recorded_us=record.recorded_us + by) for by in (-1, 1)
    )
    at = 0
    while True:
        world.log_backend.replace(paths.RETAINED_RECORD.path(0), older.to_json())
        faults = Faults(at=at, matching="retained/", when=when)
        with contextlib.suppress(Crash):
            retain(Log(FaultyBackend(world.log_backend, faults)), world.last.epochs, [later])
        assert world.log.read(paths.RETAINED_RECORD, 0) in (older, record)
        if not faults.injected:
            break
        at += 1
    assert world.log.read(paths.RETAINED_RECORD, 0) == record
    assert at > 1


def test_a_record_stays_beside_a_manifest_that_a_rewind_has_put_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flusher knows that the epoch was retained; another one has flushed it again, and died there."""
    monkeypatch.setattr("wal_sink.wal.trim.RECORDS_KEPT", 1)
    run, flusher = world.run(), world.flusher()
    run.batch([("a", 0)])
    rest(flusher)
    plan_rewind(query(world), world.target, -1, world.clock()).carry_out(world.clock())
    with pytest.raises(Crash):
        world.flush(Faults(at=0, matching="create retained/"))
    for epoch in range(1, 3):
        run.batch([("b", epoch)])
        rest(flusher)
    assert world.log.flushed_epochs() == [0, 2]
    world.clock.us += DELAY_US
    world.flush()
    assert left(world) == []


def test_a_record_stays_as_long_as_its_epoch_has_no_copy_of_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flusher died between the copies of manifest and record; the manifest is compared with the record."""
    monkeypatch.setattr("wal_sink.wal.trim.RECORDS_KEPT", 1)
    world.retention_s = 3_600
    run = world.run().flushed_batches([("a", 0)])
    (copied,) = (
        path for path in world.log_backend.list(paths.RETAINED_RECORD.folder) if "-" in path
    )
    attempt = paths.RETAINED_MANIFEST.parse(copied)
    assert attempt is not None
    world.log_backend.create(paths.MANIFEST.path(attempt), world.log_backend.read(copied))
    world.log.delete([paths.RETAINED_RECORD.path(0)])
    for epoch in range(1, 4):
        run.flushed_batches([("b", epoch)])
    assert 0 in world.log.flushed_epochs()
    world.retention_s = 0
    world.flush()
    assert world.log.attempts() == ()
    assert world.table() == world.expected()

"""A target that is detached holds back nothing; it is attached again, with what the log still has."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from state_backends import LocalBackend, open_backend
from tests.protocol.aged_log import recorded_in
from tests.protocol.caching_mount import CachingMount
from tests.protocol.engine import NOW_US, flush, in_memory
from tests.protocol.interleave import Process, Turns
from tests.protocol.operators import query
from tests.protocol.publishing import Driver
from tests.protocol.several_world import ADDED, CELLS, SeveralWorld
from tests.protocol.state_repartition import repartition
from wal_sink.admin.adopt import plan_adopt
from wal_sink.admin.attach import Attached, plan_attach, plan_detach
from wal_sink.admin.flush import FlushCommand
from wal_sink.admin.quarantine import list_quarantine
from wal_sink.admin.query import Query
from wal_sink.admin.rewind import plan_rewind
from wal_sink.admin.skip import plan_skip
from wal_sink.admin.verify import verify
from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.errors import (
    Diverged,
    Fenced,
    FlusherAtWork,
    LedgerBehindLog,
    LogFull,
    NoFlusher,
    OptionError,
    WalSinkError,
    WrongOwner,
)
from wal_sink.flush.flusher import Flusher, Pipeline
from wal_sink.flush.run_history import RunHistory
from wal_sink.flush.trimmer import Trimmer
from wal_sink.model import paths
from wal_sink.model.ledger import ledger_key
from wal_sink.model.paths import StateName
from wal_sink.model.records import CommitProof, Gap, TargetState
from wal_sink.progress.status import read_status, status_lines
from wal_sink.progress.wait import wait_until_flushed
from wal_sink.protocol.next_step import Idle
from wal_sink.publish.fencing import claim_generation
from wal_sink.testing.faults import Crash, Faults, FaultyBackend
from wal_sink.wal import trim
from wal_sink.wal.log import Log
from wal_sink.wal.quarantine import entries
from wal_sink.wal.targets import (
    announce,
    attach_targets,
    flushed_limits,
    lacking,
    not_attached,
    refuse_other_targets,
    trimmable_unseen,
)

STORES = ("memory",)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[SeveralWorld]:
    """Return a query with two targets, both of which have epoch 0."""
    world = SeveralWorld(tmp_path)
    world.run().batches([("0", 0)])
    world.flush_all()
    yield world
    world.end_sessions()


def on_disk(tmp_path: Path) -> SeveralWorld:
    """Return a world whose log is in a folder, so that a `CachingMount` of that answers from its cache."""
    world = SeveralWorld(tmp_path)
    world.log_backend = LocalBackend(tmp_path / "log")
    return world


def epochs(world: SeveralWorld, *numbers: int) -> None:
    world.run().batches(*([(str(number), number)] for number in numbers))


def waiting(world: SeveralWorld) -> list[int]:
    return [attempt.epoch for attempt in world.log.attempts()]


def test_rule_18_a_detached_target_holds_back_nothing(world: SeveralWorld) -> None:
    """Its flusher rests, `verify` says what it lacks, and `status` that it is detached."""
    epochs(world, 1, 2)
    flush(world.flusher(name=CELLS))
    assert waiting(world) == [1, 2]
    plan_detach(query(world).of(ADDED)).carry_out(NOW_US, "test")
    flush(world.flusher(name=CELLS))
    assert waiting(world) == []
    rest = world.flusher(name=ADDED).run_once()
    assert isinstance(rest, Idle)
    assert "detached (test)" in rest.why
    assert sorted(world.rows(ADDED)) == [("0", 0)]
    (view,) = query(world).each("")
    found = verify(view, lambda: world.targets[CELLS], NOW_US)
    assert f"target {ADDED} was detached, and lacks these epochs: all from 1 on" in found.notes
    shown = read_status(Checkpoint(world.checkpoint), world.log)
    assert (shown.detached, shown.flushed, shown.safe_to_delete) == ((ADDED,), 2, True)
    assert any(line.name == f"target {ADDED}" for line in status_lines(shown))


def test_a_target_is_attached_where_it_was_if_nothing_went(world: SeveralWorld) -> None:
    """Nothing is missing then."""
    epochs(world, 1)
    plan_detach(query(world).of(ADDED)).carry_out(NOW_US)
    done = plan_attach(query(world).of(ADDED), world.targets[ADDED]).carry_out(NOW_US)
    assert (done.missing, done.state.epoch) == ((), 1)
    verbs = [state.verb for state in world.log.of(ADDED).states()]
    assert verbs[-3:] == ["detached", "announced", "attached"]
    world.flush_all()
    assert sorted(world.rows(ADDED)) == sorted(world.rows(CELLS)) == [("0", 0), ("1", 1)]
    assert lacking(world.log.of(ADDED)) == []


def test_a_target_is_attached_from_a_host_with_an_old_listing(
    world: SeveralWorld, tmp_path: Path
) -> None:
    """It has listed the target's states before there was any; the ledger row names no window."""
    plan_detach(query(world).of(ADDED)).carry_out(NOW_US)
    plan_attach(query(world).of(ADDED), world.targets[ADDED]).carry_out(NOW_US)
    plan_detach(query(world).of(ADDED)).carry_out(NOW_US)
    mount = CachingMount(tmp_path / "log", asks_again=True)
    mount.cache(paths.target_states(ADDED))
    mount.create_missing({each: world.log_backend.read(each) for each in world.log_backend.list()})
    mount.url = world.log_backend.url
    elsewhere = Query(world.query_id, Checkpoint(world.checkpoint), Log(mount, ADDED, several=True))
    planned = plan_attach(elsewhere, world.targets[ADDED])
    assert "gets epochs from 1 on" in planned.consequences
    assert planned.carry_out(NOW_US).state.verb == "attached"


def test_a_target_is_attached_behind_what_is_trimmed(world: SeveralWorld) -> None:
    """What lies between is missing for good, and said; the ledger row moves over it."""
    plan_detach(query(world).of(ADDED)).carry_out(NOW_US)
    epochs(world, 1, 2)
    flush(world.flusher(name=CELLS))
    epochs(world, 3)
    planned = plan_attach(query(world).of(ADDED), world.targets[ADDED])
    assert (
        "lacks these epochs, which the log does not hold for it: 1 to 2 (2 rows)"
        in planned.consequences
    )
    assert planned.carry_out(NOW_US).missing == (1, 2)
    epochs(world, 4)
    world.flush_all()
    assert sorted(world.rows(ADDED)) == [("0", 0), ("3", 3), ("4", 4)]
    assert sorted(world.rows(CELLS)) == [(str(n), n) for n in range(5)]
    assert waiting(world) == []
    assert lacking(world.log.of(ADDED)) == [Gap(1, 2, 2)]


def test_a_target_that_was_attached_before_the_log_began_gets_what_the_log_has(
    tmp_path: Path,
) -> None:
    """The first start died between the two, and another sink went on with the checkpoint."""
    world = SeveralWorld(tmp_path)
    spark = Checkpoint(world.checkpoint)
    for epoch in range(3):
        world.checkpoint.create(f"offsets/{epoch}", b'v1\n{}\n{"offset":1}')
        world.checkpoint.create(f"commits/{epoch}", b"v1\n{}")
        if not epoch:
            attach_targets(world.log, spark, [CELLS, ADDED], NOW_US, "a start that died")
    epochs(world, 3, 4)
    plan_detach(query(world).of(ADDED)).carry_out(NOW_US)
    assert attach(world).missing == ()
    world.flush_all()
    assert sorted(world.rows(ADDED)) == sorted(world.rows(CELLS)) == [("3", 3), ("4", 4)]
    world.end_sessions()


def attach(
    world: SeveralWorld, faults: Faults | None = None, *, restored: bool = False
) -> Attached:
    """Run the command `attach` about `added`, in a process of its own."""
    log = Log(FaultyBackend(world.log_backend, faults or Faults()), several=True)
    asked = query(world)._replace(log=log).of(ADDED)
    planned = plan_attach(asked, world.targets[ADDED], restored=restored)
    assert planned.consequences
    return planned.carry_out(NOW_US)


def everything(world: SeveralWorld, done: Attached) -> None:
    """In the end `added` has each row once, but for those that it is said to lack."""
    epochs(world, Checkpoint(world.checkpoint).last_commit() + 1)
    world.flush_all()
    lost = range(done.missing[0], done.missing[1] + 1) if done.missing else range(0)
    expected = [(str(n), n) for n in range(len(world.committed)) if n not in lost]
    assert sorted(world.rows(ADDED)) == sorted(expected)
    assert done.missing_rows == len(lost)
    assert lacking(world.log.of(ADDED)) == ([Gap(lost[0], lost[-1], len(lost))] if lost else [])
    assert (waiting(world), world.log.segments()) == ([], [])


def test_rule_1_a_ledger_row_that_names_another_place_is_not_moved(world: SeveralWorld) -> None:
    """Checkpoint and log were moved while the target was detached: its row is adopted first."""
    plan_detach(query(world).of(ADDED)).carry_out(NOW_US)
    epochs(world, 1)
    moved = in_memory()
    for old, new in zip((world.checkpoint, world.log_backend), moved, strict=True):
        for path in old.list():
            new.create(path, old.read(path))
        old.delete(old.list())
    world.checkpoint, world.log_backend = moved
    plan_adopt(query(world).of(CELLS), world.targets[CELLS], NOW_US).carry_out(NOW_US)
    before = world.row(ADDED)
    with pytest.raises(WrongOwner):
        attach(world)
    assert world.row(ADDED) == before
    assert "detached" in str(not_attached(world.log.of(ADDED)))
    plan_adopt(query(world).of(ADDED), world.targets[ADDED], NOW_US).carry_out(NOW_US)
    everything(world, attach(world))


@pytest.mark.parametrize("trimmed", [False, True])
def test_rule_23_a_target_of_another_history_is_attached_only_if_that_is_said(
    world: SeveralWorld, *, trimmed: bool
) -> None:
    """What it has of the lost log stays, and what this log has computed of the same epochs is not lost.

    :param trimmed: the other target has it. That one's record alone says from which attempt it was flushed.
    """
    places = world.checkpoint, world.log_backend
    backup = [{path: place.read(path) for path in place.list()} for place in places]
    world.run().batch([("old", 1)])
    flush(world.flusher(name=ADDED))
    for place, files in zip(places, backup, strict=True):
        place.delete(place.list())
        for path, data in files.items():
            place.create(path, data)
    world.run().batch([("new", 1)], offset="other")
    plan_detach(query(world).of(ADDED)).carry_out(NOW_US)
    if trimmed:
        flush(world.flusher(name=CELLS))
        assert waiting(world) == []
        world.checkpoint.delete(["offsets/1"])  # Spark purges them
    before = world.row(ADDED)
    with pytest.raises(Diverged, match="follows another log") as caught:
        attach(world)
    assert "--restored" in caught.value.remedy
    assert world.row(ADDED) == before
    done = attach(world, restored=True)
    assert (done.state.epoch, done.missing) == ((2, (1, 1)) if trimmed else (1, ()))
    world.flush_all()
    new = [] if trimmed else [("new", 1)]
    assert sorted(world.rows(ADDED)) == [("0", 0), *new, ("old", 1)]
    assert sorted(world.rows(CELLS)) == [("0", 0), ("new", 1)]


@pytest.mark.parametrize("trimmed", [False, True])
def test_a_database_that_was_replaced_is_a_new_target(
    world: SeveralWorld, *, trimmed: bool
) -> None:
    """Its ledger row is gone with it: what it had counts as missing, not as flushed."""
    plan_detach(query(world).of(ADDED)).carry_out(NOW_US)
    epochs(world, 1)
    if trimmed:
        flush(world.flusher(name=CELLS))
    world.end_sessions()
    world.empty_database()
    epochs(world, 2)
    done = attach(world)
    assert done.missing == ((0, 1) if trimmed else (0, 0))
    everything(world, done)
    plan_detach(query(world).of(ADDED)).carry_out(NOW_US)
    again = attach(world)
    assert again.missing == ()
    assert lacking(world.log.of(ADDED)) == [Gap(*done.missing, done.missing_rows)]


def test_a_replaced_database_lacks_what_the_first_one_had_before_a_gap_too(
    world: SeveralWorld,
) -> None:
    """Epoch 0 was there, 1 was a gap, 2 was there again; of these the new database has none."""
    for gap in (1, 3):
        plan_detach(query(world).of(ADDED)).carry_out(NOW_US)
        epochs(world, gap)
        flush(world.flusher(name=CELLS))
        if gap == 3:
            world.end_sessions()
            world.empty_database()
        done = attach(world)
        epochs(world, gap + 1)
        world.flush_all()
    assert (done.missing, done.missing_rows) == ((0, 3), 4)
    assert lacking(world.log.of(ADDED)) == [Gap(0, 3, 4)]
    assert world.rows(ADDED) == [("4", 4)]


def test_a_database_that_was_replaced_gets_what_the_log_holds_for_others(
    world: SeveralWorld,
) -> None:
    """Though the log has a record that says that the target has it: the record goes."""
    epochs(world, 1)
    flush(world.flusher(name=ADDED))
    assert waiting(world) == [1]
    plan_detach(query(world).of(ADDED)).carry_out(NOW_US)
    world.end_sessions()
    world.empty_database()
    done = attach(world)
    assert (done.missing, done.state.epoch) == ((0, 0), 1)
    everything(world, done)


def test_rule_24_a_database_that_was_replaced_has_each_refused_row_in_quarantine_once(
    world: SeveralWorld,
) -> None:
    """The flush keeps it again; of an epoch that the database lacks for good, its entry stays."""
    world.on_invalid_row = "quarantine"
    world.run().batch([("1", 1), (None, 7)])
    world.flush_all()
    world.run().batch([("2", 2), (None, 8)])
    flush(world.flusher(name=ADDED))
    plan_detach(query(world).of(ADDED)).carry_out(NOW_US)
    world.end_sessions()
    world.empty_database()
    assert attach(world).missing == (0, 1)
    world.flush_all()
    assert world.rows(ADDED) == [("2", 2)]
    assert [entry.name.epoch for entry in entries(world.log.of(ADDED))] == [1, 2]


def test_what_has_no_plan_of_a_target_is_missing_there(world: SeveralWorld) -> None:
    """Epochs that were published while the query did not name it; one from then on is written."""
    plan_detach(query(world).of(ADDED)).carry_out(NOW_US)
    both = dict(world.named)
    world.named = {CELLS: both[CELLS]}
    epochs(world, 1, 2)
    world.named = both
    with pytest.raises(OptionError, match="newest run does not name target added"):
        attach(world)
    epochs(world, 3)
    done = attach(world)
    assert (done.missing, done.missing_rows, done.state.epoch) == ((1, 2), 2, 3)
    everything(world, done)


def test_a_target_gets_no_epoch_of_a_run_that_does_not_name_it(tmp_path: Path) -> None:
    """The run starts while it is detached, and publishes at any moment of `attach`; or `attach` refuses."""

    def meets(operation: str) -> bool:
        return operation.partition(" ")[2].startswith(("targets/", "runs/"))

    seen: set[tuple[bool, str]] = set()
    stop = 0
    while True:
        world = SeveralWorld(tmp_path)
        epochs(world, 0)
        world.flush_all()
        plan_detach(query(world).of(ADDED)).carry_out(NOW_US)
        both, world.named = world.named, {CELLS: world.named[CELLS]}
        run, world.named = world.run(), both

        def attaches(faults: Turns, world: SeveralWorld = world) -> None:
            with contextlib.suppress(OptionError):
                attach(world, faults)

        other = Process(Turns(stop, counts=meets), attaches)
        other.turn()
        if other.ended and seen:
            break
        world.named = {CELLS: both[CELLS]}
        with contextlib.suppress(OptionError):
            run.batch([("1", 1)])
        published, world.named = bool(world.log.attempts_at(1)), both
        other.turn()
        verb = world.log.of(ADDED).states()[-1].verb
        assert not (published and verb == "attached"), other.turns.stopped_before
        seen.add((published, verb))
        world.end_sessions()
        world.forget()
        stop += 1
    assert seen == {(True, "detached"), (True, "announced"), (False, "attached")}
    world.end_sessions()


def test_a_writer_that_is_called_again_publishes_nothing_either(world: SeveralWorld) -> None:
    """The first call has claimed, and met a target that was attached since; a function calls once more."""
    plan_detach(query(world).of(ADDED)).carry_out(NOW_US)
    both, world.named = world.named, {CELLS: world.named[CELLS]}
    run, world.named = world.run(), both
    claim_generation(world.log, run.run_id, {"targets": CELLS}, 1, early=True)
    announce(world.log.of(ADDED), 3, NOW_US, "test", "a start that died")
    world.named = {CELLS: both[CELLS]}
    with pytest.raises(OptionError, match="keeps epochs for added"):
        run.publish([("1", 1)])
    with pytest.raises(OptionError, match="keeps epochs for added"):
        run.commit(run.tasks([("1", 1)]))
    world.named = both
    assert world.log.attempts_at(1) == ()


def test_rule_9_a_run_that_claimed_as_it_started_does_not_miss_a_target_in_an_old_listing(
    tmp_path: Path,
) -> None:
    """It listed the targets before its claim; one was announced since, from another host."""
    world = on_disk(tmp_path)
    there = world.log_backend
    epochs(world, 0)
    plan_detach(query(world).of(ADDED)).carry_out(NOW_US)
    mount = world.log_backend = CachingMount(tmp_path / "log", asks_again=True)
    both, world.named = world.named, {CELLS: world.named[CELLS]}
    run = world.run()
    claim_generation(world.log, run.run_id, {"targets": CELLS}, 1, early=True)
    mount.cache(paths.target_states(ADDED))
    announce(Log(there, ADDED), 3, NOW_US, "test", "a start that died")
    with pytest.raises(OptionError, match="keeps epochs for added"):
        run.publish([("1", 1)])
    assert world.log.attempts_at(1) == ()
    world.named = both


def test_rule_9_a_start_does_not_miss_the_targets_in_an_old_listing(tmp_path: Path) -> None:
    """The log was begun with them, from another host."""
    world = on_disk(tmp_path)
    mount = CachingMount(tmp_path / "log", asks_again=True)
    mount.cache("targets/")
    world.run().batch([("0", 0)])
    refuse_other_targets(Log(mount, several=True), [CELLS, ADDED])


def test_rule_9_a_new_target_does_not_begin_at_a_flushed_epoch_by_an_old_listing(
    world: SeveralWorld, tmp_path: Path
) -> None:
    """The checkpoint is set back: its replay of what is flushed is published for no target."""
    mount = CachingMount(tmp_path / "log", asks_again=True)
    mount.cache(f"flushed/{CELLS}/")
    mount.cache(f"flushed/{ADDED}/")
    mount.create_missing({each: world.log_backend.read(each) for each in world.log_backend.list()})
    world.checkpoint.delete(["commits/0"])
    new = Log(mount, "new", several=True)
    attach_targets(new, Checkpoint(world.checkpoint), ["new"], NOW_US, "a start")
    assert [(state.verb, state.epoch) for state in new.states()][-1] == ("attached", 1)


def test_rule_9_a_start_does_not_miss_that_a_target_is_attached_in_an_old_listing(
    tmp_path: Path,
) -> None:
    """The query leaves the target out: what it publishes would have no plan of it."""
    world = on_disk(tmp_path)
    world.run().batch([("0", 0)])
    plan_detach(query(world).of(ADDED)).carry_out(NOW_US)
    mount = CachingMount(tmp_path / "log", asks_again=True)
    mount.cache(paths.target_states(ADDED))
    attach(world)
    with pytest.raises(OptionError, match="does not name any more"):
        refuse_other_targets(Log(mount, several=True), [CELLS])


def test_rule_9_attach_does_not_miss_a_rewind_in_an_old_listing(tmp_path: Path) -> None:
    """What it took back, a flusher may trim that has not seen the target announced."""
    world = on_disk(tmp_path)
    world.run().batch([("0", 0)])
    world.flush_all()
    plan_detach(query(world).of(ADDED)).carry_out(NOW_US)
    world.retention_s = 86_400.0
    epochs(world, 1, 2)
    flush(world.flusher(name=CELLS))
    mount = CachingMount(tmp_path / "log", asks_again=True)
    mount.cache(paths.of_target(CELLS, paths.INTERVENTION.folder))
    plan_rewind(query(world).of(CELLS), world.targets[CELLS], 0, NOW_US).carry_out(NOW_US)
    assert trimmable_unseen(Log(mount, ADDED)) == (0, 2)


@pytest.mark.parametrize("named", [[], [CELLS]])
def test_rule_9_a_start_keeps_the_targets_that_an_old_listing_lacks(
    tmp_path: Path, named: list[str]
) -> None:
    """The log keeps epochs for a target that the options do not name."""
    world = on_disk(tmp_path)
    mount = CachingMount(tmp_path / "log", asks_again=True)
    mount.cache("targets/")
    world.run().batch([("0", 0)])
    with pytest.raises(OptionError, match="option targets"):
        refuse_other_targets(Log(mount, several=bool(named)), named)


def test_rule_18_a_flusher_that_lists_a_target_as_detached_trims_nothing_of_it(
    tmp_path: Path,
) -> None:
    """It was attached since, from another host."""
    world = on_disk(tmp_path)
    epochs(world, 1)
    plan_detach(query(world).of(ADDED)).carry_out(NOW_US)
    mount = CachingMount(tmp_path / "log", asks_again=True)
    mount.cache(paths.target_states(ADDED))
    plan_attach(query(world).of(ADDED), world.targets[ADDED]).carry_out(NOW_US)
    world.run().batch([("1", 1)])
    checkpoint, log = Checkpoint(world.checkpoint), Log(mount, CELLS)
    pipeline = Pipeline(world.query_id, log, checkpoint, world.targets[CELLS], 0.0)
    flush(Flusher(pipeline, clock_us=world.clock, run_history=RunHistory()))
    assert world.log.attempts()[-1].epoch == 1
    world.flush_all()


def test_rule_9_the_last_attached_target_is_not_detached_by_an_old_listing(tmp_path: Path) -> None:
    """The other one was detached since, from another host."""
    world = on_disk(tmp_path)
    epochs(world, 1)
    mount = CachingMount(tmp_path / "log", asks_again=True)
    mount.cache(paths.target_states(CELLS))
    plan_detach(query(world).of(CELLS)).carry_out(NOW_US)
    view = Query(world.query_id, Checkpoint(world.checkpoint), Log(mount, ADDED))
    with pytest.raises(OptionError, match="the only one"):
        plan_detach(view)


def test_rule_9_attach_does_not_miss_in_an_old_listing_what_was_flushed_since_it_was_planned(
    tmp_path: Path,
) -> None:
    """The ledger row that had the timestamps is lost: what comes next would be written below them."""
    world = on_disk(tmp_path)
    epochs(world, 0)
    plan_detach(query(world).of(CELLS)).carry_out(NOW_US)
    mount = CachingMount(tmp_path / "log", asks_again=True)
    view = Query(world.query_id, Checkpoint(world.checkpoint), Log(mount, CELLS))
    planned = plan_attach(view, world.targets[CELLS])
    mount.cache(f"flushed/{CELLS}/")
    plan_attach(query(world).of(CELLS), world.targets[CELLS]).carry_out(NOW_US)
    flush(world.flusher(name=CELLS))
    (used,) = (record["base_us"] for record in world.records(CELLS))
    plan_detach(query(world).of(CELLS)).carry_out(NOW_US)
    world.store.ledger.clear()
    planned.carry_out(NOW_US)
    row = world.row(CELLS)
    assert row is not None
    assert row.last_us == used


def test_rule_9_attach_does_not_miss_the_newest_run_in_an_old_listing(tmp_path: Path) -> None:
    """It does not name the target: what it publishes has no plan of it."""
    world = on_disk(tmp_path)
    world.run().batch([("0", 0)])
    mount = CachingMount(tmp_path / "log", asks_again=True)
    mount.cache("runs/")
    plan_detach(query(world).of(ADDED)).carry_out(NOW_US)
    both, world.named = world.named, {CELLS: world.named[CELLS]}
    epochs(world, 1)
    world.named = both
    view = Query(world.query_id, Checkpoint(world.checkpoint), Log(mount, ADDED))
    with pytest.raises(OptionError, match="does not name target added"):
        plan_attach(view, world.targets[ADDED])


def test_a_target_is_not_attached_before_a_run_that_names_it_has_claimed(tmp_path: Path) -> None:
    """A start died before it attached the target: the next one does, at another epoch than `attach` would."""
    world = SeveralWorld(tmp_path)
    both, world.named = world.named, {CELLS: world.named[CELLS]}
    run, world.named = world.run(), both
    announce(world.log.of(ADDED), 0, NOW_US, "test", "a start that died")
    with pytest.raises(OptionError, match="does not name target added"):
        attach(world)
    world.named = {CELLS: both[CELLS]}
    with pytest.raises(OptionError, match="keeps epochs for added"):
        run.batch([("0", 0)])
    world.named = both
    world.run().batch([("0", 1)])
    world.flush_all()
    assert sorted(world.rows(ADDED)) == [("0", 1)]
    world.end_sessions()


def test_what_is_trimmed_while_a_target_is_attached_is_written_or_said_to_be_missing(
    tmp_path: Path,
) -> None:
    """Another flusher stands still before it deletes an object, of any kind; then it deletes the others."""

    def counts(operation: str) -> bool:
        return operation.startswith("delete ")

    seen, stop = set(), 0
    while True:
        world = SeveralWorld(tmp_path)
        epochs(world, 0)
        world.flush_all()
        plan_detach(query(world).of(ADDED)).carry_out(NOW_US)
        epochs(world, 1, 2)
        turns = Turns(stop, counts=counts)
        other = Process(turns, lambda faults, world=world: flush(world.flusher(faults, name=CELLS)))  # type: ignore[misc]
        other.turn()
        if not turns.stopped_before:
            break
        seen.add(turns.stopped_before[0].split("/")[0])
        done = attach(world)
        other.turn()
        assert other.ended
        everything(world, done)
        world.end_sessions()
        world.forget()
        stop += 1
    assert seen >= {"delete segments", "delete manifests", "delete choices"}
    world.end_sessions()


def test_rule_18_a_sweep_leaves_alone_what_was_flushed_after_it_had_listed_the_targets(
    world: SeveralWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Meanwhile a target was attached that it did not see: what was chosen for both is there still.

    The epoch has no manifest, as Spark made it without a sink: nothing else tells that it is passed over.
    """
    plan_detach(query(world).of(ADDED)).carry_out(NOW_US)
    asked = "wal_sink.wal.retention.flushed_limits"

    def late(log: Log, *, fresh: bool = False, before: str = "") -> list[tuple[Log, int]]:
        monkeypatch.setattr(asked, flushed_limits)
        attach(world)
        repartition(world, last_kept=0, batch=1, partitions=8)
        flush(world.flusher(name=CELLS))
        found = flushed_limits(log, fresh=fresh, before=before)
        return [(view, flushed) for view, flushed in found if view.target == CELLS]

    monkeypatch.setattr(asked, late)
    Trimmer(world.log.of(CELLS), 0.0, world.clock).sweep(-1)
    assert world.log.read(paths.CHOICE, 1) is not None


@pytest.mark.parametrize("late", [False, True])
def test_what_another_attach_took_back_may_be_trimmed_still(
    world: SeveralWorld, *, late: bool
) -> None:
    """Between the announcement of a target and the command that goes on; another database was replaced.

    :param late: the other target's `detach` stood still, so it says less than was flushed by then.
    """
    world.retention_s = 86_400.0
    plan_detach(query(world).of(ADDED)).carry_out(NOW_US)
    epochs(world, 1, 2)
    flush(world.flusher(name=CELLS))
    announce(world.log.of(ADDED), 3, NOW_US, "test", "an attach that died", 0)
    said = 0 if late else 2
    state = TargetState(verb="detached", epoch=said, by="test", at_us=NOW_US, why="test")
    world.log.create(paths.TARGET_STATE, StateName(CELLS, 2), state)
    world.store.table.clear()
    world.store.ledger.clear()
    plan_attach(query(world).of(CELLS), world.targets[CELLS]).carry_out(NOW_US)
    assert trimmable_unseen(world.log) == (0, said)
    assert attach(world).missing == ()
    trimmed = ("manifests/", "retained/", "segments/", "choices/")
    world.log_backend.delete([path for each in trimmed for path in world.log_backend.list(each)])
    flush(world.flusher(name=ADDED))
    assert sorted(world.rows(ADDED)) == [("0", 0), ("1", 1), ("2", 2)]


def test_an_epoch_without_rows_is_held_beside_the_manifest_of_a_run_that_failed(
    world: SeveralWorld,
) -> None:
    """Spark's state repartition has left it out; every target passes over it."""
    plan_detach(query(world).of(ADDED)).carry_out(NOW_US)
    world.retention_s = 86_400.0
    world.run().batch([("1", 1)])
    world.run().publish([("failed", 2)])
    world.checkpoint.create("commits/2", world.checkpoint.read("commits/1"))
    repartition(world, last_kept=1, batch=3, partitions=8)
    flush(world.flusher(name=CELLS))
    assert attach(world).missing == ()
    world.flush_all()
    assert sorted(world.rows(CELLS)) == sorted(world.rows(ADDED)) == [("0", 0), ("1", 1)]


def test_what_a_rewind_took_back_may_be_trimmed_still(world: SeveralWorld) -> None:
    """By a flusher that stood still over both, the rewind and the announcement of a target."""
    plan_detach(query(world).of(ADDED)).carry_out(NOW_US)
    world.retention_s = 86_400.0
    epochs(world, 1, 2)
    flush(world.flusher(name=CELLS))
    plan_rewind(query(world).of(CELLS), world.targets[CELLS], 0, NOW_US).carry_out(NOW_US)
    assert trimmable_unseen(world.log) == (0, 2)
    done = attach(world)
    assert done.missing == ()
    gone = [*world.log_backend.list("manifests/"), *world.log_backend.list("segments/")]
    world.log_backend.delete([*gone, *world.log_backend.list("choices/")])
    world.retention_s = 0.0
    everything(world, done)


def test_what_a_rewind_took_back_of_a_restored_database_may_be_trimmed_still(
    world: SeveralWorld,
) -> None:
    """Its ledger row did not say any more how far it was; one epoch had been given up for it."""
    plan_detach(query(world).of(ADDED)).carry_out(NOW_US)
    world.retention_s = 86_400.0
    epochs(world, 1, 2)
    row = world.row(CELLS)
    assert row is not None
    place = open_backend(f"memory://copies/{world.query_id}")
    asked = query(world).of(CELLS), world.targets[CELLS]
    plan_skip(*asked, 1, place, NOW_US, begun=False).carry_out(NOW_US)
    flush(world.flusher(name=CELLS))
    world.retention_s = 0.0
    turns = Turns(0, counts=lambda operation: operation.startswith("delete segments/"))
    late = Process(turns, lambda faults: flush(world.flusher(faults, name=CELLS)))
    late.turn()
    assert turns.stopped_before
    world.store.ledger[ledger_key(world.query_id, CELLS)] = row
    now_us = NOW_US + 600_000_000
    plan_rewind(*asked, 0, now_us).carry_out(now_us)
    done = attach(world)
    with contextlib.suppress(WalSinkError):
        late.turn()
    assert done.missing == (1, 1)
    everything(world, done)


def test_rule_18_what_a_rewind_puts_back_for_a_detached_target_stops_no_other(
    world: SeveralWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one's record of it is forgotten, and the rewind has deleted that of its own target."""
    monkeypatch.setattr(trim, "RECORDS_KEPT", 1)
    world.retention_s = 86_400.0
    run = world.run()
    run.batches([("1", 1)], [("2", 2)])
    world.flush_all()
    rewind = query(world).of(ADDED), world.targets[ADDED]
    plan_rewind(*rewind, 0, NOW_US).carry_out(NOW_US)
    flush(world.flusher(name=ADDED))
    plan_detach(query(world).of(ADDED)).carry_out(NOW_US)
    run.batches([("3", 3)], [("4", 4)])
    world.retention_s = 0.0
    flush(world.flusher(name=CELLS))
    plan_rewind(*rewind, 1, NOW_US).carry_out(NOW_US)
    assert waiting(world) == [2]
    assert lacking(world.log.of(ADDED)) == [Gap(2, None, -1)]
    run.batch([("5", 5)])
    flush(world.flusher(name=CELLS))
    assert waiting(world) == []
    assert attach(world).missing == (2, 5)
    run.batch([("6", 6)])
    world.flush_all()
    assert sorted(world.rows(CELLS)) == [(str(n), n) for n in range(7)]


def test_an_epoch_of_which_nothing_tells_since_a_rewind_is_missing(world: SeveralWorld) -> None:
    """Spark made it without a sink; what was chosen went once it was flushed, Spark's plan was purged."""
    plan_detach(query(world).of(ADDED)).carry_out(NOW_US)
    world.retention_s = 86_400.0
    repartition(world, last_kept=0, batch=1, partitions=8)
    flush(world.flusher(name=CELLS))
    epochs(world, 2)
    world.log_backend.delete(["choices/00000000000000000001.json"])
    world.checkpoint.delete(["offsets/0", "offsets/1"])
    plan_rewind(query(world).of(CELLS), world.targets[CELLS], 0, NOW_US).carry_out(NOW_US)
    done = attach(world)
    assert done.missing == (1, 1)
    world.flush_all()
    assert sorted(world.rows(ADDED)) == [("0", 0), ("2", 2)]


@pytest.mark.parametrize("last", ["rewind", "detach"])
def test_rule_18_what_was_taken_back_from_a_target_that_is_detached_goes(
    world: SeveralWorld, last: str
) -> None:
    """The other target begins behind it: no target is to get it, so no record of it is missing."""
    world.retention_s = 86_400.0
    plan_detach(query(world).of(ADDED)).carry_out(NOW_US)
    epochs(world, 1, 2)
    flush(world.flusher(name=CELLS))
    world.log_backend.delete(["choices/00000000000000000002.json"])
    assert attach(world).missing == (1, 2)
    epochs(world, 3)

    def rewind() -> None:
        plan_rewind(query(world).of(CELLS), world.targets[CELLS], 0, NOW_US).carry_out(NOW_US)

    steps = [lambda: plan_detach(query(world).of(CELLS)).carry_out(NOW_US), rewind]
    for step in steps if last == "rewind" else reversed(steps):
        step()
    world.retention_s = 0.0
    flush(world.flusher(name=ADDED))
    assert waiting(world) == []
    assert sorted(world.rows(ADDED)) == [("0", 0), ("3", 3)]
    assert verify(query(world).of(ADDED), lambda: world.targets[ADDED], NOW_US).findings == ()


def test_a_rewind_reaches_back_behind_the_moment_when_a_target_was_attached(
    world: SeveralWorld,
) -> None:
    """`wal.retention` keeps all; the target's database is restored from a backup that is older than that."""
    world.retention_s = 86_400.0
    epochs(world, 1)
    world.flush_all()
    backup = world.copy_database()
    epochs(world, 2)
    world.flush_all()
    plan_detach(query(world).of(ADDED)).carry_out(NOW_US)
    assert attach(world).missing == ()
    epochs(world, 3)
    world.flush_all()
    world.end_sessions()
    world.restore_database(backup)
    with pytest.raises(LedgerBehindLog, match="says that epoch 1 is flushed, the log says 3"):
        flush(world.flusher(name=ADDED))
    plan_rewind(query(world).of(ADDED), world.targets[ADDED], 1, NOW_US).carry_out(NOW_US)
    flush(world.flusher(name=ADDED))
    assert sorted(world.rows(ADDED)) == [(str(n), n) for n in range(4)]


def test_rule_18_what_a_rewind_takes_back_behind_an_attach_is_not_trimmed(
    world: SeveralWorld,
) -> None:
    """The other target's flusher goes by what the rewound one has now, not by where it was attached."""
    world.retention_s = 86_400.0
    epochs(world, 1, 2)
    world.flush_all()
    plan_detach(query(world).of(ADDED)).carry_out(NOW_US)
    assert attach(world).missing == ()
    plan_rewind(query(world).of(ADDED), world.targets[ADDED], 0, NOW_US).carry_out(NOW_US)
    world.retention_s = 0.0
    flush(world.flusher(name=CELLS))
    assert waiting(world) == [1, 2]


def test_attach_gives_a_target_what_the_retention_keeps(world: SeveralWorld) -> None:
    """Also what the other target has flushed long ago, and by the same choice; a sweep leaves that."""
    world.retention_s = 86_400.0
    plan_detach(query(world).of(ADDED)).carry_out(NOW_US)
    epochs(world, 1, 2)
    flush(world.flusher(name=CELLS))
    flush(world.flusher(name=CELLS))  # its first pass sweeps
    done = attach(world)
    assert (done.missing, done.state.epoch) == ((), 1)
    world.retention_s = 0.0
    everything(world, done)


def test_timestamps_go_on_growing_in_a_target_that_is_attached_again(world: SeveralWorld) -> None:
    """Its row is made anew above all that were used, also where the row that said so is lost (rule 14)."""
    used = world.records(ADDED)[-1]["base_us"] + 3_600_000_000
    view = query(world).of(ADDED)
    record = view.log.newest_flushed()
    assert record is not None
    view.log.delete(recorded_in(view.log, 0))
    view.log.record_flushed([msgspec.structs.replace(record, base_us=used)])
    plan_detach(view).carry_out(NOW_US)
    world.end_sessions()
    world.empty_database()
    attach(world)
    moved = world.row(ADDED)
    assert moved is not None
    assert (moved.flushed, moved.last_us, moved.begun) == (0, used, None)
    epochs(world, 1)
    flush(world.flusher(name=ADDED))
    assert world.records(ADDED)[-1]["base_us"] > used


def test_a_flusher_that_stood_still_over_an_attach_finishes_nothing(world: SeveralWorld) -> None:
    """It had begun an epoch before its target was detached; the row that it knows is gone."""
    epochs(world, 1)
    turns = Turns(0, counts=lambda operation: operation.startswith("finish"))
    late = Process(turns, lambda faults: flush(world.flusher(faults, name=ADDED)))
    late.turn()
    assert turns.stopped_before
    plan_detach(query(world).of(ADDED)).carry_out(NOW_US)
    world.end_sessions()  # the database has ended its transaction
    done = attach(world)
    assert done.missing == ()
    with contextlib.suppress(WalSinkError):
        late.turn()
    everything(world, done)


def test_a_flusher_that_stood_still_over_a_replaced_database_looks_again(
    tmp_path: Path,
) -> None:
    """The row of the new database is what the old one's was before begin; no update is hidden, though."""
    world = SeveralWorld(tmp_path)
    epochs(world, 0)
    turns = Turns(0, counts=lambda operation: operation.startswith("finish"))
    late = Process(turns, lambda faults: flush(world.flusher(faults, name=CELLS)))
    late.turn()
    assert turns.stopped_before
    plan_detach(query(world).of(CELLS)).carry_out(NOW_US)
    world.store.ledger.clear()
    plan_attach(query(world).of(CELLS), world.targets[CELLS]).carry_out(NOW_US)
    late.turn()
    world.flush_all()
    assert (world.rows(CELLS), world.rows(ADDED)) == ([("0", 0)], [("0", 0)])
    world.end_sessions()


def trimmed_in_part(world: SeveralWorld, deleted: int) -> None:
    """Flush to the target that is left; the process dies while it trims, after so many manifests went."""
    faults = Faults(at=deleted, matching="delete manifests/")
    with pytest.raises(Crash):
        flush(world.flusher(faults, name=CELLS))


@pytest.mark.parametrize("deleted", [0, 1])
def test_a_target_is_attached_behind_what_is_trimmed_in_part(
    world: SeveralWorld, deleted: int
) -> None:
    """Segments go before manifests: an epoch that still has its manifest may have lost its rows."""
    plan_detach(query(world).of(ADDED)).carry_out(NOW_US)
    epochs(world, 1, 2)
    trimmed_in_part(world, deleted)
    assert (waiting(world), world.log.segments()) == ([1, 2][deleted:], [])
    epochs(world, 3)
    done = plan_attach(query(world).of(ADDED), world.targets[ADDED]).carry_out(NOW_US)
    assert done.missing == (1, 2)
    world.flush_all()
    assert sorted(world.rows(ADDED)) == [("0", 0), ("3", 3)]
    assert waiting(world) == []
    assert lacking(world.log.of(ADDED)) == [Gap(1, 2, 2)]


def two_attempts(world: SeveralWorld) -> None:
    """Publish an epoch twice, with the rows in the manifests; a note proves that Spark has kept the first."""
    world.inline_from = 0
    a = world.run()
    a.publish([("a", 1)])
    world.run().publish([("b", 1)])
    a.write_commit([[("a", 1)]], heard=False)
    with pytest.raises(Fenced):
        a.publish([("next", 2)])


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("deleted", [0, 1])
def test_a_target_that_is_attached_gets_no_attempt_that_another_did_not_get(
    world: SeveralWorld, deleted: int, *, lost: bool
) -> None:
    """Manifests hold the rows, and what tells which of them was kept is trimmed, too.

    :param lost: the choice and its proof are gone, as by a power loss, and the manifests are not.
    """
    plan_detach(query(world).of(ADDED)).carry_out(NOW_US)
    two_attempts(world)
    trimmed_in_part(world, deleted)
    if lost:
        world.log_backend.delete(
            [*world.log_backend.list("choices"), *world.log_backend.list("proofs")]
        )
    assert waiting(world) == [1, 1][deleted:]
    done = plan_attach(query(world).of(ADDED), world.targets[ADDED]).carry_out(NOW_US)
    is_whole = not (deleted or lost)
    assert done.missing == (() if is_whole else (1, 1))
    world.flush_all()
    assert sorted(world.rows(ADDED)) == [("0", 0), *([("a", 1)] if is_whole else [])]
    assert sorted(world.rows(CELLS)) == [("0", 0), ("a", 1)]
    assert (waiting(world), world.log_backend.list("choices")) == ([], [])


def test_rule_11_what_a_target_gets_that_is_attached_again_is_proven(world: SeveralWorld) -> None:
    """Another target has it. The choice goes in a trim that stood still, and a later attempt comes late.

    All runs but the first have claimed, and the other target has flushed, since the command has looked.
    """
    world.inline_from = 0  # the trim leaves its rows
    plan_detach(query(world).of(ADDED)).carry_out(NOW_US)
    older = world.run()
    older.publish([("a", 1)])

    def publish(faults: Turns) -> None:
        world.run(faults).publish([("lost", 1)])

    def trims(faults: Turns) -> None:
        flush(world.flusher(faults, RunHistory(), name=CELLS))

    def attaches(faults: Turns) -> None:
        attach(world, faults)

    attaching = Process(Turns(0, counts=lambda name: name.startswith("create targets/")), attaches)
    attaching.turn()
    newer = Process(Turns(0, counts=lambda name: name.startswith("create manifests/")), publish)
    newer.turn()
    older.write_commit([[("a", 1)]], heard=False)
    trimmer = Process(Turns(0, counts=lambda name: name.startswith("delete ")), trims)
    trimmer.turn()
    for process in (attaching, trimmer, newer):
        process.turn()
        assert process.ended
    assert lacking(world.log.of(ADDED)) == []
    assert waiting(world) == [1]
    assert world.log_backend.list("choices") == []
    flush(world.flusher(run_history=RunHistory(), name=ADDED))
    assert sorted(world.rows(ADDED)) == sorted(world.rows(CELLS)) == [("0", 0), ("a", 1)]


def test_rule_11_a_flusher_that_stood_still_over_a_detach_takes_no_attempt_unproven(
    world: SeveralWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has read two attempts, and before it looks for proofs its target is detached, and all is trimmed."""
    two_attempts(world)
    proofs = Log.proofs

    def late(log: Log, epoch: int, *, fresh: bool = False) -> list[CommitProof]:
        monkeypatch.setattr(Log, "proofs", proofs)
        plan_detach(query(world).of(ADDED)).carry_out(NOW_US)
        flush(world.flusher(name=CELLS))
        return proofs(log, epoch, fresh=fresh)

    monkeypatch.setattr(Log, "proofs", late)
    flush(world.flusher(name=ADDED))
    assert (world.rows(ADDED), world.log_backend.list("choices")) == ([("0", 0)], [])
    assert isinstance(world.flusher(name=ADDED).run_once(), Idle)
    assert sorted(world.rows(CELLS)) == [("0", 0), ("a", 1)]


def test_attaching_that_is_interrupted_is_taken_up(tmp_path: Path) -> None:
    """A crash at any operation of the command; then all others see that, and the command is run again."""
    stop = 0
    while True:
        world = SeveralWorld(tmp_path)
        world.retention_s = 86_400.0
        epochs(world, 0)
        world.flush_all()
        plan_detach(query(world).of(ADDED)).carry_out(NOW_US)
        epochs(world, 1)
        flush(world.flusher(name=CELLS))
        faults = Faults(at=stop, when="after")
        try:
            attach(world, faults)
        except Crash:
            stop += 1
        else:
            break
        view = world.log.of(ADDED)
        if (left := not_attached(view)) is not None:
            assert "wal-sink attach CHECKPOINT --target added" in left.remedy
            shown = read_status(Checkpoint(world.checkpoint), view)
            assert shown.last_error == left.summary
            assert isinstance(world.flusher(name=ADDED).run_once(), Idle)
            assert attach(world).missing == ()
        world.retention_s = 0.0
        everything(world, Attached(query_id="", target=ADDED, state=view.states()[-1]))
        world.end_sessions()
        world.forget()
    assert stop > 10
    world.end_sessions()


def test_a_target_is_detached_in_place_of_an_attach_that_died(world: SeveralWorld) -> None:
    """Its records say more than the restored database has; the ledger row stands before the first epoch."""
    backup = world.copy_database()
    epochs(world, 1, 2)
    world.flush_all()
    plan_detach(query(world).of(ADDED)).carry_out(NOW_US)
    world.end_sessions()
    world.restore_database(backup)
    epochs(world, 3)
    with pytest.raises(Crash):
        attach(world, Faults(at=1, matching="create targets/"))
    plan_detach(query(world).of(ADDED)).carry_out(NOW_US)
    done = attach(world)
    assert done.missing == (1, 2)
    everything(world, done)


def test_rule_17_a_target_is_attached_behind_an_epoch_whose_record_is_forgotten(
    world: SeveralWorld,
) -> None:
    """Its database is restored to that epoch, and the ledger row is made anew: no window tells of it."""
    backup = world.copy_database()
    epochs(world, 1)
    flush(world.flusher(name=ADDED))
    view = world.log.of(ADDED)
    view.delete(recorded_in(view, 0))
    plan_detach(query(world).of(ADDED)).carry_out(NOW_US)
    world.end_sessions()
    world.restore_database(backup)
    done = attach(world)
    assert done.missing == ()
    everything(world, done)


@pytest.mark.parametrize("stop", range(5))
def test_attaching_that_stood_still_over_another_one_takes_nothing_back(
    world: SeveralWorld, stop: int
) -> None:
    """From its announcement on, where it looks for records, or says what the target is.

    Meanwhile another one attaches the target, which gets two windows.
    """
    plan_detach(query(world).of(ADDED)).carry_out(NOW_US)
    epochs(world, 1)

    def counts(operation: str) -> bool:
        lists = operation.startswith("list flushed/")
        announced = world.log.of(ADDED).states()[-1].verb == "announced"
        return (lists and announced) or operation.startswith("create targets/")

    turns = Turns(stop, counts=counts)

    def late(faults: Faults) -> None:
        with contextlib.suppress(FlusherAtWork, OptionError):
            attach(world, faults)

    process = Process(turns, late)
    process.turn()
    assert turns.stopped_before
    done = attach(world)
    world.flush_all()
    epochs(world, 2)
    world.flush_all()
    process.turn()
    everything(world, done)


def test_who_waits_for_a_target_that_is_not_attached_is_told(world: SeveralWorld) -> None:
    """`await_flushed` and `flush` of such a target; `status` and `verify` of an `attach` that was killed."""
    plan_detach(query(world).of(ADDED)).carry_out(NOW_US, "onFull is detach")
    epochs(world, 1)
    flush(world.flusher(name=CELLS))
    checkpoint, view = Checkpoint(world.checkpoint), query(world).of(ADDED)
    assert wait_until_flushed(checkpoint, world.log, 0).epoch == 1
    with pytest.raises(NoFlusher, match="is detached"):
        wait_until_flushed(checkpoint, view.log, 1.0)
    with pytest.raises(NoFlusher, match="is detached"):
        FlushCommand(view, world.targets[ADDED]).drain()
    announce(view.log, len(view.log.states()), NOW_US, "operator", "an attach that was killed", 0)
    for waits in (world.log, view.log):
        with pytest.raises(NoFlusher, match="is announced, and not attached yet"):
            wait_until_flushed(checkpoint, waits, 1.0)
    with pytest.raises(NoFlusher, match="is announced"):
        FlushCommand(view, world.targets[ADDED]).drain()
    shown = read_status(checkpoint, world.log)
    assert shown.last_error is not None
    assert "target added is announced" in shown.last_error
    assert shown.remedy is not None
    assert "wal-sink attach CHECKPOINT --target added" in shown.remedy
    assert not shown.safe_to_delete
    (finding,) = verify(view, lambda: world.targets[ADDED], NOW_US).findings
    assert finding.kind == "NoFlusher"
    done = attach(world)
    assert done.missing == (1, 1)
    everything(world, done)
    assert wait_until_flushed(checkpoint, world.log, 0).epoch == 2


def test_rows_in_quarantine_of_a_detached_target_count(world: SeveralWorld) -> None:
    """They are nowhere else: the log is not safe to delete, and the list has them."""
    world.on_invalid_row = "quarantine"
    world.run().batch([("1", 1), (None, 7)])
    world.flush_all()
    world.log_backend.delete(world.log_backend.list("quarantine/cells/"))
    plan_detach(query(world).of(ADDED)).carry_out(NOW_US)
    shown = read_status(Checkpoint(world.checkpoint), world.log)
    assert (shown.quarantined_rows, shown.safe_to_delete) == (1, False)
    assert shown.unsafe_because == "target added: 1 row is in quarantine alone"
    listed = [list_quarantine(each).rows for each in query(world).each("", detached=True)]
    assert listed == [1, 0]
    assert [each.log.target for each in query(world).each("")] == [CELLS]


def test_a_query_that_does_not_name_an_attached_target_is_refused(world: SeveralWorld) -> None:
    """Its epochs would wait for ever; one that is detached may be left out, or named."""
    with pytest.raises(OptionError, match="does not name any more"):
        refuse_other_targets(world.log, [CELLS])
    with pytest.raises(OptionError, match="option targets is not given"):
        refuse_other_targets(world.log, [])
    plan_detach(query(world).of(ADDED)).carry_out(NOW_US)
    refuse_other_targets(world.log, [CELLS])
    refuse_other_targets(world.log, [CELLS, ADDED])
    with pytest.raises(OptionError, match="is the only one"):
        plan_detach(query(world).of(CELLS))
    with pytest.raises(OptionError, match="is detached already"):
        plan_detach(query(world).of(ADDED))
    with pytest.raises(OptionError, match="is attached"):
        plan_attach(query(world).of(CELLS), world.targets[CELLS])


def test_the_last_two_targets_are_not_detached_at_once(world: SeveralWorld) -> None:
    """Both commands have looked. One target is announced at once, so that all who wait are told."""
    commands = [plan_detach(query(world).of(name)) for name in (ADDED, CELLS)]
    commands[0].carry_out(NOW_US)
    with pytest.raises(FlusherAtWork, match="cells meanwhile, or detached all others"):
        commands[1].carry_out(NOW_US)
    epochs(world, 1)
    with pytest.raises(NoFlusher, match="cells is announced, and not attached yet"):
        wait_until_flushed(Checkpoint(world.checkpoint), world.log, 1.0)
    plan_attach(query(world).of(CELLS), world.targets[CELLS]).carry_out(NOW_US)
    flush(world.flusher(name=CELLS))
    assert sorted(world.rows(CELLS)) == [("0", 0), ("1", 1)]


def test_a_log_of_one_target_gets_no_names(world: SeveralWorld, tmp_path: Path) -> None:
    """What was flushed without a name is not known by any."""
    world.log_backend.delete(world.log_backend.list("targets/"))
    with pytest.raises(OptionError, match="begun for one target"):
        refuse_other_targets(world.log, [CELLS])


def test_the_log_is_full_of_what_one_target_lacks(world: SeveralWorld) -> None:
    """`fail` fails the query; `detach` lets it go on without that target, but never without the last."""
    epochs(world, 1)
    flush(world.flusher(name=CELLS))
    with pytest.raises(LogFull):
        driver(world, {ADDED: "fail", CELLS: "block"}).batch([("2", 2)])
    driver(world, {ADDED: "detach", CELLS: "block"}).batch([("2", 2)])
    assert "onFull is detach" in str(not_attached(world.log.of(ADDED)))
    flush(world.flusher(name=CELLS))
    epochs(world, 3)
    with pytest.raises(NoFlusher):
        driver(world, {CELLS: "detach"}).batch([("4", 4)])
    assert not_attached(world.log.of(CELLS)) is None


def driver(world: SeveralWorld, on_full: dict[str, str]) -> Driver:
    found = Driver(world.run())
    found.budget = found.budget._replace(of_targets=on_full)
    return found


def test_a_command_is_about_one_target_or_says_which_there_are(world: SeveralWorld) -> None:
    """A rewind of one sends nothing to the other."""
    with pytest.raises(OptionError, match="has the targets added, cells"):
        query(world).of("")
    with pytest.raises(OptionError, match="There is no target lake"):
        query(world).of("lake")
    assert [each.log.target for each in query(world).each("")] == [ADDED, CELLS]
    epochs(world, 1)
    flush(world.flusher(name=CELLS))
    world.store.table.clear()
    plan_rewind(query(world).of(CELLS), world.targets[CELLS], 0, NOW_US).carry_out(NOW_US)
    world.flush_all()
    assert world.rows(CELLS) == [("1", 1)]
    assert sorted(world.rows(ADDED)) == [("0", 0), ("1", 1)]


def test_waiting_is_for_each_target_or_for_one(world: SeveralWorld) -> None:
    """What only one of them has is not flushed."""
    epochs(world, 1)
    flush(world.flusher(name=CELLS))
    checkpoint = Checkpoint(world.checkpoint)
    assert wait_until_flushed(checkpoint, world.log.of(CELLS), 0).epoch == 1
    shown = read_status(checkpoint, world.log)
    assert {each.target: each.pending_epochs for each in shown.targets} == {ADDED: 1, CELLS: 0}
    assert (shown.flushed, shown.pending_epochs, shown.safe_to_delete) == (0, 1, False)
    assert shown.unsafe_because == f"target {ADDED}: 1 checkpointed epoch is not flushed"
    flush(world.flusher(name=ADDED))
    assert wait_until_flushed(checkpoint, world.log, 0).epoch == 1


def test_rule_22_what_is_given_up_for_one_target_stays_for_the_other(
    world: SeveralWorld, tmp_path: Path
) -> None:
    """`skip --to` copies the files, and they go when the other target has the epoch."""
    epochs(world, 1)
    to = open_backend(str(tmp_path / "kept"))
    asked = query(world).of(CELLS)
    planned = plan_skip(asked, world.targets[CELLS], 1, to, NOW_US, begun=False)
    assert "2 files of it will be copied" in planned.consequences
    assert len(planned.carry_out(NOW_US).decision.files) == len(to.list()) == 2
    flush(world.flusher(name=CELLS))
    flush(world.flusher(name=ADDED))
    assert (world.rows(CELLS), sorted(world.rows(ADDED))) == ([("0", 0)], [("0", 0), ("1", 1)])
    flush(world.flusher(name=CELLS))
    assert waiting(world) == []

"""Several targets from one log: each gets every epoch once, of one history, and holds up no other."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, get_args

import pyarrow as pa
import pytest
from msgspec.structs import replace

from state_backends import open_backend
from tests.protocol import several_world as judged
from tests.protocol.cases import covered
from tests.protocol.engine import NOW_US, Rows, World, a_decision, flush, in_memory
from tests.protocol.every_fault import fault, injected_as_meant, partitions
from tests.protocol.interleave import Process, Turns
from tests.protocol.operators import files, query, restore
from tests.protocol.publishing import Driver
from tests.protocol.several_world import ADDED, CELLS, SeveralWorld
from wal_sink.admin.query import Query
from wal_sink.admin.rewind import plan_rewind
from wal_sink.admin.skip import plan_skip
from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.errors import (
    CorruptLog,
    Diverged,
    Fenced,
    LogFull,
    NoFlusher,
    OptionError,
    WalSinkError,
)
from wal_sink.flush.loop import FlushLoop
from wal_sink.flush.rows import as_written
from wal_sink.model import paths
from wal_sink.model.manifest import Attempt
from wal_sink.progress.backlog import read_backlog
from wal_sink.progress.status import read_status
from wal_sink.progress.wait import wait_until_flushed
from wal_sink.targets.base import Slice, Target
from wal_sink.testing.faults import Crash, Faults, different_faults
from wal_sink.testing.memory_target import MemoryOptions, MemoryTarget
from wal_sink.wal.location import owned, tie
from wal_sink.wal.log import Log
from wal_sink.wal.targets import flushed_epoch

EPOCHS = 3

STORES = ("memory",)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[SeveralWorld]:
    world = SeveralWorld(tmp_path)
    yield world
    world.end_sessions()


def script(world: SeveralWorld, run_faults: Faults, flush_faults: dict[str, Faults]) -> None:
    """Run all epochs; flush to one target after each, and to the other one after all."""
    flushers = {name: world.flusher(flush_faults[name], name=name) for name in world.targets}
    for _ in range(2):  # one fault, so one more start at most
        try:
            run = world.run(run_faults)
            while run.next < EPOCHS:
                run.batch(*partitions(run.next, run.run_id))
                flush(flushers[CELLS])
            for name in (ADDED, CELLS):
                flush(flushers[name])
        except (OSError, WalSinkError):
            assert run_faults.injected
        else:
            return


When = Literal["before", "after", "answer lost"]


@pytest.mark.parametrize("when", get_args(When))
@pytest.mark.parametrize("role", ["run", CELLS, ADDED])
def test_every_fault_is_recovered_from_in_both_targets(
    role: str, when: When, tmp_path: Path
) -> None:
    """A fault at every operation of the run, or of either target's flusher; then all goes on."""

    def until_the_fault(world: SeveralWorld, faults: Faults) -> bool:
        """Say whether the process has died."""
        of = {name: faults if name == role else Faults() for name in ("run", CELLS, ADDED)}
        try:
            script(world, of["run"], of)
        except Crash:
            world.end_sessions()
            return True
        return False

    whole, world = Faults(), SeveralWorld(tmp_path)
    assert not until_the_fault(world, whole)
    judged.complete(world, EPOCHS, "no fault")
    for k in different_faults(whole.operations, when):
        world = SeveralWorld(tmp_path)
        faults = fault(k, when)
        crashed = until_the_fault(world, faults)
        why = (k, role, when, faults.injected)
        injected_as_meant(faults, k, when, crashed=crashed)
        judged.safe(world, why)
        script(world, Faults(), {name: Faults() for name in world.targets})
        judged.complete(world, EPOCHS, why)
        world.forget()
    hit = whole.operations
    assert len(hit) > 60, "the script is too short to mean something"
    covered(f"fault at every operation of {role} with two targets, {when}", f"{len(hit)}")


def generations(world: SeveralWorld) -> list[list[int]]:
    """Return which attempts each target got."""
    return [[record["generation"] for record in world.records(name)] for name in world.targets]


def test_rule_11_a_manifest_that_comes_later_is_not_chosen_for_the_second_target(
    world: SeveralWorld,
) -> None:
    """One manifest is no reason to note no choice: another one may come before the second target begins.

    Both runs had looked for commits/0 before A wrote it. A dies without a trace; B is the newest.
    """
    a = world.run()
    a.publish([("kept", 1)])
    world.run().publish([("late", 2)])
    late = paths.MANIFEST.path(Attempt(0, 2))
    manifest = world.log_backend.read(late)
    world.log_backend.delete([late])
    a.write_commit([[("kept", 1)]], heard=False)
    flush(world.flusher(name=CELLS))
    world.log_backend.create(late, manifest)
    flush(world.flusher(name=ADDED))
    assert generations(world) == [[1], [1]]
    judged.complete(world, 1, "")


def test_rule_11_a_proof_that_comes_later_does_not_split_the_history(world: SeveralWorld) -> None:
    """One target gets the highest attempt, unproven; then the other run proves that it was kept."""
    a = world.run()
    a.publish([("a", 1)])
    b = world.run()
    b.publish([("b", 2)])
    a.write_commit([[("a", 1)]], heard=False)
    flush(world.flusher(name=CELLS))
    with pytest.raises(Fenced):
        a.publish([("next", 3)])
    assert world.log.proofs(0)
    flush(world.flusher(name=ADDED))
    assert generations(world) == [[2], [2]]
    assert world.rows(CELLS) == world.rows(ADDED) == [("b", 2)]


def test_rule_11_of_two_flushers_that_choose_at_once_one_decides(world: SeveralWorld) -> None:
    """The one that stood still before it noted its choice finds another one, and looks again."""
    a = world.run()
    a.publish([("a", 1)])
    world.run().publish([("b", 2)])
    a.write_commit([[("a", 1)]], heard=False)
    turns = Turns(0, counts=lambda operation: operation.startswith("create choices/"))
    first = Process(turns, lambda faults: flush(world.flusher(faults, name=CELLS)))
    first.turn()  # it takes the highest, and stands still
    assert turns.stopped_before
    with pytest.raises(Fenced):
        a.publish([("next", 3)])
    flush(world.flusher(name=ADDED))
    first.turn()
    assert generations(world) == [[1], [1]]
    judged.complete(world, 1, "")


def test_rule_22_an_epoch_is_given_up_for_one_target_alone(world: SeveralWorld) -> None:
    """The decision lies in the target's own folder, and the other one gets the epoch."""
    world.run().batch([("a", 1)])
    for path in world.log_backend.list("manifests/"):
        saved = path, world.log_backend.read(path)
        world.log_backend.delete([path])
    view = world.log.of(CELLS)
    view.create_decision(a_decision(epoch=0))
    flush(world.flusher(name=CELLS))
    world.log_backend.create(*saved)
    flush(world.flusher(name=ADDED))
    assert world.rows(CELLS) == []
    assert world.rows(ADDED) == [("a", 1)]


def test_rule_18_what_one_target_lacks_stays(world: SeveralWorld) -> None:
    """The other one goes on, and its flusher trims nothing that is needed."""
    run = world.run()
    for epoch in range(4):
        run.batch(*partitions(epoch, run.run_id))
        flush(world.flusher(name=CELLS))
        judged.safe(world, epoch)
    assert [attempt.epoch for attempt in world.log.attempts()] == [0, 1, 2, 3]
    assert flushed_epoch(world.log) == -1
    assert flushed_epoch(world.log.of(CELLS)) == 3
    flush(world.flusher(name=ADDED))
    judged.complete(world, 4, "")
    assert world.log.attempts() == ()


def test_rule_17_a_trim_that_stood_still_keeps_the_records_of_what_was_flushed_since(
    world: SeveralWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had listed the manifests before; one target has more epochs now, which wait for the other one."""
    monkeypatch.setattr("wal_sink.wal.trim.RECORDS_KEPT", 1)
    run = world.run().batches([("a", 0)])
    flush(world.flusher(name=CELLS))
    turns = Turns(0, counts=lambda operation: operation.startswith("delete manifests/"))
    slow = world.flusher(turns, name=ADDED)

    def trims(_: Faults) -> None:
        while world.log.attempts()[:1] == (Attempt(0, 1),):
            slow.run_once()

    late = Process(turns, trims)
    late.turn()
    assert turns.stopped_before
    for epoch in (1, 2, 3):
        run.batch([("b", epoch)])
        flush(world.flusher(name=CELLS))
    late.turn()
    assert [attempt.epoch for attempt in world.log.attempts()] == [1, 2, 3]
    assert [record["epoch"] for record in world.records(CELLS)] == [1, 2, 3]


def test_rule_18_orphans_of_an_epoch_that_one_target_lacks_stay_for_it(world: SeveralWorld) -> None:
    """Even where its manifest is lost, which an operator may restore; the sweep comes every hour."""
    world.run().batch([("a", 1)])
    flush(world.flusher(name=CELLS))
    (path,) = world.log_backend.list("manifests/")
    manifest = world.log_backend.read(path)
    world.log_backend.delete([path])
    flush(world.flusher(name=CELLS))
    world.log_backend.create(path, manifest)
    flush(world.flusher(name=ADDED))
    assert world.rows(ADDED) == [("a", 1)]


def test_rule_5_what_is_flushed_to_one_target_is_history(world: SeveralWorld) -> None:
    """The checkpoint is set back behind an epoch that one target has: its replay is passed over."""
    world.run().batches([("a", 1)], [("b", 2)])
    flush(world.flusher(name=CELLS))
    world.checkpoint.delete(["commits/1"])
    world.run().batches([("again", 3)])
    assert [attempt.generation for attempt in world.log.attempts()] == [1, 1]
    world.flush_all()
    assert sorted(world.rows(ADDED)) == sorted(world.rows(CELLS)) == [("a", 1), ("b", 2)]


def test_rule_5_another_history_than_one_target_has_is_refused(world: SeveralWorld) -> None:
    """Other source offsets under an epoch that any target has."""
    world.run().batches([("a", 1)])
    flush(world.flusher(name=CELLS))
    world.checkpoint.delete(["commits/0", "offsets/0"])
    with pytest.raises(Diverged):
        world.run().batch([("other", 2)], offset="9")


def test_the_budget_counts_what_the_slowest_target_lacks(world: SeveralWorld) -> None:
    """As long as one of them lacks an epoch, its bytes are in the log."""
    world.run().batches([("a", 1)], [("b", 2)])
    flush(world.flusher(name=CELLS))
    checkpoint = Checkpoint(world.checkpoint)
    assert read_backlog(checkpoint, world.log).epochs == 2
    assert read_backlog(checkpoint, world.log).stored_bytes > 0
    assert read_backlog(checkpoint, world.log.of(CELLS)).epochs == 0
    flush(world.flusher(name=ADDED))
    assert read_backlog(checkpoint, world.log).epochs == 0


@pytest.fixture
def ahead(world: SeveralWorld) -> SeveralWorld:
    """Return a query of which both targets have epoch 0, and one has epoch 1."""
    world.run().batch([("0", 0)])
    world.flush_all()
    world.run().batch([("1", 1)])
    flush(world.flusher(name=CELLS))
    return world


def test_a_command_is_about_one_target_or_says_which_there_are(ahead: SeveralWorld) -> None:
    """A rewind of one sends nothing to the other."""
    with pytest.raises(OptionError, match="has the targets added, cells"):
        query(ahead).of("")
    with pytest.raises(OptionError, match="There is no target lake"):
        query(ahead).of("lake")
    assert [each.log.target for each in query(ahead).each("")] == [ADDED, CELLS]
    ahead.store.table.clear()
    plan_rewind(query(ahead).of(CELLS), ahead.targets[CELLS], 0, NOW_US).carry_out(NOW_US)
    ahead.flush_all()
    assert ahead.rows(CELLS) == [("1", 1)]
    assert sorted(ahead.rows(ADDED)) == [("0", 0), ("1", 1)]


def test_waiting_is_for_each_target_or_for_one(ahead: SeveralWorld) -> None:
    """What only one of them has is not flushed."""
    checkpoint = Checkpoint(ahead.checkpoint)
    assert wait_until_flushed(checkpoint, ahead.log.of(CELLS), 0).epoch == 1
    shown = read_status(checkpoint, ahead.log)
    assert {each.target: each.pending_epochs for each in shown.targets} == {ADDED: 1, CELLS: 0}
    assert (shown.flushed, shown.pending_epochs, shown.safe_to_delete) == (0, 1, False)
    assert shown.unsafe_because == f"target {ADDED}: 1 checkpointed epoch is not flushed"
    flush(ahead.flusher(name=ADDED))
    assert wait_until_flushed(checkpoint, ahead.log, 0).epoch == 1


def test_the_slowest_target_decides_what_a_full_log_does(ahead: SeveralWorld) -> None:
    """What the option of the other one says does not count."""
    driver = Driver(ahead.run())
    driver.budget = driver.budget._replace(of_targets={ADDED: "fail", CELLS: "block"})
    with pytest.raises(LogFull):
        driver.batch([("2", 2)])
    driver.budget = driver.budget._replace(of_targets={ADDED: "block", CELLS: "fail"})
    with pytest.raises(NoFlusher):
        driver.batch([("2", 2)])


def test_rule_22_what_is_given_up_for_one_target_stays_for_the_other(
    world: SeveralWorld, tmp_path: Path
) -> None:
    """`skip --to` copies the files, and they go when the other target has the epoch."""
    world.run().batch([("0", 0)])
    world.flush_all()
    world.run().batch([("1", 1)])
    to = open_backend(str(tmp_path / "kept"))
    asked = query(world).of(CELLS)
    planned = plan_skip(asked, world.targets[CELLS], 1, to, NOW_US, begun=False)
    assert "2 files of it will be copied" in planned.consequences
    assert len(planned.carry_out(NOW_US).decision.files) == len(to.list()) == 2
    flush(world.flusher(name=CELLS))
    flush(world.flusher(name=ADDED))
    assert (world.rows(CELLS), sorted(world.rows(ADDED))) == ([("0", 0)], [("0", 0), ("1", 1)])
    flush(world.flusher(name=CELLS))
    assert world.log.attempts() == ()


@pytest.mark.parametrize("wanted", [(CELLS,), (CELLS, ADDED, "lake"), (ADDED, "lake"), ()], ids=str)
def test_a_start_with_another_set_of_targets_is_refused(
    world: SeveralWorld, wanted: tuple[str, ...]
) -> None:
    """A target more or less, another one, or one without a name; the former set starts in any order."""
    world.run().batch([("a", 1)])
    before, checkpoint = world.log.identity(), Checkpoint(world.checkpoint)
    with pytest.raises(OptionError, match="is fixed when a log begins") as caught:
        tie(Log(world.log_backend, targets=wanted), checkpoint)
    for way in ("targets=added,cells", "a new checkpoint", "a second query"):
        assert way in caught.value.remedy
    assert world.log.identity() == before
    assert tie(Log(world.log_backend, targets=(CELLS, ADDED)), checkpoint) == before


def test_a_log_without_names_gets_no_names(world: SeveralWorld) -> None:
    """What was flushed without a name is not known by any."""
    one = World(*in_memory())
    one.run().batch([("a", 1)])
    with pytest.raises(OptionError, match="without a name, and option targets names cells"):
        tie(Log(one.log_backend, targets=(CELLS,)), Checkpoint(one.checkpoint))


def test_of_two_first_starts_with_other_targets_one_is_refused(tmp_path: Path) -> None:
    """One stops before any of its operations, and the other one begins the log meanwhile."""
    whole, refused = Faults(), 0
    SeveralWorld(tmp_path).run(whole)
    for k in range(len(whole.operations)):
        world = SeveralWorld(tmp_path)
        world.checkpoint.create("metadata", json.dumps({"id": world.query_id}).encode())
        late = Process(Turns(k, counts=bool), lambda faults, world=world: world.run(faults))  # type: ignore[misc]
        late.turn()
        if world.log.identity() is not None:
            break
        world.named = {CELLS: world.named[CELLS]}
        world.run().batch([("first", 1)])
        with pytest.raises(OptionError, match="fixed when a log begins"):
            late.turn()
        identity = world.log.identity()
        assert identity is not None
        assert identity.targets == (CELLS,)
        world.flush_all()
        assert world.rows(CELLS) == [("first", 1)]
        refused += 1
    assert refused > 2


def test_names_of_targets_in_a_foreign_log_are_no_paths(world: SeveralWorld) -> None:
    """Who can write to the log could name another folder by them."""
    world.run()
    identity = world.log.identity()
    assert identity is not None
    world.log.replace_identity(replace(identity, targets=("../../other",)))
    with pytest.raises(CorruptLog, match="names targets that cannot be names"):
        owned(world.log, Checkpoint(world.checkpoint))


def test_rows_are_cast_for_each_target_as_they_are_written(world: SeveralWorld) -> None:
    """The log of several keeps what Spark gave; with one target the task has cast it."""
    schema = pa.schema([("k", pa.string()), ("v", pa.int32())])
    target = world.targets[ADDED]
    plan = target.plan(schema, "key")
    batch = pa.RecordBatch.from_pylist([{"k": "a", "v": 1}], schema)
    given = Slice(0, batch, 1)
    written = as_written(world.log.of(ADDED), target, plan, given)
    assert written.batch.schema.field("v").type == pa.int64()
    assert as_written(Log(world.log_backend), target, plan, given) is given


def test_log_lines_of_a_flush_name_the_target(
    world: SeveralWorld, caplog: pytest.LogCaptureFixture
) -> None:
    """In the text and as an attribute: the target that is down is not to be guessed."""
    caplog.set_level(logging.INFO, "wal_sink")
    run = world.run()
    run.batch(*partitions(0, run.run_id))
    loop = FlushLoop(world.flusher(name=ADDED))
    loop.end()
    loop.start()
    loop.join(30)
    said = [r for r in caplog.records if r.threadName == loop.name]
    texts = [r.getMessage() for r in said]
    place = f"query {world.query_id}, target {ADDED}"
    assert any(t.startswith(f"{place}, epoch 0: flushed ") for t in texts), texts
    assert [t for t in texts if not t.startswith(place)] == []
    assert {getattr(r, "target", None) for r in said} == {ADDED}


class AuditedWorld(World):
    """A query whose first target deletes by a word, and whose second one appends every change.

    A value of None is a delete; it is 0, so that no key of the history is null.
    """

    def __init__(self) -> None:
        super().__init__(*in_memory(), MemoryTarget(MemoryOptions(keys="k", operation_column="op")))
        self.audit = MemoryTarget(MemoryOptions(keys="k,op,v"))
        self.audit.clock_us = self.store.clock_us

    @property
    def targets(self) -> dict[str, Target]:
        """One follows the source, the other one keeps its history."""
        return {"state": self.store, "audit": self.audit}

    def frame(self, rows: Rows) -> pa.RecordBatch:
        """Return rows as the DataFrame has them."""
        changes = [
            {"k": key, "op": "delete" if value is None else "upsert", "v": value or 0}
            for key, value in rows
        ]
        schema = pa.schema([("k", pa.string()), ("op", pa.string()), ("v", pa.int64())])
        return pa.RecordBatch.from_pylist(changes, schema)


def test_of_several_targets_one_deletes_and_another_keeps_the_change() -> None:
    """What the word means is the business of the target that names its column."""
    world = AuditedWorld()
    run = world.run().batches([("a", 1), ("b", 2), ("c", 3)])
    run.batch([("a", None), ("b", 4)], [("c", None), ("c", 5)])
    for name in world.targets:
        flusher = world.flusher(name=name)
        flush(flusher)
        flusher.close()
    assert world.table() == {"b": 4, "c": 5}
    upserts = {(key, "upsert", value) for key, value in zip("abcbc", (1, 2, 3, 4, 5), strict=True)}
    assert set(world.audit.rows()) == {*upserts, ("a", "delete", 0), ("c", "delete", 0)}


@pytest.mark.parametrize("right", ["the manifest's", "the choice's"])
def test_rule_12_a_choice_behind_which_spark_went_back_is_not_flushed(
    world: SeveralWorld, right: str
) -> None:
    """A flusher dies between choice and begin. Spark goes back, and computes the epoch from other data."""
    world.run().batch([("chosen", 1)])
    with pytest.raises(Crash):
        flush(world.flusher(Faults(0, "after", matching="create choices/"), name=CELLS))
    checkpoint = files(world.checkpoint)
    world.checkpoint.delete(["commits/0", "offsets/0"])
    world.run().batch([("other", 2)], offset="9")
    for name in world.targets:
        with pytest.raises(Diverged, match="to every target as epoch 0"):
            flush(world.flusher(name=name))
        assert world.rows(name) == []
    if right == "the manifest's":
        world.log_backend.delete([paths.CHOICE.path(0)])
    else:
        restore(world.checkpoint, checkpoint)
        world.log_backend.delete([paths.MANIFEST.path(Attempt(0, 2))])
    world.flush_all()
    assert (
        world.rows(CELLS)
        == world.rows(ADDED)
        == [("other", 2) if "man" in right else ("chosen", 1)]
    )
    assert not world.log.attempts()


def test_rule_22_rows_after_a_begun_epoch_was_given_up_come_to_every_target(
    world: SeveralWorld,
) -> None:
    """Spark went back behind it, and an operator has moved the choice away: one target must not lack it.

    The other one would delete the rows when it has them, and its own record says of no other history.
    """
    world.run().batch([("chosen", 1)])
    with pytest.raises(Crash):
        flush(world.flusher(Faults(0, "before", matching="finish"), name=CELLS))
    asked = Query(world.query_id, Checkpoint(world.checkpoint), world.log.of(CELLS))
    now_us = NOW_US + 600_000_000
    place = open_backend(f"memory://copies/{world.query_id}")
    plan_skip(asked, world.targets[CELLS], 0, place, now_us, begun=True).carry_out(now_us)
    world.checkpoint.delete(["commits/0", "offsets/0"])
    world.run().batch([("other", 2)], offset="9")
    with pytest.raises(Diverged, match="rewind CHECKPOINT --to -1"):
        flush(world.flusher(name=CELLS))
    plan_rewind(asked, world.targets[CELLS], -1, now_us).carry_out(now_us)
    world.log_backend.delete([paths.CHOICE.path(0)])
    for name in (CELLS, ADDED):
        flush(world.flusher(name=name))
        assert ("other", 2) in world.rows(name)
    assert not world.log.attempts()


@pytest.mark.parametrize("purged", [False, True])
def test_rule_22_what_was_chosen_for_all_stays_given_up_for_one_target(
    world: SeveralWorld, *, purged: bool
) -> None:
    """Spark has computed it again since, from the same source offsets: no target gets that attempt.

    :param purged: Spark has gone on a hundred epochs before the flushers do.
    """
    world.run().batch([("chosen", 1)])
    asked = Query(world.query_id, Checkpoint(world.checkpoint), world.log.of(CELLS))
    now_us = NOW_US + 600_000_000
    place = open_backend(f"memory://copies/{world.query_id}")
    plan_skip(asked, world.targets[CELLS], 0, place, now_us, begun=False).carry_out(now_us)
    with pytest.raises(Crash):
        flush(world.flusher(Faults(0, "after", matching="create choices/"), name=ADDED))
    world.checkpoint.delete(["commits/0"])
    world.run().batch([("again", 2)])
    if purged:
        world.checkpoint.delete(["offsets/0"])
    for name in (CELLS, ADDED):
        flush(world.flusher(name=name))
    assert (world.rows(CELLS), world.rows(ADDED)) == ([], [("chosen", 1)])
    assert not world.log.attempts()


def test_rule_12_where_one_target_has_what_was_chosen_no_other_one_gets_the_manifest(
    world: SeveralWorld,
) -> None:
    """Its flusher stood still while Spark went back, and finished the epoch when it woke."""
    world.run().batch([("chosen", 1)])
    turns = Turns(0, counts=lambda operation: operation.startswith("finish"))
    late = Process(turns, lambda faults: flush(world.flusher(faults, name=CELLS)))
    late.turn()
    assert turns.stopped_before
    checkpoint = files(world.checkpoint)
    world.checkpoint.delete(["commits/0", "offsets/0"])
    world.run().batch([("other", 2)], offset="9")
    late.turn()
    with pytest.raises(Diverged, match="no target has flushed the epoch, move choices/"):
        flush(world.flusher(name=ADDED))
    restore(world.checkpoint, checkpoint)
    world.log_backend.delete([paths.MANIFEST.path(Attempt(0, 2))])
    world.flush_all()
    assert world.rows(CELLS) == world.rows(ADDED) == [("chosen", 1)]
    assert not world.log.attempts()

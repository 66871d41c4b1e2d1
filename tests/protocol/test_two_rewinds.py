"""Two `wal-sink rewind` of one query overlap: of two operators, or one is run again while the first lives."""

from __future__ import annotations

import itertools
import socket
import subprocess
import sys

import msgspec
import pytest

from tests.protocol.aged_log import recorded_in
from tests.protocol.cases import covered
from tests.protocol.damaged import EPOCHS
from tests.protocol.engine import NOW_US, World, flush
from tests.protocol.interleave import Process, Turns
from tests.protocol.operators import faulty, look, query, skip
from tests.protocol.test_ways_out import memory, set_up_rewind
from wal_sink import errors
from wal_sink.admin.flusher_at_work import PATIENCE
from wal_sink.admin.rewind import plan_rewind
from wal_sink.flush.report import Reporter
from wal_sink.flush.run_history import RunHistory
from wal_sink.model import paths
from wal_sink.testing.faults import Faults, FaultyTarget

_CLOCK = itertools.count(NOW_US)


def rewinding(
    world: World, *stops: int, to: int = 0, before: str | tuple[str, ...] = "read ledger"
) -> tuple[Process, list[str]]:
    """Return `wal-sink rewind` as a process that stops before some looks at the ledger row, or else."""
    refused: list[str] = []

    def act(turns: Turns) -> None:
        now_us = next(_CLOCK)
        plan = plan_rewind(faulty(world, turns), FaultyTarget(world.target, turns), to, now_us)
        try:
            plan.carry_out(now_us)
        except errors.FlusherAtWork as error:
            refused.append(error.what)

    return Process(Turns(*stops, counts=lambda name: name.startswith(before)), act), refused


def silent(world: World, to: int, faults: Faults | None = None) -> None:
    """`wal-sink rewind` of an operator who has waited until the first one seemed to be dead."""
    now_us = itertools.count(0, 60)
    patience = PATIENCE._replace(now_s=lambda: next(now_us), sleep=lambda _: None)
    faults = faults or Faults()
    seen, target = faulty(world, faults), FaultyTarget(world.target, faults)
    plan = plan_rewind(seen._replace(patience=patience), target, to, next(_CLOCK))
    plan.carry_out(next(_CLOCK))


@pytest.mark.parametrize("together", [1, 2])
def test_rule_22_a_rewind_that_stood_still_takes_back_nothing(
    monkeypatch: pytest.MonkeyPatch, together: int
) -> None:
    """It wakes before its look at the row, after another one has ended, and some epochs are flushed again."""
    # The ledger knows the last window alone.
    monkeypatch.setattr("wal_sink.protocol.windows.WINDOW_EPOCHS", together)
    whole, _ = rewinding(set_up_rewind())
    whole.turn()
    # Not at the last look: after the last record no rewind has anything left to do.
    stops = range(1, len(whole.turns.operations) - 1)
    # The row is read back, and before the records of each window above epoch 0 go.
    assert len(stops) == 1 + (EPOCHS - 2 if together == 1 else 2)
    for stop, to, flushed in itertools.product(stops, (0, 2), range(EPOCHS + 1)):
        world = set_up_rewind()
        first, refused = rewinding(world, stop)
        first.turn()
        there = world.log.flushed_epochs()
        if to in there:  # else there is no such mark any more
            silent(world, to)
        flusher = world.flusher(run_history=RunHistory())
        for _ in range(flushed):
            if to in there:
                flusher.run_once()
        flusher.close()
        moved = world.state.flushed != 0
        why = f"stops before look {stop}, the other one goes to {to}, then {flushed} steps"
        first.turn()
        assert first.ended
        assert bool(refused) == moved, why
        world.flush()
        missing = {key for key in world.expected() if key not in world.table()}
        assert missing == ({"a1", "b1", "a2", "b2"} if to in there and to else set()), why
        assert world.log.flushed_epochs() == list(range(EPOCHS)), why
        assert look(world).findings == (), why
        world.forget()
    covered("two rewinds", f"{len(stops) * 2 * (EPOCHS + 1)} overlaps")


def test_rule_22_a_rewind_is_refused_while_another_one_lives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The error names the other one; nothing is changed, and afterwards the command can be run again."""
    monkeypatch.setattr("wal_sink.flush.report.BEAT_S", 0.0)  # the first one is quick
    world = set_up_rewind()
    first, _ = rewinding(world, 1, 2, 3)
    first.turn()
    patience = PATIENCE._replace(sleep=lambda _: first.turn(), say=lambda _: None)
    said = world.log.last_report()
    assert said is not None
    with pytest.raises(errors.FlusherAtWork, match=f"{said.flusher} rewinds this query just now"):
        plan_rewind(query(world)._replace(patience=patience), world.target, 0, next(_CLOCK))
    assert len(world.log.interventions("rewind")) == 1
    assert world.log.flushed_epochs() != [0]
    while not first.ended:
        first.turn()
    assert world.flushed() == world.expected()


def test_rule_22_a_rewind_that_was_killed_holds_up_no_other_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its host has no process of that name, so nothing is waited for; the next one goes on where it died."""
    monkeypatch.setattr("wal_sink.protocol.windows.WINDOW_EPOCHS", 1)  # each record is of its own
    world = set_up_rewind()
    first, _ = rewinding(world, 3)
    first.turn()  # one record is gone, and it acts no more
    said = world.log.last_report()
    assert said is not None
    assert said.doing.startswith("rewinding")
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        gone.wait()
    name = f"{socket.gethostname()}:{gone.pid}"
    world.log.report(msgspec.structs.replace(said, flusher=name))
    assert world.log.flushed_epochs() == list(range(EPOCHS - 2))
    patience = PATIENCE._replace(sleep=lambda _: pytest.fail("it waits"))
    plan_rewind(query(world)._replace(patience=patience), world.target, 0, NOW_US).carry_out(NOW_US)
    assert world.flushed() == world.expected()
    assert world.log.flushed_epochs() == list(range(EPOCHS))


def test_rule_22_a_rewind_keeps_what_a_flusher_said_of_an_epoch_behind_it() -> None:
    """It reports itself in place of the flusher, whose error is the reason of a `skip` that comes next."""
    world = set_up_rewind()
    silent(world, 0)
    world.flush()
    run = world.run()
    lost = run.batch([("z", 9)])
    world.log.delete(world.log_backend.list(paths.MANIFEST.folder))
    flusher = world.flusher()
    reporter = Reporter(world.log)
    with pytest.raises(errors.MissingManifest) as caught:
        flusher.run_once()
    flusher.close()
    reporter.say("choosing", lost)
    reporter.failed(caught.value)
    reporter.ended()
    world.store.ledger.clear()
    silent(world, lost - 1)
    assert skip(world, lost).why.startswith("MissingManifest: ")


def test_rule_22_a_rewind_that_finds_the_row_moved_makes_no_mark() -> None:
    """It stood still before that, and another one has gone back further; its epoch is no mark any more."""
    for stop in itertools.count():
        world = set_up_rewind()
        first, refused = rewinding(world, stop, to=2, before="create ")
        first.turn()
        if world.state.flushed == 2:  # it has moved the row
            break
        silent(world, 0)
        first.turn()
        assert first.ended
        assert refused
        assert world.log.flushed_epochs() == [0], first.turns.stopped_before
        world.flush()
        assert world.table() == world.expected()
    assert first.turns.stopped_before[0].startswith(f"create {paths.FLUSHED.folder}")


def test_rule_22_a_rewind_deletes_what_a_flusher_records_as_the_row_is_moved() -> None:
    """It had finished its window, and stood still before its record."""
    world = memory()
    run = world.run()
    run.flushed_batches([("k0", 0)])
    run.batches([("k1", 1)], [("k2", 2)])
    turns = Turns(0, counts=lambda name: name.startswith(f"create {paths.FLUSHED.folder}"))
    late = Process(turns, lambda faults: flush(world.flusher(faults, RunHistory())))
    late.turn()
    first, refused = rewinding(world, 1)
    first.turn()
    late.turn()
    assert world.log.mark() == 2
    first.turn()
    assert (first.ended, refused, world.log.mark()) == (True, [], 0)
    assert world.flushed() == world.expected()


@pytest.mark.parametrize("state", ["mark", "below", "begun", "unrecorded"])
def test_rule_22_a_rewind_that_wakes_between_its_look_and_a_deletion_loses_no_row(
    monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    """Another one has ended since, and a flusher has flushed again: one record of later goes, no more."""
    monkeypatch.setattr("wal_sink.protocol.windows.WINDOW_EPOCHS", 1)
    world = set_up_rewind()
    silent(world, 0)
    world.retention_s = 0.0
    world.flush()
    last = EPOCHS - 1
    gone = last - 1 if state == "below" else last
    if state == "unrecorded":
        world.run().batches([("z", 9)])
        with pytest.raises(errors.LogUnavailable):
            world.flush(
                Faults(at=0, error=ConnectionError, matching=f"create {paths.FLUSHED.folder}")
            )
    turns = Turns(0, counts=lambda name: name.startswith("finish"))
    flusher = Process(turns, lambda faults: flush(world.flusher(faults, RunHistory())))
    if state == "begun":
        world.run().batches([("z", 9)])
        flusher.turn()
        assert turns.stopped_before
    expected = world.expected()
    world.log.delete(recorded_in(world.log, gone))  # what a rewind does that looked before all that

    if state == "begun":
        flusher.turn()
        assert flusher.ended
    if state == "unrecorded":
        with pytest.raises(errors.CorruptLog, match="the log records only"):
            world.flush()
        now_us = world.clock.us + 600_000_000
        plan_rewind(query(world), world.target, last - 1, now_us, restored=True).carry_out(now_us)
        with pytest.raises(errors.MissingManifest):
            world.flush()
        skip(world, gone)
    world.flush()
    world.run().flushed_batches([("y", 8)])
    left = [gone] if state in {"below", "begun"} else []
    assert sorted(set(range(world.state.flushed + 1)) - {*world.log.flushed_epochs()}) == left
    assert world.table() == expected | {"y": 8}


@pytest.mark.parametrize("offset", [None, "another"])
def test_rule_22_a_rewind_that_stood_still_deletes_no_attempt_that_came_since(
    offset: str | None,
) -> None:
    """Another one has ended, the checkpoint was set back, and Spark has computed the epoch again."""
    world = memory()
    world.retention_s = 1_000.0
    run = world.run().flushed_batches([("a", 0)], [("b", 1)])
    first, _ = rewinding(world, 0, before=f"create {paths.INTERVENTION.folder}")
    first.turn()
    assert first.turns.stopped_before
    run.flushed_batches([("b", 2)]).end()
    silent(world, 0)
    world.store.table.pop(("b",))
    for epoch in (1, 2):
        world.checkpoint.delete([f"commits/{epoch}", f"offsets/{epoch}"])
        world.committed.pop(epoch)
    world.run().batch([("c", 1)], offset=offset)
    first.turn()
    assert first.ended
    world.flush()
    assert world.table() == world.expected() == {"a": 0, "c": 1}

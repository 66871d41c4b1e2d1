"""Each start leaves a ticket and a claim: old ones go, and a run of old times that comes back stops."""

from __future__ import annotations

import pytest

from tests.protocol import raw
from tests.protocol.engine import World
from tests.protocol.operations import At
from tests.protocol.starts import room, starts
from wal_sink.errors import Fenced, NotRegistered
from wal_sink.flush.run_history import RunHistory
from wal_sink.model import paths
from wal_sink.model.records import Stop, Ticket
from wal_sink.protocol.next_step import Begin
from wal_sink.testing.faults import Faults
from wal_sink.wal.runs import RUNS_KEPT, ticketed

STORES = ("memory", "local")


def test_old_tickets_and_claims_go_and_the_highest_generation_stays(world: World) -> None:
    """What a start leaves does not pile up; a new run claims the generation after the highest."""
    world.run().flushed_batches([("a", 1)])
    starts(world, 2 * RUNS_KEPT)
    newest = world.log.highest_generation()
    world.flush()
    assert world.log.keys(paths.CLAIM) == list(range(newest - RUNS_KEPT + 1, newest + 1))
    assert len(ticketed(world.log)) == RUNS_KEPT
    run = world.run().batches([("b", 2)])
    assert world.log.highest_generation() == newest + 1
    assert world.flushed() == world.expected()
    claim = world.log.read(paths.CLAIM, world.log.highest_generation())
    assert claim is not None
    assert claim.run_id == run.run_id


def die_at_once(world: World, number: int) -> None:
    """Let so many runs start, and fail before their first `commit()`; the first of them before the others."""
    generation = world.log.highest_generation()
    tickets = (Ticket(run_id=f"died-{each}", generation=generation) for each in range(number))
    world.log_backend.create_missing({paths.TICKET.path(t.run_id): t.to_json() for t in tickets})
    world.log.create(paths.STOP, "died-0", Stop(run_id="died-0"))


def test_tickets_of_starts_that_never_published_go(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another start claims their generation, so they can neither publish nor prove anything (rule 2)."""
    monkeypatch.setattr("wal_sink.wal.runs.VOID_KEPT", 20)
    world.run().batch([("a", 1)])
    late = world.run()
    die_at_once(world, 17)
    starting = world.run()
    room(world, starting, max_bytes=10**9)
    assert world.log.highest_generation() == 1, (
        "there are few: a run at work is not stopped for that"
    )
    die_at_once(world, 20)
    starting = world.run()
    room(world, starting, max_bytes=10**9)
    assert world.log.highest_generation() == 2
    assert len(ticketed(world.log)) == 2, "its own, and that of the run that has published"
    assert world.log_backend.list(paths.STOP.folder) == []
    with pytest.raises(NotRegistered, match="claimed generation 2 in its place"):
        late.publish([("late", 1)])
    starting.batch([("b", 1)])
    assert world.flushed() == world.expected() == {"a": 1, "b": 1}


def test_a_few_starts_cost_one_listing(world: World) -> None:
    """Tickets are read now and then, not by every flusher that starts."""
    world.run().batch([("a", 1)])
    starts(world, RUNS_KEPT)
    faults = Faults()
    world.flush(faults)
    assert not [each for each in faults.operations if paths.TICKET.folder in each]


@pytest.mark.parametrize(("stands_still_before", "number"), [("create", 1), ("read", 2)])
def test_rule_3_a_claim_that_was_deleted_is_fenced(
    world: World, stands_still_before: str, number: int
) -> None:
    """A run stands still at its claim; when it wakes, the number, or its own claim of it, was deleted."""

    def others_start() -> None:
        starts(world, 3 * RUNS_KEPT)
        world.flush()
        assert 2 not in world.log.keys(paths.CLAIM)

    world.run().flushed_batches([("a", 1)])
    zombie = world.run(At(f"{stands_still_before} {paths.CLAIM.path(2)}", others_start, number))
    with pytest.raises(Fenced, match="overtaken"):
        zombie.publish([("zombie", 1)])
    made_again = world.log.read(paths.CLAIM, 2)
    assert (made_again is not None and made_again.run_id) == (
        stands_still_before == "create" and zombie.run_id
    ), "its claim took effect"
    assert world.log.attempts() == ()
    world.run().batch([("b", 1)])
    assert world.flushed() == world.expected()


def test_rule_2_a_run_whose_ticket_is_gone_is_told_why(world: World) -> None:
    """It published an epoch, stood still, and comes back after hundreds of starts."""
    zombie = world.run().flushed_batches([("a", 1)])
    starts(world, 2 * RUNS_KEPT)
    world.flush()
    with pytest.raises(NotRegistered, match=f"at least {RUNS_KEPT} newer runs"):
        zombie.publish([("zombie", 1)])
    assert world.log.attempts() == ()


def test_rule_11_a_run_that_may_have_to_prove_its_epoch_keeps_its_ticket(world: World) -> None:
    """Two runs published the epoch; the older one writes `commits/1` after hundreds of starts."""
    older, newer = world.run(), world.run()
    older.batch([("a", 1)])
    newer = world.run()
    rows = [("older", 1)]
    older.publish(rows)
    newer.next = 1
    newer.publish([("newer", 1)])
    starts(world, 2 * RUNS_KEPT)
    world.flush()
    assert world.log.read(paths.TICKET, older.run_id) is not None
    older.write_commit([rows], heard=False)
    with pytest.raises(Fenced):
        older.publish([("older", 2)])
    world.flush()
    assert world.log_backend.list(paths.PROOF.folder) == []
    assert world.table() == world.expected()
    starts(world, 1)
    world.flush()
    assert world.log.read(paths.TICKET, older.run_id) is None, "there is nothing left to prove"


def test_a_damaged_ticket_stops_nothing(world: World) -> None:
    """It may be of a run that goes on, and is left alone."""
    world.run().flushed_batches([("a", 1)])
    world.log_backend.create(paths.TICKET.path("damaged"), b"{")
    starts(world, 2 * RUNS_KEPT)
    world.flush()
    assert len(ticketed(world.log)) == RUNS_KEPT + 1
    assert world.table() == {"a": 1}


def test_stops_go_with_their_tickets(world: World) -> None:
    """A run that was told to stop leaves that note, too."""
    run = world.run().flushed_batches([("a", 1)])
    world.log.create(paths.STOP, run.run_id, Stop(run_id=run.run_id))
    starts(world, 2 * RUNS_KEPT)
    world.flush()
    assert not (world.log.read(paths.STOP, run.run_id) is not None)


def test_rule_11_the_flusher_of_a_run_that_was_overtaken_does_no_harm(world: World) -> None:
    """Its Spark waits for executors for ever; the other process flushes, too, in turns, step by step."""
    saw_old, saw_new = RunHistory(), RunHistory()
    old = world.run(run_history=saw_old).batches([("a", 1)])
    old.publish([("never kept", 1)])
    new = world.run(run_history=saw_new)
    flushers = [world.flusher(run_history=saw) for saw in (saw_old, saw_new)]
    begun = [0, 0]
    for number in range(20):
        new.batch([(f"b{number}", number), ("same", number)])
        for turn in range(number % 2, 12):
            begun[turn % 2] += isinstance(flushers[turn % 2].run_once(), Begin)
    assert all(begun), "each of them decided windows"
    assert world.table() == world.expected()
    raw.complete(world, 21, ())
    with pytest.raises(Fenced):
        old.publish([("late", 1)])

"""A flusher goes on from the ledger row as it saw it last, and `begin` compares all of it (rule 14)."""

from __future__ import annotations

import msgspec
import pytest

from tests.protocol.engine import World, until_rest
from wal_sink import errors
from wal_sink.flush.flusher import Flusher
from wal_sink.model.ledger import LedgerState, Outcome
from wal_sink.protocol.next_step import Observation
from wal_sink.testing.faults import Faults
from wal_sink.testing.memory_target import MemorySession

STORES = ("memory",)

READ = "read ledger"


def used_before(world: World) -> LedgerState:
    """Let others use timestamps of the next hour, and bring the row back to the same epoch."""
    world.store.ledger[world.query_id] = msgspec.structs.replace(
        world.state, last_us=world.state.last_us + 3_600_000_000
    )
    return world.state


def test_rule_14_a_row_that_is_known_is_not_read_before_begin(world: World) -> None:
    """The read after `finish` of the epoch before is enough, and the only one of an epoch."""
    faults, run = Faults(), world.run()
    flusher = world.flusher(faults)
    run.batch([("a", 1)])
    until_rest(flusher)
    for value in (2, 3):
        faults.operations.clear()
        run.batch([("a", value)])
        until_rest(flusher)
        assert sum(READ in name for name in faults.operations) == 1
        assert world.table() == {"a": value}


def test_rule_14_a_known_row_that_has_changed_is_not_begun_from(world: World) -> None:
    """It says the same epoch, with nothing begun, but others have used timestamps since."""
    flusher, run = world.flusher(), world.run()
    run.batch([("a", 1)])
    until_rest(flusher)
    moved = used_before(world)
    run.batch([("a", 2)])
    until_rest(flusher)
    assert world.last.epochs[0].base_us > moved.last_us


def test_rule_14_a_row_that_was_begun_from_is_not_known_any_more(world: World) -> None:
    """An answer that is lost tells nothing of the row: it is read."""
    faults, run = Faults(), world.run()
    flusher = world.flusher(faults)
    run.batch([("a", 1)])
    until_rest(flusher)
    run.batch([("a", 2)])
    lost = MemorySession.compare_and_set

    def lose(session: MemorySession, seen: LedgerState | None, new: LedgerState) -> Outcome:
        assert lost(session, seen, new) is Outcome.APPLIED
        return Outcome.UNKNOWN

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MemorySession, "compare_and_set", lose)
        faults.operations.clear()
        until_rest(flusher)
    assert sum(READ in name for name in faults.operations) == 2
    assert world.table() == {"a": 2}


def test_rule_14_a_known_row_that_is_gone_stops_the_flush(world: World) -> None:
    """As when it is read: it is not made anew, and nothing is begun."""
    flusher, run = world.flusher(), world.run()
    run.batch([("a", 1)])
    until_rest(flusher)
    del world.store.ledger[world.query_id]
    run.batch([("a", 2)])
    with pytest.raises(errors.LedgerBehindLog):
        until_rest(flusher)
    assert world.query_id not in world.store.ledger


def test_a_row_that_is_known_is_read_once_a_minute(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a rewind has set aside is deleted only where the row was read."""
    flusher, run = world.flusher(), world.run()
    views: list[Observation] = []
    look = Flusher._look

    def note(looking: Flusher) -> Observation:
        views.append(look(looking))
        return views[-1]

    monkeypatch.setattr(Flusher, "_look", note)

    def agreed(value: int) -> bool:
        views.clear()
        run.batch([("a", value)])
        until_rest(flusher)
        return any(view.agreed is not None for view in views)

    agreed(1)
    assert not agreed(2)
    monkeypatch.setattr("wal_sink.flush.connection._READ_EVERY_S", 0.0)
    assert agreed(3)

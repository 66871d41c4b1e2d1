"""Rows are read while their window is begun, and written only after it is (rule 14)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.protocol.engine import World
from wal_sink import errors
from wal_sink.model.ledger import Outcome
from wal_sink.model.plan import Plan
from wal_sink.protocol.next_step import Begin
from wal_sink.targets.base import Slice
from wal_sink.testing.faults import Faults, FaultySession
from wal_sink.testing.memory_target import MemorySession

STORES = ("memory",)


def test_rule_14_nothing_that_is_read_ahead_is_written_before_begin_is_won(world: World) -> None:
    """All slices but the last are read while the update is on its way; all are written behind `start`."""
    world.run().batch(*([(f"k{number}", number)] for number in range(4)))
    faults = Faults()
    flusher = world.flusher(faults)
    flusher.run_once()  # the ledger's row
    faults.operations.clear()
    assert isinstance(flusher.run_once(), Begin)
    wanted = ("begin", "read segments", "start", "write", "drain")
    steps = [each for name in faults.operations for each in wanted if name.startswith(each)]
    assert steps[:5] == ["begin", "read segments", "read segments", "read segments", "start"]
    assert steps.count("read segments") == 4, "each is read once"
    assert world.table() == {f"k{number}": number for number in range(4)}


def test_rule_14_what_was_read_ahead_goes_with_a_begin_that_is_lost(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another flusher passes the epoch over, and begins the next one."""
    world.run().batch([("a", 1)])
    world.flusher().run_once()
    faults, update = Faults(), MemorySession.compare_and_set

    def refuse(session: MemorySession, _seen: object, _new: object) -> Outcome:
        session.read_offered()
        return Outcome.CONFLICT

    slow = world.flusher(faults)
    monkeypatch.setattr(MemorySession, "compare_and_set", refuse)
    with pytest.raises(errors.TargetUnavailable):  # the row is what it was
        slow.run_once()
    assert sum(name.startswith("read segments") for name in faults.operations) == 1
    assert not any(name.startswith("write") for name in faults.operations)
    monkeypatch.setattr(MemorySession, "compare_and_set", update)
    assert world.flushed() == {"a": 1}


def test_a_segment_that_cannot_be_read_ahead_stops_the_flush_where_it_is_wanted(
    world: World,
) -> None:
    """The rows before it are written, its window is begun, and the next try goes on."""
    world.run().batch([("a", 1)], [("b", 2)], [("c", 3)])
    world.flusher().run_once()
    faults = Faults(at=1, error=OSError, matching="read segments")
    with pytest.raises(errors.LogUnavailable):
        world.flusher(faults).run_once()
    assert faults.injected is not None
    assert world.state.begun is not None
    assert "c" not in world.table()
    assert world.flushed() == {"a": 1, "b": 2, "c": 3}


def test_what_is_offered_is_written_as_the_same_object(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By which a session knows what it has encoded: of each slice, in their order."""
    offered, written, write = list[Slice](), list[Slice](), FaultySession.write

    def offer(_session: object, rows: Iterator[tuple[Plan, Slice]]) -> None:
        offered.extend(each for _, each in rows)

    def note(session: FaultySession[Any], plan: Plan, rows: Slice) -> None:
        written.append(rows)
        write(session, plan, rows)

    monkeypatch.setattr(FaultySession, "offer", offer)
    monkeypatch.setattr(FaultySession, "write", note)
    run = world.run()
    for number in range(3):
        run.batch([("a", number)], [("b", number)])
    world.flush()
    assert len(offered) == 6
    assert all(one is other for one, other in zip(offered, written, strict=True))

"""Two flushers of one query: every way to stop one of them anywhere and let the other one run.

Some epochs are completed, one of them after the attempt of a dead run. Flusher A stops before its k-th
operation, flusher B runs to its end or to its j-th operation, A runs to its end, then B: all pairs (k, j).
Flushers are not fenced: the ledger row moves once, and both write the same rows.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.kills.every_fault import new_world
from tests.kills.interleave import History, pairs_of_stops, two_flushers
from tests.kills.test_two_drivers import rows
from tests.protocol import raw
from tests.protocol.adding import AddingWorld, StagingTarget
from tests.protocol.cases import covered
from tests.protocol.engine import World, flush
from tests.protocol.quarantining import RefusingWorld, refused_later
from tests.protocol.test_lists import ListWorld
from wal_sink.testing.faults import Faults

EPOCHS = 3


def published(world: World) -> World:
    """Return a query that has run without a flusher. Epoch 1 has two attempts, epoch 2 has no rows."""
    dead = world.run()
    dead.batch(*rows(0, dead.run_id))
    dead.publish(*rows(1, dead.run_id))
    run = world.run()
    run.batch(*rows(1, run.run_id))
    run.batch()
    return world


def refusing() -> World:
    """Return a query of one epoch with two rows that the server refuses."""
    world = RefusingWorld()
    run = world.run()
    run.batch(*refused_later(0, run.run_id))
    return world


WORLDS: dict[str, Callable[[], World]] = {
    "cells": lambda: published(new_world()),
    "transactions": lambda: published(AddingWorld()),
    "staged": lambda: published(AddingWorld(StagingTarget)),
    "lists": lambda: published(ListWorld()),
    "refused rows": refusing,
}


@pytest.mark.parametrize("kind", WORLDS)
def test_flushers_stopped_anywhere_write_each_row_once(kind: str) -> None:
    """Nothing is lost or doubled, no row is of the dead attempt, and neither flusher raises an error."""

    def play(k: int, j: int) -> History[bool]:
        world = WORLDS[kind]()
        epochs = len(world.committed)
        first, second = two_flushers(world, ((k,), (j,)))
        flush(world.flusher(Faults()))
        raw.complete(world, epochs, (k, first.stopped_before, j, second.stopped_before))
        world.forget()
        wrote = [any(op.startswith("write ") for op in t.operations) for t in (first, second)]
        return History(first, second, all(wrote))

    both_wrote = [history.end for history in pairs_of_stops(play)]
    covered(
        f"two flushers, {kind}, pairs of stops",
        f"{len(both_wrote)}, in {sum(both_wrote)} of which both wrote rows",
    )
    assert any(both_wrote)

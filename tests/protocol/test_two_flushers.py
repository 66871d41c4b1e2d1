"""Two flushers of one query: every way to stop one of them anywhere and let the other one in.

Some epochs are checkpointed, one of them with the attempt of a run that died before it. Flusher A stops
before its k-th operation, B flushes to its end or to its j-th operation, A goes on to its end, then B: all
pairs (k, j), those with one history once. There is no fence among flushers: `begin` decides once, and what
both write is the same.
"""

from __future__ import annotations

from itertools import count

from tests.protocol import raw
from tests.protocol.cases import covered
from tests.protocol.engine import World, flush
from tests.protocol.every_fault import new_world
from tests.protocol.interleave import two_flushers
from tests.protocol.pairs_of_stops import History, pairs_of_stops
from tests.protocol.quarantining import RefusingWorld, listed, refused_later
from tests.protocol.test_two_drivers import rows
from wal_sink.testing.faults import Faults

EPOCHS = 3


def published() -> World:
    """A query that has run without a flusher: epoch 1 has two attempts, epoch 2 no rows."""
    world = new_world()
    dead = world.run()
    dead.batch(*rows(0, dead.run_id))
    dead.publish(*rows(1, dead.run_id))
    run = world.run()
    run.batch(*rows(1, run.run_id))
    run.batch()
    return world


def test_all_pairs_of_stops_give_one_table() -> None:
    """Nothing lost or doubled, nothing of the dead attempt, nothing left, and neither meets an error."""

    def play(k: int, j: int) -> History[bool]:
        world = published()
        first, second = two_flushers(world, ((k,), (j,)))
        flush(world.flusher(Faults()))
        raw.complete(world, EPOCHS, (k, first.stopped_before, j, second.stopped_before))
        world.forget()
        wrote = [any(op.startswith("write ") for op in t.operations) for t in (first, second)]
        return History(first.steps, second.steps, all(wrote))

    found = list(pairs_of_stops(play))
    both = sum(pair.history.end for pair in found)
    played = sum(pair.is_new for pair in found)
    covered(
        "two flushers, pairs of stops",
        f"{len(found)}, in {both} of which both wrote rows; {played} histories",
    )
    assert both


_AT_ROWS = (
    *("begin ", "list quarantine/", "create quarantine/", "input segments/", "write ", "drain"),
    *("finish ", "create flushed/", "delete "),
)
"""Where flushers meet over rows that are refused."""


def test_rule_24_all_pairs_of_stops_at_refused_rows_keep_each_row_once() -> None:
    """One may stand still between the refusal and its entry, while the other finishes and trims."""
    pairs = both = 0
    for k in count():
        for j in count():
            world = RefusingWorld()
            run = world.run()
            run.batch(*refused_later(0, run.run_id))
            first, second = two_flushers(
                world, ((k,), (j,)), lambda name: name.startswith(_AT_ROWS)
            )
            where = (k, first.stopped_before, j, second.stopped_before)
            kept = [
                any(op.startswith("create quarantine/") for op in turns.operations)
                for turns in (first, second)
            ]
            both += all(kept)
            pairs += 1
            flush(world.flusher(Faults()))
            raw.complete(world, 1, where)
            assert sorted(str(row["k"]) for _, row in listed(world)) == ["777-0", "777-0-b"], where
            world.forget()
            if not second.stopped_before:
                break
        if not first.stopped_before:
            break
    covered(
        "two flushers at refused rows, pairs of stops",
        f"{pairs}, in {both} of which both kept some",
    )
    assert both

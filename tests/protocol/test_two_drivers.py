"""Two drivers run one query: every way to stop one of them anywhere and let the other one in.

Driver A stops before its k-th operation, B starts from the same checkpoint and runs to its end or to its
j-th operation, A goes on to its end, then B: all pairs (k, j), those with one history once. Both compute
other rows for the same epoch, and flush what they see. Then a third driver takes over. Why one history comes
out is argued in `wal_sink.protocol.next_step`; here it is looked at.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from itertools import count

import pytest

from tests.protocol import raw
from tests.protocol.cases import covered
from tests.protocol.engine import Rows, World, flush
from tests.protocol.every_fault import new_world
from tests.protocol.interleave import (
    Process,
    Turns,
    decisive_operations,
    open_operations,
    take_turns,
)
from tests.protocol.pairs_of_stops import History, pairs_of_stops
from wal_sink.errors import Fenced
from wal_sink.flush.run_history import RunHistory
from wal_sink.testing.faults import Faults, changes

EPOCHS = 2
StopWatcher = tuple[int, ...]


def rows(epoch: int, run: str) -> list[Rows]:
    """Two rows: a key that every attempt writes, with a value of its own, and a key of its own."""
    mark = int(run[:6], 16) * 10 + epoch
    return [[("shared", mark), (f"{epoch}-{run[:8]}", mark)]]


class Driver:
    """What one driver's process does, and how its query ended."""

    def __init__(self, world: World, epochs: int = EPOCHS, *, deaf: bool = False) -> None:
        self.world = world
        self.deaf = deaf
        self.epochs = epochs
        self.ended = "not started"

    def __call__(self, turns: Faults) -> None:
        """Start the query, run its batches, flush after each; when it fails, flush what is there."""
        run_history = RunHistory()
        flusher = self.world.flusher(turns, run_history)
        run = self.world.run(turns, run_history=run_history)
        try:
            while run.next < self.epochs:
                batch = rows(run.next, run.run_id)
                run.publish(*batch)
                run.write_commit(batch, heard=not self.deaf or run.next + 1 == self.epochs)
                flush(flusher)
            run.end()
            self.ended = "done"
        except Fenced:
            run.end()
            self.ended = "fenced"
        except FileExistsError:  # as Spark ends: another run has written offsets/N or commits/N
            run.end(gave_way=True)
            self.ended = "gave way"
        flush(flusher)
        flusher.close()


def drivers(
    world: World,
    stops: StopWatcher,
    other_stops: StopWatcher,
    counts: tuple[Callable[[str], bool], Callable[[str], bool]],
    *,
    deaf: bool = False,
) -> tuple[Process, Process, tuple[str, str]]:
    """Let two drivers take turns; what is visible is looked at whenever the turn changes.

    :param counts: of each, which operations are places to stop.
    """
    world.checkpoint.create("metadata", json.dumps({"id": world.query_id}).encode())
    old, new = Driver(world, deaf=deaf), Driver(world, deaf=deaf)
    first = Process(Turns(*stops, counts=counts[0]), old)
    second = Process(Turns(*other_stops, counts=counts[1]), new)
    take_turns(first, second, lambda: raw.safe(world, (stops, other_stops)))
    return first, second, (old.ended, new.ended)


def said(endings: Counter[tuple[str, str]]) -> str:
    """Say how the drivers ended."""
    return ", ".join(f"{' and '.join(ended)} {n}" for ended, n in endings.most_common())


def third_takes_over(world: World, where: object) -> None:
    """A driver that comes last, alone, brings everything to its end."""
    Driver(world, EPOCHS + 1)(Faults())
    raw.complete(world, EPOCHS + 1, where)
    world.forget()


@pytest.mark.long
@pytest.mark.slow_first
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "looks",
    [
        "of neither",
        *(pytest.param(whose, marks=pytest.mark.test_all) for whose in ("of B", "of both")),
    ],
)
def test_all_pairs_of_stops_give_one_history(caplog: pytest.LogCaptureFixture, looks: str) -> None:
    """Nothing lost or doubled, no epoch of two attempts, no row that Spark did not keep, at any stop.

    :param looks: which driver stops before looks, too, not only before it changes something.
    """
    endings: Counter[tuple[str, str]] = Counter()

    def play(k: int, j: int) -> History[tuple[str, str]]:
        world = new_world()
        open_ = open_operations(world)
        changing = lambda name: changes(name) and open_(name)  # noqa: E731
        counts = {
            "of neither": (changing, changing),
            "of B": (changing, open_),
            "of both": (open_, open_),
        }[looks]
        first, second, ended = drivers(world, (k,), (j,), counts)
        third_takes_over(world, (first.turns.stopped_before, second.turns.stopped_before))
        return History(first.turns.steps, second.turns.steps, ended)

    played = 0
    for pair in pairs_of_stops(play):
        endings[pair.history.end] += 1
        played += pair.is_new
    unproven = sum("unproven" in record.message for record in caplog.records)
    covered(
        f"two drivers, pairs of stops, before looks {looks}, too",
        f"{endings.total()}, of which {said(endings)}; {played} histories, in which {unproven} choices"
        " unproven, all right",
    )
    for ending in (("fenced", "done"), ("gave way", "done"), ("done", "gave way")):
        assert endings[ending], f"{ending} was never seen: {endings}"


@pytest.mark.long
@pytest.mark.parametrize("deaf", [pytest.param(False, marks=pytest.mark.test_all), True])
def test_two_stops_of_each_driver_where_they_meet(*, deaf: bool) -> None:
    """A, B, A, B: only at the operations at which one can see the other.

    :param deaf: Spark's events are lost but for the last epoch: only what is in the log proves anything.
    """
    endings: Counter[tuple[str, str]] = Counter()
    for k in count():
        reached = False
        for j in count():
            for k2 in count(k + 1):
                world = new_world()
                counts = (decisive_operations, decisive_operations)
                first, second, ended = drivers(world, (k, k2), (j,), counts, deaf=deaf)
                endings[ended] += 1
                where = (first.turns.stopped_before, second.turns.stopped_before)
                third_takes_over(world, where)
                reached = bool(first.turns.stopped_before)
                if len(first.turns.stopped_before) < 2:
                    break
            if not second.turns.stopped_before:
                break
        if not reached:
            break
    covered(
        "two drivers, three stops where they meet" + (", events lost" if deaf else ""),
        f"{endings.total()}, of which {said(endings)}",
    )
    assert endings["fenced", "done"]


def test_a_run_that_comes_too_late_leaves_the_quicker_one_as_it_is(world: World) -> None:
    """Both compute epoch 1, and the older one has completed it: the newer one ends, and claims nothing."""
    older = world.run().batches([("a", 0)])
    newer = world.run()
    older.batch([("b", 1)])
    with pytest.raises(Fenced, match="checkpointed already"):
        newer.batch([("b", 2)])
    older.batch([("c", 3)])
    assert world.flushed() == world.expected() == {"a": 0, "b": 1, "c": 3}

"""Two drivers run one query: every way to stop one of them anywhere and let the other one run.

Driver A stops before its k-th operation, driver B starts from the same checkpoint and runs to its end or to
its j-th operation, A runs to its end, then B: all pairs (k, j). Both compute different rows for the same
epoch, and flush. Then a third driver continues.

Spark forbids two live drivers. With them, an epoch may have the attempt that Spark did not keep, whole and
once. `docs/limits.md` says so.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from itertools import product

import pytest

from tests.kills.every_fault import new_world
from tests.kills.interleave import (
    History,
    Process,
    Turns,
    open_operations,
    pairs_of_stops,
    take_turns,
)
from tests.protocol import raw
from tests.protocol.cases import covered
from tests.protocol.engine import Rows, World, flush
from wal_sink.errors import Fenced
from wal_sink.testing.faults import Faults, changes

EPOCHS = 2


def rows(epoch: int, run: str) -> list[Rows]:
    """Return two rows: a shared key with a value of the attempt, and a key of the attempt."""
    mark = int(run[:6], 16) * 10 + epoch
    return [[("shared", mark), (f"{epoch}-{run[:8]}", mark)]]


class Driver:
    """One driver's process, and how its query ended."""

    def __init__(self, world: World, epochs: int = EPOCHS) -> None:
        self.world = world
        self.epochs = epochs
        self.ended = "not started"

    def __call__(self, turns: Faults) -> None:
        """Start the query, run its batches, and flush after each; after an error, flush what is completed."""
        flusher = self.world.flusher(turns)
        run = self.world.run(turns)
        try:
            while run.next < self.epochs:
                run.batch(*rows(run.next, run.run_id))
                flush(flusher)
            self.ended = "done"
        except Fenced:
            self.ended = "fenced"
        except FileExistsError:  # Spark ends so if another run has written offsets/N or commits/N
            self.ended = "gave way"
        flush(flusher)
        flusher.close()


def drivers(
    world: World,
    stops: tuple[int, ...],
    other_stops: tuple[int, ...],
    counts: tuple[Callable[[str], bool], Callable[[str], bool]],
) -> tuple[Process, Process, tuple[str, str]]:
    """Let two drivers take turns; check what is visible after each turn.

    :param counts: for each driver, which operations are places to stop.
    """
    world.checkpoint.create("metadata", json.dumps({"id": world.query_id}).encode())
    old, new = Driver(world), Driver(world)
    first = Process(Turns(*stops, counts=counts[0]), old)
    second = Process(Turns(*other_stops, counts=counts[1]), new)
    take_turns(first, second, lambda: raw.whole(world, (stops, other_stops)))
    return first, second, (old.ended, new.ended)


def third_takes_over(world: World, where: object) -> bool:
    """Let a third driver end alone; return True if an epoch has an attempt that Spark did not keep."""
    Driver(world, EPOCHS + 1)(Faults())
    raw.whole(world, where)
    assert sorted(raw.kept(world)) == list(range(EPOCHS + 1)), where
    attempts = [
        [(epoch, run) for number, run in world.computed if number == epoch]
        for epoch in range(EPOCHS + 1)
    ]
    visible = world.table()
    chosen = [
        item
        for item in product(*attempts)
        if visible == dict(row for attempt in item for row in world.computed[attempt])
    ]
    assert chosen, f"the table has no whole attempt at each epoch ({where})"
    assert len(world.visible()) == len(visible), where
    assert set(raw.marks(world.log_backend).values()) == {EPOCHS}, where
    world.flush()
    remaining = {path.split("/")[0] for path in world.log_backend.list()}
    assert remaining <= {"state", "plans", "agreed.json"}, f"{remaining} ({where})"
    whose = raw.kept(world)
    world.forget()
    return tuple(whose.items()) not in {tuple(item) for item in chosen}


@pytest.mark.rule("one-publisher")
@pytest.mark.long
@pytest.mark.slow_first
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "reads",
    [
        "of neither",
        *(pytest.param(whose, marks=pytest.mark.test_all) for whose in ("of B", "of both")),
    ],
)
def test_drivers_stopped_anywhere_apply_whole_attempts(reads: str) -> None:
    """Nothing is lost, doubled or mixed at any stop.

    :param reads: which driver also stops before reads, and not only before changes.
    """
    endings: Counter[tuple[str, str]] = Counter()
    strangers = 0

    def play(k: int, j: int) -> History[tuple[str, str]]:
        nonlocal strangers
        world = new_world()
        open_ = open_operations(world)
        changing = lambda name: changes(name) and open_(name)  # noqa: E731
        counts = {
            "of neither": (changing, changing),
            "of B": (changing, open_),
            "of both": (open_, open_),
        }[reads]
        first, second, ended = drivers(world, (k,), (j,), counts)
        strangers += third_takes_over(
            world, (first.turns.stopped_before, second.turns.stopped_before)
        )
        return History(first.turns, second.turns, ended)

    for history in pairs_of_stops(play):
        endings[history.end] += 1
    texts = ", ".join(f"{' and '.join(ended)} {n}" for ended, n in endings.most_common())
    covered(
        f"two drivers, pairs of stops, before reads {reads}, too",
        f"{endings.total()}, of which {texts}; in {strangers} an epoch has the attempt that Spark did not"
        " keep",
    )
    assert endings["fenced", "done"]
    assert endings["done", "fenced"] + endings["done", "gave way"]


@pytest.mark.rule("one-publisher")
def test_newer_run_is_fenced_if_older_completed_its_epoch(world: World) -> None:
    """Both runs compute epoch 1. The older one has completed it, so the newer one opens nothing."""
    older = world.run().batches([("a", 0)])
    newer = world.run()
    older.batch([("b", 1)])
    with pytest.raises(Fenced, match="Spark has completed epoch 1"):
        newer.publish([("b", 2)])
    older.batch([("c", 3)])
    assert world.flushed() == world.expected() == {"a": 0, "b": 1, "c": 3}


@pytest.mark.rule("one-publisher")
def test_older_run_is_fenced_after_a_newer_run_opened(world: World) -> None:
    """The run that publishes first wins, and the older one does not open again."""
    older = world.run().batches([("a", 0)])
    newer = world.run()
    newer.publish([("b", 2)])
    for _ in range(2):
        with pytest.raises(Fenced, match=newer.run_id):
            older.publish([("b", 1)])
    newer.write_commit([[("b", 2)]])
    assert world.flushed() == {"a": 0, "b": 2}


@pytest.mark.rule("one-publisher")
def test_commit_that_outlives_its_driver_is_fenced(world: World) -> None:
    """The worker of `commit()` outlives its driver, which is killed and started again.

    The attempt of the next run stays, since Spark completes it.
    """
    killed = world.run()
    killed.write_offsets()
    appended = killed.tasks([("a", 1)])
    following = world.run()
    following.publish([("a", 2)])
    with pytest.raises(Fenced, match=following.run_id):
        killed.commit(appended)
    following.write_commit([[("a", 2)]])
    assert world.flushed() == {"a": 2}

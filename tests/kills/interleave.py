"""Two processes that take turns at chosen operations, so that every run of a test is the same.

Each process is a greenlet. Its stores stop it before chosen operations until its next turn. All processes run
in one thread, so no thread is scheduled by chance.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator
from itertools import count
from typing import Generic, NamedTuple, TypeVar

from greenlet import getcurrent, greenlet

from tests.protocol import raw
from tests.protocol.engine import World, flush
from wal_sink.testing.faults import Faults

End = TypeVar("End")


class Turns(Faults):
    """Stops a process before some of its operations.

    :param stops: numbers of operations from 0, ascending.
    :param counts: returns True if an operation is counted. Other operations are no place to stop.
    """

    def __init__(self, *stops: int, counts: Callable[[str], bool]) -> None:
        super().__init__()
        self._stops = list(stops)
        self._counts = counts
        self.stopped_before: list[str] = []

    @contextlib.contextmanager
    def around(self, name: str) -> Iterator[None]:
        if self._counts(name):
            if self._stops and len(self.operations) == self._stops[0]:
                del self._stops[0]
                self.stopped_before.append(name)
                getcurrent().parent.switch()  # until the next turn
            self.operations.append(name)
        yield


class Process:
    """Runs `act` as a process of its own, one turn at a time."""

    def __init__(self, turns: Turns, act: Callable[[Turns], None]) -> None:
        self.turns = turns
        self._greenlet = greenlet(lambda: act(turns))

    @property
    def ended(self) -> bool:
        return bool(self._greenlet.dead)

    def turn(self) -> None:
        """Let the process act until it stops or ends. Its error is raised here."""
        if not self.ended:
            self._greenlet.switch()


def take_turns(first: Process, second: Process, look: Callable[[], object]) -> None:
    """Give two processes turns until both have ended.

    :param look: called after each turn.
    """
    while not (first.ended and second.ended):
        for process in (first, second):
            process.turn()
            look()


class History(NamedTuple, Generic[End]):
    """What two processes did, for a pair of stops."""

    first: Turns
    second: Turns
    end: End
    """The result of the test for this history."""


def pairs_of_stops(play: Callable[[int, int], History[End]]) -> Iterator[History[End]]:
    """Yield the history of every pair of stops (k, j).

    The first process stops before its k-th operation, the second process runs to its j-th operation, the
    first process runs to its end, and then the second one.

    :param play: plays one pair.
    """
    for k in count():
        for j in count():
            history = play(k, j)
            yield history
            if j >= len(history.second.operations):
                break
        if k >= len(history.first.operations):
            return


def two_flushers(
    world: World,
    stops: tuple[Collection[int], Collection[int]],
    counts: Callable[[str], bool] | None = None,
) -> tuple[Turns, Turns]:
    """Let two flushers take turns until both have ended; check what is visible after each turn.

    :param stops: for each flusher, numbers of the operations before which it stops, from 0.
    :param counts: returns True if an operation is a place to stop. None: those that other processes can
        influence.
    """
    counts = counts or open_operations(world)
    first, second = (_flushing(world, Turns(*stop, counts=counts)) for stop in stops)
    take_turns(first, second, lambda: raw.safe(world, stops))
    return first.turns, second.turns


def _flushing(world: World, turns: Turns) -> Process:
    flusher = world.flusher(turns)
    return Process(turns, lambda _: flush(flusher))


_SETTLED = (
    *("read plans/", "read metadata", "read commits/", "read offsets/", "list offsets/"),
    *("read manifests/", "read state/", "size ", "input ", "sweep", "connect"),
)


def open_operations(world: World) -> Callable[[str], bool]:
    """Return a filter that leaves out the operations which no other process can influence.

    Such an operation reads an object that never changes, and that is not deleted while it is needed.
    """

    def counts(name: str) -> bool:
        if name == "read wal_sink/location.json":
            return "wal_sink/location.json" not in world.checkpoint.list("wal_sink/")
        return not name.startswith(_SETTLED)

    return counts

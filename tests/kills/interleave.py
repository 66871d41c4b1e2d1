"""Two processes that take turns at chosen operations, so that every run of a test is the same.

Each process is a greenlet whose stores stop it before chosen operations until it is told to go on. All run on
one thread, so there is nothing left to chance, and no turn waits until a thread is scheduled.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator

from greenlet import getcurrent, greenlet

from tests.protocol import raw
from tests.protocol.engine import World, flush
from wal_sink.testing.faults import Faults


class Turns(Faults):
    """Stops before operations; asked about every operation of one process.

    :param stops: numbers of operations, from 0, ascending.
    :param counts: whether an operation is counted; others are no place to stop.
    """

    def __init__(self, *stops: int, counts: Callable[[str], bool]) -> None:
        super().__init__()
        self._stops = list(stops)
        self._counts = counts
        self.stopped_before: list[str] = []
        self.steps: list[list[str]] = []
        """Each counted operation, with the others after it up to the next one."""

    @contextlib.contextmanager
    def around(self, name: str) -> Iterator[None]:
        """Surround one operation."""
        if self._counts(name):
            if self._stops and len(self.operations) == self._stops[0]:
                del self._stops[0]
                self.stopped_before.append(name)
                getcurrent().parent.switch()  # until the next turn
            self.operations.append(name)
            self.steps.append([name])
        elif self.steps:
            self.steps[-1].append(name)
        yield


class Process:
    """Runs `act` as a process of its own, one turn at a time."""

    def __init__(self, turns: Turns, act: Callable[[Turns], None]) -> None:
        self.turns = turns
        self._greenlet = greenlet(lambda: act(turns))

    @property
    def ended(self) -> bool:
        """Return True if it has acted to the end."""
        return bool(self._greenlet.dead)

    def turn(self) -> None:
        """Let it act until it stops, or ends; nothing when it has ended. Its error is raised here."""
        if not self.ended:
            self._greenlet.switch()


def take_turns(first: Process, second: Process, look: Callable[[], object]) -> None:
    """Give them turns until both have ended.

    :param look: called whenever the turn changes.
    """
    while not (first.ended and second.ended):
        for process in (first, second):
            process.turn()
            look()


def two_flushers(
    world: World,
    stops: tuple[Collection[int], Collection[int]],
    counts: Callable[[str], bool] | None = None,
) -> tuple[Turns, Turns]:
    """Let two flushers take turns to their ends; what is visible is checked whenever the turn changes.

    :param stops: of each, numbers of the operations before which it stops, counted from 0.
    :param counts: whether an operation is a place to stop; None: those that other processes can influence.
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
    """Leave out the operations that no other process can influence: when those happen does not matter.

    They read what is never changed once it can be read, and is not deleted while it is needed.
    """

    def counts(name: str) -> bool:
        if name == "read wal_sink/location.json":
            return "wal_sink/location.json" not in world.checkpoint.list("wal_sink/")
        return not name.startswith(_SETTLED)

    return counts


def decisive_operations(name: str) -> bool:
    """Only those at which drivers meet: states, `commits/`, and the ledger row."""
    return name.startswith(
        (
            *("list state/", "create state/", "list commits/", "create commits/"),
            *("create ledger ", "finish "),
        )
    )

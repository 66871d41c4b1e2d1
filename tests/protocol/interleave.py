"""Two processes that take turns at chosen operations, so that every run of a test is the same.

Each process is a thread whose stores stop it before chosen operations until it is told to go on. One
thread runs at a time, so there is nothing left to chance.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection, Iterator

from tests.protocol import raw
from tests.protocol.engine import World
from tests.protocol.test_crash_everywhere import flush
from wal_sink.flush.run_history import RunHistory
from wal_sink.testing.crash.faults import Faults

_HANGS_S = 60.0


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
        self.waits = threading.Event()
        self._goes_on = threading.Event()

    @contextlib.contextmanager
    def around(self, name: str) -> Iterator[None]:
        """Surround one operation."""
        if self._counts(name):
            if self._stops and len(self.operations) == self._stops[0]:
                del self._stops[0]
                self.stopped_before.append(name)
                self._goes_on.clear()
                self.waits.set()
                assert self._goes_on.wait(_HANGS_S), f"no other process lets {name} go on"
            self.operations.append(name)
        yield

    def turn(self) -> None:
        """Let the process go on; return when it stops again, or has ended."""
        self.waits.clear()
        self._goes_on.set()
        assert self.waits.wait(_HANGS_S), "it hangs"


class Process(threading.Thread):
    """Runs `act` as a process of its own, one turn at a time."""

    def __init__(self, turns: Turns, act: Callable[[Turns], None]) -> None:
        super().__init__(daemon=True)
        self.turns = turns
        self._act = act
        self._error: BaseException | None = None
        self.ended = False

    def run(self) -> None:
        """Act to the end."""
        try:
            self._act(self.turns)
        except BaseException as error:  # noqa: BLE001 - raised where the turn is given
            self._error = error
        finally:
            self.ended = True
            self.turns.waits.set()

    def turn(self) -> None:
        """Let it act until it stops, or ends; nothing when it has ended."""
        if self.ended:
            return
        if self.ident is None:
            self.start()
            assert self.turns.waits.wait(_HANGS_S), "it hangs"
        else:
            self.turns.turn()
        if self._error is not None:
            raise self._error


def take_turns(first: Process, second: Process, look: Callable[[], None]) -> None:
    """Give them turns until both have ended.

    :param look: called whenever the turn changes.
    """
    while not (first.ended and second.ended):
        for process in (first, second):
            process.turn()
            look()
    first.join()
    second.join()


def two_flushers(
    world: World,
    stops: tuple[Collection[int], Collection[int]],
    counts: Callable[[str], bool] | None = None,
) -> tuple[Turns, Turns]:
    """Let two flushers take turns to their ends; what is visible is judged whenever the turn changes.

    :param stops: of each, numbers of the operations before which it stops, counted from 0.
    :param counts: whether an operation is a place to stop; None: those that other processes can influence.
    """
    counts = counts or open_operations(world)
    first, second = (_flushing(world, Turns(*each, counts=counts)) for each in stops)
    take_turns(first, second, lambda: raw.safe(world, stops))
    return first.turns, second.turns


def _flushing(world: World, turns: Turns) -> Process:
    flusher = world.flusher(turns, RunHistory())
    return Process(turns, lambda _: flush(flusher))


_SETTLED = (
    *("read plans/", "read tickets/", "read metadata", "read runs/", "read commits/"),
    *("read flushed/", "read offsets/", "size ", "input ", "sweep", "connect"),
)


def open_operations(world: World) -> Callable[[str], bool]:
    """Leave out the operations that no other process can influence: when those happen does not matter.

    They read what is never changed once it can be read, and is not deleted while it is needed.
    """

    def counts(name: str) -> bool:
        if name == "read wal_sink/location.json":
            return "wal_sink/location.json" not in world.checkpoint.list("wal_sink/")
        if name == "read log.json":
            return "log.json" not in world.log_backend.list()
        return not name.startswith(_SETTLED)

    return counts


def decisive_operations(name: str) -> bool:
    """Only those at which drivers meet: tickets, claims, manifests, commits, notes, and what is begun."""
    return name.startswith(
        (
            *("create tickets/", "create runs/", "list runs/", "create manifests/"),
            *("create commits/", "event ", "create kept/", "begin "),
        )
    )

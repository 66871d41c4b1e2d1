"""Processes that take turns on one thread: each of their I/O calls may fail, be the last, or last for hours.

A thread of a simulated process is a greenlet. It runs until its task is done, unless a fault was armed: at
the n-th I/O call from then on the process dies, loses the answer, or stands still until it gets another turn.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from greenlet import getcurrent, greenlet

from tests.simulator.machine import MACHINE, ActsError
from wal_sink.testing.faults import Crash

if TYPE_CHECKING:
    from tests.simulator.site import Site
    from tests.simulator.trace import Trace
    from wal_sink.model.ledger import LedgerState

T = TypeVar("T")

_INTERRUPTED = 0.03
"""How probable it is that others act while a process waits for a second."""

_READS = frozenset(("read", "size", "input", "list", "read ledger", "now", "plan", "connect"))
"""Calls that change nothing."""

_LOOKS = _READS - {"now", "plan", "connect"}
"""Calls that leave no trace at all."""

VERBS = (
    "create",
    "replace",
    "delete",
    "output",
    "write",
    "begin",
    "finish",
    "replace row",
    *sorted(_READS),
)
"""What calls do."""
FOLDERS = (
    "manifests",
    "segments",
    "flushed",
    "runs",
    "proofs",
    "tombstones",
    "decisions",
    "choices",
    "retained",
    "aside",
    "quarantine",
    "targets",
    "commits",
    "offsets",
    "flusher.json",
)
"""With what."""

Counts = Callable[[str, str], bool]
"""Whether a call counts until a fault happens, by its verb and its object."""


def any_call(_verb: str, _what: str) -> bool:
    """Let each call count."""
    return True


def a_change(verb: str, _what: str) -> bool:
    """Let each call count that changes something."""
    return verb not in _READS


def of_kind(verbs: frozenset[str], folders: frozenset[str]) -> Counts:
    """Let calls count with one of some verbs, or to one of some folders."""
    return lambda verb, what: verb in verbs or what.partition("/")[0] in folders


IO_US = 700
"""How long an I/O call takes."""


class Fault(enum.Enum):
    """What happens at an I/O call."""

    CRASH_BEFORE = "crash before"
    CRASH_AFTER = "crash after"
    REFUSED = "refused"
    """It has no effect, and the process hears of an error."""
    ANSWER_LOST = "answer lost"
    """It has its effect, and the process hears of an error."""
    STALL_BEFORE = "stands still before"
    STALL_AFTER = "stands still after"
    LATE = "arrives late"
    """The process dies, and the call has its effect some time later."""


class Lost(ConnectionError):
    """The error of a call that was refused, or whose answer was lost."""


class Host:
    """A machine with a clock of its own."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.ahead_us = 0
        """By how much its clock is ahead of the true time."""


class Process:
    """A process of an operating system, with any number of threads."""

    def __init__(
        self, name: str, host: Host, trace: Trace, injected: Callable[[str], None]
    ) -> None:
        self.host = host
        self.pid = 100 + len(MACHINE.processes)
        self.name = f"{name}{self.pid - 99}"
        self.alive = True
        self.threads: list[Thread] = []
        self.stalled_us = 0
        """When a thread of it stood still last; 0: never."""
        self.stalled = 0
        """How many of its threads stand still at an I/O call."""
        self._severed = False
        self.disturbed_us = 0
        """When a call of it failed last, so a trace which it should have left may be missing; 0: never."""
        self.others_live: Callable[[], None] = lambda: None
        """Lets the other processes report that they live."""
        self._trace = trace
        self._injected = injected
        self._calls_left = 0
        self._counts: Counts = any_call
        self._fault = Fault.CRASH_BEFORE
        MACHINE.processes[f"{host.name}:{self.pid}"] = self

    def arm(self, fault: Fault, call: int, counts: Counts = any_call) -> None:
        """Let a fault happen at the `call`-th I/O call from now on, from 1.

        :param counts: tells by verb and object which calls count.
        """
        self._fault, self._calls_left, self._counts = fault, call, counts

    def disarm(self) -> None:
        """Let nothing happen."""
        self._calls_left = 0

    def io(self, verb: str, what: str, effect: Callable[[], T]) -> T:
        """Do an I/O call, or fail at it."""
        if not self.alive:
            raise Crash
        if MACHINE.only_looks:
            if verb not in _LOOKS:
                raise ActsError
            return effect()
        MACHINE.true_us += IO_US
        counts = self._calls_left > 0 and self._counts(verb, what)
        self._calls_left -= counts
        if self._calls_left or not counts:
            if self._trace.on:
                return self._trace.call(self.name, verb, what, effect)
            return effect()
        return self._fail(verb, what, effect)

    def _fail(self, verb: str, what: str, effect: Callable[[], T]) -> T:
        fault = self._fault
        self._injected(fault.value)
        if what.startswith("aside/"):
            self._injected("faults upon aside/")
        self._trace.say(f"{self.name}: {fault.value} {verb} {what}")
        if fault is Fault.CRASH_BEFORE:
            self.die()
        if fault is Fault.REFUSED:
            self.disturbed_us = MACHINE.true_us
            raise Lost(f"{verb} {what}")
        if fault is Fault.STALL_BEFORE:
            self._stall()
            return self._trace.call(self.name, verb, what, effect)
        if fault is Fault.LATE:
            self.stand_still(dies=True)
            if self._severed:
                raise Crash
        try:
            found = self._trace.call(self.name, verb, what, effect)
        finally:
            if fault is Fault.ANSWER_LOST:
                self.disturbed_us = MACHINE.true_us
                raise Lost(f"{verb} {what}")
            if fault is not Fault.STALL_AFTER:
                self.die()
        self._stall()
        return found

    def _stall(self) -> None:
        """Stand still, and report nothing meanwhile."""
        self.stalled += 1
        try:
            self.stand_still()
        finally:
            self.stalled -= 1
            self.stalled_us = MACHINE.true_us

    def stand_still(self, *, dies: bool = False) -> None:
        """Let others run; go on at the next turn, or end there if the process was killed meanwhile.

        :param dies: the process is dead, but for the call under way.
        """
        if dies:
            self.alive = False
        getcurrent().parent.switch(dies)
        if not self.alive and not dies:
            raise Crash

    def sleep(self, seconds: float) -> None:
        """Let others run while this thread sleeps."""
        MACHINE.true_us += int(seconds * 1_000_000)
        self.stand_still()

    def nap(self, seconds: float) -> None:
        """Sleep for a moment in which nothing happens but that the living report; mostly."""
        MACHINE.true_us += int(seconds * 1_000_000)
        self.others_live()
        if MACHINE.random.random() < _INTERRUPTED:
            self.stand_still()

    def die(self) -> None:
        """End at once, from within."""
        self.alive = False
        raise Crash

    def kill(self) -> None:
        """End it from outside."""
        self.alive = False
        for thread in self.threads:
            thread.finish()

    def sever(self) -> None:
        """End it with the calls that are on their way, as where its volumes are unmounted."""
        self._severed = True
        self.kill()


@dataclass
class Rewinding:
    """A rewind that is carried out."""

    target: str
    to: int
    """The epoch that it goes back to."""
    reported: bool = False
    """Whether it has reported itself, as a flusher does."""
    row: LedgerState | None = None
    """The ledger row that it has made."""
    moved_us: int = 0
    """When it has made the ledger row."""
    deleted: tuple[int, int] = (-1, 0)
    """The last epoch of the records that it has deleted last, and when."""


class Thread:
    """A thread of a process: does one task at a time, and may stand still in the middle of it.

    :param site: the checkpoint and log that it works on, where it writes to the target.
    """

    def __init__(self, process: Process, name: str, site: Site | None = None) -> None:
        self.process = process
        self.name = name
        self.site = site
        self.since_us = 0
        """When the task under way began."""
        self.looked_us = 0
        """When the flusher's step that is under way began; 0: it is no flusher's."""
        self.late = False
        """Whether its process is dead, and a call of it on its way."""
        self.listed: dict[str, int] = {}
        """When it has listed each folder last."""
        self.ledger_us = 0
        """When it has read the ledger row last; 0: not yet."""
        self.run_id = ""
        """The run of Spark that it is at work for."""
        self.next_epoch = 0
        """Which epoch Spark would compute next as the run began to start."""
        self.rewind: Rewinding | None = None
        """What it carries out; None: no rewind."""
        self._greenlet: Any = None
        process.threads.append(self)

    @property
    def stands_still(self) -> bool:
        """Whether it is in the middle of a task."""
        return self._greenlet is not None

    def start(self, task: Callable[[], None]) -> None:
        """Begin a task, and run until it is done or stands still."""
        assert self._greenlet is None
        self.since_us = MACHINE.true_us
        self._greenlet = greenlet(lambda: self._run(task))
        self.go_on()

    def go_on(self) -> None:
        """Run until the task is done or stands still."""
        before, MACHINE.thread = MACHINE.thread, self
        self._greenlet.parent = getcurrent()  # where it comes back to
        try:
            self.late = bool(self._greenlet.switch())
        finally:
            MACHINE.thread = before
            if self._greenlet.dead:
                self._greenlet = None

    def finish(self) -> None:
        """Let a task go on to its end; that of a process that was killed ends at once."""
        while self._greenlet is not None:
            self.go_on()

    def _run(self, task: Callable[[], None]) -> None:
        try:
            task()
        except Crash:
            self.process.alive = False

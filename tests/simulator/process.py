"""Processes that take turns on one thread: each of their I/O calls may fail, be the last, or last for hours.

A thread of a simulated process is a greenlet. It runs until its task is done, unless a fault was armed: at
the n-th I/O call from then on the process dies, loses the answer, or stalls until it gets another turn.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from greenlet import getcurrent, greenlet

from tests.simulator.machine import MACHINE
from wal_sink.testing.faults import Crash

if TYPE_CHECKING:
    from tests.simulator.trace import Trace

T = TypeVar("T")

READS = frozenset(("read", "size", "input", "list", "read ledger", "plan", "connect"))
"""Calls that change nothing."""

IO_US = 700
"""How long an I/O call takes."""


class Fault(enum.Enum):
    """What happens at an I/O call."""

    CRASH_BEFORE = "crash before"
    CRASH_AFTER = "crash after"
    REFUSED = "refused"
    """It has no effect, and the process gets an error."""
    ANSWER_LOST = "answer lost"
    """It has its effect, and the process gets an error."""
    STALL_BEFORE = "stall before"
    STALL_AFTER = "stall after"
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
        self._trace = trace
        self._injected = injected
        self._calls_left = 0
        self._changes_only = False
        self._fault = Fault.CRASH_BEFORE
        MACHINE.processes[f"{host.name}:{self.pid}"] = self

    def arm(self, fault: Fault, call: int, *, changes_only: bool = False) -> None:
        """Let a fault happen at the `call`-th I/O call from now on, from 1.

        :param changes_only: count only calls that change something.
        """
        self._fault, self._calls_left, self._changes_only = fault, call, changes_only

    def disarm(self) -> None:
        """Let nothing happen."""
        self._calls_left = 0

    def io(self, verb: str, what: str, effect: Callable[[], T]) -> T:
        """Do an I/O call, or fail at it."""
        if not self.alive:
            raise Crash
        MACHINE.true_us += IO_US
        counts = self._calls_left > 0 and not (self._changes_only and verb in READS)
        self._calls_left -= counts
        if self._calls_left or not counts:
            return self._trace.call(self.name, verb, what, effect)
        return self._fail(verb, what, effect)

    def _fail(self, verb: str, what: str, effect: Callable[[], T]) -> T:
        fault = self._fault
        self._injected(fault.value)
        self._trace.say(f"{self.name}: {fault.value} {verb} {what}")
        if fault is Fault.CRASH_BEFORE:
            self.die()
        if fault is Fault.REFUSED:
            raise Lost(f"{verb} {what}")
        if fault is Fault.STALL_BEFORE:
            self.stall()
        if fault is Fault.LATE:
            self.stall(dies=True)
        try:
            answer = self._trace.call(self.name, verb, what, effect)
        finally:
            if fault is Fault.ANSWER_LOST:
                raise Lost(f"{verb} {what}")
            if fault in (Fault.CRASH_AFTER, Fault.LATE):
                self.die()
        if fault is Fault.STALL_AFTER:
            self.stall()
        return answer

    def stall(self, *, dies: bool = False) -> None:
        """Let others run; go on at the next turn, or end there if the process was killed meanwhile.

        :param dies: the process is dead, but for the call under way.
        """
        if dies:
            self.alive = False
        getcurrent().parent.switch()
        if not self.alive and not dies:
            raise Crash

    def sleep(self, seconds: float) -> None:
        """Let others run while this thread sleeps."""
        MACHINE.true_us += int(seconds * 1_000_000)
        self.stall()

    def die(self) -> None:
        """End at once, from within."""
        self.alive = False
        raise Crash

    def kill(self) -> None:
        """End it from outside, with what it has under way."""
        self.alive = False
        for thread in self.threads:
            thread.finish()


class Thread:
    """A thread of a process: does one task at a time, and may stall in the middle of it."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self._greenlet: Any = None
        process.threads.append(self)

    @property
    def stalled(self) -> bool:
        """True if it is in the middle of a task."""
        return self._greenlet is not None

    def start(self, task: Callable[[], None]) -> None:
        """Begin a task, and run until it is done or stalls."""
        assert self._greenlet is None
        self._greenlet = greenlet(lambda: self._run(task))
        self.go_on()

    def go_on(self) -> None:
        """Run until the task is done or stalls."""
        thread, MACHINE.thread = MACHINE.thread, self
        self._greenlet.parent = getcurrent()  # where it comes back to
        try:
            self._greenlet.switch()
        finally:
            MACHINE.thread = thread
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

"""Simulated processes: each I/O call of a process may fail, be its last, or take hours.

A thread of a process is a greenlet, which runs until its task is done. At an armed fault the process dies,
gets an error in place of an answer, or stalls until its next turn.
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
"""The duration of an I/O call in microseconds."""


class Fault(enum.Enum):
    """A fault at an I/O call."""

    CRASH_BEFORE = "crash before"
    CRASH_AFTER = "crash after"
    REFUSED = "refused"
    """The call has no effect, and raises an error."""
    ANSWER_LOST = "answer lost"
    """The call has its effect, and raises an error."""
    STALL_BEFORE = "stall before"
    STALL_AFTER = "stall after"
    LATE = "arrives late"
    """The process dies, and the call has its effect later."""


class Lost(ConnectionError):
    """The error of a call that was refused or whose answer was lost."""


class Host:
    """A machine with its own clock."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.ahead_us = 0
        """Microseconds by which the host's clock is ahead of the true time."""


class Process:
    """A process with threads."""

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
        """Inject a fault at the `call`-th I/O call from now on, counted from 1.

        :param changes_only: True counts only calls that change something.
        """
        self._fault, self._calls_left, self._changes_only = fault, call, changes_only

    def disarm(self) -> None:
        self._calls_left = 0

    def io(self, verb: str, what: str, effect: Callable[[], T]) -> T:
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
        """Let other threads run until the next turn. Raise `Crash` if the process was killed meanwhile.

        :param dies: True if the process is dead, except for this call.
        """
        if dies:
            self.alive = False
        getcurrent().parent.switch()
        if not self.alive and not dies:
            raise Crash

    def sleep(self, seconds: float) -> None:
        """Let other threads run while this thread sleeps."""
        MACHINE.true_us += int(seconds * 1_000_000)
        self.stall()

    def die(self) -> None:
        """Die, from within the process."""
        self.alive = False
        raise Crash

    def kill(self) -> None:
        """Kill the process, from outside; its stalled tasks end."""
        self.alive = False
        for thread in self.threads:
            thread.finish()


class Thread:
    """A thread of a process, with at most one task."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self._greenlet: Any = None
        process.threads.append(self)

    @property
    def stalled(self) -> bool:
        """True if the task is not done."""
        return self._greenlet is not None

    def start(self, task: Callable[[], None]) -> None:
        """Run a task until it is done or stalls."""
        assert self._greenlet is None
        self._greenlet = greenlet(lambda: self._run(task))
        self.resume()

    def resume(self) -> None:
        """Continue the task until it is done or stalls."""
        thread, MACHINE.thread = MACHINE.thread, self
        self._greenlet.parent = getcurrent()  # the greenlet switches to its parent when it stalls
        try:
            self._greenlet.switch()
        finally:
            MACHINE.thread = thread
            if self._greenlet.dead:
                self._greenlet = None

    def finish(self) -> None:
        """Continue the task until it is done."""
        while self._greenlet is not None:
            self.resume()

    def _run(self, task: Callable[[], None]) -> None:
        try:
            task()
        except Crash:
            self.process.alive = False

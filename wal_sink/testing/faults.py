"""Wraps state backends and targets to inject faults; the product itself has no code to inject them.

A wrapper passes each operation to a `Faults`, which raises an exception at one operation. The caller handles
an exception such as `AnswerLost` as an error. `Crash` stands for the death of the process.
`Crash` is a `BaseException`, so no code of the product catches it.
"""

from __future__ import annotations

import builtins
import contextlib
import gc
import sys
from abc import ABC
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import FrameType, ModuleType
from typing import Any, BinaryIO, Generic, Literal, TypeVar

import pyarrow as pa

from state_backends import StateBackend
from wal_sink.model.ledger import LedgerRow, Outcome
from wal_sink.model.plan import Plan
from wal_sink.targets.base import (
    ErrorClass,
    IdempotentSession,
    RowSlice,
    Session,
    StagedSession,
    Target,
    TransactionalSession,
)

T = TypeVar("T")

_READS = ("read ", "list ", "size ", "input ")


class Crash(BaseException):
    """An exception that stands for the death of the process."""


class AnswerLost(ConnectionError):
    """The error for an operation that may have taken effect, but whose caller gets no answer."""


class Faults:
    """Counts operations, and injects a fault into one of them.

    :param at: the number of the operation that fails, from 0; None injects no fault.
    :param when: `before`: the operation has no effect; `after`: the fault replaces its answer.
    :param error: makes the exception.
    :param matching: only operations whose name contains this text are counted.
    """

    def __init__(
        self,
        at: int | None = None,
        when: Literal["before", "after"] = "before",
        error: Callable[[], BaseException] = Crash,
        matching: str = "",
    ) -> None:
        self._at = at
        self._when = when
        self._error = error
        self._matching = matching
        self.operations: list[str] = []
        """The names of the counted operations, as `<verb> <path or argument>`."""
        self.injected: str | None = None
        """The name of the operation that failed."""
        self.took_effect = False
        """True if the operation that failed took effect."""
        self.begun = 0
        """The number of operations that had begun when the fault was raised. Operations may be nested."""

    @contextlib.contextmanager
    def around(self, name: str) -> Iterator[None]:
        """Count the operation of the block, and inject the fault if it is due."""
        due = False
        if self._matching in name:
            due = len(self.operations) == self._at
            self.operations.append(name)
        if due:
            self.injected = name
        if due and self._when == "before":
            self.begun = len(self.operations)
            raise self._error()
        try:
            yield
            self.took_effect = self.took_effect or due
        finally:
            if due:
                self.begun = len(self.operations)
                raise self._error()  # in place of the result or the error of the operation

    def call(self, name: str, operation: Callable[[], T]) -> T:
        """Count and run an operation; inject the fault if it is due."""
        with self.around(name):
            return operation()


class CallFaults(Faults):
    """Also counts the calls from a target's code to its driver, since a process may die between two calls.

    Python's profiler reports the calls. It reports neither calls in other threads nor methods of compiled
    drivers (Cython, pybind11). Calls of private functions are not counted. Compiled code may suppress the
    fault, or replace it by its own error. So `around` raises the fault again at the end of the operation.

    :param kinds: the classes of target and session. Calls from the packages of their bases are counted.
    :param inside: only calls within operations whose names begin with this text are counted.
    """

    def __init__(self, kinds: Iterable[type], inside: str, at: int | None = None) -> None:
        super().__init__(at)
        derived = {base.__module__ for kind in kinds for base in kind.__mro__}
        derived -= {base.__module__ for base in (Target, ABC, Generic, object)}
        self._packages = tuple(f"{name.rpartition('.')[0] or name}." for name in derived)
        self._inside = inside

    @contextlib.contextmanager
    def around(self, name: str) -> Iterator[None]:
        """Count the operation of the block and the calls in it, and inject the fault if it is due."""
        with super().around(name):
            profiler, collects = sys.getprofile(), gc.isenabled()
            if name.startswith(self._inside):
                gc.disable()  # a collection may close objects of other operations
                sys.setprofile(self._profile)
            had = self.injected
            try:
                yield
            finally:
                sys.setprofile(profiler)
                if collects:
                    gc.enable()
                if self.injected != had:
                    raise self._error()

    def _profile(self, frame: FrameType, event: str, called: Any) -> None:
        name = ""
        if event == "c_call" and self._is_own(frame) and not _is_builtin(called):
            name = called.__qualname__
        elif event == "call" and self._is_own(frame.f_back) and not self._is_own(frame):
            name = frame.f_code.co_qualname
        if name and not name.rpartition(".")[2].startswith("_"):
            with super().around(f"call {name}"):
                pass

    def _is_own(self, frame: FrameType | None) -> bool:
        name = _module(frame)
        return name != __name__ and f"{name}.".startswith(self._packages)


def _module(frame: FrameType | None) -> str:
    return str(frame.f_globals.get("__name__", "")) if frame else ""


def _is_builtin(function: Any) -> bool:
    """Return True for a function of the module `builtins`, and for a method of a type of that module."""
    owner = getattr(function, "__self__", None)
    if isinstance(owner, ModuleType):
        return owner is builtins
    return (owner if isinstance(owner, type) else type(owner)) in vars(builtins).values()


def changes(operation: str) -> bool:
    """Return True if an operation may change a store.

    A crash after an operation that only reads is the same as a crash before it.
    """
    return not operation.startswith(_READS)


def different_faults(operations: Sequence[str], when: str) -> list[int]:
    """Return the numbers of the operations at which a fault differs from the fault at the previous operation.

    :param when: `before` or `after` if the process dies; `answer lost` if it continues.
    """
    if when == "answer lost":
        return list(range(len(operations)))
    last_done = operations if when == "after" else ["", *operations]
    return [k for k in range(len(operations)) if k == 0 or changes(last_done[k])]


def _halves(rows: RowSlice) -> tuple[RowSlice, RowSlice]:
    """Split a slice in two; each row keeps its timestamp."""
    half = rows.batch.num_rows // 2
    return (
        rows._replace(batch=rows.batch.slice(0, half)),
        rows._replace(batch=rows.batch.slice(half), first_us=rows.first_us + half),
    )


def _update_name(current: LedgerRow | None, new: LedgerRow) -> str:
    """Return the name of an update of the ledger row."""
    if current is None:
        return f"create ledger {new.epoch}"
    if current.epoch == new.epoch:
        return f"claim sending {new.sending} of {new.epoch + 1}"
    return f"finish {new.epoch}"


class FaultyBackend(StateBackend):
    """A state backend whose operations may fail."""

    def __init__(self, inner: StateBackend, faults: Faults) -> None:
        self.inner = inner
        self.faults = faults
        self.url = inner.url
        self.process_local = inner.process_local
        self.billed = inner.billed

    def create(self, path: str, data: bytes) -> None:
        self.faults.call(f"create {path}", lambda: self.inner.create(path, data))

    def replace(self, path: str, data: bytes) -> None:
        self.faults.call(f"replace {path}", lambda: self.inner.replace(path, data))

    def read(self, path: str) -> bytes:
        return self.faults.call(f"read {path}", lambda: self.inner.read(path))

    def size(self, path: str) -> int:
        return self.faults.call(f"size {path}", lambda: self.inner.size(path))

    @contextlib.contextmanager
    def open_output(self, path: str) -> Iterator[BinaryIO]:
        with self.faults.around(f"output {path}"), self.inner.open_output(path) as output:
            yield output

    def open_input(self, path: str) -> BinaryIO:
        return self.faults.call(f"input {path}", lambda: self.inner.open_input(path))

    def list(self, prefix: str = "") -> list[str]:
        return self.faults.call(f"list {prefix}", lambda: self.inner.list(prefix))

    def sizes(self, prefix: str = "") -> dict[str, int]:
        return self.faults.call(f"list {prefix}", lambda: self.inner.sizes(prefix))

    def delete(self, paths: Iterable[str]) -> None:
        """Delete each object by a separate operation, so that a crash may leave some objects."""
        for path in list(paths):
            self.faults.call(f"delete {path}", lambda path=path: self.inner.delete([path]))  # type: ignore[misc]

    def sweep_unfinished(self, min_age_s: float) -> int:
        return self.faults.call("sweep", lambda: self.inner.sweep_unfinished(min_age_s))


class FaultyTarget(Target):
    """A target whose operations may fail, except `check`.

    :param sessions: a list that gets each new session of `inner`. A test can then close the sessions of a
        dead process, as a server does.
    """

    def __init__(
        self, inner: Target, faults: Faults, sessions: list[Session] | None = None
    ) -> None:
        self.inner = inner
        self._sessions = sessions
        self.faults = faults
        self.name = inner.name
        self.options_type = inner.options_type
        self.interface = inner.interface  # type: ignore[misc]
        self.parallel_writes = inner.parallel_writes
        self.restores_together = inner.restores_together

    @property
    def shape(self) -> Mapping[str, str]:
        return self.inner.shape

    @property
    def writes_to(self) -> str:
        return self.inner.writes_to

    def plan(self, schema: pa.Schema, key: str) -> Plan:
        return self.faults.call("plan", lambda: self.inner.plan(schema, key))

    def check(self, batch: pa.RecordBatch, plan: Plan) -> pa.RecordBatch:
        return self.inner.check(batch, plan)

    def connect(self, query_id: str) -> Session:
        return faulty(self.faults.call("connect", lambda: self._connect(query_id)), self.faults)

    def _connect(self, query_id: str) -> Session:
        session = self.inner.connect(query_id)
        if self._sessions is not None:
            self._sessions.append(session)
        return session

    def classify(self, error: Exception) -> ErrorClass:
        """Return `retry` for an injected error, so that the flusher retries it."""
        return "retry" if isinstance(error, ConnectionError) else self.inner.classify(error)


class FaultySession(Session):
    """A session whose operations may fail, except `close`. A `write` may fail after half of its rows."""

    def __init__(self, inner: Any, faults: Faults) -> None:
        self.inner = inner
        self.faults = faults
        self._is_idempotent = isinstance(inner, IdempotentSession)
        self._is_staged = isinstance(inner, StagedSession)

    def read(self) -> LedgerRow | None:
        row: LedgerRow | None = self.faults.call("read ledger", self.inner.read)
        return row

    def write(self, plan: Plan, rows: RowSlice) -> None:
        if not rows.batch.num_rows:  # the driver's call before a flush job, which sends no rows
            self.inner.write(plan, rows)
            return
        first, second = _halves(rows)
        name = f"write {rows.epoch}"
        self.faults.call(f"{name} {first.first_us}", lambda: self._write_half(plan, first))
        self.faults.call(f"{name} {second.first_us}", lambda: self.inner.write(plan, second))

    def _write_half(self, plan: Plan, rows: RowSlice) -> None:
        self.inner.write(plan, rows)
        if self._is_idempotent:
            self.inner.drain()  # so that the rows are in the table at a fault after this write

    def drain(self) -> Any:
        return self.faults.call("drain", self.inner.drain)

    def finish(
        self, current: LedgerRow | None, new: LedgerRow, receipts: Sequence[bytes] = ()
    ) -> Outcome:
        """Finish the window; return UNKNOWN for a lost answer, as a driver does."""
        if self._is_idempotent:
            self.inner.drain()  # so that its errors are not taken for the answer of the update
        staged = (receipts,) if self._is_staged else ()
        try:
            with self.faults.around(_update_name(current, new)):
                outcome: Outcome = self.inner.finish(current, new, *staged)
        except AnswerLost:
            return Outcome.UNKNOWN
        return outcome

    def discard(self, receipts: Sequence[bytes]) -> None:
        self.faults.call("discard", lambda: self.inner.discard(receipts))

    def compare(self, plan: Plan) -> None:
        self.faults.call("compare", lambda: self.inner.compare(plan))

    def close(self) -> None:
        self.inner.close()


class FaultyIdempotentSession(FaultySession, IdempotentSession):
    """A faulty `IdempotentSession`."""


class FaultyTransactionalSession(FaultySession, TransactionalSession):
    """A faulty `TransactionalSession`."""


class FaultyStagedSession(FaultySession, StagedSession):
    """A faulty `StagedSession`."""


def faulty(session: Session, faults: Faults) -> Session:
    """Return a session around `session` whose operations may fail; both have the same base class."""
    match session:
        case IdempotentSession():
            return FaultyIdempotentSession(session, faults)
        case TransactionalSession():
            return FaultyTransactionalSession(session, faults)
        case StagedSession():
            return FaultyStagedSession(session, faults)
    raise TypeError(f"{type(session).__name__} must derive one of the three session classes.")

"""Injects faults at the two seams, the state backend and the target; the product has no fail points.

Wrap the real backend or target and give it a `Faults`, which is asked about every operation. It injects
one of two kinds: an *error* is raised to the caller, which runs on (a lost answer, a refused connection);
a `Crash` is a `BaseException`, which no code of a flusher or a run catches: the process is gone.
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
from wal_sink.flush_metrics import FlushMetrics
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

READS = ("read ", "list ", "size ", "input ")
"""In checkpoint, log and ledger."""


class Crash(BaseException):
    """The process dies here."""


class AnswerLost(ConnectionError):
    """The operation may have taken effect; a conditional update then has an unknown outcome."""


class Faults:
    """Counts operations, and injects one fault.

    :param at: number of the operation that fails, from 0; None for none.
    :param when: `before` it takes effect, or `after`: then its answer is lost.
    :param error: makes what is raised.
    :param matching: only operations whose name contains this are counted.
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
        """Names of the counted operations, as `<verb> <path or argument>`."""
        self.injected: str | None = None
        """The operation that failed: a harness checks that it injected what it meant to."""
        self.took_effect = False
        """Whether the operation that failed was carried out before its caller heard of the fault."""
        self.begun = 0
        """How many operations had begun when the fault was raised: one may have others inside."""

    @contextlib.contextmanager
    def around(self, name: str) -> Iterator[None]:
        """Surround one operation."""
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
                raise self._error()  # in place of the answer, a result or an error

    def call(self, name: str, operation: Callable[[], T]) -> T:
        """Run one operation."""
        with self.around(name):
            return operation()


class CallFaults(Faults):
    """Counts also the calls from a target's code to that of others, above all to its driver.

    Its `commit` may do in two steps what has to be one, and a process dies between them, too. Left out are
    other threads, private functions, and what Python does not show to a profiler: above all methods of
    compiled drivers (Cython, pybind11). An exception in a callback is lost where Python calls it to free an
    object, and a compiled driver makes its own error of it: the operation ends with the fault all the same.

    :param kinds: of target and session: their code lies in the packages of these and of what they derive.
    :param inside: how the names of the operations begin in which calls are counted.
    """

    def __init__(self, kinds: Iterable[type], inside: str, at: int | None = None) -> None:
        super().__init__(at)
        derived = {base.__module__ for kind in kinds for base in kind.__mro__}
        derived -= {base.__module__ for base in (Target, ABC, Generic, object)}
        self._packages = tuple(f"{name.rpartition('.')[0] or name}." for name in derived)
        self._inside = inside

    @contextlib.contextmanager
    def around(self, name: str) -> Iterator[None]:
        """Surround one operation, in place of a profiler."""
        with super().around(name):
            profiler, collects = sys.getprofile(), gc.isenabled()
            if name.startswith(self._inside):
                gc.disable()  # what it would close is not of this operation
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
    """Return True if it belongs to Python's own types, or to the module `builtins`."""
    owner = getattr(function, "__self__", None)
    if isinstance(owner, ModuleType):
        return owner is builtins
    return (owner if isinstance(owner, type) else type(owner)) in vars(builtins).values()


def changes(operation: str) -> bool:
    """Return True if something may lie in the stores that did not before: else dying now is dying earlier."""
    return not operation.startswith(READS)


def different_faults(operations: Sequence[str], when: str) -> list[int]:
    """Return the operations at which a fault may leave what none at an earlier one leaves.

    :param when: `before` or `after`: the process dies; `answer lost`: it runs on, and each is different.
    """
    if when == "answer lost":
        return list(range(len(operations)))
    last_done = operations if when == "after" else ["", *operations]
    return [k for k in range(len(operations)) if k == 0 or changes(last_done[k])]


def halves(rows: RowSlice) -> tuple[RowSlice, RowSlice]:
    """Cut a slice in two; each row keeps its timestamp."""
    half = rows.batch.num_rows // 2
    return (
        rows._replace(batch=rows.batch.slice(0, half)),
        rows._replace(batch=rows.batch.slice(half), first_us=rows.first_us + half),
    )


def update_name(current: LedgerRow | None, new: LedgerRow) -> str:
    """Return what an update of the ledger row does, as `<verb> <epoch>`."""
    if current is None:
        return f"create ledger {new.epoch}"
    if current.epoch == new.epoch:
        return f"claim sending {new.sending} of {new.epoch + 1}"
    return f"finish {new.epoch}"


class FaultyBackend(StateBackend):
    """A state backend whose operations may fail; see `StateBackend` for what they do."""

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
        """Fails when the block is left, before or after the object is durable."""
        with self.faults.around(f"output {path}"), self.inner.open_output(path) as output:
            yield output

    def open_input(self, path: str) -> BinaryIO:
        return self.faults.call(f"input {path}", lambda: self.inner.open_input(path))

    def list(self, prefix: str = "") -> list[str]:
        return self.faults.call(f"list {prefix}", lambda: self.inner.list(prefix))

    def sizes(self, prefix: str = "") -> dict[str, int]:
        return self.faults.call(f"list {prefix}", lambda: self.inner.sizes(prefix))

    def delete(self, paths: Iterable[str]) -> None:
        """Each object counts, so a crash leaves some of them."""
        for path in list(paths):
            self.faults.call(f"delete {path}", lambda path=path: self.inner.delete([path]))  # type: ignore[misc]

    def sweep_unfinished(self, min_age_s: float) -> int:
        return self.faults.call("sweep", lambda: self.inner.sweep_unfinished(min_age_s))


class FaultyTarget(Target):
    """A target whose operations may fail, all but `check`; see `Target` for what they do.

    :param sessions: gets the sessions of `inner` as they are opened: what stays open in the target's server
        until it notices that a process has died.
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
        """Take a connection error for an injected one, which passes by itself."""
        return "retry" if isinstance(error, ConnectionError) else self.inner.classify(error)


class FaultySession(Session):
    """A session whose operations may fail, all but `close`; see `Session` for what they do.

    A write may fail in the middle, too: half of its rows arrive.
    """

    def __init__(self, inner: Any, faults: Faults) -> None:
        self.inner = inner
        self.faults = faults
        self._is_idempotent = isinstance(inner, IdempotentSession)
        self._is_staged = isinstance(inner, StagedSession)

    def read(self) -> LedgerRow | None:
        row: LedgerRow | None = self.faults.call("read ledger", self.inner.read)
        return row

    def write(self, plan: Plan, rows: RowSlice) -> None:
        # Of the driver, before a job: it names the table, and sends nothing.
        if not rows.batch.num_rows:
            self.inner.write(plan, rows)
            return
        first, second = halves(rows)
        name = f"write {rows.epoch}"
        self.faults.call(f"{name} {first.first_us}", lambda: self._write_half(plan, first))
        self.faults.call(f"{name} {second.first_us}", lambda: self.inner.write(plan, second))

    def _write_half(self, plan: Plan, rows: RowSlice) -> None:
        self.inner.write(plan, rows)
        if self._is_idempotent:
            self.inner.drain()  # a fault after it finds these rows there

    def drain(self) -> Any:
        return self.faults.call("drain", self.inner.drain)

    def finish(
        self, current: LedgerRow | None, new: LedgerRow, receipts: Sequence[bytes] = ()
    ) -> Outcome:
        """Finish; a lost answer is what a driver reports as UNKNOWN."""
        if self._is_idempotent:
            self.inner.drain()  # what it raises does not answer the update
        staged = (receipts,) if self._is_staged else ()
        try:
            with self.faults.around(update_name(current, new)):
                outcome: Outcome = self.inner.finish(current, new, *staged)
        except AnswerLost:
            return Outcome.UNKNOWN
        return outcome

    def discard(self, receipts: Sequence[bytes]) -> None:
        self.faults.call("discard", lambda: self.inner.discard(receipts))

    def compare(self, plan: Plan) -> None:
        self.faults.call("compare", lambda: self.inner.compare(plan))

    def report_to(self, metrics: FlushMetrics) -> None:
        self.inner.report_to(metrics)

    def close(self) -> None:
        self.inner.close()


class FaultyIdempotentSession(FaultySession, IdempotentSession):
    """A session in which rows count as they are written."""


class FaultyTransactionalSession(FaultySession, TransactionalSession):
    """A session with a transaction for each window."""


class FaultyStagedSession(FaultySession, StagedSession):
    """A session that stages rows."""


def faulty(session: Session, faults: Faults) -> Session:
    """Return a session whose operations may fail, of the same kind."""
    match session:
        case IdempotentSession():
            return FaultyIdempotentSession(session, faults)
        case TransactionalSession():
            return FaultyTransactionalSession(session, faults)
        case StagedSession():
            return FaultyStagedSession(session, faults)
    raise TypeError(f"{type(session).__name__} derives none of the three sessions")

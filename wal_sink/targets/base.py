"""The interface of a target: what a database has to offer to be written to exactly once.

An author derives a `Target`, and one of three sessions by what makes a row count in the database
(`Delivery`). These parts of the sink call them:

=================  ==========================================  =============================================
method             who calls it, in which process              may it connect?
=================  ==========================================  =============================================
`Target.plan`      Spark's planner worker, when the log has    yes: it compares the DataFrame with the table
                   no plan for this schema and options
`Target.check`     each task of the query, for each batch,     no: it works from the plan alone
                   before the epoch is published; with several
                   targets who flushes; `quarantine --retry`
`Target.connect`   the flusher; each task of a flush job with  yes
                   `parallel_writes`; operators' commands
=================  ==========================================  =============================================

The **ledger** is one row for each query that says how far the target is, a `LedgerState`. A session reads it
and replaces it by a compare-and-set of the whole row. What the row says next is decided in
`wal_sink.protocol`, never in a target. Epochs are flushed in **windows**. For each the flusher calls, over
one session and from one thread:

=========================================  ==================================================================
call                                       meaning
=========================================  ==================================================================
`read_ledger()`, `now_us()`                where the flush goes on; skipped where the row is known
`offer(rows)`                              optional: rows of the window that is begun next
`compare_and_set(seen, new)`               `new` names the window that is begun. It is durable before any
                                           row is written
`start(window)`                            all rows of the window follow, from the first one on
`pass_over(refused, passed)`               optional: what to do with a row that the server refuses
`write(plan, rows)`, any number of times   each row has a fixed write timestamp; `read_ledger` may come
                                           between two of them
`drain()`                                  rows are acknowledged; a `StagedSession` returns their receipts
the last update of the row                 `new` says that the window is flushed:
                                           `IdempotentSession.compare_and_set(seen, new)`,
                                           `TransactionalSession.commit(seen, new)`,
                                           `StagedSession.commit(seen, new, receipts)`
`read_ledger()`                            what became of it
=========================================  ==================================================================

A flusher that takes over a begun window starts at `start`. When a call raises, the flusher asks
`Target.classify` what the error means, and repeats the step, perhaps over another session. A task of a flush
job calls `write` and `drain` alone, over a session of its own, between the flusher's `start` and its last
update; the next task in its process may use the same session. The commands `adopt`, `attach` and `rewind`
read the row and replace it by `compare_and_set`; `verify` reads it, and calls `compare` and `written_us`.

`docs/protocol/argument.md` argues why this is exactly-once, if every target keeps the first two guarantees:

1. `read_ledger` is linearizable: it returns the effect of every update that was acknowledged before it.
2. An update (`compare_and_set`, `commit`) takes effect at most once, and only if the row is exactly `seen`,
   every field of it. After `Outcome.APPLIED` it is durable. `Outcome.CONFLICT` promises that this call had,
   and will have, no effect. Anything else is `Outcome.UNKNOWN`: such as an answer that was lost, or the
   conflict that a client reports when it repeats a request and meets its own first one.

For an `IdempotentSession`:

3. `write` is idempotent: the same slice written again, at any later time, changes nothing. Between `write`
   and the return of `drain` readers may or may not see its rows.
4. Of two writes to one cell the one with the higher timestamp stays, in whichever order they arrive.
5. When `drain` returns, the rows of every `write` before it are in the target and survive a crash of its
   processes. When `write` or `drain` has raised, the sink writes all rows since the last `drain` again.
6. With `parallel_writes`, other sessions, in any process, may write rows of the window. The update that
   finishes it comes when their `drain` has returned.

For a `TransactionalSession`, in their place:

7. The rows of every `write` since `start` are in the target, all of them, if and only if `commit` has taken
   effect; until then no reader sees any. `start` forgets what was written before it.
8. `commit` takes effect only together with the rows since the `start` of the window that `seen` names as
   begun, in the same session. Where the session has lost any of them, or there was no such `start`, it is
   CONFLICT, or raises.

For a `StagedSession`, in place of 3 to 8:

9. `drain` returns receipts for the rows of every `write` since `start`, or since the last `drain`. These rows
   survive a crash of the target's processes, and no reader sees them. `start` forgets those without one.
10. When `commit` has taken effect, the rows of exactly the receipts that it was given are in the target, each
    once and all at one moment; rows of any other receipt never are. Where rows of a receipt are gone,
    `commit` is CONFLICT, or raises.
11. A receipt may come from another session, in any process (`parallel_writes`), and is good for the window
    for which its session wrote, for as long as the flusher that got it lives.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, Self

import pyarrow as pa

from wal_sink.errors import TargetRefused
from wal_sink.model.ledger import LedgerState, Outcome, Owner, PassedRow, Window
from wal_sink.model.plan import Plan
from wal_sink.observer import Observer
from wal_sink.options import Options, shape

INTERFACE = 1
"""The version of this interface; a target that needs a higher one is refused."""


class Delivery(enum.Enum):
    """What makes a row of a window count in the target."""

    IDEMPOTENT = "idempotent"
    """That it is written. To write it again changes nothing: each cell keeps the value with the highest write
    timestamp (guarantees 3 to 6). A crash leaves part of a window visible until a flusher has written all."""
    TRANSACTIONAL = "transactional"
    """That `commit` takes effect: rows and ledger row change in one transaction of one session, guarantees 7
    and 8. Readers see whole windows only; the table needs no key, and a row may be added to what is there."""
    STAGED = "staged"
    """That `commit` names it: rows are written where no reader looks, such as into files that no table names,
    by many tasks at once, and `commit` adds all of them together with the ledger row: guarantees 9 to 11.
    Readers see whole windows only, and a row may be added to what is there."""


class Slice(NamedTuple):
    """Consecutive rows of one epoch."""

    epoch: int
    batch: pa.RecordBatch
    """Columns as `check` returned them."""
    first_us: int
    """Write timestamp of row 0 of the batch; row i has `first_us + i`."""


Kind = Literal["retry", "throttle", "fatal"]
"""What an exception means: "fatal", the target would refuse again; or that it may pass by itself. The flusher
tries all again after a pause, "retry" and "throttle" alike (rule 21); a session may use their difference."""

OnRefused = Callable[[int, TargetRefused], None]
"""Gets the write timestamp of a row, and why the server refuses it. When it returns, that is durable, and the
session passes over the row; when it raises, that is the error of `write` or `drain`."""


class Session(ABC):
    """A connection that writes rows and moves the ledger of one query; used by one thread at a time.

    An author derives `IdempotentSession`, `TransactionalSession` or `StagedSession`.
    """

    @abstractmethod
    def read_ledger(self) -> LedgerState | None:
        """Return the ledger row (guarantee 1); None when there is none."""

    @abstractmethod
    def compare_and_set(self, seen: LedgerState | None, new: LedgerState) -> Outcome:
        """Set the ledger row to `new`, durably, if it is exactly `seen` (guarantee 2).

        Rows that are written and not committed are given up.

        :param seen: None: if there is no row.
        """

    @abstractmethod
    def write(self, plan: Plan, rows: Slice) -> None:
        """Write rows, at once or by the next `drain`; a bounded number of them waits in memory.

        The first call with a plan compares it with the table. A slice without rows announces that other
        sessions write rows by this plan, from `first_us` on, before the `drain` of this session.

        :raises SchemaMismatch, OptionError: the table is not as the plan says, or another one: see
            `registry.published_elsewhere`.
        :raises Exception: any other, for `Target.classify`; it may be about rows of an earlier call. Some of
            the rows may be written.
        """

    @abstractmethod
    def start(self, window: Window) -> None:
        """Expect all rows of a begun window, from the first one on; comes again before each repetition."""

    @abstractmethod
    def drain(self) -> tuple[bytes, ...] | None:
        """Return when the rows of every `write` before are acknowledged; receipts where they are staged."""

    @abstractmethod
    def close(self) -> None:
        """Release the connection; what is not committed never counts. Idempotent."""

    # --- what a session may offer ---

    def compare(self, plan: Plan) -> None:  # noqa: B027 - optional
        """Compare a plan with the table as it is now, as `write` does; write nothing.

        Comes without a begun window and without `start`: `wal-sink verify` finds a table that was altered.

        :raises SchemaMismatch: the table is no longer what the plan says.
        :raises OptionError: the plan is for another table than the options.
        :raises Exception: any other, for `Target.classify`.
        """

    def offer(self, rows: Iterator[tuple[Plan, Slice]]) -> None:  # noqa: B027 - optional
        """Take the rows of the window that the next `compare_and_set` begins, to read them meanwhile.

        The session takes as many as it likes, in memory that is bounded, and lets none of them leave. Where
        the window is begun, all of them come by `write` after `start`, the same objects again. An offer is
        over when the update has its answer (rule 14).
        """

    def pass_over(  # noqa: B027 - optional
        self, refused: OnRefused | None, passed: Sequence[PassedRow] = ()
    ) -> None:
        """Report each row that the server refuses, and send the others; None: raise `TargetRefused`.

        The remedy of that error is the repair alone: the flusher adds the ways on without the rows.

        Comes between `start` and the first `write` of a window (rule 24).

        :param passed: rows of the window that an earlier flusher has passed over: they do not come by
            `write`. Where the target has `resends`, `commit` notes them as those that it passes over itself.
        """

    def written_us(self) -> int | None:
        """Return when the newest part of the ledger row was written, microseconds since 1970.

        None for a target whose writes carry no timestamps. Where they do, one in the future would hide
        every later update (rule 16), and `wal-sink verify` reports it.
        """
        return None

    def now_us(self) -> int | None:
        """Return the time by the target's own clock, microseconds since 1970; None for a target without one.

        The flusher asks before it begins a window, every ten seconds at most, and no further than a minute
        ahead of this time lie the window's write timestamps (rule 14). Where several servers could answer,
        each call should ask another one: if the time is far from the flusher's, that asks again, and takes
        the answer in the middle.
        """
        return None

    def report_to(self, observer: Observer) -> None:  # noqa: B027 - optional
        """Keep `observer.in_flight`, and report each repeated request; called once, after `connect`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class IdempotentSession(Session):
    """A session of a target with `Delivery.IDEMPOTENT`: `compare_and_set` finishes a window."""

    def start(self, window: Window) -> None:
        """Expect all rows of a begun window; few such targets need that."""

    @abstractmethod
    def drain(self) -> None:
        """Return when the rows of every `write` before are acknowledged (guarantee 5).

        :raises Exception: what `write` raises.
        """


class TransactionalSession(Session):
    """A session of a target with `Delivery.TRANSACTIONAL`: rows and ledger row change in one transaction."""

    @abstractmethod
    def start(self, window: Window) -> None:
        """Open the transaction of a begun window; roll back one that is open.

        :raises Exception: for `Target.classify`, such as that another session holds the window's lock.
        """

    def drain(self) -> None:
        """Return when the server has taken the rows, where errors of `write` come later than `write`.

        :raises Exception: what `write` raises.
        """

    @abstractmethod
    def commit(self, seen: LedgerState, new: LedgerState) -> Outcome:
        """Set the ledger row to `new` if it is exactly `seen`, in one transaction with the rows.

        The flusher asks once: to try again it comes back with `start` and all rows.

        Where the target has `resends`, the same transaction writes a `PassedRow.note` for each row that
        the window passes over.
        """

    def resend(self, plan: Plan, rows: Slice, seen: LedgerState, *, noted: bool) -> bool:
        """Add one row of the quarantine to the table exactly once, however often this is called.

        The note of the row says "sent" from the moment at which the row is in the table, by one transaction.
        It takes effect only while the ledger row is exactly `seen`. Needed where the target has `resends`.

        :param rows: the row, as `check` returned it.
        :param noted: whether a window has passed it over, and so has a note of it; else its task refused it.
            A missing note leaves open whether the table has the row: it stays in quarantine.
        :return: False: the ledger row is another one, and nothing was added.
        :raises TargetRefused: the server refuses it still; or it cannot be sent without harm.
        :raises Exception: any other, for `Target.classify`; another call tells what became of it.
        """
        raise NotImplementedError


class StagedSession(Session):
    """A session of a target with `Delivery.STAGED`: rows are staged under receipts, and committed by them.

    A receipt has some hundred bytes, such as the name of a file and what is known of it. The flusher keeps
    them in memory only: whatever interrupts a window, it is staged again from `start`.
    """

    @abstractmethod
    def start(self, window: Window) -> None:
        """Forget the rows without a receipt; all rows of a begun window follow."""

    @abstractmethod
    def drain(self) -> tuple[bytes, ...]:
        """Return the receipts for the rows of every `write` since the last `drain` (guarantee 9).

        :raises Exception: what `write` raises.
        """

    def compare_and_set(self, seen: LedgerState | None, new: LedgerState) -> Outcome:
        """Commit nothing but the ledger row."""
        return self.commit(seen, new, ())

    @abstractmethod
    def commit(
        self, seen: LedgerState | None, new: LedgerState, receipts: Sequence[bytes]
    ) -> Outcome:
        """Set the ledger row to `new` if it is exactly `seen`, and add what is staged, in one step.

        The flusher asks once: to try again it comes back with `start` and all rows.

        :param seen: None: if there is no row.
        :param receipts: all that `drain` has returned for this window since `start`, in this session or in
            others; none where the update finishes no window.
        """

    def discard(self, receipts: Sequence[bytes]) -> None:
        """Delete what is staged under receipts, if that is easy; an error is logged, and changes nothing.

        Comes only for receipts with which no `commit` was asked, or was CONFLICT (guarantee 2): after any
        other answer the rows are in the table, or may still get there.
        """


SESSIONS: Mapping[Delivery, type] = {
    Delivery.IDEMPOTENT: IdempotentSession,
    Delivery.TRANSACTIONAL: TransactionalSession,
    Delivery.STAGED: StagedSession,
}
"""What `Target.connect` returns, by the target's delivery."""


class Target(ABC):
    """A database, described by options. It pickles, to travel to tasks; its constructor does no I/O."""

    interface: ClassVar[int] = 1
    """The version of this interface that the class is written for."""
    name: str
    """The name under which it is registered; set on the class."""
    options_type: type[Options]
    """The options that it declares, see `wal_sink.options`; set on the class."""
    delivery: Delivery
    """What makes a row count; set on the class."""
    parallel_writes: bool = False
    """Whether other sessions may write rows of a begun window, at the same time and in other processes
    (guarantees 6 and 11). Not with `TRANSACTIONAL`: a transaction belongs to one session."""

    resends: bool = False
    """Whether a `TransactionalSession` notes the rows that it passes over, and has `resend`."""

    transient: tuple[type[Exception], ...] = ()
    """The driver's errors that may pass by themselves, such as that it cannot connect; set on the class.
    Override `classify` where the driver's classes do not tell them."""

    def __init__(self, options: Any) -> None:
        """:param options: an instance of `options_type`."""
        self.options = options

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.options})"

    @property
    def shape(self) -> Mapping[str, str]:
        """The options that shape what is written, by `SHAPES`; a plan is kept for each schema and shape."""
        return shape(self.options)

    @property
    def writes_to(self) -> str:
        """The table that rows go to, as reports and metrics name it; empty where there is no name."""
        return ""

    @property
    def description(self) -> Mapping[str, str]:
        """What is logged of the target when a query starts: texts by heading, `target` first; no secrets."""
        return {"target": self.name, **self.shape}

    @abstractmethod
    def plan(self, schema: pa.Schema, key: str) -> Plan:
        """Connect, compare `schema` with the table, and check that the ledger can be kept.

        The plan is stored in the log; with it a query starts and runs without a connection.

        :raises SchemaMismatch: the DataFrame does not fit, or the table cannot be written exactly once.
        :raises TargetUnavailable: no connection.
        :raises OptionError: the options do not fit the target.
        """

    def dry_plan(self, schema: pa.Schema, key: str) -> Plan:
        """Do as `plan` does, but create nothing, for `wal_sink.check`; needed where `plan` creates."""
        return self.plan(schema, key)

    @abstractmethod
    def check(self, batch: pa.RecordBatch, plan: Plan) -> pa.RecordBatch:
        """Cast `batch` to what `write` takes, without a connection.

        Its texts are UTF-8, at any depth: tasks have refused others (`targets.arrow_values`).

        :raises InvalidRow: the target would refuse a row; names column and remedy.
        """

    def load(self) -> None:  # noqa: B027 - a target without a slow import needs none
        """Import what `connect` needs, on the driver, before the first flush."""

    def for_tasks(self) -> Target:
        """Return the target for the tasks of a flush job that is about to start, in other processes.

        Secrets that come from this process's environment have to be filled in.
        """
        return self

    @abstractmethod
    def connect(self, owner: Owner) -> Session:
        """Open a session for the ledger row of `owner`, of the class that `delivery` names in `SESSIONS`.

        :raises TargetUnavailable: no connection.
        """

    def classify(self, error: Exception) -> Kind:
        """Return what an exception of a session means; an unknown one is fatal."""
        return "retry" if isinstance(error, self.transient) else "fatal"


def without(rows: Slice, passed: Collection[int]) -> Iterator[Slice]:
    """Yield a slice without the rows of some write timestamps; each part keeps its own timestamps."""
    begin = 0
    for us in sorted(passed):
        row = us - rows.first_us
        if not 0 <= row < rows.batch.num_rows:
            continue
        if row > begin:
            yield part_of(rows, begin, row)
        begin = row + 1
    if begin == 0:
        yield rows
    elif begin < rows.batch.num_rows:
        yield part_of(rows, begin, rows.batch.num_rows)


def part_of(rows: Slice, begin: int, end: int) -> Slice:
    """Return the rows from `begin` up to `end`, counted in the slice, with their timestamps."""
    return rows._replace(batch=rows.batch.slice(begin, end - begin), first_us=rows.first_us + begin)

"""The interface of a target: what a database has to offer to be written to exactly once.

An author derives a `Target` and a `Session`, and runs a suite of `wal_sink.testing.contracts` over them. Four
parts of the sink call a target, in different processes:

=================  ======================================  ==================================================
method             who calls it, where                     may connect
=================  ======================================  ==================================================
`Target.plan`      Spark's planner worker, when the log    yes: it compares the DataFrame with the table
                   has no plan for this schema and these
                   options
`Target.check`     each task of the query, for each        no: it works from the plan alone
                   batch, before the epoch is published
`Target.connect`   the flusher, and each task of a flush   yes: a session writes rows and moves the ledger
                   job with `parallel_writes`
`Target.connect`   the commands `skip`, `adopt`,           yes: a session reads the ledger; `adopt` and
                   `rewind`, `verify` and `inspect         `rewind` replace its row; `rewind` asks for
                   --ledger`                               `now_us`, `verify` for `written_us`
=================  ======================================  ==================================================

The **ledger** is one row per query that says how far the target is. Epochs are flushed in **windows**, one
window after the other. For each the flusher calls, over one session and from one thread::

    begin(window)                     a conditional update: says what will be written, before the first row
    start(window)                     its rows come now, from the first one on
    write(plan, rows), as often as    each row has a fixed write timestamp; `read_ledger` may be called
      there are slices                in between, to see whether another flusher has finished the window
    drain()                           all rows are acknowledged, or wait for `finish`
    finish(window)                    a conditional update: says that all rows are there; a `StagedSession`
                                      gets the receipts of every `drain` since `start`

`read_ledger` and `now_us` come before `begin`, `read_ledger` again after `finish`, and `create` once in a
query's life. A flusher that takes over a begun window starts at `start`. When a call raises, the flusher asks
`Target.classify` which kind of error to report, and repeats the step, perhaps over another session. A task of
a flush job calls `write` and `drain` alone, over a session of its own, between the flusher's `start` and
`finish`; the next task in its process may use the same session.

`docs/protocol/argument.md` argues why this is exactly-once, if every target keeps the first two guarantees:

1. `read_ledger` is linearizable: it sees every conditional update that was acknowledged before it.
2. `begin` and `finish` take effect at most once, and only from the state that they name. One that answers
   `Outcome.CONFLICT` had no effect and will have none. A client that repeats a request whose answer was lost
   is refused because of its own first one: that is APPLIED, whatever others have changed since. Where the
   target cannot tell, it is UNKNOWN.

For `Delivery.IDEMPOTENT`:

3. `write` is idempotent: the same slice written again, at any later time, changes nothing. Between `write`
   and the return of `drain` readers may or may not see its rows.
4. Of two writes to one cell the one with the higher timestamp stays, in whichever order they arrive.
5. When `drain` returns, the rows of every `write` before it are in the target and survive a crash of its
   processes. When `write` or `drain` has raised, the sink writes all rows since the last `drain` again.
6. With `parallel_writes`, other sessions, in any process, may write rows of the window, and `finish` covers
   them once their `drain` has returned.

For `Delivery.TRANSACTIONAL`, in their place:

7. The rows of every `write` since `start` are in the target, all of them, if and only if `finish` has taken
   effect; until then no reader sees any. `start` forgets what was written before it.
8. `finish` takes effect only together with the rows since the `start` of the same window, in the same
   session. Where the session has lost any of them, or there was no such `start`, it is refused, or raises.

For `Delivery.STAGED`, whose sessions are each a `StagedSession`, in place of 3 to 8:

9. `drain` returns receipts for the rows of every `write` since `start`, or since the last `drain`. These rows
   survive a crash of the target's processes, and no reader sees them. `start` forgets those without one.
10. When `finish` has taken effect, the rows of exactly the receipts that it was given are in the target, each
    once and all at one moment; rows of any other receipt never are. Where rows of a receipt are gone,
    `finish` is refused, or raises.
11. A receipt may come from another session, in any process (`parallel_writes`), and is good for the window
    for which its session wrote, for as long as the flusher that got it lives.

What a session may offer beside `base.Session`: it compares a plan with the table, and writes nothing.

So `wal-sink verify` finds a table that was dropped or altered under epochs that wait, also where no flusher
runs.

What a session may offer beside `base.Session`: it encodes rows while their window is begun (rule 14).

A conditional update takes as long as to encode the rows of a small epoch, and the flusher would only wait.

What a session may offer beside `base.Session`: it goes on behind a row that its server refuses (rule 24).

Only where rows are cells. A transaction in which a row was refused is rolled back with all other rows.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol, Self, runtime_checkable

import pyarrow as pa

from wal_sink.errors import TargetRefused
from wal_sink.model.ledger import LedgerState, Outcome, Owner, Window
from wal_sink.model.plan import Plan
from wal_sink.observer import Observer
from wal_sink.options import Options


class Delivery(enum.Enum):
    """What makes a row of a window count in the target."""

    IDEMPOTENT = "idempotent"
    """That it is written. To write it again changes nothing: each cell keeps the value with the highest write
    timestamp (guarantees 3 to 6). A crash leaves part of a window visible until a flusher has written all."""
    TRANSACTIONAL = "transactional"
    """That `finish` takes effect: rows and ledger row change in one transaction of one session, guarantees 7
    and 8. Readers see whole windows only; the table needs no key, and a row may be added to what is there."""
    STAGED = "staged"
    """That `finish` commits it: rows are written where no reader looks, such as into files that no table
    names, by many tasks at once, and `finish` commits all of them together with the ledger row: guarantees 9
    to 11. Readers see whole windows only, and a row may be added to what is there."""


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


class Session(ABC):
    """A connection that writes rows and moves the ledger of one query; used by one thread at a time."""

    @abstractmethod
    def read_ledger(self) -> LedgerState | None:
        """Return the ledger row (guarantee 1); None when there is none."""

    @abstractmethod
    def create(self, flushed: int) -> None:
        """Create the ledger row at `flushed`, with nothing begun, unless there is a row.

        Returns no outcome: the flusher reads the row afterwards (rule 13).
        """

    @abstractmethod
    def begin(self, window: Window) -> Outcome:
        """Set `begun = window` if `flushed = window.first - 1` and nothing is begun (guarantee 2).

        Durable when it returns, whatever the delivery.
        """

    def start(self, window: Window) -> None:  # noqa: B027 - where rows are cells, nothing is to be forgotten
        """Expect all rows of a begun window, from the first one on; forget those that are not committed.

        Comes after `begin`, and again before each repetition. For `Delivery.TRANSACTIONAL` this opens the
        transaction of rows and `finish`; a session that is closed without `finish` rolls it back.

        :raises Exception: for `Target.classify`, such as that another session holds the window's lock.
        """

    @abstractmethod
    def write(self, plan: Plan, rows: Slice) -> None:
        """Write rows, at once or by the next `drain`; a bounded number of them waits in memory.

        The first call with a plan compares it with the table. A slice without rows announces that other
        sessions write rows by this plan, from `first_us` on, before the `drain` of this session.

        :raises SchemaMismatch, OptionError: the table is not as the plan says, or another: see `elsewhere`.
        :raises Exception: any other, for `Target.classify`; it may be about rows of an earlier call. Some of
            the rows may be written.
        """

    def drain(self) -> tuple[bytes, ...] | None:
        """Return when the rows of every `write` before are acknowledged (guarantee 5).

        For `Delivery.TRANSACTIONAL`: when the server has taken them, if errors of `write` come later than
        `write`.

        :returns: None, or what a `StagedSession` returns.
        :raises Exception: what `write` raises.
        """
        return None

    @abstractmethod
    def finish(self, window: Window) -> Outcome:
        """Set `flushed`, `last_us` and `last` by the window, and nothing begun, if `begun = window`.

        For `Delivery.TRANSACTIONAL` in one transaction with the rows since `start` (guarantees 7 and 8). The
        flusher asks once: to try again it comes back with `start` and all rows.
        """

    @abstractmethod
    def compare_and_set(self, seen: LedgerState | None, new: LedgerState) -> Outcome:
        """Set the ledger row to `new` if it is exactly `seen`, durably; None: if there is no row.

        For operators' commands (rule 22), another attempt (26), and a `begin` from a row not just read (14).
        """

    def written_us(self) -> int | None:
        """Return when the newest part of the ledger row was written, microseconds since 1970.

        None for a target whose writes carry no timestamps. Where they do, one in the future would hide
        every later update (rule 16), and `wal-sink verify` reports it.
        """
        return None

    def now_us(self) -> int | None:
        """Return the time by the target's own clock, microseconds since 1970; None for a target without one.

        The flusher asks before a `begin`, every ten seconds at most, and no further than a minute ahead of
        this time lie the window's write timestamps (rule 14). Where several servers could answer, each call
        should ask another one: if the time is far from the flusher's, that asks again, and takes the answer
        in the middle.
        """
        return None

    def report_to(self, observer: Observer) -> None:  # noqa: B027 - optional
        """Keep `observer.in_flight`, and report each repeated request; called once, after `connect`."""

    @abstractmethod
    def close(self) -> None:
        """Release the connection. Idempotent."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class StagedSession(Session):
    """A session of a target with `Delivery.STAGED`: rows are staged under receipts, and committed by them.

    A receipt has some hundred bytes, such as the name of a file and what is known of it. The flusher keeps
    them in memory only: whatever interrupts a window, it is staged again from `start`.
    """

    @abstractmethod
    def drain(self) -> tuple[bytes, ...]:
        """Return the receipts for the rows of every `write` since the last `drain` (guarantee 9).

        :raises Exception: what `write` raises.
        """

    @abstractmethod
    def finish(self, window: Window, receipts: Sequence[bytes] = ()) -> Outcome:
        """Commit what is staged under the receipts, together with the ledger row (guarantees 2 and 10).

        The flusher asks once: to try again it comes back with `start` and all rows.

        :param receipts: all that `drain` has returned for this window since `start`, in this session or in
            others.
        """

    def discard(self, receipts: Sequence[bytes]) -> None:
        """Delete what is staged under receipts, if that is easy; an error is logged, and changes nothing.

        Comes only for receipts with which no `finish` was asked, or was CONFLICT (guarantee 2): after any
        other answer the rows are in the table, or may still get there.
        """


class Target(ABC):
    """A database, described by options. It pickles, to travel to tasks; its constructor does no I/O."""

    name: str
    """The name under which it is registered; set on the class."""
    options_type: type[Options]
    """The options that it declares, see `wal_sink.options`; set on the class."""
    delivery: Delivery = Delivery.IDEMPOTENT
    """What makes a row count; set on the class."""
    parallel_writes: bool = False
    """Whether other sessions may write rows between `begin` and `finish`, at the same time and in other
    processes (guarantees 6 and 11). Not with `TRANSACTIONAL`: a transaction belongs to one session."""

    @abstractmethod
    def __init__(self, options: Any) -> None:
        """:param options: an instance of `options_type`."""

    @property
    @abstractmethod
    def shape(self) -> Mapping[str, str]:
        """The options that shape statements; a plan is kept for each schema and shape."""

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
        """Do as `plan` does, but create nothing, for `wal-sink check`; needed where `plan` creates."""
        return self.plan(schema, key)

    @abstractmethod
    def check(self, batch: pa.RecordBatch, plan: Plan) -> pa.RecordBatch:
        """Cast `batch` to what `write` takes, without a connection.

        Its texts are UTF-8, at any depth: tasks have refused others (`targets.values.invalid`).

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
        """Open a session for the ledger row of `owner`.

        :raises TargetUnavailable: no connection.
        """

    @abstractmethod
    def classify(self, error: Exception) -> Kind:
        """Return what an exception of a session means; an unknown one is fatal."""


@runtime_checkable
class Compares(Protocol):
    """A session that can compare a plan with the table as `write` does with the first rows."""

    def compare(self, plan: Plan) -> None:
        """Compare a plan with the table as it is now; write nothing. Comes without `begin` and `start`.

        :raises SchemaMismatch: the table is no longer what the plan says.
        :raises OptionError: the plan is for another table than the options.
        :raises Exception: any other, for `Target.classify`.
        """


@runtime_checkable
class TakesOffers(Protocol):
    """A session that can make rows ready while `begin` or `compare_and_set` is on its way."""

    def offer(self, rows: Iterator[tuple[Plan, Slice]]) -> None:
        """Offer the rows of the window that is begun next.

        The session takes as many as it likes, in memory that is bounded, and lets none of them leave: where
        the window is begun, all of them come by `write` after `start`, the same objects again. An offer is
        over when the update has its answer.
        """


OnRefused = Callable[[int, TargetRefused], None]
"""Gets the write timestamp of a row, and why the server refuses it. When it returns, that is durable, and the
session passes over the row; when it raises, that is the error of `write` or `drain`."""


@runtime_checkable
class PassesOver(Protocol):
    """A session that can take a refused row out of a request, and send the others."""

    def pass_over(self, refused: OnRefused | None) -> None:
        """Tell `refused` of each row that the server refuses, from now on; None: raise `TargetRefused`."""


def without(rows: Slice, passed: Collection[int]) -> Iterator[Slice]:
    """Yield a slice without the rows of some write timestamps; each part keeps its own timestamps."""
    begin = 0
    for us in sorted(passed):
        row = us - rows.first_us
        if not 0 <= row < rows.batch.num_rows:
            continue
        if row > begin:
            yield _part(rows, begin, row)
        begin = row + 1
    if begin == 0:
        yield rows
    elif begin < rows.batch.num_rows:
        yield _part(rows, begin, rows.batch.num_rows)


def _part(rows: Slice, begin: int, end: int) -> Slice:
    return rows._replace(batch=rows.batch.slice(begin, end - begin), first_us=rows.first_us + begin)

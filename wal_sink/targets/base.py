"""What a database has to offer to be a target: the reusable half of the sink.

A target is asked three things, in three places:

========  ====================================  ==============================================
method    where                                 may connect
========  ====================================  ==============================================
plan      planner worker, first start only      yes: compares the DataFrame with the table
check     every task, before publishing         no: works from the plan alone
connect   the flusher                           yes: rows and the ledger
========  ====================================  ==============================================

The **ledger** is one row per query that says how far the target is. The flusher moves it by two
conditional updates per window, `begin` and `finish`; in between it writes rows and drains. What makes
that exactly-once is argued in `wal_sink.protocol.next_step`; what a target owes for it is stated here, and is
what `wal_sink.testing.contracts.target` checks:

1. `read_ledger()` is linearizable: it sees every conditional update that was acknowledged before.
2. `begin` and `finish` take effect at most once, and only from the state that they name.
3. `write` is idempotent: the same slice written again, at any later time, changes nothing.
   Its rows may be on their way when it returns, and be seen or not until `drain` returns.
4. Of two writes to one cell the one with the higher timestamp stays, in whichever order they arrive.
5. When `drain` returns, the rows of every `write` before it are in the target and survive the crash of
   its processes. When `write` or `drain` has raised, rows of any `write` since the last `drain` may be
   missing: all of them are written again.
6. With `parallel_writes`, rows that other sessions write count, in whichever process they are: `finish`
   covers them once their `drain` has returned.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self

import pyarrow as pa

from wal_sink.model.ledger import Mark, Outcome, Owner, Window
from wal_sink.model.plan import Plan
from wal_sink.observer import Observer
from wal_sink.options import Options


class Slice(NamedTuple):
    """Consecutive rows of one epoch."""

    epoch: int
    batch: pa.RecordBatch
    """Columns as `check` returned them."""
    first_us: int
    """Write timestamp of row 0 of the batch; row i has `first_us + i`."""


Kind = Literal["retry", "throttle", "fatal"]


class Session(ABC):
    """A connection that flushes for one query. Used by one thread at a time."""

    @abstractmethod
    def read_ledger(self) -> Mark | None:
        """Read the ledger row, linearizably; None when there is none."""

    @abstractmethod
    def create(self, flushed: int) -> None:
        """Create the ledger row at `flushed`, with nothing begun, unless there is a row already.

        The outcome is not reported: whoever needs it reads (rule 9).
        """

    @abstractmethod
    def begin(self, window: Window) -> Outcome:
        """Set `begun = window` if `flushed = window.first - 1` and nothing is begun."""

    @abstractmethod
    def write(self, plan: Plan, rows: Slice) -> None:
        """Write rows, if not now then by `drain`; memory holds a bounded number of them meanwhile.

        The first time it sees a plan it compares it with the live table: also for a slice without rows,
        which says that other sessions write some, from `first_us` on, before the `drain` of this one.

        :raises SchemaMismatch: the table is no longer what the plan says.
        :raises Exception: anything else, for `Target.classify`, be it about rows of an earlier call.
            Some of the rows may be written.
        """

    def drain(self) -> None:  # noqa: B027 - nothing to wait for where `write` waits
        """Return when all rows of every `write` before are acknowledged; comes before `finish`.

        :raises Exception: what `write` raises.
        """

    @abstractmethod
    def finish(self, window: Window) -> Outcome:
        """Set `flushed`, `last_us`, `last = window`, nothing begun, if `begun = window` exactly."""

    @abstractmethod
    def replace_row(self, seen: Mark | None, new: Mark) -> Outcome:
        """Make the ledger row `new` if it is exactly `seen`; None: if there is no row.

        Only operators' commands do this (rule 22); flushers move the row by `begin` and `finish`.
        """

    def written_us(self) -> int | None:
        """Return when the newest part of the ledger row was written, as far as the target says so.

        Microseconds since 1970. Not None where writes carry timestamps: one of the future would hide
        every later update (rule 16).
        """
        return None

    def report_to(self, observer: Observer) -> None:  # noqa: B027 - only for those who watch
        """Keep `observer.in_flight`, and report each request that is sent again; called once, at first."""

    @abstractmethod
    def close(self) -> None:
        """Release the connection. Idempotent."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class Target(ABC):
    """A database, described by options. Pickles; constructing it does no I/O."""

    name: str
    """Under which it is registered; set on the class."""
    options_type: type[Options]
    """The options that this target declares, see `wal_sink.options`."""
    parallel_writes: bool = False
    """Guarantee 6: whether between `begin` and `finish` rows may also be written by other sessions, at the
    same time and in other processes. False where `begin` opens a transaction of its session."""

    @abstractmethod
    def __init__(self, options: Any) -> None:
        """:param options: an instance of `options_type`."""

    @property
    @abstractmethod
    def shape(self) -> Mapping[str, str]:
        """The options that shape statements: together with the schema they make the plan's key."""

    @property
    def writes_to(self) -> str:
        """Where the rows go, for people; empty where there is no word for it."""
        return ""

    @property
    def description(self) -> Mapping[str, str]:
        """What a query's start says of the target: lines by their headings, `target` first; no secrets."""
        return {"target": self.name, **self.shape}

    @abstractmethod
    def plan(self, schema: pa.Schema, key: str) -> Plan:
        """Connect, compare `schema` with the table, see that the ledger can be kept.

        :raises SchemaMismatch: the DataFrame does not fit, or the table cannot be written exactly once.
        :raises TargetUnavailable: no connection.
        :raises OptionError: the options do not fit the target.
        """

    @abstractmethod
    def check(self, batch: pa.RecordBatch, plan: Plan) -> pa.RecordBatch:
        """Cast `batch` to what `write` takes; never connects.

        :raises InvalidRow: a row that the target would refuse, naming column and remedy.
        """

    def load(self) -> None:  # noqa: B027 - a target without a slow import needs none
        """Import what `connect` needs, on the driver, before the first flush."""

    def for_tasks(self) -> Target:
        """Return the target as tasks in other processes are to have it, when they are about to start.

        Where secrets come from this process's environment, they have to go along.
        """
        return self

    @abstractmethod
    def connect(self, owner: Owner) -> Session:
        """Connect for flushing.

        :raises TargetUnavailable: no connection.
        """

    @abstractmethod
    def classify(self, error: Exception) -> Kind:
        """Say whether to try again at once, to slow down first, or to stop the line."""

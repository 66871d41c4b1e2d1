"""The interface of a target: what a database has to offer to be written to exactly once.

An author derives a `Target`, and one of three sessions by what makes a row count in the database:

- `IdempotentSession`: a row counts as soon as it is written. Each cell keeps the value with the highest write
  timestamp, so writing a row again has no effect. After a crash readers see part of a window until a flusher
  has written all of it.
- `TransactionalSession`: rows and ledger row change in one transaction of one session. Readers see whole
  windows, and the table needs no key.
- `StagedSession`: rows are written where no reader looks, such as into files that no table names, by many
  tasks at once. `finish` adds all of them together with the ledger row. Readers see whole windows.

The **ledger** is one row for each query and target, a `LedgerRow`. It says up to which epoch the target has
the query's rows. Epochs are flushed in **windows**: contiguous epochs with one ledger update. A flusher uses
a session from one thread. `docs/targets.md` says which calls come when, and in which process.

After an exception from any method the flusher closes the session, asks `Target.classify` what the
error means, and starts the window again over a new session. A task of a flush job calls `write` and
`drain` over a session of its own; its receipts reach the flusher's `finish`.

`docs/protocol/README.md` argues why this is exactly-once if every target keeps the first two
guarantees, and rule `repeatable` by the others:

1. `read` is linearizable: it returns the effect of every `finish` that was acknowledged before.
2. `finish` takes effect at most once, and only if the ledger row is exactly `expected`. After
   `Outcome.APPLIED` it is durable. `Outcome.CONFLICT` promises that this call had, and will have,
   no effect. Anything else is `Outcome.UNKNOWN`, such as an answer that was lost.

For an `IdempotentSession`:

3. To write the same slice again, at any later time, changes nothing. Readers may see rows before `finish`.
4. Of two writes to one cell the one with the higher timestamp stays, in whichever order they arrive.
5. `finish` moves the ledger row after the rows of every earlier `write` are durable in the target; the same
   holds when `drain` returns.
6. With `parallel_writes`, sessions in other processes may write rows of the window. The flusher
   calls `finish` after their `drain` has returned.

For a `TransactionalSession`, in place of 3 to 6:

7. The rows of every `write` since the last `finish` are in the target, all of them, if and only if `finish`
   has taken effect. No reader sees them earlier. If the session has lost any of them, such as by a
   reconnect, `finish` is CONFLICT, or raises.

For a `StagedSession`, in place of 3 to 7:

8. `drain` returns receipts for the rows of every `write` since the last `drain`. These rows survive
   a crash of the target's processes, and no reader sees them.
9. When `finish` has taken effect, the rows of its own `write` calls and of exactly the receipts that it was
   given are in the target, each once and all at one moment. If rows of a receipt are gone, `finish` is
   CONFLICT, or raises.
10. A receipt may come from another session, in any process (`parallel_writes`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, Self

import pyarrow as pa

from wal_sink.errors import TargetRefused
from wal_sink.flush_metrics import FlushMetrics
from wal_sink.model.ledger import LedgerRow, Outcome
from wal_sink.model.plan import Plan
from wal_sink.options import Options, shape

INTERFACE = 2
"""The version of this interface. A target that needs a higher one is refused."""


class RowSlice(NamedTuple):
    """Consecutive rows of one epoch."""

    epoch: int
    batch: pa.RecordBatch
    """Columns as `check` returned them."""
    first_us: int
    """Write timestamp of row 0 of the batch, microseconds since 1970; row i has `first_us + i`."""


Slice = RowSlice
"""The short name, under which targets may import it."""

ErrorClass = Literal["retry", "throttle", "fatal"]
"""The meaning of an exception. "fatal": the target would refuse again. "retry", "throttle": it may pass
by itself. The flusher tries all of them again after a pause; a session may use the difference."""


class RefusedRow(NamedTuple):
    """A row that the server refuses."""

    us: int
    """Its write timestamp, which names the row: no two rows of a log have the same one."""
    error: TargetRefused


class RowsRefused(Exception):
    """Raised by `write`, `drain` or `finish`: the server refuses these rows.

    The flusher keeps them in the log, closes the session, and writes the window again without them.
    So a session need not find all of them at once.

    :param rows: at least one.
    """

    def __init__(self, rows: Sequence[RefusedRow]) -> None:
        super().__init__(rows)
        self.rows = tuple(rows)


class Session(ABC):
    """A connection that writes rows and moves one ledger row; used by one thread at a time.

    An author derives `IdempotentSession`, `TransactionalSession` or `StagedSession`.
    """

    @abstractmethod
    def read(self) -> LedgerRow | None:
        """Return the ledger row; None if there is none (guarantee 1)."""

    @abstractmethod
    def write(self, plan: Plan, rows: RowSlice) -> None:
        """Write rows. A bounded number of them may stay in memory until `finish` or `drain`.

        The first call with a plan compares the plan with the table. A slice without rows announces that tasks
        write rows by this plan before `finish`.

        :raises SchemaMismatch, OptionError: the table is not as the plan says, or another one; see
            `registry.published_elsewhere`.
        :raises RowsRefused: the server refuses rows, perhaps of an earlier call.
        :raises Exception: any other error, for `Target.classify`. Some of the rows may be written.
        """

    @abstractmethod
    def close(self) -> None:
        """Release the connection. Rows that were not finished never count. Idempotent."""

    def compare(self, plan: Plan) -> None:  # noqa: B027 - optional
        """Compare a plan with the table as it is now, as `write` does; write nothing.

        :raises SchemaMismatch: the table is no longer what the plan says.
        :raises OptionError: the plan is for another table than the options.
        :raises Exception: any other error, for `Target.classify`.
        """

    def report_to(self, metrics: FlushMetrics) -> None:  # noqa: B027 - optional
        """Keep `metrics.in_flight` and count repeated requests; called once, after `connect`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class IdempotentSession(Session):
    """A session in which a row counts as soon as it is written (guarantees 3 to 6)."""

    @abstractmethod
    def drain(self) -> None:
        """Return when the rows of every `write` before are durable in the target (guarantee 5).

        :raises Exception: what `write` raises.
        """

    @abstractmethod
    def finish(self, expected: LedgerRow | None, new: LedgerRow) -> Outcome:
        """Drain, then set the ledger row to `new` if it is exactly `expected`.

        :param expected: None: if there is no row.
        :raises Exception: what `write` raises; or for `Target.classify`.
        """


class TransactionalSession(Session):
    """A session with one transaction for each window; the first `write` opens it (guarantee 7)."""

    @abstractmethod
    def finish(self, expected: LedgerRow | None, new: LedgerRow) -> Outcome:
        """Set the ledger row to `new` if it is exactly `expected`, and commit it with the rows (guarantee 7).

        :param expected: None: if there is no row.
        :raises Exception: what `write` raises; or for `Target.classify`.
        """


class StagedSession(Session):
    """A session that stages rows under receipts (guarantees 8 to 10).

    A receipt has some hundred bytes, such as the name of a file and what is known of it. The flusher keeps
    receipts in memory only: an interrupted window is staged again.
    """

    @abstractmethod
    def drain(self) -> tuple[bytes, ...]:
        """Return the receipts for the rows of every `write` since the last `drain` (guarantee 8).

        :raises Exception: what `write` raises.
        """

    @abstractmethod
    def finish(
        self, expected: LedgerRow | None, new: LedgerRow, receipts: Sequence[bytes] = ()
    ) -> Outcome:
        """Set the ledger row to `new` if it is exactly `expected`, and add what is staged, in one step.

        :param expected: None: if there is no row.
        :param receipts: what `drain` of other sessions has returned for this window.
        :raises Exception: what `write` raises; or for `Target.classify`.
        """

    def discard(self, receipts: Sequence[bytes]) -> None:
        """Delete what is staged under receipts, if that is easy. An error is logged, and changes nothing.

        Called only for receipts that were given to no `finish`, or to one that was CONFLICT (guarantee 2).
        """


class Target(ABC):
    """A database, described by options. It pickles, to travel to tasks; its constructor does no I/O."""

    interface: ClassVar[int] = 1
    """The version of this interface that the class is written for; set it to 2 on the class."""
    name: str
    """The name under which it is registered; set on the class."""
    options_type: type[Options]
    """The options that it declares, see `wal_sink.options`; set on the class."""
    parallel_writes: bool = False
    """True if other sessions may write rows of a window, at the same time and in other processes
    (guarantees 6 and 10). Not with transactions: a transaction belongs to one session."""
    restores_together: bool = True
    """True if a restored backup, or a replica that is promoted, has rows and ledger row of one
    moment. Then the flush brings the later epochs again by itself; else it stops."""
    transient: tuple[type[Exception], ...] = ()
    """The driver's errors that may pass by themselves, such as that it cannot connect; set on the class.
    Override `classify` if the driver's classes do not tell them."""

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
        """The table that rows go to, as reports and metrics name it; empty if it has no name."""
        return ""

    @property
    def description(self) -> Mapping[str, str]:
        """The texts that are logged when a query starts, by heading, `target` first; no secrets."""
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
        """Do as `plan` does, but create nothing: for later starts and checks; needed if `plan` creates."""
        return self.plan(schema, key)

    @abstractmethod
    def check(self, batch: pa.RecordBatch, plan: Plan) -> pa.RecordBatch:
        """Cast `batch` to what `write` takes, without a connection.

        Its texts are UTF-8, at any depth: tasks have refused others (`targets.value_checks`).

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
    def connect(self, query_id: str) -> Session:
        """Open a session for a ledger row: an `IdempotentSession`, `TransactionalSession` or `StagedSession`.

        :param query_id: the key of the row, see `LedgerRow.query_id`.
        :raises TargetUnavailable: no connection.
        """

    def classify(self, error: Exception) -> ErrorClass:
        """Return what an exception of a session means; an unknown one is fatal."""
        return "retry" if isinstance(error, self.transient) else "fatal"


def without(rows: RowSlice, skipped: Collection[int]) -> Iterator[RowSlice]:
    """Yield a slice without the rows of some write timestamps; each part keeps its own timestamps."""
    begin = 0
    for us in sorted(skipped):
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


def part_of(rows: RowSlice, begin: int, end: int) -> RowSlice:
    """Return the rows from `begin` up to `end`, counted in the slice, with their timestamps."""
    return rows._replace(batch=rows.batch.slice(begin, end - begin), first_us=rows.first_us + begin)

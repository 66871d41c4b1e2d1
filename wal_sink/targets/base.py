"""The interface of a target: what a database must offer so that each row is written exactly once.

An author derives `Target`, and one of three sessions. The sessions differ in when a row counts:

- `IdempotentSession`: a row counts as soon as it is written. Each cell keeps the value with the highest write
  timestamp, so writing a row again has no effect. After a crash readers see part of a window until a flusher
  has written all of it.
- `TransactionalSession`: rows and ledger row change in one transaction of one session. Readers see whole
  windows, and the table needs no key.
- `StagedSession`: many tasks write rows to a place that no reader reads, such as files that no table names.
  `finish` adds all rows together with the ledger row. Readers see whole windows.

The **ledger** has one row for each query and target, a `LedgerRow`: the last epoch whose rows the target has.
Epochs are flushed in **windows**: contiguous epochs with one ledger update. A flusher uses a session from one
thread. `docs/targets.md` lists the calls, their order and their processes.

After an exception from any method the flusher closes the session and asks `Target.classify` for the error's
class. Then the flusher writes the window again from its start, over a new session. A task of a flush job
calls `write` and `drain` over a session of its own. The flusher passes the task's receipts to `finish`.

Every target owes the first two guarantees, and the guarantees of its session. `docs/protocol/README.md`
derives exactly-once from these guarantees (rule `repeatable`).

1. `read` is linearizable: it returns the effect of every `finish` that was acknowledged before.
2. `finish` takes effect at most once, and only if the ledger row is exactly `expected`. After
   `Outcome.APPLIED` the effect is durable. `Outcome.CONFLICT` promises that this call had, and will have, no
   effect. In every other case, such as a lost answer, `finish` returns `Outcome.UNKNOWN`.

For an `IdempotentSession`:

3. Writing the same slice again, at any later time, changes nothing. Readers may see rows before `finish`.
4. Of two writes to one cell the write with the higher timestamp wins, whichever arrives first.
5. `finish` moves the ledger row after the rows of every earlier `write` are durable in the target. `drain`
   returns after these rows are durable.
6. With `parallel_writes`, sessions in other processes may write rows of the window. The flusher calls
   `finish` after `drain` of these sessions has returned.

For a `TransactionalSession`, in place of 3 to 6:

7. The rows of every `write` since the last `finish` are in the target if and only if `finish` has taken
   effect. No reader sees these rows earlier. If the session has lost one of these rows, such as by a
   reconnect, `finish` returns CONFLICT or raises.

For a `StagedSession`, in place of 3 to 7:

8. `drain` returns receipts for the rows of every `write` since the last `drain`. These rows survive a crash
   of the target's processes, and no reader sees them.
9. `finish` adds the rows of its session's `write` calls and of the receipts that it gets. It adds each row
   once, and all rows at one moment. If rows of a receipt are gone, `finish` returns CONFLICT or raises.
10. A receipt may come from another session, in any process (`parallel_writes`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, Self

import pyarrow as pa

from wal_sink.errors import TargetRefused
from wal_sink.model.ledger import LedgerRow, Outcome
from wal_sink.model.plan import Plan
from wal_sink.options import Options, shape

INTERFACE = 2
"""The version of this interface. A target that needs a higher version is refused."""


class RowSlice(NamedTuple):
    """Consecutive rows of one epoch."""

    epoch: int
    batch: pa.RecordBatch
    """The columns that `check` returned."""
    first_us: int
    """The write timestamp of row 0, in microseconds since 1970. Row i has `first_us + i`."""


Slice = RowSlice
"""The short name that authors of targets may import."""

ErrorClass = Literal["retry", "throttle", "fatal"]
"""The class of an exception. "fatal": the target would refuse the same request again. "retry" and "throttle":
the error may pass by itself. After a pause the flusher tries again, whatever the class. A session may treat
the classes differently."""


class RefusedRow(NamedTuple):
    """A row that the server refuses to write."""

    us: int
    """The write timestamp of the row. No two rows of a log have the same timestamp."""
    error: TargetRefused


class RowsRefused(Exception):
    """Raised by `write`, `drain` or `finish` if the server refuses rows.

    The flusher keeps these rows in the log, closes the session, and writes the window again without them. So
    one call need not find all rows that the server refuses.

    :param rows: the refused rows, at least one row.
    """

    def __init__(self, rows: Sequence[RefusedRow]) -> None:
        super().__init__(rows)
        self.rows = tuple(rows)


class Session(ABC):
    """A connection that writes rows and moves one ledger row. Only one thread at a time uses a session.

    An author derives `IdempotentSession`, `TransactionalSession` or `StagedSession`.
    """

    @abstractmethod
    def read(self) -> LedgerRow | None:
        """Return the ledger row. None if the target has no such row (guarantee 1)."""

    @abstractmethod
    def write(self, plan: Plan, rows: RowSlice) -> None:
        """Write rows. A bounded number of rows may stay in memory until `finish` or `drain`.

        The first call with a plan compares the plan with the table. The flusher passes a slice without rows
        if tasks write the rows of the plan.

        :raises SchemaMismatch: the table no longer fits the plan.
        :raises OptionError: the plan is for another table than the options, see
            `columns.published_elsewhere`.
        :raises RowsRefused: the server refuses rows, perhaps rows of an earlier call.
        :raises Exception: any other error, for `Target.classify`. Some of the rows may be written.
        """

    @abstractmethod
    def close(self) -> None:
        """Release the connection, and discard what is not committed. A second call has no effect."""

    def compare(self, plan: Plan) -> None:  # noqa: B027 - optional
        """Compare a plan with the present table, as `write` does, and write nothing.

        :raises SchemaMismatch: the table no longer fits the plan.
        :raises OptionError: the plan is for another table than the options.
        :raises Exception: any other error, for `Target.classify`.
        """

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class IdempotentSession(Session):
    """A session whose rows count as soon as they are written (guarantees 3 to 6)."""

    @abstractmethod
    def drain(self) -> None:
        """Return when the rows of every earlier `write` are durable in the target (guarantee 5).

        :raises Exception: the same errors as `write`.
        """

    @abstractmethod
    def finish(self, expected: LedgerRow | None, new: LedgerRow) -> Outcome:
        """Drain. Then, if the ledger row is exactly `expected`, replace it by `new`.

        :param expected: the row to replace. None if the target has no row.
        :raises Exception: the same errors as `write`.
        """


class TransactionalSession(Session):
    """A session with one transaction for each window, which the first `write` opens (guarantee 7)."""

    @abstractmethod
    def finish(self, expected: LedgerRow | None, new: LedgerRow) -> Outcome:
        """If the ledger row is exactly `expected`, replace it by `new`, and commit all rows (guarantee 7).

        :param expected: the row to replace. None if the target has no row.
        :raises Exception: the same errors as `write`.
        """


class StagedSession(Session):
    """A session that stages rows and returns receipts for them (guarantees 8 to 10).

    A receipt has some hundred bytes, such as the name and the size of a file. The flusher keeps receipts in
    memory only, so an interrupted window is staged again.
    """

    @abstractmethod
    def drain(self) -> tuple[bytes, ...]:
        """Return the receipts for the rows of every `write` since the last `drain` (guarantee 8).

        :raises Exception: the same errors as `write`.
        """

    @abstractmethod
    def finish(
        self, expected: LedgerRow | None, new: LedgerRow, receipts: Sequence[bytes] = ()
    ) -> Outcome:
        """If the ledger row is exactly `expected`, replace it by `new` and add the staged rows, in one step.

        :param expected: the row to replace. None if the target has no row.
        :param receipts: the receipts that `drain` of other sessions has returned for this window.
        :raises Exception: the same errors as `write`.
        """

    def discard(self, receipts: Sequence[bytes]) -> None:
        """Delete the rows of receipts that no commit will add.

        An override is optional, since such rows only take space.

        The flusher logs an error of this method, and continues.

        :param receipts: receipts that were never passed to `finish`, or for which `finish` returned CONFLICT.
        """


class Target(ABC):
    """A database that options describe. A target is pickled for tasks. Its constructor does no I/O."""

    interface: ClassVar[int] = 1
    """The version of this interface that the class is written for. Set it to 2 on the class."""
    name: str
    """The registered name. Set it on the class."""
    options_type: type[Options]
    """The type of the options, see `wal_sink.options`. Set it on the class."""
    parallel_writes: bool = False
    """True if sessions in other processes may write rows of a window at the same time (guarantees 6 and 10).
    It is False with transactions, since a transaction belongs to one session."""
    restores_together: bool = True
    """True if a restored backup, or a promoted replica, has rows and ledger row of the same moment. Then the
    flush after a restore writes the later epochs again. If False, that flush stops."""
    transient: tuple[type[Exception], ...] = ()
    """The driver's errors that may pass by themselves, such as a refused connection. Set it on the class.
    Override `classify` if the driver has no such classes."""

    def __init__(self, options: Any) -> None:
        """Keep the options.

        :param options: an instance of `options_type`.
        """
        self.options = options

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.options})"

    @property
    def shape(self) -> Mapping[str, str]:
        """The options on which a plan depends (`SHAPES`). The log keeps a plan for each schema and shape."""
        return shape(self.options)

    @property
    def writes_to(self) -> str:
        """The table of the rows, as reports and metrics name it. Empty if the table has no name."""
        return ""

    @property
    def description(self) -> Mapping[str, str]:
        """The lines that a start logs, by heading, without secrets. The first heading is `target`."""
        return {"target": self.name, **self.shape}

    @abstractmethod
    def plan(self, schema: pa.Schema, key: str) -> Plan:
        """Connect, compare `schema` with the table, and check that the target can keep the ledger.

        The log stores the plan. With a plan a query starts and runs without a connection.

        :raises SchemaMismatch: the DataFrame does not fit, or the table cannot be written exactly once.
        :raises TargetUnavailable: the target does not answer.
        :raises OptionError: the options do not fit the target.
        """

    def dry_plan(self, schema: pa.Schema, key: str) -> Plan:
        """Return the plan without creating anything.

        Later starts and `wal_sink.check` call this method. Override it if `plan` creates something.
        """
        return self.plan(schema, key)

    @abstractmethod
    def check(self, batch: pa.RecordBatch, plan: Plan) -> pa.RecordBatch:
        """Cast `batch` to the columns that `write` takes, without a connection.

        All texts of `batch` are valid UTF-8, since `refuse_invalid_utf8` has checked them.

        :raises InvalidRow: the target would refuse a row. The error names the column and a remedy.
        """

    def load(self) -> None:  # noqa: B027 - optional
        """Import the modules that `connect` needs, on the driver, before the first flush."""

    def for_tasks(self) -> Target:
        """Return the target that the tasks of a flush job use in other processes.

        Override it to copy secrets from this process's environment into the options.
        """
        return self

    @abstractmethod
    def connect(self, query_id: str) -> Session:
        """Open a session for a ledger row.

        :param query_id: the key of the row, see `LedgerRow.query_id`.
        :raises TargetUnavailable: the target does not answer.
        """

    def classify(self, error: Exception) -> ErrorClass:
        """Return the class of an exception of a session. An unknown exception is fatal."""
        return "retry" if isinstance(error, self.transient) else "fatal"


def without(rows: RowSlice, skipped: Collection[int]) -> Iterator[RowSlice]:
    """Yield the parts of a slice between the skipped rows. Each row keeps its write timestamp.

    :param skipped: the write timestamps of the rows to leave out.
    """
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
    """Return the rows from position `begin` to before position `end`, with their write timestamps."""
    return rows._replace(batch=rows.batch.slice(begin, end - begin), first_us=rows.first_us + begin)

"""A simulated database with rows and ledger, and a target with each of the three sessions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from tests.simulator.checker import Checker
from tests.simulator.machine import MACHINE
from tests.simulator.process import Lost, Process
from wal_sink.errors import InvalidRow, TargetRefused
from wal_sink.model.ledger import LedgerRow, Outcome
from wal_sink.model.plan import Plan
from wal_sink.targets.base import (
    ErrorClass,
    IdempotentSession,
    RefusedRow,
    RowSlice,
    RowsRefused,
    Session,
    StagedSession,
    Target,
    TransactionalSession,
)
from wal_sink.testing.memory_target import MemoryOptions, MemoryTarget

SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64())])

INVALID, REFUSED = "r", "x"
"""The first letters of keys that tasks refuse, and of keys that the server refuses."""

Kind = Literal["idempotent", "transactional", "staged"]
KINDS: tuple[Kind, ...] = ("idempotent", "transactional", "staged")

_BACKUPS = 12


class Row(NamedTuple):
    """A row to be written; its value identifies the attempt."""

    key: str
    value: int
    us: int
    epoch: int


class Backup(NamedTuple):
    """A copy of rows and ledger."""

    rows: dict[tuple[int, str], tuple[int, ...]]
    ledger: dict[str, LedgerRow]
    made_us: int


class Database:
    """The rows and the ledger of one target.

    :param lists: True if a row that is sent twice with one timestamp is doubled, as an element of a list is.
    """

    def __init__(self, name: str, kind: Kind, checker: Checker, *, lists: bool) -> None:
        self.name = name
        self.kind = kind
        self.lists = lists
        self.checker = checker
        self.rows: dict[tuple[int, str], tuple[int, ...]] = {}
        """The write timestamps of each row, by value and key."""
        self.ledger: dict[str, LedgerRow] = {}
        self.backups: list[Backup] = []
        """Backups, one for each move of the ledger, the newest last."""
        self.away = False
        self.generation = 0
        """The number of restores; a session of an older generation is broken."""

    def backup(self) -> Backup:
        return Backup(dict(self.rows), dict(self.ledger), MACHINE.true_us)

    def restore(self, backup: Backup) -> None:
        """Replace rows and ledger by a backup; all sessions end."""
        self.rows, self.ledger = dict(backup.rows), dict(backup.ledger)
        self.generation += 1

    def put(self, row: Row) -> None:
        self.checker.row_written(self, row.key, row.value, row.us)
        versions = self.rows.get((row.value, row.key), ())
        if row.us not in versions or self.lists or self.kind != "idempotent":
            self.rows[row.value, row.key] = (*versions, row.us)

    def finish(
        self, key: str, rows: Sequence[Row], current: LedgerRow | None, new: LedgerRow
    ) -> Outcome:
        """Write rows and replace the ledger row, in one step, if the ledger row is `current`."""
        if self.ledger.get(key) != current:
            return Outcome.CONFLICT
        for row in rows:
            self.put(row)
        self.ledger[key] = new
        self.checker.ledger_moved(self, current, new)
        self.backups = [*self.backups[1 - _BACKUPS :], self.backup()]
        return Outcome.APPLIED


class SimulatedTarget(Target):
    """The target in one process."""

    interface = 2
    name = "memory"
    options_type = MemoryOptions

    def __init__(self, database: Database, process: Process) -> None:
        self._database = database
        self._process = process
        self._plans = MemoryTarget(MemoryOptions(keys="k", lists="v" if database.lists else ""))

    @property
    def shape(self) -> Mapping[str, str]:
        return self._plans.shape

    def plan(self, schema: pa.Schema, key: str) -> Plan:
        self.refuse_away()
        return self._process.io("plan", key[:8], lambda: self._plans.plan(schema, key))

    def check(self, batch: pa.RecordBatch, plan: Plan) -> pa.RecordBatch:
        """Refuse the keys that tasks refuse."""
        bad = pc.starts_with(batch.column("k"), INVALID)
        if pc.any(bad).as_py():
            raise InvalidRow(
                "a row that the target would refuse", "Filter such rows out.", rows=bad
            )
        return batch

    def connect(self, query_id: str) -> Session:
        self.refuse_away()
        self._process.io("connect", self._database.name, lambda: None)
        connection = Connection(self._database, self._process, query_id)
        kinds: dict[Kind, Callable[[Connection], Session]] = {
            "idempotent": Idempotent,
            "transactional": Transactional,
            "staged": Staged,
        }
        return kinds[self._database.kind](connection)

    def classify(self, error: Exception) -> ErrorClass:
        """Retry the errors of the simulator."""
        return "retry" if isinstance(error, ConnectionError) else "fatal"

    def refuse_away(self) -> None:
        if self._database.away:
            raise ConnectionError("the target is away")


class Connection:
    """A connection to the database."""

    def __init__(self, database: Database, process: Process, key: str) -> None:
        self.database = database
        self.key = key
        self._process = process
        self._generation = database.generation

    def io(self, verb: str, what: str, effect: Callable[[], object]) -> object:
        """Perform a call, unless there is an outage or the database was restored."""
        if self.database.away or self.database.generation != self._generation:
            raise ConnectionError("the connection is lost")

        def unless_lost() -> object:
            if self.database.generation != self._generation:
                raise ConnectionError("the connection is lost")
            return effect()

        return self._process.io(verb, what, unless_lost)

    def read(self) -> LedgerRow | None:
        name = self.database.name
        row = self.io("read ledger", name, lambda: self.database.ledger.get(self.key))
        assert row is None or isinstance(row, LedgerRow)
        return row

    def finish(self, rows: Sequence[Row], current: LedgerRow | None, new: LedgerRow) -> Outcome:
        """Replace the ledger row; return UNKNOWN if the answer is lost."""

        def effect() -> Outcome:
            return self.database.finish(self.key, rows, current, new)

        try:
            outcome = self.io("finish", f"{self.database.name} {new.epoch}", effect)
        except Lost:
            return Outcome.UNKNOWN
        assert isinstance(outcome, Outcome)
        return outcome


def accepted(rows: RowSlice) -> tuple[list[Row], list[RefusedRow]]:
    """Return the rows that the server accepts, and those that it refuses."""
    taken, refused = [], []
    for us, row in enumerate(rows.batch.to_pylist(), rows.first_us):
        if row["k"].startswith(REFUSED):
            error = TargetRefused("a rule of the table refuses the row", "Change the table.")
            refused.append(RefusedRow(us, error))
        else:
            taken.append(Row(row["k"], row["v"], us, rows.epoch))
    return taken, refused


class Idempotent(IdempotentSession):
    """A session that writes rows one by one; it writes the rows of a call at the next call."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._in_flight: list[Row] = []
        self._refused: list[RefusedRow] = []

    def read(self) -> LedgerRow | None:
        return self._connection.read()

    def write(self, plan: Plan, rows: RowSlice) -> None:
        """Write the rows of the previous call, and keep those of this call."""
        self._send()
        self._in_flight, refused = accepted(rows)
        self._refused += refused

    def drain(self) -> None:
        self._send()
        refused, self._refused = self._refused, []
        if refused:
            raise RowsRefused(refused)

    def finish(self, current: LedgerRow | None, new: LedgerRow) -> Outcome:
        """Write all rows, then replace the ledger row."""
        self.drain()
        return self._connection.finish((), current, new)

    def close(self) -> None:
        self._in_flight, self._refused = [], []

    def _send(self) -> None:
        while self._in_flight:
            row = self._in_flight[0]
            what = f"{self._connection.database.name} {row.key}={row.value}"
            self._connection.io("write", what, lambda: self._connection.database.put(row))  # noqa: B023
            self._in_flight.pop(0)


class _Gathered:
    """A session whose `finish` writes all rows; after a lost answer the rows are discarded."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._rows: list[Row] = []

    def read(self) -> LedgerRow | None:
        return self._connection.read()

    def write(self, plan: Plan, rows: RowSlice) -> None:
        taken, refused = accepted(rows)
        self._connection.io("gather", self._connection.database.name, lambda: None)
        if refused:
            raise RowsRefused(refused)
        self._rows += taken

    def finish(
        self, current: LedgerRow | None, new: LedgerRow, _receipts: Sequence[bytes] = ()
    ) -> Outcome:
        """Write the rows, and replace the ledger row."""
        rows, self._rows = self._rows, []
        return self._connection.finish(rows, current, new)

    def close(self) -> None:
        self._rows = []


class Transactional(_Gathered, TransactionalSession):
    """A session with a transaction for each window."""


class Staged(_Gathered, StagedSession):
    """A session that stages rows."""

    def drain(self) -> tuple[bytes, ...]:
        raise AssertionError

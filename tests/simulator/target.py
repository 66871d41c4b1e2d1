"""A target in memory: rows and ledger of a database, with the three kinds of sessions, each call checked."""

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
"""How the keys begin of rows that tasks refuse, and of those that the server refuses."""

Kind = Literal["idempotent", "transactional", "staged"]
KINDS: tuple[Kind, ...] = ("idempotent", "transactional", "staged")

_BACKUPS = 12


class Row(NamedTuple):
    """A row on its way: its value names the attempt that has computed it."""

    key: str
    value: int
    us: int
    epoch: int


class Backup(NamedTuple):
    """A copy of rows and ledger, which are of one moment."""

    rows: dict[tuple[int, str], tuple[int, ...]]
    ledger: dict[str, LedgerRow]
    made_us: int


class Database:
    """Rows and ledger of one target.

    :param lists: rows are elements of lists, which are doubled if they are sent twice with one timestamp.
    """

    def __init__(self, name: str, kind: Kind, checker: Checker, *, lists: bool) -> None:
        self.name = name
        self.kind = kind
        self.lists = lists
        self.checker = checker
        self.rows: dict[tuple[int, str], tuple[int, ...]] = {}
        """Write timestamps of each row, by value and key; of a row that was added twice, two."""
        self.ledger: dict[str, LedgerRow] = {}
        self.backups: list[Backup] = []
        """Made as the ledger moves, the newest last."""
        self.away = False
        self.generation = 0
        """Sessions of an older one are broken."""

    def backup(self) -> Backup:
        """Copy everything."""
        return Backup(dict(self.rows), dict(self.ledger), MACHINE.true_us)

    def restore(self, backup: Backup) -> None:
        """Put a copy in the place of everything; all sessions end."""
        self.rows, self.ledger = dict(backup.rows), dict(backup.ledger)
        self.generation += 1

    def put(self, row: Row) -> None:
        """Write a row."""
        self.checker.row_written(self, row.key, row.value, row.us)
        versions = self.rows.get((row.value, row.key), ())
        if row.us not in versions or self.lists or self.kind != "idempotent":
            self.rows[row.value, row.key] = (*versions, row.us)

    def finish(
        self, key: str, rows: Sequence[Row], current: LedgerRow | None, new: LedgerRow
    ) -> Outcome:
        """Write rows and move the ledger row, at one moment, if the row is `seen`."""
        if self.ledger.get(key) != current:
            return Outcome.CONFLICT
        for row in rows:
            self.put(row)
        self.ledger[key] = new
        self.checker.ledger_moved(self, current, new)
        self.backups = [*self.backups[1 - _BACKUPS :], self.backup()]
        return Outcome.APPLIED


class SimulatedTarget(Target):
    """The database, as a process sees it."""

    interface = 2
    name = "memory"
    options_type = MemoryOptions

    def __init__(self, database: Database, process: Process) -> None:
        self._database = database
        self._process = process
        self._plans = MemoryTarget(MemoryOptions(keys="k", lists="v" if database.lists else ""))

    @property
    def shape(self) -> Mapping[str, str]:
        """Return what shapes the statements."""
        return self._plans.shape

    def plan(self, schema: pa.Schema, key: str) -> Plan:
        """Take any schema."""
        self.refuse_away()
        return self._process.io("plan", key[:8], lambda: self._plans.plan(schema, key))

    def check(self, batch: pa.RecordBatch, plan: Plan) -> pa.RecordBatch:
        """Refuse what tasks refuse."""
        bad = pc.starts_with(batch.column("k"), INVALID)
        if pc.any(bad).as_py():
            raise InvalidRow(
                "a row that the target would refuse", "Filter such rows out.", rows=bad
            )
        return batch

    def connect(self, query_id: str) -> Session:
        """Open a session."""
        self.refuse_away()
        self._process.io("connect", self._database.name, lambda: None)
        way = Way(self._database, self._process, query_id)
        kinds: dict[Kind, Callable[[Way], Session]] = {
            "idempotent": Idempotent,
            "transactional": Transactional,
            "staged": Staged,
        }
        return kinds[self._database.kind](way)

    def classify(self, error: Exception) -> ErrorClass:
        """Retry what the simulator injects."""
        return "retry" if isinstance(error, ConnectionError) else "fatal"

    def refuse_away(self) -> None:
        """Raise while the target is away."""
        if self._database.away:
            raise ConnectionError("the target is away")


class Way:
    """A connection's way to the database."""

    def __init__(self, database: Database, process: Process, key: str) -> None:
        self.database = database
        self.key = key
        self._process = process
        self._generation = database.generation

    def io(self, verb: str, what: str, effect: Callable[[], object]) -> object:
        """Do a call, unless the database is away or was restored."""
        if self.database.away or self.database.generation != self._generation:
            raise ConnectionError("the connection is lost")

        def unless_lost() -> object:
            if self.database.generation != self._generation:
                raise ConnectionError("the connection is lost")
            return effect()

        return self._process.io(verb, what, unless_lost)

    def read(self) -> LedgerRow | None:
        """Read the ledger row."""
        name = self.database.name
        row = self.io("read ledger", name, lambda: self.database.ledger.get(self.key))
        assert row is None or isinstance(row, LedgerRow)
        return row

    def finish(self, rows: Sequence[Row], current: LedgerRow | None, new: LedgerRow) -> Outcome:
        """Move the ledger row; the answer may be lost."""

        def effect() -> Outcome:
            return self.database.finish(self.key, rows, current, new)

        try:
            outcome = self.io("finish", f"{self.database.name} {new.epoch}", effect)
        except Lost:
            return Outcome.UNKNOWN
        assert isinstance(outcome, Outcome)
        return outcome


def accepted(rows: RowSlice) -> tuple[list[Row], list[RefusedRow]]:
    """Return the rows that the server takes, and those that it refuses."""
    taken, refused = [], []
    for us, row in enumerate(rows.batch.to_pylist(), rows.first_us):
        if row["k"].startswith(REFUSED):
            error = TargetRefused("a rule of the table refuses the row", "Change the table.")
            refused.append(RefusedRow(us, error))
        else:
            taken.append(Row(row["k"], row["v"], us, rows.epoch))
    return taken, refused


class Idempotent(IdempotentSession):
    """Sends the rows of a call with the next one, one by one."""

    def __init__(self, way: Way) -> None:
        self._way = way
        self._in_flight: list[Row] = []
        self._refused: list[RefusedRow] = []

    def read(self) -> LedgerRow | None:
        """Read the ledger row."""
        return self._way.read()

    def write(self, plan: Plan, rows: RowSlice) -> None:
        """Send the rows of the call before."""
        self._send()
        self._in_flight, refused = accepted(rows)
        self._refused += refused

    def drain(self) -> None:
        """Send what is in flight."""
        self._send()
        refused, self._refused = self._refused, []
        if refused:
            raise RowsRefused(refused)

    def finish(self, current: LedgerRow | None, new: LedgerRow) -> Outcome:
        """Drain, and move the row."""
        self.drain()
        return self._way.finish((), current, new)

    def close(self) -> None:
        """Forget what is in flight."""
        self._in_flight, self._refused = [], []

    def _send(self) -> None:
        while self._in_flight:
            row = self._in_flight[0]
            what = f"{self._way.database.name} {row.key}={row.value}"
            self._way.io("write", what, lambda: self._way.database.put(row))  # noqa: B023
            self._in_flight.pop(0)


class _Gathered:
    """Rows that count with `finish` alone, of a transaction or staged; those of a lost answer are gone."""

    def __init__(self, way: Way) -> None:
        self._way = way
        self._rows: list[Row] = []

    def read(self) -> LedgerRow | None:
        """Read the ledger row."""
        return self._way.read()

    def write(self, plan: Plan, rows: RowSlice) -> None:
        """Gather rows."""
        taken, refused = accepted(rows)
        self._way.io("gather", self._way.database.name, lambda: None)
        if refused:
            raise RowsRefused(refused)
        self._rows += taken

    def finish(
        self, current: LedgerRow | None, new: LedgerRow, _receipts: Sequence[bytes] = ()
    ) -> Outcome:
        """Add the rows, and move the ledger row."""
        rows, self._rows = self._rows, []
        return self._way.finish(rows, current, new)

    def close(self) -> None:
        """Forget the rows."""
        self._rows = []


class Transactional(_Gathered, TransactionalSession):
    """Has a transaction for each window."""


class Staged(_Gathered, StagedSession):
    """Stages the rows of a window."""

    def drain(self) -> tuple[bytes, ...]:
        """Fail: no history has a flush job."""
        raise AssertionError

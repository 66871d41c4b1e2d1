"""A target in memory: the ledger of `MemoryTarget`, and rows whose newest write stays, judged."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

import msgspec
import pyarrow as pa

from tests.simulator.attempts import Table
from tests.simulator.judge import Judge
from tests.simulator.machine import MACHINE
from tests.simulator.process import Lost, Process
from tests.simulator.rows import REFUSED, check
from wal_sink.errors import TargetRefused
from wal_sink.model.ledger import LedgerState, Outcome, Owner, PassedRow, Window
from wal_sink.model.plan import Plan
from wal_sink.targets.base import (
    Delivery,
    IdempotentSession,
    Kind,
    OnRefused,
    Session,
    Slice,
    Target,
)
from wal_sink.testing.faults import update_name
from wal_sink.testing.memory_target import (
    MemoryOptions,
    MemorySession,
    MemoryTarget,
    ReadsOffers,
    Shadow,
)

_NODES = 3
_AHEAD_US = 2 * 86_400_000_000


class Cell(NamedTuple):
    """A write to a key: the higher timestamp stays, then the higher value."""

    us: int
    values: tuple[int, ...]
    """One; of a list the elements, which are there twice if sent twice."""


class Snapshot(NamedTuple):
    """A backup of the target."""

    table: dict[str, Cell]
    ledger: dict[str, LedgerState]
    arrived: dict[int, frozenset[str]]
    """The keys of each attempt that it has."""
    made_us: int


class Row(NamedTuple):
    """A row on its way."""

    key: str
    value: int
    us: int
    epoch: int
    adds: bool
    """Whether it is an element of a list."""


class Database:
    """Table and ledger of one target.

    :param target: its name; empty: it is the only one.
    :param lists: whether values are lists.
    """

    def __init__(self, judge: Judge, target: str = "", *, lists: bool = False) -> None:
        self.target = target
        self.cells = MemoryTarget(MemoryOptions(keys="k", lists="v" if lists else ""))
        self.plain = MemoryTarget(MemoryOptions(keys="k"))
        """The same without lists, whose options a run may have."""
        self.table: dict[str, Cell] = {}
        self.away = False
        self.one_node_ahead = False
        self.ahead_us = 0
        """By how much the clocks of all nodes are ahead."""
        self.judge = judge
        self.refuses = False
        """Whether the table refuses some rows when they come."""
        self.checks = True
        """Whether rows that tasks have refused are refused still."""
        self._asked = 0
        self._before: LedgerState | None = None
        """The ledger row when it was shadowed."""

    @property
    def ledger(self) -> dict[str, LedgerState]:
        """Ledger rows by query."""
        return self.cells.ledger

    def lose_shadowed_timestamps(self) -> None:
        """Tell the judge, where the row is shadowed, that it does not say with which timestamps was begun."""
        if self.cells.shadows:
            self.judge.timestamps_lost_us = MACHINE.true_us

    def tell_time(self) -> int:
        """Return the time; one of three nodes may be two days ahead."""
        self._asked += 1
        wrong = self.one_node_ahead and self._asked % _NODES == 0
        return MACHINE.true_us + self.ahead_us + (_AHEAD_US if wrong else 0)

    def shadow(self, key: str, fields: Collection[str]) -> None:
        """Let what updates write to some fields of a ledger row be hidden."""
        self.cells.shadows[key] = Shadow(2**62, fields)
        self._before = self.ledger.get(key)

    def unshadow(self) -> None:
        """Let that be over; an operator repairs a row of which a part was hidden."""
        for key in self.cells.shadows:
            row = self.ledger.get(key)
            if row is not None and row.last is not None and row.last.last != row.flushed:
                last = self._before and self._before.last
                self.ledger[key] = msgspec.structs.replace(row, begun=row.last, last=last)
        self.cells.shadows.clear()

    def snapshot(self) -> Snapshot:
        """Copy everything."""
        arrived = self.judge.arrived(self.target)
        return Snapshot(dict(self.table), dict(self.ledger), arrived, MACHINE.true_us)

    def restore(self, snapshot: Snapshot) -> None:
        """Put a copy in the place of everything."""
        self.table = dict(snapshot.table)
        self.cells.ledger = dict(snapshot.ledger)
        self.judge.target_restored(self.target, snapshot.arrived, snapshot.made_us)

    def values(self) -> Table:
        """Return what a reader sees."""
        return {key: cell.values for key, cell in self.table.items()}

    def put(self, row: Row) -> None:
        """Write a row."""
        there = self.table.get(row.key, Cell(0, ()))
        new = Cell(row.us, (row.value,))
        if row.adds and new.us == there.us:
            self.table[row.key] = new._replace(values=there.values + new.values)
        elif new > there:
            self.table[row.key] = new
        self.judge.written(self.target, row.key, row.value, row.us)


class SimulatedTarget(Target):
    """The database, as a process sees it.

    :param plain: a run was started without its lists.
    :param replaced: told of the mark that an operator has put into the ledger row.
    """

    name = "memory"
    options_type = MemoryOptions
    delivery = Delivery.IDEMPOTENT

    def __init__(
        self,
        database: Database,
        process: Process,
        replaced: Callable[[int], None] = lambda _flushed: None,
        *,
        plain: bool = False,
    ) -> None:
        self._database = database
        self._cells = database.plain if plain else database.cells
        self._process = process
        self._replaced = replaced

    @property
    def shape(self) -> Mapping[str, str]:
        """Return what shapes the statements."""
        return self._cells.shape

    def plan(self, schema: pa.Schema, key: str) -> Plan:
        """Take any schema."""
        self._refuse_away()
        return self._process.io("plan", key[:8], lambda: self._cells.plan(schema, key))

    def check(self, batch: pa.RecordBatch, plan: Plan) -> pa.RecordBatch:
        """Refuse what tasks refuse, as long as the table is not altered."""
        return check(batch) if self._database.checks else batch

    def connect(self, owner: Owner) -> Session:
        """Open a session."""
        self._refuse_away()
        self._process.io("connect", "", lambda: None)
        ledger = MemorySession(self._database.cells, owner)
        return Connection(self._database, ledger, self._process, self._replaced)

    def classify(self, error: Exception) -> Kind:
        """Retry what the simulator injects."""
        return "retry" if isinstance(error, ConnectionError) else "fatal"

    def _refuse_away(self) -> None:
        if self._database.away:
            raise ConnectionError("the target is away")


class Connection(ReadsOffers, IdempotentSession):
    """A session of one process. The rows of a call are sent one by one, those of the last call by `drain`."""

    def __init__(
        self,
        database: Database,
        ledger: MemorySession,
        process: Process,
        replaced: Callable[[int], None],
    ) -> None:
        self._database = database
        self._ledger = ledger
        self._process = process
        self._replaced = replaced
        self._in_flight: list[Row] = []
        self._refused: OnRefused | None = None

    def pass_over(self, refused: OnRefused | None, passed: Sequence[PassedRow] = ()) -> None:
        """Tell of each row that is refused, and take the others."""
        self._refused = refused

    def start(self, window: Window) -> None:
        """Expect the rows of a window."""
        self._in_flight = []

    def read_ledger(self) -> LedgerState | None:
        """Read the row."""
        row = self._io("read ledger", "", self._ledger.read_ledger)
        if MACHINE.thread is not None and not MACHINE.only_looks:
            MACHINE.thread.ledger_us = MACHINE.true_us
        return row

    def write(self, plan: Plan, rows: Slice) -> None:
        """Send the rows of the call before; those of this call stay in flight until the next one."""
        self.drain()
        self._in_flight = [
            Row(row["k"], row["v"], us, rows.epoch, plan.sent_once)
            for us, row in enumerate(rows.batch.to_pylist(), rows.first_us)
        ]

    def drain(self) -> None:
        """Send what is in flight."""
        while self._in_flight:
            row = self._in_flight[0]
            if self._database.refuses and row.key.startswith(REFUSED):
                judge, target = self._database.judge, self._database.target
                judge.updates.written(target, row.key, row.epoch, row.us)
                error = TargetRefused("a rule of the table refuses the row", "Change the table.")
                if self._refused is None:
                    raise error
                self._refused(row.us, error)
            else:
                self._io("write", f"{row.key}={row.value}", lambda: self._database.put(row))  # noqa: B023
            del self._in_flight[0]

    def compare_and_set(self, seen: LedgerState | None, new: LedgerState) -> Outcome:
        """Replace the row; say to the judge, or to the operator, what that does."""
        verb, _, what = update_name(seen, new).rpartition(" ")
        judge, database = self._database.judge, self._database

        def effect() -> Outcome:
            outcome = self._ledger.compare_and_set(seen, new)
            if outcome is not Outcome.APPLIED:
                return outcome
            if seen is None:
                judge.ledger_created(database.target)
            if new.begun is not None and (seen is None or new.begun != seen.begun):
                judge.updates.begins_from(database.target, seen, new.begun, database.ahead_us)
                judge.begun(database.target, new.begun)
                database.lose_shadowed_timestamps()
            elif verb == "finish" and new.last is not None:
                judge.finished(database.target, new.last, database.values())
            elif self._ledger.read_ledger() == new:
                self._replaced(new.flushed)
            return outcome

        self._refuse_away()
        try:
            outcome = self._process.io(verb, what, effect)
        except Lost:
            outcome = Outcome.UNKNOWN  # as a driver reports a time-out of a conditional update
        self.read_offered()  # anything may happen meanwhile
        return outcome

    def now_us(self) -> int:
        """Tell the time, as the node that happens to answer knows it."""
        self._refuse_away()
        return self._process.io("now", "", self._database.tell_time)

    def close(self) -> None:
        """Forget what is in flight."""
        self._in_flight = []

    def _io(
        self, verb: str, what: str, effect: Callable[[], msgspec.Struct | None]
    ) -> LedgerState | None:
        self._refuse_away()
        return self._process.io(verb, what, effect)  # type: ignore[return-value]

    def _refuse_away(self) -> None:
        if self._database.away:
            raise ConnectionError("the target is away")

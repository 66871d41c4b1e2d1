"""A target in memory: the ledger of `MemoryTarget`, and rows whose newest write stays, judged."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec
import pyarrow as pa

from tests.simulator.judge import Judge
from tests.simulator.machine import MACHINE
from tests.simulator.process import Lost, Process
from wal_sink.model.ledger import LedgerState, Outcome, Owner
from wal_sink.model.plan import Plan
from wal_sink.targets.base import Delivery, IdempotentSession, Kind, Session, Slice, Target
from wal_sink.testing.faults import update_name
from wal_sink.testing.memory_target import MemoryOptions, MemorySession, MemoryTarget, ReadsOffers

_NODES = 3
_AHEAD_US = 2 * 86_400_000_000


class Cell(NamedTuple):
    """A write to a key: the higher timestamp stays, then the higher value."""

    us: int
    value: int


class Snapshot(NamedTuple):
    """A backup of the target."""

    table: dict[str, Cell]
    ledger: dict[str, LedgerState]


class Database:
    """Table and ledger."""

    def __init__(self, judge: Judge) -> None:
        self.cells = MemoryTarget(MemoryOptions(keys="k"))
        self.table: dict[str, Cell] = {}
        self.away = False
        self.one_node_ahead = False
        self.judge = judge
        self._asked = 0

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
        return MACHINE.true_us + (_AHEAD_US if wrong else 0)

    def snapshot(self) -> Snapshot:
        """Copy everything."""
        return Snapshot(dict(self.table), dict(self.ledger))

    def restore(self, snapshot: Snapshot) -> None:
        """Put a copy in the place of everything."""
        self.table = dict(snapshot.table)
        self.cells.ledger = dict(snapshot.ledger)
        self.judge.target_restored(self.values())

    def values(self) -> dict[str, int]:
        """Return what a reader sees."""
        return {key: cell.value for key, cell in self.table.items()}

    def put(self, key: str, value: int, us: int) -> None:
        """Write a row."""
        new = Cell(us, value)
        if new > self.table.get(key, Cell(0, 0)):
            self.table[key] = new
        self.judge.written(key, value)


class SimulatedTarget(Target):
    """The database, as a process sees it.

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
    ) -> None:
        self._database = database
        self._process = process
        self._replaced = replaced

    @property
    def shape(self) -> Mapping[str, str]:
        """Return what shapes the statements."""
        return self._database.cells.shape

    def plan(self, schema: pa.Schema, key: str) -> Plan:
        """Take any schema."""
        self._refuse_away()
        return self._process.io("plan", key[:8], lambda: self._database.cells.plan(schema, key))

    def check(self, batch: pa.RecordBatch, plan: Plan) -> pa.RecordBatch:
        """Take any row."""
        return batch

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
        self._in_flight: list[tuple[str, int, int]] = []

    def read_ledger(self) -> LedgerState | None:
        """Read the row."""
        return self._io("read ledger", "", self._ledger.read_ledger)

    def write(self, plan: Plan, rows: Slice) -> None:
        """Send the rows of the call before; those of this call stay in flight until the next one."""
        self.drain()
        self._in_flight = [
            (row["k"], row["v"], rows.first_us + index)
            for index, row in enumerate(rows.batch.to_pylist())
        ]

    def drain(self) -> None:
        """Send what is in flight."""
        while self._in_flight:
            key, value, us = self._in_flight[0]
            self._io("write", f"{key}={value}", lambda: self._database.put(key, value, us))  # noqa: B023
            del self._in_flight[0]

    def compare_and_set(self, seen: LedgerState | None, new: LedgerState) -> Outcome:
        """Replace the row; say to the judge, or to the operator, what that does."""
        verb, _, what = update_name(seen, new).rpartition(" ")
        judge, database = self._database.judge, self._database

        def effect() -> Outcome:
            outcome = self._ledger.compare_and_set(seen, new)
            if outcome is not Outcome.APPLIED:
                return outcome
            if verb == "begin" and new.begun is not None:
                judge.begun(new.begun)
                database.lose_shadowed_timestamps()
            elif verb == "finish" and new.last is not None:
                judge.finished(new.last, database.values())
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

"""A target that keeps rows and ledger in memory, for tests without a server.

A row consists of cells with write timestamps. Of two writes to a cell, the write with the higher timestamp
wins, so a row may be written several times, in any order. A delete has a timestamp, and hides all cells whose
timestamp is not higher. If a list in a column of the option `lists` is written twice with
the same timestamp, the list has its elements twice, as in Cassandra.

The rows belong to the instance, so they survive the simulated crash of a flusher. The module shares no code
with other targets, so it does not have their bugs.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Collection, Mapping
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
import pyarrow as pa

from wal_sink.errors import InvalidRow, TargetRefused
from wal_sink.model.ledger import LedgerRow, Outcome
from wal_sink.model.plan import Column, Operation, Plan
from wal_sink.options import SHAPES, Options, about
from wal_sink.targets.base import (
    ErrorClass,
    IdempotentSession,
    RefusedRow,
    RowSlice,
    RowsRefused,
    Session,
    Target,
)
from wal_sink.targets.cdc import operations_of_rows
from wal_sink.targets.operation_options import (
    DELETE,
    OperationColumn,
    Operations,
    read_words,
    with_operation,
    without_operation,
)

__all__ = ["Cell", "MemoryOptions", "MemorySession", "MemoryTarget", "Row"]

Key = tuple[Any, ...]


class MemoryOptions(Options, frozen=True, kw_only=True):
    """Options of the target in memory."""

    keys: Annotated[str, about("key columns, comma-separated", SHAPES)]
    nulls: Annotated[
        Literal["unset", "write"], about("unset keeps an older value, write clears it", SHAPES)
    ] = "unset"
    operation_column: OperationColumn = msgspec.field(name="operationColumn", default="")
    operations: Operations = ""
    lists: Annotated[
        str, about("columns of lists, comma-separated, doubled if they are written twice", SHAPES)
    ] = ""

    @property
    def words(self) -> Mapping[str, Operation]:
        """The operation of each word in the operation column."""
        return read_words(self.operation_column, self.operations)


class Cell(NamedTuple):
    """A value, or None for a deletion, with its write timestamp in microseconds."""

    value: Any
    us: int

    def merged(self, new: Cell, *, is_list: bool = False) -> Cell:
        """Return the cell after another write. At equal timestamps a deletion wins, then the larger value.

        :param is_list: True to keep the elements of both lists at equal timestamps.
        """
        if is_list and self.us == new.us and None not in (self.value, new.value):
            return Cell([*self.value, *new.value], new.us)
        return max(self, new, key=lambda cell: (cell.us, cell.value is None, str(cell.value)))


class Row(NamedTuple):
    """The cells of a row, by column, and the timestamp of its newest upsert."""

    cells: dict[str, Cell]
    us: int


class MemoryTarget(Target):
    """Keeps rows and ledger in memory. Unlike other targets, it cannot be pickled."""

    interface = 2
    name = "memory"
    options_type = MemoryOptions

    def __init__(self, options: MemoryOptions) -> None:
        super().__init__(options)
        self.lock = threading.Lock()
        self.table: dict[Key, Row] = {}
        """All rows by key, including cells that a delete hides."""
        self.deleted: dict[Key, int] = {}
        """The timestamp of the newest delete, by key."""
        self.ledger: dict[str, LedgerRow] = {}
        """The ledger rows, by query id."""
        self.refuses: Callable[[Mapping[str, Any]], str] = lambda _row: ""
        """Returns the reason why the server refuses a row; an empty text if it accepts the row."""

    def with_options(self, options: MemoryOptions) -> MemoryTarget:
        """Return a target with other options over the same rows and ledger."""
        other = copy.copy(self)
        other.options = options
        return other

    @property
    def keys(self) -> tuple[str, ...]:
        """The key columns."""
        return _names(self.options.keys)

    def plan(self, schema: pa.Schema, key: str) -> Plan:
        """Return a plan for any columns.

        :raises SchemaMismatch: if the operation column is missing or is not a text.
        """
        options = self.options
        columns = [
            Column(
                name=field.name,
                source=str(field.type),
                type=str(field.type),
                role="partition" if field.name in self.keys else "regular",
            )
            for field in without_operation(schema, options.operation_column, self.keys, "cells")
        ]
        return Plan(
            key=key,
            target=self.name,
            table="cells",
            columns=with_operation(columns, schema, options.operation_column),
            operations=dict(options.words) if options.operation_column else {},
            sent_once=bool(options.lists),
            details={"nulls": options.nulls, "lists": options.lists},
        )

    def check(self, batch: pa.RecordBatch, plan: Plan) -> pa.RecordBatch:
        """Refuse a null in a key column, and a word that is not in the option `operations`."""
        for name in self.keys:
            if batch.column(name).null_count:
                raise InvalidRow(
                    f"Key column {name} is null.", "Filter such rows out.", column=name
                )
        if plan.operation is None:
            return batch
        operations = operations_of_rows(batch, plan, lambda row: f"row {row}")
        return batch.set_column(
            batch.schema.names.index(plan.operation), plan.operation, operations
        )

    def connect(self, query_id: str) -> Session:
        """Return a new session."""
        return MemorySession(self, query_id)

    def classify(self, error: Exception) -> ErrorClass:
        """Return `retry` for a connection error, which tests inject, and `fatal` for other errors."""
        return "retry" if isinstance(error, ConnectionError) else "fatal"

    def rows(self) -> dict[Key, dict[str, Any]]:
        """Return the rows that a reader sees, by key."""
        with self.lock:
            return {key: row for key in self.table if (row := self.read(key)) is not None}

    def visible_cells(self, key: Key) -> dict[str, Cell]:
        """Return the cells of a row, by column, without the cells that a delete hides."""
        row, deleted_us = self.table.get(key, Row({}, -1)), self.deleted.get(key, -1)
        return {name: cell for name, cell in row.cells.items() if cell.us > deleted_us}

    def read(self, key: Key) -> dict[str, Any] | None:
        """Return a row as a reader sees it; None if there is no such row."""
        if key not in self.table:
            return None
        row, versions = self.table[key], self.visible_cells(key)
        values = {n: versions[n].value if n in versions else None for n in row.cells}
        is_newer = row.us > self.deleted.get(key, -1)
        return values if is_newer or any(value is not None for value in values.values()) else None

    def upsert(
        self, key: Key, us: int, cells: Mapping[str, Cell], lists: Collection[str] = ()
    ) -> None:
        """Write cells of a row.

        :param lists: the names of list columns.
        """
        row = self.table.get(key, Row({}, -1))
        merged = dict(cells)
        for name in row.cells.keys() & cells.keys():
            merged[name] = row.cells[name].merged(cells[name], is_list=name in lists)
        self.table[key] = Row(row.cells | merged, max(us, row.us))


class MemorySession(IdempotentSession):
    """A session of a `MemoryTarget`. It writes the rows of a call of `write` at the next call."""

    def __init__(self, target: MemoryTarget, query_id: str) -> None:
        self._target = target
        self._query_id = query_id
        self._in_flight: list[tuple[Plan, RowSlice]] = []
        self._refused: list[RefusedRow] = []

    def read(self) -> LedgerRow | None:
        """Return the ledger row."""
        with self._target.lock:
            return self._target.ledger.get(self._query_id)

    def write(self, plan: Plan, rows: RowSlice) -> None:
        """Write the rows of the previous call, and keep the rows of this call."""
        self._send()
        self._in_flight = [(plan, rows)]

    def drain(self) -> None:
        """Write all rows.

        :raises RowsRefused: if the target refused rows since the last `drain`.
        """
        self._send()
        refused, self._refused = self._refused, []
        if refused:
            raise RowsRefused(refused)

    def finish(self, current: LedgerRow | None, new: LedgerRow) -> Outcome:
        """Write all rows. Then replace the ledger row, unless it is no longer `current`."""
        self.drain()
        with self._target.lock:
            if self._target.ledger.get(self._query_id) != current:
                return Outcome.CONFLICT
            self._target.ledger[self._query_id] = new
            return Outcome.APPLIED

    def close(self) -> None:
        """Discard the rows that are not written."""
        self._in_flight, self._refused = [], []

    def _send(self) -> None:
        while self._in_flight:
            plan, rows = self._in_flight.pop(0)
            for index, values in enumerate(rows.batch.to_pylist()):
                self._write(plan, rows.first_us + index, values)

    def _write(self, plan: Plan, us: int, values: dict[str, Any]) -> None:
        target = self._target
        if reason := target.refuses(values):
            self._refused.append(RefusedRow(us, TargetRefused(reason, "Change the target.")))
            return
        operation = plan.operation and values.pop(plan.operation)
        key = tuple(values.pop(name) for name in target.keys)
        with target.lock:
            if operation == DELETE:
                target.deleted[key] = max(us, target.deleted.get(key, -1))
                return
            null_us = -1 if plan.details["nulls"] == "unset" else us  # -1 is older than any cell
            cells = {n: Cell(v, null_us if v is None else us) for n, v in values.items()}
            target.upsert(key, us, cells, _names(plan.details["lists"]))


def _names(text: str) -> tuple[str, ...]:
    return tuple(filter(None, text.split(",")))

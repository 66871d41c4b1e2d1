"""Keeps rows and ledger in memory by Cassandra's cell rules: a target for tests that need no server.

It passes the same contract suite as the real Cassandra, which is what makes tests on it worth something.
State lives in the instance, so the successor of a flusher that "crashed" finds what was written.

Cell rules: of two writes to a cell the higher timestamp stays; at equal timestamps a deletion beats a
value and the larger value, compared as serialized bytes, beats the smaller. A deleted row, or range of rows
by the first of its key columns, is a tombstone with a timestamp: it hides every cell up to that, also one
that is written later.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple

import msgspec
import pyarrow as pa
from msgspec import Meta

from wal_sink.clock import now_us
from wal_sink.errors import InvalidRow
from wal_sink.model.ledger import Mark, Outcome, Owner, Window
from wal_sink.model.plan import Column, Plan
from wal_sink.options import Options
from wal_sink.targets.base import Kind, Session, Slice, Target
from wal_sink.targets.operations import (
    DELETE,
    UPSERT,
    Operation,
    OperationColumn,
    Operations,
    operation_details,
    operation_shape,
    planned_words,
    read_words,
    with_operation,
    without_operation,
)
from wal_sink.targets.values.operations import read_operations

Key = tuple[Any, ...]


class CellStoreOptions(Options, frozen=True, kw_only=True):
    """Options of the in-memory target."""

    keys: Annotated[str, Meta(description="key columns, comma-separated")]
    nulls: Annotated[str, Meta(description="unset keeps an older value, write clears it")] = "unset"
    operation_column: OperationColumn = msgspec.field(name="operationColumn", default="")
    operations: Operations = msgspec.field(name="operations", default="")

    @property
    def words(self) -> Mapping[str, Operation]:
        """What each word of the operation column means."""
        return read_words(self.operation_column, self.operations)


class Cell(NamedTuple):
    """A value, None for a deletion, and its write timestamp in microseconds."""

    value: Any
    us: int


class Row(NamedTuple):
    """The cells of a row by column, and the timestamp of its newest insert."""

    cells: dict[str, Cell]
    inserted_us: int


class CellStore(Target):
    """Rows and ledger in memory; unlike other targets it does not pickle, since its content is the point."""

    name = "cell_store"
    options_type = CellStoreOptions

    def __init__(self, options: CellStoreOptions) -> None:
        self._options = options
        self.keys = tuple(options.keys.split(","))
        self.lock = threading.Lock()
        self.table: dict[Key, Row] = {}
        """Every cell that was written, also those that a tombstone hides."""
        self.tombstones: dict[Key, int] = {}
        """Timestamps of deletions, by the first values of the key, or all of them."""
        self.ledger: dict[str, Mark] = {}
        self.shadowed_until_us: dict[str, int] = {}
        """Ledger rows that were written with a timestamp of the future: updates change nothing."""
        self.clock_us: Callable[[], int] = now_us
        """The clock of the target, microseconds since 1970."""

    @property
    def shape(self) -> Mapping[str, str]:
        """Key columns and the nulls policy shape what is written."""
        given = self._options
        deletes = operation_shape(given.operation_column, given.words)
        return {"keys": given.keys, "nulls": given.nulls, **deletes}

    def plan(self, schema: pa.Schema, key: str) -> Plan:
        """Take any schema."""
        operation, words = self._options.operation_column, self._options.words
        columns = tuple(
            Column(
                name=field.name,
                source=str(field.type),
                type=str(field.type),
                role="partition" if field.name in self.keys else "regular",
            )
            for field in without_operation(schema, operation, self.keys, "cells")
        )
        return Plan(
            key=key,
            target=self.name,
            table="cells",
            columns=with_operation(columns, schema, operation),
            details={"nulls": self._options.nulls, **operation_details(operation, words)},
        )

    def check(self, batch: pa.RecordBatch, plan: Plan) -> pa.RecordBatch:
        """Refuse an unknown operation, and a null in a key, unless a delete has none but at its end."""
        keys = _keys(plan)
        operations = None
        if plan.operation is not None:
            operations, bad = read_operations(batch.column(plan.operation), planned_words(plan))
            if bad:
                raise InvalidRow(f"Row {bad.row} {bad.problem}", bad.remedy)
            position = batch.schema.names.index(plan.operation)
            batch = batch.set_column(position, plan.operation, operations)
        for index, row in enumerate(batch.select(keys).to_pylist()):
            given = [value is not None for value in row.values()]
            deletes = operations is not None and operations[index].as_py() == DELETE
            if not given[0] or given != sorted(given, reverse=True) or not (deletes or all(given)):
                name = keys[given.index(False)]
                raise InvalidRow(f"Key column {name} is null", "Filter such rows out.")
        return batch

    def connect(self, owner: Owner) -> Session:
        """Connect; always works."""
        return CellSession(self, owner)

    def classify(self, error: Exception) -> Kind:
        """Retry connection errors, which tests inject; nothing of its own can fail."""
        return "retry" if isinstance(error, ConnectionError) else "fatal"

    def rows(self) -> dict[Key, dict[str, Any]]:
        """Return what a reader of the table sees, by key."""
        with self.lock:
            return {
                key: {
                    name: cell.value if cell.us > deleted_us else None
                    for name, cell in row.cells.items()
                }
                for key, row in self.table.items()
                if row.inserted_us > (deleted_us := self._deleted_us(key))
            }

    def _deleted_us(self, key: Key) -> int:
        """Return the newest deletion of a row, or of a range that it is in; -1 for none."""
        prefixes = (key[:length] for length in range(1, len(key) + 1))
        return max(self.tombstones.get(prefix, -1) for prefix in prefixes)


class CellSession(Session):
    """A connection to a `CellStore`."""

    def __init__(self, store: CellStore, owner: Owner) -> None:
        self._store = store
        self._owner = owner
        self._in_flight: list[tuple[Plan, Slice]] = []

    def read_ledger(self) -> Mark | None:
        """Read the ledger row."""
        with self._store.lock:
            return self._store.ledger.get(self._owner.query_id)

    def create(self, flushed: int) -> None:
        """Create the ledger row unless it is there."""
        with self._store.lock:
            self._store.ledger.setdefault(self._owner.query_id, Mark.new(self._owner, flushed))

    def begin(self, window: Window) -> Outcome:
        """Begin if nothing is begun at the epoch before."""
        with self._store.lock:
            mark = self._store.ledger.get(self._owner.query_id)
            if mark is None or mark.flushed != window.first - 1 or mark.begun is not None:
                return Outcome.REFUSED
            self._put(mark, begun=window)
            return Outcome.APPLIED

    def write(self, plan: Plan, rows: Slice) -> None:
        """Write the rows of the call before; those of this call stay in flight until the next one."""
        self.drain()
        self._in_flight.append((plan, rows))

    def drain(self) -> None:
        """Write what is in flight."""
        while self._in_flight:
            self._apply(*self._in_flight.pop())

    def _apply(self, plan: Plan, rows: Slice) -> None:
        """Write cell by cell."""
        clears = plan.details["nulls"] == "write"
        keys = _keys(plan)
        for index, values in enumerate(rows.batch.to_pylist()):
            us = rows.first_us + index
            operation = values.pop(plan.operation) if plan.operation else UPSERT
            key = tuple(values.pop(name) for name in keys)
            with self._store.lock:
                if operation == DELETE:
                    prefix = tuple(value for value in key if value is not None)
                    newest = max(us, self._store.tombstones.get(prefix, -1))
                    self._store.tombstones[prefix] = newest
                    continue
                row = self._store.table.get(key, Row({}, us))
                cells = dict(row.cells)
                for name, value in values.items():
                    if value is not None or clears:
                        width = rows.batch.schema.field(name).type
                        cells[name] = _newer(cells.get(name), Cell(value, us), width)
                    else:
                        cells.setdefault(name, Cell(None, 0))
                self._store.table[key] = Row(cells, max(us, row.inserted_us))

    def finish(self, window: Window) -> Outcome:
        """Finish if exactly this window is begun."""
        with self._store.lock:
            mark = self._store.ledger.get(self._owner.query_id)
            if mark is None or mark.flushed != window.first - 1 or mark.begun != window:
                return Outcome.REFUSED
            self._put(mark, **msgspec.structs.asdict(mark.finished(window)))
            return Outcome.APPLIED

    def replace_row(self, seen: Mark | None, new: Mark) -> Outcome:
        """Replace the row if it is the one that was seen."""
        with self._store.lock:
            mark = self._store.ledger.get(self._owner.query_id)
            if mark != seen:
                return Outcome.REFUSED
            self._put(mark or new, **msgspec.structs.asdict(new))
            return Outcome.APPLIED

    def written_us(self) -> int | None:
        """Return the timestamp of a plain write that shadows the row."""
        return self._store.shadowed_until_us.get(self._owner.query_id)

    def now_us(self) -> int | None:
        """Return what the store's clock says."""
        return self._store.clock_us()

    def close(self) -> None:
        """Nothing is held."""

    def _put(self, mark: Mark, **changes: Any) -> None:
        """Update the row; without effect where a plain write of the future shadows it (rule 16)."""
        if self._owner.query_id not in self._store.shadowed_until_us:
            self._store.ledger[self._owner.query_id] = msgspec.structs.replace(mark, **changes)


def _keys(plan: Plan) -> list[str]:
    return [column.name for column in plan.columns if column.role == "partition"]


def _newer(old: Cell | None, new: Cell, kind: pa.DataType) -> Cell:
    """Resolve two writes to one cell."""
    if old is None:
        return new

    def rank(cell: Cell) -> tuple[int, bool, bytes]:
        return cell.us, cell.value is None, _serialized(cell.value, kind)

    return max(old, new, key=rank)


def _serialized(value: Any, kind: pa.DataType) -> bytes:
    """Return the bytes that Cassandra compares; of the types that tests use."""
    if value is None:
        return b""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes):
        return value
    if pa.types.is_floating(kind):
        return struct.pack(">d" if pa.types.is_float64(kind) else ">f", value)
    if pa.types.is_integer(kind):
        return int(value).to_bytes(kind.bit_width // 8, "big", signed=True)
    if isinstance(value, bool):
        return bytes([value])
    raise NotImplementedError(f"CellStore does not order values of type {kind}")

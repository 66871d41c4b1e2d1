"""Keeps rows and ledger in memory by Cassandra's cell rules: a target for tests that need no server.

It passes the same contract suite as the real Cassandra, which is what makes tests on it worth something.
State lives in the instance, so the successor of a flusher that "crashed" finds what was written.

Cell rules: of two writes to a cell the higher timestamp stays; at equal timestamps a deletion beats a
value and the larger value, compared as serialized bytes, beats the smaller. A deleted row, or range of rows
by the first of its key columns, is a tombstone with a timestamp: it hides every cell up to that, also one
that is written later.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import msgspec
import pyarrow as pa
from msgspec import Meta

from wal_sink.clock import now_us
from wal_sink.errors import InvalidRow, TargetRefused
from wal_sink.model.ledger import Mark, Outcome, Owner, Window
from wal_sink.model.plan import Column, Plan
from wal_sink.options import Options
from wal_sink.targets.base import Kind, Session, Slice, Target
from wal_sink.targets.cassandra.times.given import (
    EVENT_COLUMN,
    EXPIRES_COLUMN,
    TTL,
    TTL_COLUMN,
    EventColumn,
    ExpiresColumn,
    RowTimes,
    Ttl,
    TtlColumn,
    for_server,
    latest_expiry_s,
    with_times,
    without_times,
)
from wal_sink.targets.cassandra.times.read import EVENT_US, EXPIRES_US, LIFE_S
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
from wal_sink.targets.refused import OnRefused
from wal_sink.targets.values.operations import are_deletes, read_operations
from wal_sink.testing.cell_rules import Cell, Row, newer
from wal_sink.testing.cell_times import lives_of, of_each_key, timed

Key = tuple[Any, ...]


class CellStoreOptions(Options, frozen=True, kw_only=True):
    """Options of the in-memory target."""

    keys: Annotated[str, Meta(description="key columns, comma-separated")]
    nulls: Annotated[str, Meta(description="unset keeps an older value, write clears it")] = "unset"
    operation_column: OperationColumn = msgspec.field(name="operationColumn", default="")
    operations: Operations = msgspec.field(name="operations", default="")
    ttl: Ttl = msgspec.field(name=TTL, default=None)
    ttl_column: TtlColumn = msgspec.field(name=TTL_COLUMN, default="")
    expires_column: ExpiresColumn = msgspec.field(name=EXPIRES_COLUMN, default="")
    event_column: EventColumn = msgspec.field(name=EVENT_COLUMN, default="")

    @property
    def times(self) -> RowTimes:
        """What is said of the times of rows."""
        return RowTimes(
            ttl_s=self.ttl,
            ttl_column=self.ttl_column,
            expires_column=self.expires_column,
            event_column=self.event_column,
        )

    @property
    def words(self) -> Mapping[str, Operation]:
        """What each word of the operation column means."""
        return read_words(self.operation_column, self.operations)


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
        self.refuses: Callable[[Mapping[str, Any]], str] = lambda _row: ""
        """Says why a row is refused when it is written; empty: it is not."""

    @property
    def shape(self) -> Mapping[str, str]:
        """Key columns and the nulls policy shape what is written."""
        given = self._options
        deletes = operation_shape(given.operation_column, given.words)
        return {"keys": given.keys, "nulls": given.nulls, **deletes, **given.times.shape}

    def plan(self, schema: pa.Schema, key: str) -> Plan:
        """Take any schema."""
        operation, words = self._options.operation_column, self._options.words
        rows = without_operation(schema, operation, self.keys, "cells")
        now_s, times = self.clock_us() // 1_000_000, self._options.times
        columns = tuple(
            Column(
                name=field.name,
                source=str(field.type),
                type=str(field.type),
                role="partition" if field.name in self.keys else "regular",
            )
            for field in without_times(rows, times, self.keys, "cells")
        )
        return Plan(
            key=key,
            target=self.name,
            table="cells",
            columns=with_operation(with_times(columns, rows), schema, operation),
            details={
                "nulls": self._options.nulls,
                **operation_details(operation, words),
                **for_server(times, latest_expiry_s("NONE"), now_s).details,
            },
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
        deletes = None if operations is None else are_deletes(operations)
        batch = timed(batch, plan, deletes, self.clock_us())
        for index, row in enumerate(batch.select(keys).to_pylist()):
            given = [value is not None for value in row.values()]
            deletes = operations is not None and operations[index].as_py() == DELETE
            if not given[0] or given != sorted(given, reverse=True) or not (deletes or all(given)):
                name = keys[given.index(False)]
                raise InvalidRow(f"Key column {name} is null", "Filter such rows out.", column=name)
        if EVENT_US in batch.schema.names:
            batch = of_each_key(batch, plan, keys)
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
            now_s = self.clock_us() // 1_000_000
            seen = {key: row.seen(now_s, self._deleted_us(key)) for key, row in self.table.items()}
        return {key: values for key, values in seen.items() if values is not None}

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
        self._refused: OnRefused | None = None

    def pass_over(self, refused: OnRefused | None) -> None:
        """Tell of each row that the store refuses, and take the others."""
        self._refused = refused

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
        kinds = {column: rows.batch.schema.field(column).type for column in rows.batch.schema.names}
        batch, lives = rows.batch, lives_of(plan, rows, self._store.clock_us())
        events = batch.column(EVENT_US).to_pylist() if EVENT_US in kinds else None
        batch = batch.select([name for name in kinds if name not in (EVENT_US, EXPIRES_US, LIFE_S)])
        now_s = self._store.clock_us() // 1_000_000
        for index, values in enumerate(batch.to_pylist()):
            us = events[index] if events else rows.first_us + index
            left = lives[index] if lives else None
            ends_s = None if left is None else now_s + max(left, 1)
            if why := self._store.refuses(values):
                error = TargetRefused(why, "Change the store.")
                if self._refused is None:
                    raise error
                self._refused(rows.first_us + index, error)
                continue
            operation = values.pop(plan.operation) if plan.operation else UPSERT
            key = tuple(values.pop(name) for name in keys)
            with self._store.lock:
                if operation == DELETE:
                    prefix = tuple(value for value in key if value is not None)
                    newest = max(us, self._store.tombstones.get(prefix, -1))
                    self._store.tombstones[prefix] = newest
                    continue
                inserted = Cell(True, us, ends_s)
                row = self._store.table.get(key, Row({}, inserted))
                cells = dict(row.cells)
                for name, value in values.items():
                    if value is not None or clears:
                        over = left is not None and left < 1
                        cell = Cell(None, us) if over or value is None else Cell(value, us, ends_s)
                        cells[name] = newer(cells.get(name), cell, kinds[name])
                    else:
                        cells.setdefault(name, Cell(None, 0))
                self._store.table[key] = Row(cells, newer(row.marker, inserted, pa.bool_()))

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

"""Keeps rows and ledger in memory by Cassandra's cell rules: a target for tests that need no server.

It passes the same contract suite as the real Cassandra, which is what makes tests on it worth something.
State lives in the instance, so the successor of a flusher that "crashed" finds what was written.

Cell rules: of two writes to a cell the higher timestamp stays; at equal timestamps a deletion beats a
value and the larger value, compared as serialized bytes, beats the smaller. A deleted row, or range of rows
by the first of its key columns, is a tombstone with a timestamp: it hides every cell up to that, also one
that is written later. To write a list that is not frozen deletes what is older, and adds elements: they are
there twice if that is done twice with one timestamp.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec
import pyarrow as pa

from wal_sink.clock import now_us
from wal_sink.errors import InvalidRow, SchemaMismatch, TargetRefused
from wal_sink.model.ledger import Mark, Outcome, Owner, Window
from wal_sink.model.plan import Column, Plan
from wal_sink.targets.base import Kind, Session, Slice, Target
from wal_sink.targets.cassandra.schema.updates import found_changes
from wal_sink.targets.cassandra.times.given import (
    for_server,
    latest_expiry_s,
    planned_times,
    with_times,
    without_times,
)
from wal_sink.targets.cassandra.times.lives import live_for_a_time
from wal_sink.targets.cassandra.times.read import EVENT_US, EXPIRES_US, LIFE_S
from wal_sink.targets.cassandra.totals.added import Places
from wal_sink.targets.cassandra.totals.given import added_columns, as_planned, totals_details
from wal_sink.targets.cassandra.totals.sums import Adding
from wal_sink.targets.cassandra.types.absent import absent_details, only_absent
from wal_sink.targets.cassandra.types.collection_mode import changes_details, planned_changes
from wal_sink.targets.cassandra.types.write_mode import mode_beside, mode_details, updates
from wal_sink.targets.operations import (
    DELETE,
    operation_details,
    planned_words,
    with_operation,
    without_operation,
)
from wal_sink.targets.refused import OnRefused
from wal_sink.targets.tables import table_column, without_table_column
from wal_sink.targets.values.operations import are_deletes, read_operations
from wal_sink.testing.cell_options import CellStoreOptions
from wal_sink.testing.cell_rules import IN_SET, Cell, Row, written
from wal_sink.testing.cell_table import CellTable, Key
from wal_sink.testing.cell_times import lives_of, of_each_key, timed
from wal_sink.testing.cell_totals import of_totals
from wal_sink.testing.offered_rows import ReadsOffers

__all__ = ["CellStore", "CellStoreOptions"]

_TIMES = (EVENT_US, EXPIRES_US, LIFE_S)
"""Columns of the log that no table has."""


class CellStore(Target):
    """Rows and ledger in memory; unlike other targets it does not pickle, since its content is the point."""

    name = "cell_store"
    options_type = CellStoreOptions

    def __init__(self, options: CellStoreOptions) -> None:
        self.options = options
        self.lock = threading.Lock()
        names, keys = options.tables.split(","), options.keys.split(";")
        columns = options.columns.split(";") if options.columns else [""] * len(names)
        lists, of_each = options.lists.split(","), zip(names, keys, columns, strict=True)
        self.tables = {name: CellTable(key, has, lists) for name, key, has in of_each}
        """By name; the only one has none."""
        self.ledger: dict[str, Mark] = {}
        self.shadowed_until_us: dict[str, int] = {}
        """Ledger rows that were written with a timestamp of the future: updates change nothing."""
        self.clock_us: Callable[[], int] = now_us
        """The clock of the target, microseconds since 1970."""
        self.refuses: Callable[[Mapping[str, Any]], str] = lambda _row: ""
        """Says why a row is refused when it is written; empty: it is not."""

    @property
    def table(self) -> dict[Key, Row]:
        """Every cell that was written to the only table, or the first one."""
        return next(iter(self.tables.values())).rows

    @table.setter
    def table(self, rows: dict[Key, Row]) -> None:
        next(iter(self.tables.values())).rows = rows

    @property
    def shape(self) -> Mapping[str, str]:
        """Key columns and the nulls policy shape what is written."""
        return self.options.shape

    def plan(self, schema: pa.Schema, key: str) -> Plan:
        """Take any schema; of several tables, one of which each column has.

        :raises SchemaMismatch: none has it.
        """
        operation, words = self.options.operation_column, self.options.words
        naming, tables = self.options.table_column, self.tables.values()
        keys = {name for table in tables for name in table.keys}
        known = keys | {name for table in tables for name in table.columns}
        named = without_table_column(schema, naming, known, self.options.tables)
        rows = without_operation(named, operation, keys, "cells")
        now_s, times = self.clock_us() // 1_000_000, self.options.times
        columns: list[Column] = []
        for field in without_times(rows, times, keys, "cells"):
            if not any(table.has(field.name) for table in tables):
                raise SchemaMismatch(
                    f"{field.name}: none of the tables has a column of that name.", "Drop it."
                )
            role: Literal["partition", "regular"] = "partition" if field.name in keys else "regular"
            kind = str(field.type)
            columns.append(Column(name=field.name, source=kind, type=kind, role=role))
        changes = found_changes(self.options.changes, [column.name for column in columns])
        found = [*with_operation(with_times(columns, rows), named, operation)]
        if naming:
            found.insert(schema.names.index(naming), table_column(naming))
        plan = Plan(
            key=key,
            target=self.name,
            table=self.options.tables or "cells",
            columns=tuple(found),
            details={
                "nulls": self.options.nulls,
                **mode_details(mode_beside(self.options.write_mode, changes)),
                **changes_details(changes),
                **absent_details(self.options.if_not_exists),
                **totals_details(self.options.add_columns),
                **operation_details(operation, words),
                **for_server(times, latest_expiry_s("NONE"), now_s).details,
            },
        )
        return plan.as_sent_once() if self.options.lists else as_planned(plan)

    def check(self, batch: pa.RecordBatch, plan: Plan) -> pa.RecordBatch:
        """Refuse an unknown operation or table, and a null in the key of a table of the row."""
        operations, deletes = None, [False] * batch.num_rows
        if plan.operation is not None:
            operations, bad = read_operations(batch.column(plan.operation), planned_words(plan))
            if bad:
                raise InvalidRow(f"Row {bad.row} {bad.problem}", bad.remedy)
            position = batch.schema.names.index(plan.operation)
            batch = batch.set_column(position, plan.operation, operations)
            deletes = [operation == DELETE for operation in operations.to_pylist()]
        gone = None if operations is None else are_deletes(operations)
        batch = timed(batch, plan, gone, self.clock_us())
        for row, is_delete in zip(batch.to_pylist(), deletes, strict=True):
            for name in self.tables_of(row, plan):
                if name not in self.tables:
                    raise InvalidRow(
                        f"Column {plan.table_column} ({name!r}) names no table: option tables has"
                        f" {self.options.tables}",
                        "Correct such rows.",
                    )
                self.tables[name].refuse_null(row, deletes=is_delete)
        if EVENT_US in batch.schema.names:
            batch = of_each_key(batch, plan, list(next(iter(self.tables.values())).keys))
        return batch

    def tables_of(self, row: Mapping[str, Any], plan: Plan) -> list[str]:
        """Return the names of the tables to which a row goes."""
        return list(self.tables) if plan.table_column is None else [row[plan.table_column]]

    def connect(self, owner: Owner) -> Session:
        """Connect; always works."""
        return CellSession(self, owner)

    def classify(self, error: Exception) -> Kind:
        """Retry connection errors, which tests inject; nothing of its own can fail."""
        return "retry" if isinstance(error, ConnectionError) else "fatal"

    def rows(self, table: str | None = None) -> dict[Key, dict[str, Any]]:
        """Return what a reader of a table sees, by key; None: of the only table."""
        with self.lock:
            now_s = self.clock_us() // 1_000_000
            return self.tables[table or next(iter(self.tables))].visible(now_s)


class CellSession(ReadsOffers, Session):
    """A connection to a `CellStore`; the tables acknowledge one after the other."""

    def __init__(self, store: CellStore, owner: Owner) -> None:
        self._store = store
        self._owner = owner
        self._in_flight: list[tuple[str, Plan, Slice]] = []
        self._refused: OnRefused | None = None
        self._places: Places | None = None

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
        outcome = Outcome.REFUSED
        with self._store.lock:
            mark = self._store.ledger.get(self._owner.query_id)
            if mark is not None and (mark.flushed, mark.begun) == (window.first - 1, None):
                self._put(mark, begun=window)
                outcome = Outcome.APPLIED
        self.read_offered()
        return outcome

    def start(self, window: Window) -> None:
        """Expect the rows of a window: totals are added by their places in it."""
        self._places = Places(window)

    def write(self, plan: Plan, rows: Slice) -> None:
        """Write the rows of the call before, and those of this call to all tables but the last.

        What goes to the last one, or the only one, stays in flight until the next call.
        """
        self.drain()
        self._in_flight += [(table, plan, rows) for table in self._store.tables]
        while len(self._in_flight) > 1:
            self._apply(*self._in_flight.pop(0))

    def drain(self) -> None:
        """Write what is in flight."""
        while self._in_flight:
            self._apply(*self._in_flight.pop(0))

    def _apply(self, name: str, plan: Plan, rows: Slice) -> None:
        """Write to one table, cell by cell."""
        clears, table = plan.details["nulls"] == "write", self._store.tables[name]
        if added_columns(plan):
            assert self._places, "totals are added between start and finish"
            adding = Adding(plan, self._owner.query_id, self._store.options.after, self._places)
            rows = of_totals(rows, table, adding)
        # The clock is asked by those alone whose rows do not live for ever: tests count the questions.
        now_us = self._store.clock_us() if live_for_a_time(planned_times(plan), 0) else 0
        lives, beside = lives_of(plan, rows, now_us), {*table.keys, *_TIMES, *_not_written(plan)}
        for index, row in enumerate(rows.batch.to_pylist()):
            if name not in self._store.tables_of(row, plan):
                continue
            us = row.get(EVENT_US, rows.first_us + index)
            us = table.ballot_us(self._store.clock_us()) if only_absent(plan) else us
            left = lives[index] if lives else None
            if why := self._store.refuses(row):
                error = TargetRefused(why, "Change the store.")
                if self._refused is None or plan.one_session:
                    raise error
                self._refused(rows.first_us + index, error)
                continue
            ends_s = None if left is None else now_us // 1_000_000 + max(left, 1)
            over = left is not None and left < 1
            key = tuple(row[column] for column in table.keys)
            if only_absent(plan) and (over or table.exists(key, us)):
                continue
            values = {c: v for c, v in row.items() if c not in beside and table.has(c)}
            new = Cell(None, us) if over else Cell(IN_SET, us, ends_s)
            cells = written(values, planned_changes(plan), new, clears=clears)
            with self._store.lock:
                if plan.operation and row[plan.operation] == DELETE:
                    table.delete(key, us)
                else:
                    marker = None if updates(plan) else Cell(True, us, ends_s)
                    table.upsert(key, marker, cells, rows.batch.schema)

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
            if mark == seen:
                self._put(mark or new, **msgspec.structs.asdict(new))
        self.read_offered()
        return Outcome.APPLIED if mark == seen else Outcome.REFUSED

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


def _not_written(plan: Plan) -> set[str]:
    return {column.name for column in plan.columns} - {c.name for c in plan.of_table().columns}

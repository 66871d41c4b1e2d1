"""Keeps rows and ledger in memory: a target for tests that need no server.

A row is made of cells with write timestamps. Of two writes to a cell the one with the higher timestamp
stays, so a row may be written again, late, and by two sessions. A delete leaves a timestamp, too: it hides
every cell up to that, also one that is written later.

Three options make a target that asks more of a flusher, as targets with cells may do. The rows of `lists` are
there twice if they are written twice with one timestamp (rule 26). `totals` are added in their order by one
session (rule 27). With `if_absent` the first row of a key stays, and the target dates it itself (rule 14).

The state lies in the instance, so the successor of a flusher that "crashed" finds what was written. Nothing
here is code of a real target: a model must not use what it judges.
"""

from __future__ import annotations

import copy
import itertools
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
import pyarrow as pa

from wal_sink.clock import now_us
from wal_sink.errors import InvalidRow, TargetRefused
from wal_sink.model.ledger import LedgerState, Outcome, Owner, PassedRow, Window
from wal_sink.model.plan import Column, Operation, Plan, WriteDemands
from wal_sink.options import SHAPES, Options, about
from wal_sink.targets.arrow_values import read_operations
from wal_sink.targets.base import (
    Delivery,
    IdempotentSession,
    Kind,
    OnRefused,
    Session,
    Slice,
    Target,
)
from wal_sink.targets.operations import (
    DELETE,
    OperationColumn,
    Operations,
    read_words,
    with_operation,
    without_operation,
)

__all__ = ["Cell", "MemoryOptions", "MemorySession", "MemoryTarget", "ReadsOffers", "Row", "Shadow"]

Key = tuple[Any, ...]
READ_AHEAD = 3
"""Slices of offered rows."""
PLACE = "(place)"
"""The cell of a row with totals that says which row of the log was added last, by epoch and number."""


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
    totals: Annotated[
        str, about("columns, comma-separated, that are added to what is there", SHAPES)
    ] = ""
    if_absent: Annotated[bool, about("write a row only where there is none", SHAPES)] = False

    @property
    def words(self) -> Mapping[str, Operation]:
        """What each word of the operation column means."""
        return read_words(self.operation_column, self.operations)

    @property
    def demands(self) -> WriteDemands:
        """What the rows ask of a flusher."""
        return WriteDemands(
            one_session=bool(self.totals or self.if_absent),
            sent_once=bool(self.lists),
            target_dated=self.if_absent,
        )


class Cell(NamedTuple):
    """A value, None for a deletion, and its write timestamp in microseconds."""

    value: Any
    us: int

    def merged(self, new: Cell, *, is_list: bool = False) -> Cell:
        """Return what two writes leave; at equal timestamps a deletion, or else the larger value.

        :param is_list: at equal timestamps the elements of both stay.
        """
        if is_list and self.us == new.us and None not in (self.value, new.value):
            return Cell([*self.value, *new.value], new.us)
        return max(self, new, key=lambda cell: (cell.us, cell.value is None, str(cell.value)))


class Row(NamedTuple):
    """The cells of a row, by column, and the timestamp of its newest upsert."""

    cells: dict[str, Cell]
    us: int


class Shadow(NamedTuple):
    """A plain write with a timestamp of the future: what updates write to these cells is never seen."""

    until_us: int
    cells: Collection[str] = LedgerState.__struct_fields__
    """Fields of the ledger row."""


class MemoryTarget(Target):
    """Rows and ledger in memory; unlike other targets it does not pickle, since its content is the point."""

    name = "memory"
    options_type = MemoryOptions
    delivery = Delivery.IDEMPOTENT

    def __init__(self, options: MemoryOptions) -> None:
        super().__init__(options)
        self.lock = threading.Lock()
        self.table: dict[Key, Row] = {}
        """Every cell that was written, also those that a delete hides."""
        self.deleted: dict[Key, int] = {}
        """Timestamps of deletes."""
        self.ledger: dict[str, LedgerState] = {}
        self.shadows: dict[str, Shadow] = {}
        """Ledger rows with cells of the future, by query."""
        self.clock_us: Callable[[], int] = now_us
        """The clock of the target, microseconds since 1970."""
        self.refuses: Callable[[Mapping[str, Any]], str] = lambda _row: ""
        """Says why a row is refused when it is written; empty: it is not."""

    def with_options(self, options: MemoryOptions) -> MemoryTarget:
        """Return a target with other options over the same rows and ledger."""
        other = copy.copy(self)
        other.options = options
        return other

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns of the key."""
        return _names(self.options.keys)

    def plan(self, schema: pa.Schema, key: str) -> Plan:
        """Take any schema that has the key.

        :raises SchemaMismatch: the operation column is missing, or no text.
        """
        given = self.options
        columns = [
            Column(
                name=field.name,
                source=str(field.type),
                type=str(field.type),
                role="partition" if field.name in self.keys else "regular",
            )
            for field in without_operation(schema, given.operation_column, self.keys, "cells")
        ]
        return Plan(
            key=key,
            target=self.name,
            table="cells",
            columns=with_operation(columns, schema, given.operation_column),
            operations=dict(given.words) if given.operation_column else {},
            demands=given.demands,
            details={"nulls": given.nulls, "lists": given.lists, "totals": given.totals},
        )

    def check(self, batch: pa.RecordBatch, plan: Plan) -> pa.RecordBatch:
        """Refuse a null in the key, and a word that is no operation."""
        for name in self.keys:
            if batch.column(name).null_count:
                raise InvalidRow(f"Key column {name} is null", "Filter such rows out.", column=name)
        if plan.operation is None:
            return batch
        operations, bad = read_operations(batch.column(plan.operation), plan.operations)
        if bad:
            raise InvalidRow(f"Row {bad.row} {bad.problem}", bad.remedy)
        return batch.set_column(
            batch.schema.names.index(plan.operation), plan.operation, operations
        )

    def connect(self, owner: Owner) -> Session:
        """Connect; always works."""
        return MemorySession(self, owner)

    def classify(self, error: Exception) -> Kind:
        """Retry connection errors, which tests inject; nothing of its own can fail."""
        return "retry" if isinstance(error, ConnectionError) else "fatal"

    def rows(self) -> dict[Key, dict[str, Any]]:
        """Return what a reader sees, by key."""
        with self.lock:
            return {key: row for key in self.table if (row := self.read(key)) is not None}

    def seen(self, key: Key) -> dict[str, Cell]:
        """Return the cells of a row that no delete hides."""
        row, deleted_us = self.table.get(key, Row({}, -1)), self.deleted.get(key, -1)
        return {name: cell for name, cell in row.cells.items() if cell.us > deleted_us}

    def read(self, key: Key) -> dict[str, Any] | None:
        """Return a row as a reader sees it; None: there is none."""
        if key not in self.table:
            return None
        row, seen = self.table[key], self.seen(key)
        values = {n: seen[n].value if n in seen else None for n in row.cells if n != PLACE}
        there = row.us > self.deleted.get(key, -1)
        return values if there or any(value is not None for value in values.values()) else None

    def upsert(
        self, key: Key, us: int, cells: Mapping[str, Cell], lists: Collection[str] = ()
    ) -> None:
        """Write cells of a row.

        :param lists: the columns that are lists.
        """
        row = self.table.get(key, Row({}, -1))
        merged = dict(cells)
        for name in row.cells.keys() & cells.keys():
            merged[name] = row.cells[name].merged(cells[name], is_list=name in lists)
        self.table[key] = Row(row.cells | merged, max(us, row.us))


class ReadsOffers:
    """Part of a session that reads ahead what is offered, as one does that encodes rows."""

    _offered: Iterator[tuple[Plan, Slice]] = iter(())

    def offer(self, rows: Iterator[tuple[Plan, Slice]]) -> None:
        """Read the first of them while the next update is on its way."""
        self._offered = rows

    def read_offered(self) -> None:
        """Read them: the update has been made, and its answer has not come."""
        offered, self._offered = self._offered, iter(())
        for _ in itertools.islice(offered, READ_AHEAD):
            pass


class MemorySession(ReadsOffers, IdempotentSession):
    """A connection to a `MemoryTarget`. The rows of a call are in flight until the next one."""

    def __init__(self, target: MemoryTarget, owner: Owner) -> None:
        self._target = target
        self._owner = owner
        self._in_flight: list[tuple[Plan, Slice]] = []
        self._refused: OnRefused | None = None
        self._bases_us: dict[int, int] = {}
        """Of the begun window: the timestamp of each epoch's first row."""

    def pass_over(self, refused: OnRefused | None, passed: Sequence[PassedRow] = ()) -> None:  # noqa: ARG002 -- rows are sent again as they are
        """Tell of each row that the target refuses, and take the others."""
        self._refused = refused

    def read_ledger(self) -> LedgerState | None:
        """Read the ledger row."""
        with self._target.lock:
            return self._target.ledger.get(self._owner.query_id)

    def start(self, window: Window) -> None:
        """Expect the rows of a window: totals are added by their places in it."""
        self._in_flight = []
        self._bases_us = {begun.epoch: begun.base_us for begun in window.epochs}

    def write(self, plan: Plan, rows: Slice) -> None:
        """Write the rows of the call before; those of this call stay in flight until the next one."""
        self.drain()
        self._in_flight = [(plan, rows)]

    def drain(self) -> None:
        """Write what is in flight."""
        while self._in_flight:
            plan, rows = self._in_flight.pop(0)
            for index, values in enumerate(rows.batch.to_pylist()):
                self._write(plan, rows.epoch, rows.first_us + index, values)

    def _write(self, plan: Plan, epoch: int, us: int, values: dict[str, Any]) -> None:
        target = self._target
        if why := target.refuses(values):
            error = TargetRefused(why, "Change the target.")
            if self._refused is None or plan.demands.one_session:
                raise error
            self._refused(us, error)
            return
        operation = plan.operation and values.pop(plan.operation)
        key = tuple(values.pop(name) for name in target.keys)
        with target.lock:
            if operation == DELETE:
                target.deleted[key] = max(us, target.deleted.get(key, -1))
                return
            if plan.demands.target_dated:
                if target.read(key) is not None:
                    return
                us = target.clock_us()
            null_us = -1 if plan.details["nulls"] == "unset" else us  # older than any other cell
            cells = {n: Cell(v, null_us if v is None else us) for n, v in values.items()}
            if totals := _names(plan.details["totals"]):
                place = Cell((epoch, us - self._bases_us[epoch]), us)
                seen = target.seen(key)
                if PLACE in seen and place.value <= seen[PLACE].value:
                    return  # they have it already
                for name in totals:
                    if name in seen and values[name] is not None:
                        cells[name] = Cell((seen[name].value or 0) + values[name], us)
                cells[PLACE] = place
            target.upsert(key, us, cells, _names(plan.details["lists"]))

    def compare_and_set(self, seen: LedgerState | None, new: LedgerState) -> Outcome:
        """Replace the row if it is the one that was seen."""
        with self._target.lock:
            there = self._target.ledger.get(self._owner.query_id)
            if there == seen:
                self._put(new)
        self.read_offered()
        return Outcome.APPLIED if there == seen else Outcome.CONFLICT

    def written_us(self) -> int | None:
        """Return the timestamp of a plain write that shadows the row, or cells of it."""
        shadow = self._target.shadows.get(self._owner.query_id)
        return shadow and shadow.until_us

    def now_us(self) -> int | None:
        """Return what the target's clock says."""
        return self._target.clock_us()

    def close(self) -> None:
        """Nothing is held."""

    def _put(self, new: LedgerState) -> None:
        """Write the row; without effect on cells that are shadowed (rule 16)."""
        query_id, ledger = self._owner.query_id, self._target.ledger
        shadow, there = self._target.shadows.get(query_id), ledger.get(query_id)
        if shadow and there:
            new = msgspec.structs.replace(new, **{n: getattr(there, n) for n in shadow.cells})
        ledger[query_id] = new


def _names(text: str) -> tuple[str, ...]:
    return tuple(filter(None, text.split(",")))

"""Which types of a DataFrame the columns of a table hold, and the cast to them. No I/O.

For targets whose types are held exactly by types of Arrow.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from wal_sink.errors import InvalidRow, TargetRefused
from wal_sink.model.plan import Column, Plan, is_array, is_blob, is_text, spark_ddl
from wal_sink.targets.arrow_values import (
    are_deletes,
    beyond_python,
    cast_values,
    not_deleted,
    plain,
    shorten,
)
from wal_sink.targets.columns import TableColumn, TableRules, to_cast

ArrowType = Callable[[str], pa.DataType | None]
"""Returns the Arrow type that holds a database's type exactly, None for a type that cannot be written."""

Fits = Callable[[str, pa.Array], pa.BooleanArray | None]
"""Returns which values of a column of a database's type the server takes; None: all of them."""


class CastRules(TableRules):
    """What holds where an Arrow type holds each type of the database.

    :param arrow_type: of the database.
    :param table: its name, as errors write it.
    """

    def __init__(self, arrow_type: ArrowType, table: str) -> None:
        self._arrow_type = arrow_type
        self._table = table

    def about_type(self, field: pa.Field, column: TableColumn) -> Sequence[str]:
        """Compare the DataFrame's type with the Arrow type that holds the column's exactly."""
        type_ = self._arrow_type(column.type)
        if type_ is None:
            why = f"{field.name}: the table's type is {column.type}, which cannot be written."
            remedy = f"Give the column another type, or drop {field.name} from the DataFrame."
            return [f"{why} {remedy}"]
        if self.is_castable(field.type, column.type, type_):
            return []
        cast = to_cast(field.name, spark_ddl(type_))
        return [self.types_differ(field, column.type, f"{cast}, or alter the table.")]

    def is_castable(self, source: pa.DataType, words: str, holds: pa.DataType) -> bool:  # noqa: ARG002
        """Whether the DataFrame's type may go into a column; to be overridden where the words count, too."""
        return is_castable(source, holds)

    def to_add(self, field: pa.Field) -> str:
        """Leave the type to the reader, who knows the database."""
        return f"run: ALTER TABLE {self._table} ADD COLUMN {field.name} …;"

    def to_allow_null(self, column: TableColumn) -> str:  # noqa: ARG002 -- of every column
        """Leave the statement to the reader, as above."""
        return "give the column a default."


def is_castable(source: pa.DataType, type_: pa.DataType) -> bool:
    """Whether a type may hold another's values: a cast keeps a value or refuses it, and never changes it."""
    if pt.is_list(type_) and is_array(source):
        return is_castable(source.value_type, type_.value_type)
    if pt.is_floating(source) and pt.is_floating(type_):
        return bool(type_.bit_width >= source.bit_width)
    if pt.is_timestamp(source) and pt.is_timestamp(type_):
        return (source.tz is None) == (type_.tz is None)
    return source == type_ or any(holds(source, type_) for holds in _HOLDS)


def _is_number(type_: pa.DataType) -> bool:
    return bool(pt.is_integer(type_) or pt.is_decimal(type_) or pt.is_float64(type_))


_HOLDS: tuple[Callable[[pa.DataType, pa.DataType], bool], ...] = (
    lambda source, type_: is_text(source) and is_text(type_),
    lambda source, type_: is_blob(source) and is_blob(type_),
    lambda source, type_: pt.is_integer(source) and _is_number(type_),
    lambda source, type_: pt.is_decimal(source) and pt.is_decimal(type_),
    lambda source, type_: pt.is_boolean(source) and pt.is_integer(type_),
    lambda source, type_: pt.is_decimal(source) and not source.scale and pt.is_integer(type_),
)


def cast(
    batch: pa.RecordBatch,
    plan: Plan,
    arrow_type: ArrowType,
    fits: Fits,
    deletes: pa.Array | None = None,
) -> pa.RecordBatch:
    """Cast a batch to the table's types; it keeps the order of its columns.

    :param plan: without the column that says what a row does.
    :param deletes: which rows are deletes, that have no values beside the key; None: no row is one.
    :raises InvalidRow: a value does not fit its column, or a part of the key is null.
    """
    key = key_of(plan)
    arrays = []
    for column in plan.columns:
        array = batch.column(column.name)
        if column.role == "required" or column.name in key:
            _refuse_null(column, array, None if column.name in key else deletes)
        type_ = arrow_type(column.type)
        assert type_ is not None, "the plan has only types that can be written"
        try:
            values = cast_values(array, type_)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            row = next(i for i in range(len(array)) if not _casts(array.slice(i, 1), type_))
            raise _invalid(batch, plan, column, row) from error
        if (beyond := beyond_python(values)) is not None:
            raise _invalid(batch, plan, column, beyond.to_pylist().index(True))
        fitting = fits(column.type, values)
        if fitting is not None and fitting.false_count:
            raise _invalid(batch, plan, column, fitting.to_pylist().index(False))
        arrays.append(values)
    return pa.record_batch(arrays, names=[column.name for column in plan.columns])


def _refuse_null(column: Column, array: pa.Array, deletes: pa.Array | None) -> None:
    """Refuse nulls in a column.

    :param deletes: rows that may have one; None: no row may.
    :raises InvalidRow: there is one.
    """
    missing = not_deleted(array.is_null(), deletes)
    if missing.true_count:
        raise InvalidRow(
            f"Column {column.name} is null in {missing.true_count} rows, and the table takes no null",
            f"Filter such rows out: .where(F.col('{column.name}').isNotNull()).",
            column=column.name,
            problem=f"Column {column.name} is null, and the table takes no null.",
            rows=missing,
        )


_KEY = "key"
"""Under which name a plan's details have the columns of the key."""


def key_of(plan: Plan) -> tuple[str, ...]:
    """Return the columns by which an upsert finds the row to replace; none where each row is added."""
    return tuple(json.loads(plan.details.get(_KEY, "[]")))


def key_details(key: Collection[str]) -> dict[str, str]:
    """Return what a plan's details have of the key."""
    return {_KEY: json.dumps(list(key))} if key else {}


def as_new_rows(plan: Plan, batch: pa.RecordBatch) -> tuple[Plan, pa.RecordBatch]:
    """Return rows, and the plan by which each is added, where their own plan replaces those of a key.

    :raises TargetRefused: one of them is a delete.
    """
    if plan.operation is not None:
        if pc.any(are_deletes(batch.column(plan.operation))).as_py():
            raise TargetRefused(
                f"{row_text(batch, plan, 0)} is a delete, and what the key has now may be newer".capitalize(),
                "Delete it by hand, if it is to be deleted.",
            )
        batch = batch.drop_columns([plan.operation])
    details = {name: value for name, value in plan.details.items() if name != _KEY}
    return msgspec.structs.replace(plan.of_table(), details=details), batch


def _casts(value: pa.Array, type_: pa.DataType) -> bool:
    try:
        cast_values(value, type_)
    except pa.ArrowInvalid:
        return False
    return True


def row_text(batch: pa.RecordBatch, plan: Plan, row: int) -> str:
    """Name a row by its key, or by the beginning of its values where the table has none."""
    shown = key_of(plan) or [each.name for each in plan.of_table().columns][:3]
    values = ", ".join(f"{name}={shorten(plain(batch.column(name)[row]))}" for name in shown)
    return f"the row with {values}"


def _invalid(batch: pa.RecordBatch, plan: Plan, column: Column, row: int) -> InvalidRow:
    """Name the value, and its row by the beginning of its values: the table need not have a key."""
    value = shorten(plain(batch.column(column.name)[row]))
    source = spark_ddl(batch.schema.field(column.name).type)
    return InvalidRow(
        f"A value of column {column.name} does not fit into {column.type}: {value}, in"
        f" {row_text(batch, plan, row)}",
        f"Cast or filter it in the DataFrame, or alter the table's column to hold such a {source}.",
        column=column.name,
        problem=f"The value of column {column.name} does not fit into {column.type}.",
    )

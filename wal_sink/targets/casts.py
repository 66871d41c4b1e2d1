"""Casts columns of a DataFrame to the types of a table, and refuses values that do not fit. No I/O.

The module serves targets whose column types each correspond to an Arrow type.
"""

from __future__ import annotations

import base64
import functools
from collections.abc import Callable, Sequence
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from wal_sink.errors import InvalidRow
from wal_sink.model.plan import Column, Plan
from wal_sink.model.spark_types import canonical, is_array, is_blob, is_text, spark_ddl
from wal_sink.targets.arrow_values import TRUE, as_python, beyond_python, shorten
from wal_sink.targets.cdc import (
    Marked,
    are_deletes,
    except_deletes,
    flags_of,
    mark,
    operations_of_rows,
    with_flags,
    without_values_of_deletes,
)
from wal_sink.targets.columns import TableColumn, TableRules, refuse_other_schema, to_cast

ArrowType = Callable[[str], pa.DataType | None]
"""Returns the Arrow type with exactly the values of a database's type. None for an unsupported type."""

Fits = Callable[[str, pa.Array], pa.BooleanArray | None]
"""Flags the values of a column that the server accepts. None means that the server accepts all values. The
first argument is the column's type in the database's words."""


class CastRules(TableRules):
    """Rules for a database whose types correspond to types of Arrow.

    :param arrow_type: returns the Arrow type of a database's type.
    :param table: the table, as errors name it.
    """

    def __init__(self, arrow_type: ArrowType, table: str) -> None:
        self._arrow_type = arrow_type
        self._table = table

    def about_type(self, field: pa.Field, column: TableColumn) -> Sequence[str]:
        """Return a line if the DataFrame's type cannot be cast to the column's Arrow type."""
        type_ = self.type_of(column)
        if type_ is None:
            problem = f"{field.name}: the table's type is {column.type}, which cannot be written."
            remedy = f"Give the column another type, or drop {field.name} from the DataFrame."
            return [f"{problem} {remedy}"]
        if self.is_castable(field.type, column.type, type_):
            return []
        cast = to_cast(field.name, spark_ddl(type_))
        return [self.types_differ(field, column.type, f"{cast}, or alter the table.")]

    def type_of(self, column: TableColumn) -> pa.DataType | None:
        """Return the Arrow type with the same values as a column. None if the column cannot be written."""
        return self._arrow_type(column.type)

    def is_castable(self, source: pa.DataType, words: str, holds: pa.DataType) -> bool:  # noqa: ARG002
        """Return True if the DataFrame's type can be cast to the Arrow type of a column.

        :param words: the column's type in the database's words. Only overrides read it.
        :param holds: the column's Arrow type.
        """
        return is_castable(source, holds)

    def to_add(self, field: pa.Field) -> str:
        """Return an ALTER TABLE, in which the user fills in the type."""
        return f"run: ALTER TABLE {self._table} ADD COLUMN {field.name} …;"

    def to_allow_null(self, column: TableColumn) -> str:  # noqa: ARG002 -- for overrides
        """Propose a change in words, since the statement depends on the database."""
        return "let the column take nulls, or give it a default."


def is_castable(source: pa.DataType, type_: pa.DataType) -> bool:
    """Return True if a cast to `type_` keeps each value of `source` unchanged, or refuses the value."""
    if pt.is_list(type_) and is_array(source):
        return is_castable(source.value_type, type_.value_type)
    if pt.is_struct(type_) and pt.is_struct(source):
        types = {field.name: field.type for field in source}
        taken = [field.name for field in type_ if field.name in types]
        # A field that the DataFrame lacks becomes null. Arrow adds it if the order of the others is the same.
        return taken == [*types] == [field.name for field in source] and all(
            is_castable(types[into.name], into.type) if into.name in types else into.nullable
            for into in type_
        )
    if pt.is_floating(source) and pt.is_floating(type_):
        return bool(type_.bit_width >= source.bit_width)
    if pt.is_timestamp(source) and pt.is_timestamp(type_):
        return (source.tz is None) == (type_.tz is None)
    same = canonical(source) == canonical(type_)  # nulls of nested fields are checked in each value
    return same or any(holds(source, type_) for holds in _HOLDS)


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


class InvalidValueError(Exception):
    """A value of a column that the database would refuse.

    :param problem: continues "Column c of t (value) …".
    :param remedy: `{name}` stands for the column.
    :param row: the position of the first such value.
    :param rows: flags of all such values. None if only the first value is known.
    """

    def __init__(self, problem: str, remedy: str, row: int, rows: pa.Array | None = None) -> None:
        super().__init__(problem)
        self.problem, self.remedy, self.row, self.rows = problem, remedy, row, rows


_LONGEST = 255
"""The largest number of bytes in a file name."""


def refuse_as_folder(values: pa.Array, partition: str) -> None:
    """Refuse texts that make the name of a partition's folder too long.

    The name is `<partition>=<text>`, encoded as in a URL. Bytes are encoded in Base64 first.

    :raises InvalidValueError: there is such a text.
    """
    longest = _LONGEST - len(quote(f"{partition}=", safe="="))
    if (pc.max(pc.binary_length(values)).as_py() or 0) * 4 > longest:
        named = (base64.b64encode(v) if isinstance(v, bytes) else v for v in values.to_pylist())
        refuse(
            pa.array([len(quote(name or "", safe="")) > longest for name in named]),
            "is too long for the name of a partition's folder",
            "Partition the table by another column, or shorten the values: F.left('{name}', …).",
        )


Stored = Callable[[Column, pa.Array], pa.Array]
"""Casts the values of a column to the type in which the log stores them. Raises `InvalidValueError`."""


def cast(batch: pa.RecordBatch, plan: Plan, stored: Stored) -> pa.RecordBatch:
    """Cast a batch to the types in which the log stores it. The order of its columns is kept.

    :raises SchemaMismatch: the batch has other columns than the plan.
    :raises InvalidRow: a row cannot be written. The error names the column and the first such row.
    """
    refuse_other_schema(batch.schema, plan)
    operations = operations_of_rows(batch, plan, functools.partial(row_text, batch, plan))
    deletes = None if operations is None else are_deletes(operations)
    rows = batch if deletes is None else without_values_of_deletes(batch, deletes, key_of(plan))
    marked = mark(rows, plan, key_of(plan))
    return with_flags(_cast(batch, marked, plan, stored, operations), marked.flags)


def recast(batch: pa.RecordBatch, plan: Plan, stored: Stored) -> pa.RecordBatch:
    """Cast rows of the log again, after the table was altered.

    :param plan: the plan with the present columns of the table.
    :raises InvalidRow: a row can no longer be written. The error names the column and the first such row.
    """
    operations = None if plan.operation is None else batch.column(plan.operation)
    rows, flags = batch.select([column.name for column in plan.columns]), flags_of(batch, plan)
    return with_flags(_cast(rows, Marked(rows, flags), plan, stored, operations), flags)


def _cast(
    batch: pa.RecordBatch,
    marked: Marked,
    plan: Plan,
    stored: Stored,
    operations: pa.Array | None,
) -> pa.RecordBatch:
    """Cast the marked rows to the types that the log stores.

    :param batch: the rows before any change, from which errors name a row.
    :param operations: the operation of each row, as the log stores it.
    """
    deletes = None if operations is None else are_deletes(operations)
    arrays = []
    for column, values in zip(plan.columns, marked.rows.columns, strict=True):
        if column.role == "operation":
            arrays.append(operations)
            continue
        array = values.cast(values.type.value_type) if pt.is_dictionary(values.type) else values
        try:
            flag = marked.flags.get(column.name, deletes)
            unwritten = flag if deletes is None else pc.or_(deletes, flag)
            _refuse_null(column, array, unwritten, key=column.name in key_of(plan))
            arrays.append(stored(column, array))
        except InvalidValueError as invalid:
            shown = shorten(as_python(values[invalid.row]))
            raise InvalidRow(
                f"Column {column.name} of {plan.table} ({shown}) {invalid.problem}, in"
                f" {row_text(batch, plan, invalid.row)}.",
                invalid.remedy.replace("{name}", column.name),
                column=column.name,
                problem=f"Column {column.name} of {plan.table} {invalid.problem}.",
                rows=invalid.rows,
            ) from invalid.__cause__
    return pa.RecordBatch.from_arrays(arrays, names=batch.schema.names)


_RESTART = ", and start the query again, so that its tasks read the new type"
"""The end of a remedy that alters a column."""


def _refuse_null(
    column: Column, values: pa.Array, unwritten: pa.Array | None, *, key: bool
) -> None:
    """Refuse nulls in the key, and in a column that takes no null.

    :param unwritten: flags of the rows whose value is not written, since the row is a delete or the cell is
        unavailable. Outside of the key such a value may be null.
    """
    if key or column.role == "required":
        refuse(
            values.is_null() if key else except_deletes(values.is_null(), unwritten),
            "is null and part of the key: a null equals no other value"
            if key
            else "is null, and the table's column takes no null",
            'Drop such rows, .na.drop(subset=["{name}"]), or fill them in.',
        )


def refuse(bad: pa.Array, problem: str, remedy: str) -> None:
    """Refuse the flagged values.

    :raises InvalidValueError: a value is flagged.
    """
    row = pc.index(bad, TRUE).as_py()
    if row >= 0:
        raise InvalidValueError(problem, remedy, row, bad)


def refuse_years(values: pa.Array, problem: str) -> None:
    """Refuse dates and timestamps outside of the years 1 to 9999.

    :param problem: why the database does not take such values. Continues "… of the years 1 to 9999, and ".
    :raises InvalidValueError: there is such a value.
    """
    if (beyond := beyond_python(values)) is not None:
        problem = f"is outside of the years 1 to 9999, and {problem}"
        refuse(beyond, problem, "Filter such rows out; most often the unit is wrong.")


def stored_by(arrow_type: ArrowType, fits: Fits = lambda *_: None) -> Stored:
    """Return a function that casts a column to its Arrow type, and refuses values that do not fit."""

    def stored(column: Column, values: pa.Array) -> pa.Array:
        type_ = arrow_type(column.type)
        assert type_ is not None, "the plan has only types that can be written"
        array = cast_or_refuse(values, type_, column.type)
        problem = f"does not fit into {column.type}"
        remedy = (
            f"Cast or filter it in the DataFrame, or alter the table's column to hold it{_RESTART}."
        )
        refuse_years(array, f"does not fit into {column.type}")
        if (fitting := fits(column.type, array)) is not None:
            refuse(pc.invert(fitting), problem, remedy)
        return array

    return stored


def cast_values(values: pa.Array, to: pa.DataType) -> pa.Array:
    """Cast values, and refuse a value that the cast would change.

    Arrow refuses to cast int64 to a decimal type that does not hold every int64. So integers are first cast
    to a wide decimal. The cast from the wide decimal refuses only values that do not fit.

    :raises ArrowInvalid: a value does not fit.
    """
    if values.type.num_fields and values.type != to:
        values = pa.concat_arrays([values])  # Arrow would cast elements outside of a slice, too
    between = _between(values.type, to)
    return (values if between is None else values.cast(between)).cast(to)


def _between(source: pa.DataType, to: pa.DataType) -> pa.DataType | None:
    if is_array(source) and is_array(to):
        element = _between(source.value_type, to.value_type)
        return None if element is None else pa.list_(element)
    if pt.is_struct(source) and pt.is_struct(to):
        between = [_between(field.type, to.field(field.name).type) for field in source]
        if all(type_ is None for type_ in between):
            return None
        parts = zip(source, between, strict=True)
        return pa.struct(
            [field if type_ is None else field.with_type(type_) for field, type_ in parts]
        )
    if pt.is_integer(source) and pt.is_decimal(to):
        return pa.decimal256(76, to.scale)
    return None


def cast_or_refuse(values: pa.Array, to: pa.DataType, words: str) -> pa.Array:
    """Cast values as `cast_values` does, and convert its error.

    :param words: the column's type in the database's words.
    :raises InvalidValueError: a value does not fit.
    """
    try:
        return cast_values(values, to)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        row = _first(values, to)
        raise InvalidValueError(
            f"does not fit into {words}",
            f"Filter or round it, or widen the column{_RESTART}. Arrow says: {error}",
            row,
        ) from error


def _first(values: pa.Array, to: pa.DataType) -> int:
    """Return the position of the first value that a cast refuses, by bisection.

    :param values: at least one value is refused.
    """
    begin, end = 0, len(values)
    while end - begin > 1:
        middle = (begin + end) // 2
        try:
            cast_values(values.slice(begin, middle - begin), to)
        except pa.ArrowInvalid:
            end = middle
        else:
            begin = middle
    return begin


KEY = "key"
"""Key of `Plan.details`: the columns of the table's key. A plan that only adds rows has no such entry."""


def key_of(plan: Plan) -> tuple[str, ...]:
    """Return the columns by which an upsert finds the row to replace. Empty if rows are only added."""
    return tuple(plan.details.get(KEY, ()))


def row_text(batch: pa.RecordBatch, plan: Plan, row: int) -> str:
    """Return the text by which errors name a row: its key, or three values if the plan has no key."""
    shown = key_of(plan) or [column.name for column in plan.of_table().columns][:3]
    values = ", ".join(f"{name}={shorten(as_python(batch.column(name)[row]))}" for name in shown)
    return f"the row with {values}"

"""Casts columns of a DataFrame to the types of a table, and refuses values that do not fit. No I/O.

For targets whose types are held exactly by types of Arrow.
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
from wal_sink.model.plan import Column, Plan, canonical, is_array, is_blob, is_text, spark_ddl
from wal_sink.targets.arrow_scalars import TRUE, as_python, shorten
from wal_sink.targets.columns import TableColumn, TableRules, refuse_other_schema, to_cast
from wal_sink.targets.deletes import are_deletes, keys_of_deletes, not_deleted, planned_operations
from wal_sink.targets.unavailable import Marked, flags_of, mark, with_flags
from wal_sink.targets.value_checks import beyond_python

ArrowType = Callable[[str], pa.DataType | None]
"""Returns the Arrow type that holds a database's type exactly, None for a type that cannot be written."""

Fits = Callable[[str, pa.Array], pa.BooleanArray | None]
"""Returns which values of a column of a database's type the server takes; None: all of them."""


class CastRules(TableRules):
    """Rules for a database each of whose types is held by a type of Arrow.

    :param arrow_type: of the database.
    :param table: its name, as errors write it.
    """

    def __init__(self, arrow_type: ArrowType, table: str) -> None:
        self._arrow_type = arrow_type
        self._table = table

    def about_type(self, field: pa.Field, column: TableColumn) -> Sequence[str]:
        """Compare the DataFrame's type with the Arrow type that holds the column's exactly."""
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
        """Return the Arrow type that holds a column's exactly; None: it cannot be written."""
        return self._arrow_type(column.type)

    def is_castable(self, source: pa.DataType, words: str, holds: pa.DataType) -> bool:  # noqa: ARG002
        """Return True if the DataFrame's type may go into a column. Override it if the words count, too."""
        return is_castable(source, holds)

    def to_add(self, field: pa.Field) -> str:
        """Leave the type to the reader, who knows the database."""
        return f"run: ALTER TABLE {self._table} ADD COLUMN {field.name} …;"

    def to_allow_null(self, column: TableColumn) -> str:  # noqa: ARG002 -- of every column
        """Leave the statement to the reader, as above."""
        return "give the column a default."


def is_castable(source: pa.DataType, type_: pa.DataType) -> bool:
    """Return True if a type may hold another's values: a cast keeps a value, or refuses it."""
    if pt.is_list(type_) and is_array(source):
        return is_castable(source.value_type, type_.value_type)
    if pt.is_struct(type_) and pt.is_struct(source):
        types = {field.name: field.type for field in source}
        taken = [field.name for field in type_ if field.name in types]
        # As of columns: what the DataFrame lacks becomes null. Arrow fills it in where the order is the same.
        return taken == [*types] == [field.name for field in source] and all(
            is_castable(types[into.name], into.type) if into.name in types else into.nullable
            for into in type_
        )
    if pt.is_floating(source) and pt.is_floating(type_):
        return bool(type_.bit_width >= source.bit_width)
    if pt.is_timestamp(source) and pt.is_timestamp(type_):
        return (source.tz is None) == (type_.tz is None)
    same = canonical(source) == canonical(type_)  # whether a part takes nulls: checked by value
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
    :param remedy: `{name}` stands for the column, `{restart}` for what to do beside altering the table.
    :param row: the first such value.
    :param rows: all of them, as flags; None: only the first one is known.
    """

    def __init__(self, problem: str, remedy: str, row: int, rows: pa.Array | None = None) -> None:
        super().__init__(problem)
        self.problem, self.remedy, self.row, self.rows = problem, remedy, row, rows


_LONGEST = 255
"""Bytes of the name that a file system takes."""


def refuse_as_folder(values: pa.Array, partition: str) -> None:
    """Refuse texts that make the name of a partition's folder, `<partition>=<text>` as in a URL, too long.

    Of bytes Base64 is the text.

    :raises InvalidValueError: there is one.
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
"""Casts the values of a column to what the log holds; raises `InvalidValueError`."""


def cast(batch: pa.RecordBatch, plan: Plan, stored: Stored) -> pa.RecordBatch:
    """Cast a batch to what the log holds; it keeps the order of its columns.

    :raises SchemaMismatch: the columns are not those of the plan.
    :raises InvalidRow: a row cannot be written; names the column and the first such row.
    """
    refuse_other_schema(batch.schema, plan)
    operations = planned_operations(batch, plan, functools.partial(row_text, batch, plan))
    deletes = None if operations is None else are_deletes(operations)
    rows = batch if deletes is None else keys_of_deletes(batch, deletes, key_of(plan))
    marked = mark(rows, plan, key_of(plan))
    return with_flags(_cast(batch, marked, plan, stored, operations), marked.flags)


def recast(batch: pa.RecordBatch, plan: Plan, stored: Stored) -> pa.RecordBatch:
    """Cast rows of the log to the types of a table that was altered since they were checked.

    :param plan: as the table is now.
    :raises InvalidRow: a row cannot be written any more; names the column and the first such row.
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
    """Cast rows.

    :param batch: the rows as errors show them.
    :param operations: what each row does, as the log has it.
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
        except InvalidValueError as bad:
            shown = shorten(as_python(values[bad.row]))
            raise InvalidRow(
                f"Column {column.name} of {plan.table} ({shown}) {bad.problem}, in"
                f" {row_text(batch, plan, bad.row)}.",
                bad.remedy.replace("{name}", column.name).replace("{restart}", _RESTART),
                column=column.name,
                problem=f"Column {column.name} of {plan.table} {bad.problem}.",
                rows=bad.rows,
            ) from bad.__cause__
    return pa.RecordBatch.from_arrays(arrays, names=batch.schema.names)


_RESTART = ", and start the query again: its tasks then hear of that"
"""The step that has to follow the alteration of a column."""


def _refuse_null(
    column: Column, values: pa.Array, unwritten: pa.Array | None, *, key: bool
) -> None:
    """Refuse nulls in the key, and in a column that takes none.

    :param unwritten: the rows that may have one there: deletes, and unavailable cells.
    """
    if key or column.role == "required":
        refuse(
            values.is_null() if key else not_deleted(values.is_null(), unwritten),
            "is null and part of the key, and a null equals no other"
            if key
            else "is null, and the table's column takes no null",
            'Drop such rows, .na.drop(subset=["{name}"]), or fill them in.',
        )


def refuse(bad: pa.Array, problem: str, remedy: str) -> None:
    """Refuse the values that are flagged.

    :raises InvalidValueError: there is one.
    """
    row = pc.index(bad, TRUE).as_py()
    if row >= 0:
        raise InvalidValueError(problem, remedy, row, bad)


def stored_by(arrow_type: ArrowType, fits: Fits = lambda *_: None) -> Stored:
    """Return what casts the columns of a database whose types are held exactly by types of Arrow."""

    def stored(column: Column, values: pa.Array) -> pa.Array:
        type_ = arrow_type(column.type)
        assert type_ is not None, "the plan has only types that can be written"
        array = cast_or_refuse(values, type_, column.type)
        problem = f"does not fit into {column.type}"
        remedy = (
            "Cast or filter it in the DataFrame, or alter the table's column to hold it{restart}."
        )
        if (beyond := beyond_python(array)) is not None:
            refuse(beyond, problem, remedy)
        if (fitting := fits(column.type, array)) is not None:
            refuse(pc.invert(fitting), problem, remedy)
        return array

    return stored


def cast_values(values: pa.Array, to: pa.DataType) -> pa.Array:
    """Cast values unaltered, or refuse one that does not fit.

    Arrow casts integers only to a decimal that fits every value of their type. So they are first cast to a
    wider decimal: the cast from there refuses single values.

    :raises ArrowInvalid: one does not fit.
    """
    if values.type.num_fields and values.type != to:
        values = pa.concat_arrays([values])  # of a slice Arrow casts its neighbours' elements, too
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
    """Cast values to the type that holds a column's.

    :param words: the column's type, in the database's words.
    :raises InvalidValueError: one does not fit.
    """
    try:
        return cast_values(values, to)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        row = _first(values, to)
        raise InvalidValueError(
            f"does not fit into {words}",
            f"Filter or round it, or widen the column{{restart}}. Arrow says: {error}",
            row,
        ) from error


def _first(values: pa.Array, to: pa.DataType) -> int:
    """Return the first value that a cast refuses; there is one."""
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
"""The detail of a plan with the columns of the key; none where each row is added."""


def key_of(plan: Plan) -> tuple[str, ...]:
    """Return the columns by which an upsert finds the row to replace; none where each row is added."""
    return tuple(plan.details.get(KEY, ()))


def row_text(batch: pa.RecordBatch, plan: Plan, row: int) -> str:
    """Name a row by its key, or by the beginning of its values where the table has none."""
    shown = key_of(plan) or [column.name for column in plan.of_table().columns][:3]
    values = ", ".join(f"{name}={shorten(as_python(batch.column(name)[row]))}" for name in shown)
    return f"the row with {values}"

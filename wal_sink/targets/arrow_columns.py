"""Columns of tables whose types are Arrow types, such as tables of Delta and Iceberg. No I/O.

A plan stores the table's columns as an Arrow schema, with the nullability of nested fields. With this schema
tasks cast and check rows without the table's client. A flusher compares the schema with an altered table.
Values are cast to types whose nested fields all take nulls, since Arrow reports a null in each field of a
null struct.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Sequence

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt

from wal_sink.errors import SchemaMismatch
from wal_sink.model.plan import Column, Plan
from wal_sink.model.spark_types import canonical, fields, is_array, spark_ddl
from wal_sink.targets.casts import CastRules, Stored, cast_or_refuse, refuse
from wal_sink.targets.columns import Holds, TableColumn, refuse_equal_but_for_case
from wal_sink.targets.ddl import spark_name

ARROW = "arrow"
"""Key of `Plan.details`: the types of the plan's columns, as `encoded_types` returns them."""


def encoded_types(types: pa.Schema) -> str:
    """Encode the types of a plan's columns as Base64 of a serialized Arrow schema."""
    return base64.b64encode(types.serialize()).decode()


def planned_types(plan: Plan) -> pa.Schema:
    """Return the types that the table's columns had when the plan was made."""
    return pa.ipc.read_schema(pa.BufferReader(base64.b64decode(plan.details[ARROW])))


def with_parts(field: pa.Field, change: Callable[[pa.Field], pa.Field]) -> pa.Field:
    """Apply `change` to the fields inside of a column, innermost first, and then to the column itself.

    Also replace each type by Arrow's standard layout of the same values, such as `large_string` by `string`.
    """
    type_ = field.type
    if pt.is_map(type_):
        key, item = (with_parts(part, change) for part in (type_.key_field, type_.item_field))
        type_ = pa.map_(key.with_nullable(False), item)
    elif is_array(type_):
        type_ = pa.list_(with_parts(type_.value_field, change))
    elif pt.is_struct(type_):
        type_ = pa.struct([with_parts(part, change) for part in fields(type_)])
    else:
        type_ = canonical(type_)
    return change(field.with_type(type_))


def plain(field: pa.Field) -> pa.Field:
    """Return a column without metadata, at any depth."""
    return with_parts(field, pa.Field.remove_metadata)


def table_columns(
    types: pa.Schema, words: Callable[[pa.Field], str] = lambda field: spark_ddl(field.type)
) -> list[TableColumn]:
    """Return the columns of a table, to compare them with a DataFrame or a plan.

    :param types: the types of the table. A null type stands for a type that wal_sink does not write.
    :param words: returns a column's type as errors write it.
    """
    return [
        TableColumn(field.name, words(field), required=not field.nullable, default=field.nullable)
        for field in types
    ]


class ArrowRules(CastRules):
    """Rules for columns of Arrow types. Errors propose statements of Spark's SQL.

    :param types: the types of the table.
    :param table: the table, as statements write it.
    :param option: the option with which a start adds columns. Empty if the option is set already.
    """

    def __init__(self, types: pa.Schema, table: str, option: str) -> None:
        super().__init__(lambda _: None, table)
        self._types, self._option = types, option

    def type_of(self, column: TableColumn) -> pa.DataType | None:
        """Return the column's Arrow type. None if wal_sink does not write the type."""
        type_ = self._types.field(column.name).type
        return None if pt.is_null(type_) else type_

    def to_add(self, field: pa.Field) -> str:
        """Propose the option or an ALTER TABLE. Empty for an interval, since no table has such a column."""
        ddl, option = spark_ddl(field.type), self._option and f"set {self._option} to true, or "
        statement = f"run: ALTER TABLE {self._table} ADD COLUMN {spark_name(field.name)} {ddl};"
        return "" if "interval" in ddl else f"{option}{statement}"

    def to_allow_null(self, column: TableColumn) -> str:
        """Propose the ALTER TABLE that lets the column take nulls."""
        name = spark_name(column.name)
        return f"run: ALTER TABLE {self._table} ALTER COLUMN {name} DROP NOT NULL;"


def refuse_table(
    table: str, obstacles: Iterable[tuple[str, str]], cannot: str = "cannot be written"
) -> None:
    """Refuse a table if it has an obstacle. The error names the first obstacle.

    :param table: the table, as errors name it. Begins a sentence.
    :param obstacles: the text of each obstacle, and its remedy.
    :param cannot: what cannot be done with the table. Continues `table`.
    :raises SchemaMismatch: there is an obstacle.
    """
    for what, remedy in obstacles:
        raise SchemaMismatch(f"{table} {cannot}: {what}.", remedy)


def new_columns(
    schema: pa.Schema, key: Sequence[str], table_type: Callable[[pa.Schema], object], noun: str
) -> pa.Schema:
    """Return the columns of a DataFrame as new columns of a table. Columns of the key take no null.

    :param table_type: converts a column with the table's client. Raises an error if the format has no such
        type.
    :param noun: the table's format, such as "Delta".
    :raises SchemaMismatch: the format has no type for a column, or two names differ by case only.
    """
    refuse_equal_but_for_case([field.name for field in schema], noun)
    columns = [pa.field(f.name, canonical(f.type), f.name not in key) for f in schema]
    for column in columns:
        alone = pa.schema([column])
        try:
            # Parquet refuses a struct without fields by an error.
            pq.write_table(alone.empty_table(), pa.BufferOutputStream())
            table_type(alone)
        except Exception as error:
            raise SchemaMismatch(
                f"{noun} has no type for column {column.name}, {spark_ddl(column.type)}.",
                "Cast the column in the DataFrame, or drop it.",
            ) from error
    return pa.schema(columns)


def stored_as_planned(plan: Plan) -> Stored:
    """Return a function that casts a column to its planned type.

    The function refuses a null in a nested field that takes no null.
    """
    types = planned_types(plan)

    def stored(column: Column, values: pa.Array) -> pa.Array:
        type_ = types.field(column.name).type
        array = cast_or_refuse(values, canonical(type_), column.type)
        if _has_null_inside(array, type_):
            rows = [_has_null_inside(array.slice(i, 1), type_) for i in range(len(array))]
            problem = f"has a null inside of {column.type}, in a part that takes no null"
            refuse(pa.array(rows), problem, "Filter such rows out.")
        return array

    return stored


def _has_null_inside(values: pa.Array, type_: pa.DataType) -> bool:
    """Return True if a nested field that takes no null has a null.

    :param type_: the planned type, with the nullability of its fields.
    """
    if pt.is_map(type_):
        type_ = pa.list_(type_.field(0))
        values = values.cast(pa.list_(pa.struct([*values.type.field(0).type])))
    if not pt.is_struct(type_) and not is_array(type_):
        return False
    values = values.drop_null()
    parts = values.flatten() if pt.is_struct(type_) else [values.flatten()]
    return any(
        (part.null_count and not field.nullable) or _has_null_inside(part, field.type)
        for field, part in zip(fields(type_), parts, strict=True)
    )


class _Renamed:
    """Exports a batch to Arrow under another schema of the same layout."""

    def __init__(self, schema: pa.Schema, batch: pa.RecordBatch) -> None:
        self._schema = schema
        self._batch = batch

    def __arrow_c_array__(self, _: object = None) -> tuple[object, object]:
        return self._schema.__arrow_c_schema__(), self._batch.__arrow_c_array__()[1]


def renamed(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    """Return batches under another schema of the same layout. No value is copied.

    The function replaces Arrow's cast, which refuses a null struct with a field that takes no null.
    """
    batches = [pa.record_batch(_Renamed(schema, batch)) for batch in batches]
    return pa.Table.from_batches(batches, schema)


def holds(plan: Plan, types: pa.Schema) -> Holds:
    """Return a function that returns True if a column's present type holds each value of its planned type.

    :param types: the present types of the table.
    """
    planned = planned_types(plan)
    return lambda now, column: is_as_wide(
        types.field(now.name).type, planned.field(column.name).type
    )


def is_as_wide(wide: pa.DataType, narrow: pa.DataType) -> bool:
    """Return True if the type `wide` holds each value of the type `narrow`, at any depth."""
    if not pt.is_nested(wide) or wide.id != narrow.id:
        return _holds_scalars(wide, narrow)
    former = {field.name: field for field in fields(narrow)}
    return former.keys() <= {field.name for field in fields(wide)} and all(
        is_as_wide(field.type, former[field.name].type)
        and (field.nullable or not former[field.name].nullable)
        if field.name in former
        else field.nullable  # a new field is null in each pending row
        for field in fields(wide)
    )


def _holds_scalars(wide: pa.DataType, narrow: pa.DataType) -> bool:
    """Return True if two types are equal, or `wide` holds each number of `narrow`."""
    (whole, scale), (former_whole, former_scale) = _digits(wide), _digits(narrow)
    if pt.is_float64(wide) and pt.is_integer(narrow):
        return bool(former_whole <= _DIGITS[32])
    if pt.is_integer(narrow) or (pt.is_decimal(wide) and pt.is_decimal(narrow)):
        return former_whole <= whole and former_scale <= scale
    return bool(wide == narrow or (pt.is_float64(wide) and pt.is_float32(narrow)))


_DIGITS = {8: 3, 16: 5, 32: 10, 64: 19}
"""By the bits of an integer type, the number of digits of its largest integer."""


def _digits(type_: pa.DataType) -> tuple[int, int]:
    """Return how many digits a number has before and after the point. Zeros if the type has no digits."""
    if pt.is_decimal(type_):
        return type_.precision - type_.scale, type_.scale
    return (_DIGITS[type_.bit_width], 0) if pt.is_integer(type_) else (0, 0)


def completed(rows: pa.Table, types: pa.Schema) -> pa.Table:
    """Return rows with all columns of a table, cast to its types. A column that the rows lack is null.

    :param types: the types of the table. Each is at least as wide as the type of the rows.
    :returns: the table's columns, followed by the rows' other columns.
    """
    columns = {
        field.name: rows[field.name].cast(canonical(field.type))
        if field.name in rows.column_names
        else pa.nulls(len(rows), canonical(field.type))
        for field in types
        if not pt.is_null(field.type)
    }
    further = {name: rows[name] for name in rows.column_names if name not in columns}
    return pa.table(columns | further)

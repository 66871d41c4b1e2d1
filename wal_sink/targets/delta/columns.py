"""Columns of a Delta table: their types and names, partitions, and the check of rows in tasks. No I/O."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from wal_sink.model.plan import Column, Plan
from wal_sink.model.spark_types import spark_ddl
from wal_sink.targets.arrow_columns import holds, stored_as_planned, with_parts
from wal_sink.targets.arrow_values import text
from wal_sink.targets.casts import cast, key_of, refuse, refuse_as_folder, refuse_years
from wal_sink.targets.columns import Holds, TableColumn

PARTITIONS, EVENT = "partitions", "event"
"""Keys of `Plan.details`: the partition columns in the table's order, and the column of
`delta.timestampColumn`."""

DECLARED = b"__CHAR_VARCHAR_TYPE_STRING"
"""The metadata key under which Spark stores a type such as "varchar(20)" of a text column."""

_TEXT = re.compile(r"(char|varchar)\((\d+)\)")
"""Matches a text type with a length in characters."""

_PHYSICAL, _ID = b"delta.columnMapping.physicalName", b"delta.columnMapping.id"


def words(field: pa.Field) -> str:
    """Return the type of a column in words of Spark's SQL."""
    declared = (field.metadata or {}).get(DECLARED) if pt.is_string(field.type) else None
    return spark_ddl(field.type) if declared is None else declared.decode()


def physical_name(field: pa.Field) -> str:
    """Return the name of a column in files and in the partition values of Delta's log."""
    return str((field.metadata or {}).get(_PHYSICAL, field.name.encode()), "utf-8")


def stored_field(field: pa.Field) -> pa.Field:
    """Return a column with the names and ids of the table's files, at any depth."""

    def stored(part: pa.Field) -> pa.Field:
        field_id = (part.metadata or {}).get(_ID)
        metadata = None if field_id is None else {b"PARQUET:field_id": field_id}
        return pa.field(physical_name(part), part.type, metadata=metadata)

    return with_parts(field, stored)


def can_partition(type_: pa.DataType) -> bool:
    """Return True if a column of this type may partition a table.

    Partition values are texts. All readers of Delta parse the texts of such a type alike.
    """
    unfit = (pt.is_floating, pt.is_binary, pt.is_nested, pt.is_null)
    return not any(is_kind(type_) for is_kind in unfit)


def can_be_key(type_: pa.DataType) -> bool:
    """Return True if a type may be a key: its values are never NaN, and can be compared."""
    return not pt.is_floating(type_) and not pt.is_nested(type_)


Values = tuple[str | None, ...]
"""A partition's values as texts, in the order of the table's partition columns."""


def split(rows: pa.Table, names: Sequence[str]) -> Iterator[tuple[Values, pa.Table]]:
    """Yield each partition and its rows, in their order and without the partition columns."""
    if not names:
        yield (), rows
        return
    rows = rows.combine_chunks()
    texts = pa.table([_texts(rows[name]) for name in names], names=list(names))
    numbered = texts.append_column("row", pa.array(range(len(rows)), pa.int64()))
    groups = numbered.group_by(list(names), use_threads=False).aggregate([("row", "list")])
    rest = rows.drop_columns(list(names))
    for group in range(groups.num_rows):
        values = tuple(groups.column(name)[group].as_py() for name in names)
        yield values, rest.take(groups.column("row_list")[group].values)


def _texts(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return values as the texts that Delta's log has for partitions."""
    texts = values.cast(pa.string())
    zoned = pt.is_timestamp(values.type) and values.type.tz is not None
    return pc.replace_substring(texts, " ", "T") if zoned else texts


def folder(names: Sequence[str], values: Values) -> str:
    """Return the folder of a partition, such as "day=2026-01-31/", from which polars reads the values."""
    parts = [
        f"{name.replace('/', '%2F').replace(':', '%3A')}={_NULL if value is None else quote(value, safe='')}/"
        for name, value in zip(names, values, strict=True)
    ]
    return "".join(parts)


_NULL = "__HIVE_DEFAULT_PARTITION__"
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


def is_absolute(path: str) -> bool:
    """Return True if a path in the table's log is absolute, such as "/a/b" or "s3://a/b"."""
    return path.startswith("/") or _SCHEME.match(path) is not None


def about_partitions(
    schema: pa.Schema, types: pa.Schema, partitioned_by: Sequence[str], *, replaces: bool
) -> Iterator[str]:
    """Yield a line for each reason why a DataFrame does not fit the table's partition columns.

    :param schema: the columns that are written.
    :param types: the types of the table.
    :param replaces: True if a commit also replaces rows by their key.
    """
    if replaces and partitioned_by and is_absolute(partitioned_by[0]):
        yield (
            f"{partitioned_by[0]}: the table is partitioned by it, and delta-rs reads the part of a path"
            " before a colon as the name of a store. Partition by another column first, or rename it."
        )
    for name in partitioned_by:
        if name in schema.names and not can_partition(types.field(name).type):
            yield (
                f"{name}: the table is partitioned by it, and its type is {words(types.field(name))}."
                " Partition by a text, a whole number, a decimal, a boolean, a date or a timestamp."
            )
    if not set(schema.names) - set(partitioned_by):
        yield (
            "the DataFrame has only partition columns. Add one of the table's other columns, even if it is"
            " null."
        )


def about_moved(plan: Plan, partitioned_by: Sequence[str]) -> Iterator[str]:
    """Yield a text if the table has other partition columns than the plan."""
    if list(partitioned_by) != (planned := plan.details[PARTITIONS]):
        yield f"its partition columns were {planned}, and are {list(partitioned_by)} now"


def holds_planned(plan: Plan, types: pa.Schema) -> Holds:
    """Return a function that returns True if a column's present type holds each value of its planned type.

    :param types: the present types of the table.
    """
    is_held = holds(plan, types)
    return lambda now, column: is_held(now, column) and _is_as_long(now, column)


def _is_as_long(now: TableColumn, planned: Column) -> bool:
    length, former = _TEXT.fullmatch(now.type), _TEXT.fullmatch(planned.type)
    if length is None or now.type == planned.type:
        return True
    return former is not None and length[1] == "varchar" and int(length[2]) >= int(former[2])


def check(batch: pa.RecordBatch, plan: Plan) -> pa.RecordBatch:
    """Cast a batch to the table's types. The order of its columns is kept.

    :raises InvalidRow: a value does not fit its column, or cannot name a partition.
    """
    cast_to_plan = stored_as_planned(plan)

    def stored(column: Column, values: pa.Array) -> pa.Array:
        array = cast_to_plan(column, values)
        _refuse_length(column, array)
        if column.name == plan.details.get(EVENT):
            refuse(
                pc.is_null(array),
                "is null, and delta.timestampColumn names it as the time of the row's change",
                "Filter such rows out.",
            )
        if column.name in plan.details[PARTITIONS]:
            _refuse_as_partition(array, column.name, merged=bool(key_of(plan)))
        return array

    return cast(batch, plan, stored)


def _refuse_length(column: Column, texts: pa.Array) -> None:
    if match := _TEXT.fullmatch(column.type):
        fits = pc.equal if match[1] == "char" else pc.less_equal
        refuse(
            pc.invert(fits(pc.utf8_length(texts), int(match[2]))),
            f"has another length than {column.type}",
            "Spark pads the texts of a char(n) to n characters, and refuses longer ones. Do the same in the"
            " DataFrame, such as by F.rpad or F.substring, or filter by F.length('{name}').",
        )


def _refuse_as_partition(values: pa.Array, name: str, *, merged: bool) -> None:
    """Refuse values that a partition of Delta cannot name, and values that delta-rs cannot merge.

    :param merged: True if delta-rs (1.6.6) merges the rows, and so reads files of the partition.
    """
    refuse_years(values, "a partition of Delta has no text for it")
    if pt.is_string(values.type):
        refuse(
            pc.equal(values, text("")),
            "is an empty text, which a partition of Delta stores as a null",
            "Write a null or another text: F.when(F.col('{name}') != '', …).",
        )
        refuse_as_folder(values, name)
    if merged and pt.is_decimal(values.type) and values.type.scale:
        refuse(
            pc.less(values, text("0").cast(values.type)),
            "is negative, and delta-rs cannot read it as a partition",
            "Partition the table by another column, or filter such rows out.",
        )

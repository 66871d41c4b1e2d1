"""Columns of a Delta table: their types and names, and the check of rows in tasks. No I/O."""

from __future__ import annotations

import re

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from wal_sink.model.plan import Column, Plan
from wal_sink.model.spark_types import spark_ddl
from wal_sink.targets.arrow_columns import holds, stored_as_planned, with_parts
from wal_sink.targets.casts import cast, key_of, refuse
from wal_sink.targets.columns import Holds, TableColumn
from wal_sink.targets.delta.partitions import PARTITIONS, refuse_as_partition

EVENT = "event"
"""Key of `Plan.details`: the column of `delta.timestampColumn`."""

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


def can_be_key(type_: pa.DataType) -> bool:
    """Return True if a type may be a key: its values are never NaN, and can be compared."""
    return not pt.is_floating(type_) and not pt.is_nested(type_)


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
            refuse_as_partition(array, column.name, merged=bool(key_of(plan)))
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

"""The columns of DataFrame and table: compared when a query starts, cast and checked in its tasks. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from wal_sink.errors import InvalidRow, SchemaMismatch
from wal_sink.model.plan import Column, Plan
from wal_sink.targets.delta import types
from wal_sink.targets.delta.partitions import CAN_PARTITION, can_partition
from wal_sink.targets.names import did_you_mean

PARTITIONS = "partitions"
"""What a plan notes: the partition columns in the table's order, as a JSON array."""

_DEFAULT = "CURRENT_DEFAULT"


def partitions(plan: Plan) -> list[str]:
    """Return the partition columns that a plan has noted."""
    return msgspec.json.decode(plan.details[PARTITIONS], type=list[str])


def agreed_columns(
    schema: pa.Schema, fields: Sequence[dict[str, Any]], partitioned_by: Sequence[str], path: str
) -> tuple[Column, ...]:
    """Find the table's column for each column of the DataFrame, which has to have the same name.

    :param fields: of the table, as Delta's log has them.
    :raises SchemaMismatch: a column is missing on one of the sides, or its type cannot hold the other's.
    """
    by_name = {field["name"]: field for field in fields}
    agreed = []
    for source in schema:
        field = by_name.pop(source.name, None)
        if field is None:
            sql = types.to_sql(types.from_arrow(source.type) or "…")
            raise SchemaMismatch(
                f"The Delta table {path} has no column {source.name}."
                f" {did_you_mean(source.name, by_name)}".rstrip(),
                f"Add it: ALTER TABLE delta.`{path}` ADD COLUMN {source.name} {sql}; or drop it from the"
                " DataFrame.",
            )
        agreed.append(_agreed(source, field, path))
        if source.name in partitioned_by and not can_partition(field["type"]):
            raise SchemaMismatch(
                f"Partition column {source.name} of {path} is {types.to_sql(field['type'])}, by which"
                " wal_sink does not partition.",
                f"Partition by one of {', '.join(map(types.to_sql, CAN_PARTITION))}, decimal.",
            )
    for field in by_name.values():
        if not field["nullable"] or _DEFAULT in field["metadata"]:
            raise SchemaMismatch(
                f"Column {field['name']} of {path} takes no null or has a default, and the DataFrame has no"
                " such column.",
                f"Add it: .withColumn('{field['name']}', …).",
            )
    if not set(schema.names) - set(partitioned_by):
        raise SchemaMismatch(
            f"The DataFrame has only partition columns of {path}.",
            "Add one of the table's other columns, if only as a null.",
        )
    return tuple(agreed)


def _agreed(source: pa.Field, field: dict[str, Any], path: str) -> Column:
    type_, sql = types.to_arrow(field["type"]), types.to_sql(field["type"])
    if type_ is None:
        raise SchemaMismatch(
            f"Column {field['name']} of {path} is {sql}, which wal_sink does not write.",
            "Leave it out of the DataFrame, or write to another table.",
        )
    if not types.holds(type_, source.type):
        raise SchemaMismatch(
            f"Column {field['name']} of {path} is {sql}, and the DataFrame's is {source.type}.",
            f"Cast it: .withColumn('{field['name']}', F.col('{field['name']}').cast('{sql}')).",
        )
    return Column(
        name=field["name"],
        source=str(source.type),
        type=types.to_text(field["type"]),
        role="regular" if field["nullable"] else "required",
    )


def refuse_changed(plan: Plan, fields: Sequence[dict[str, Any]], partitioned_by: list[str]) -> None:
    """See that the table is what the plan was made for, as far as files of it are concerned.

    :raises SchemaMismatch: it is not.
    """
    was = [(c.name, c.type, c.role == "required") for c in plan.columns]
    there = {f["name"]: (f["name"], types.to_text(f["type"]), not f["nullable"]) for f in fields}
    changed = [column for column in was if there.get(column[0]) != column]
    names = {column.name for column in plan.columns}
    new = [f["name"] for f in fields if not f["nullable"] and f["name"] not in names]
    if changed or new or partitioned_by != partitions(plan):
        what = ", ".join([name for name, *_ in changed] + new) or "its partition columns"
        raise SchemaMismatch(
            f"The Delta table {plan.table} has changed since rows were checked for it: {what}.",
            "Change the table back; the flush goes on by itself. Change it again when nothing waits.",
        )


def check(batch: pa.RecordBatch, plan: Plan) -> pa.RecordBatch:
    """Cast a batch to the table's types; it keeps the order of its columns.

    :raises InvalidRow: a value does not fit its column.
    """
    arrays = []
    partitioned_by = partitions(plan)
    for column in plan.columns:
        type_ = types.from_text(column.type)
        array = batch.column(column.name)
        if (column.role == "required" and array.null_count) or _has_null(array, type_):
            raise InvalidRow(
                f"Column {column.name} has a null where table {plan.table} takes none",
                f"Filter such rows out: .where(F.col('{column.name}').isNotNull()).",
            )
        arrow = types.to_arrow(type_)
        assert arrow is not None, "the plan has only types that can be written"
        try:
            array = array if array.type == arrow else array.cast(arrow)
        except pa.ArrowInvalid as error:
            raise InvalidRow(
                f"A value of column {column.name} does not fit into {types.to_sql(type_)}: {error}",
                "Cast or filter it in the DataFrame, or widen the table's column.",
            ) from error
        if column.name in partitioned_by and type_ == "string" and pc.any(_is_empty(array)).as_py():
            raise InvalidRow(
                f"Partition column {column.name} has an empty text, which Delta keeps as a null",
                f"Write a null or another text: F.when(F.col('{column.name}') != '', …).",
            )
        arrays.append(array)
    return pa.record_batch(arrays, names=[column.name for column in plan.columns])


def _is_empty(texts: pa.Array) -> pa.Array:
    return pc.equal(pc.binary_length(texts), pa.scalar(0, pa.int32()))


def _has_null(array: pa.Array, type_: types.Json) -> bool:
    """Whether something inside of nested values is null where the table takes none."""
    if isinstance(type_, str) or not len(array):
        return False
    array = array.drop_null()
    match type_["type"]:
        case "array":
            parts = [(array.flatten(), type_["elementType"], type_["containsNull"])]
        case "map":
            lists = array.cast(pa.list_(pa.struct([*array.type.field(0).type])))
            entries = lists.flatten()
            parts = [
                (entries.field(0), type_["keyType"], True),
                (entries.field(1), type_["valueType"], type_["valueContainsNull"]),
            ]
        case _:
            inner = array.flatten()
            parts = [
                (inner[i], field["type"], field["nullable"])
                for i, field in enumerate(type_["fields"])
            ]
    return any(
        (part.null_count and not nullable) or _has_null(part, inner)
        for part, inner, nullable in parts
    )

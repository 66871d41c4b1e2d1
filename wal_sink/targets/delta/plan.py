"""Makes the plan when a query starts; and the table, or new columns of it, on request."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa
from deltalake import DeltaTable, Schema

from wal_sink.errors import SchemaMismatch
from wal_sink.model.plan import Plan
from wal_sink.targets.casts import KEY
from wal_sink.targets.columns import match_columns
from wal_sink.targets.create_table import (
    CREATE_TABLE,
    KEY_COLUMNS,
    Layout,
    refuse_unknown_columns,
    spark_statement,
)
from wal_sink.targets.delta.columns import (
    EVENT,
    PARTITIONS,
    DeltaRules,
    about_partitions,
    can_be_key,
    json_field,
    table_columns,
    to_sql,
)
from wal_sink.targets.delta.files import Files
from wal_sink.targets.delta.options import EVENT_COLUMN, DeltaOptions
from wal_sink.targets.delta.table import RANDOM_PREFIXES, Table, bounds_of_key
from wal_sink.targets.operations import with_operation, without_operation

logger = logging.getLogger(__name__)


def agree(options: DeltaOptions, schema: pa.Schema, key: str, *, changes: bool) -> Plan:
    """Compare a DataFrame with the table.

    :param changes: whether the table may be made, and columns added, as the options ask for.
    :raises SchemaMismatch: there is no table, it cannot be written, or the DataFrame does not fit.
    :raises Exception: of delta-rs, for `classify`.
    """
    path, storage = options.path, options.storage_options
    written = without_operation(schema, options.operation_column, (), path)
    if not DeltaTable.is_deltatable(path, storage):
        fields, properties, statement = _new_table(options, written)
        if not options.create_table:
            raise SchemaMismatch(
                f"There is no Delta table at {path}.",
                f"Correct option delta.path, or set {CREATE_TABLE} to true, or create it by Spark:"
                f" {statement}; or by Python: {_by_python(path, fields, properties)}",
            )
        planned = _plan(options, schema, key, fields, options.layout.partition)
        if not changes:
            return planned.that_creates(statement)
        DeltaTable.create(
            path,
            Schema.from_json(_as_json(fields)),
            mode="ignore",  # another process may be quicker
            partition_by=list(options.layout.partition),
            configuration=properties,
            storage_options=storage,
        )
        logger.info("made the table: %s", statement)
    table = Table(path, storage, Files(path, storage))
    table.refuse_unfit(replaces=bool(options.keys))
    # Of a table that maps columns delta-rs adds none: the error has Spark's statement.
    adds = options.merge_schema and not table.maps_columns
    new = _missing(table.fields, written) if adds else []
    planned = _plan(options, schema, key, [*table.fields, *new], table.partitioned_by)
    if new and changes:
        table.add_columns(new)  # only now: a DataFrame that does not fit changes nothing
    return planned


def _plan(
    options: DeltaOptions,
    schema: pa.Schema,
    key: str,
    fields: Sequence[dict[str, Any]],
    partitioned_by: Sequence[str],
) -> Plan:
    """Return the plan for a table with these columns.

    :raises SchemaMismatch: the DataFrame does not fit.
    """
    operation = options.operation_column
    names = [field["name"] for field in fields]
    written = without_operation(schema, operation, names, f"the Delta table {options.path}")
    columns = match_columns(
        written,
        table_columns(fields),
        f"the Delta table {options.path}",
        DeltaRules(options.path, merges=options.merge_schema),
        about_partitions(written, fields, partitioned_by, replaces=bool(options.keys)),
    )
    details: dict[str, Any] = {PARTITIONS: list(partitioned_by)}
    if options.keys:
        details[KEY] = list(options.keys)
    if options.timestamp_column:
        details[EVENT] = options.timestamp_column
    _refuse_keys(options.keys, written, fields)
    _refuse_event(options.timestamp_column, written, fields)
    return Plan(
        key=key,
        target="delta",
        table=options.path,
        columns=with_operation(columns, schema, operation),
        operations=dict(options.words) if operation else {},
        unavailable=options.unavailable_value,
        details=details,
    )


def _refuse_keys(keys: Sequence[str], schema: pa.Schema, fields: Sequence[dict[str, Any]]) -> None:
    """Check that rows are found by the columns of the key.

    :raises SchemaMismatch: the DataFrame lacks one, or no two of its values are compared.
    """
    refuse_unknown_columns(Layout(key=tuple(keys)), schema)
    types = {field["name"]: field["type"] for field in fields}
    for name in keys:
        if not can_be_key(types[name]):
            raise SchemaMismatch(
                f"Option {KEY_COLUMNS} names {name}, which is {to_sql(types[name])}: such values are not"
                " compared by equality.",
                f"Take another column, or a text or decimal of it, into {KEY_COLUMNS}.",
            )


def _refuse_event(column: str, schema: pa.Schema, fields: Sequence[dict[str, Any]]) -> None:
    """Check that a column says which of two rows is the later one, in the DataFrame and in the table.

    :raises SchemaMismatch: one of them lacks it, or it is neither a time nor a whole number.
    """
    types = {field["name"]: field["type"] for field in fields}
    if column and (column not in schema.names or types[column] not in _TIMES):
        type_ = to_sql(types[column]) if column in schema.names else "not in the DataFrame"
        raise SchemaMismatch(
            f"Option {EVENT_COLUMN} names {column}, which is {type_}.",
            "Name a column of DataFrame and table that is a timestamp, a date or a whole number.",
        )


_TIMES = {"timestamp", "timestamp_ntz", "date", "byte", "short", "integer", "long"}


def _missing(fields: Sequence[dict[str, Any]], schema: pa.Schema) -> list[dict[str, Any]]:
    """Return the columns of a DataFrame that the table lacks, as its log will have them.

    :raises SchemaMismatch: Delta has no type for one.
    """
    names = {field["name"].lower() for field in fields}  # Delta does not tell names by their case
    return _fields([field for field in schema if field.name.lower() not in names])


def _new_table(
    options: DeltaOptions, schema: pa.Schema
) -> tuple[list[dict[str, Any]], dict[str, str], str]:
    """Return columns and properties of a table that takes the DataFrame, and Spark's statement that makes it.

    :raises SchemaMismatch: Delta has no type for a column, or an option names one that is not there.
    """
    layout = options.layout
    refuse_unknown_columns(layout, schema)
    fields = [
        {**field, "nullable": field["name"] not in layout.key} for field in _fields([*schema])
    ]
    properties = bounds_of_key(fields, layout.key, layout.partition) if layout.key else {}
    if layout.key and layout.partition:
        properties[RANDOM_PREFIXES] = (
            "true"  # or a file of delta-spark's may be one that no merge removes
        )
    listed = ", ".join(f"'{name}' = '{value}'" for name, value in properties.items())
    more = f" TBLPROPERTIES ({listed})" if listed else ""
    name = f"delta.`{options.path}`"
    return fields, properties, spark_statement(name, schema, layout, "DELTA", more)


def _fields(schema: Sequence[pa.Field]) -> list[dict[str, Any]]:
    fields = [json_field(field) for field in schema]
    if strange := [field["name"] for field in fields if field["type"] is None]:
        raise SchemaMismatch(
            f"There is no such column, and Delta, or delta-rs, has no type for {', '.join(strange)}.",
            "Cast it in the DataFrame, or leave it out.",
        )
    return fields


def _as_json(fields: Sequence[dict[str, Any]]) -> str:
    return msgspec.json.encode({"type": "struct", "fields": fields}).decode()


def _by_python(path: str, fields: Sequence[dict[str, Any]], properties: Mapping[str, str]) -> str:
    arguments = f"{path!r}, deltalake.Schema.from_json({_as_json(fields)!r})"
    if properties:
        arguments += f", configuration={properties!r}"
    return f"deltalake.DeltaTable.create({arguments})"

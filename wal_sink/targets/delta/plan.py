"""Makes the plan when a query starts. On request, it creates the table or adds columns."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.types as pt
from deltalake import DeltaTable, Schema

from wal_sink.errors import SchemaMismatch
from wal_sink.model.plan import Plan
from wal_sink.targets.arrow_tables import (
    ARROW,
    ArrowRules,
    new_columns,
    noted,
    plain,
    table_columns,
)
from wal_sink.targets.casts import KEY
from wal_sink.targets.columns import match_columns
from wal_sink.targets.ddl import (
    CREATE_TABLE,
    KEY_COLUMNS,
    Layout,
    refuse_unknown_columns,
    spark_name,
    spark_statement,
)
from wal_sink.targets.delta.columns import (
    EVENT,
    PARTITIONS,
    about_partitions,
    can_be_key,
    words,
)
from wal_sink.targets.delta.files import Files
from wal_sink.targets.delta.fitness import bounds_of_key, refuse_unfit
from wal_sink.targets.delta.options import EVENT_COLUMN, DeltaOptions
from wal_sink.targets.delta.table import RANDOM_PREFIXES, Table
from wal_sink.targets.operations import with_operation, without_operation

logger = logging.getLogger(__name__)


def agree(options: DeltaOptions, schema: pa.Schema, key: str, *, changes: bool) -> Plan:
    """Compare a DataFrame with the table, and return the plan.

    :param changes: True to create the table and add columns, if options request that.
    :raises SchemaMismatch: the table is missing or cannot be written, or the DataFrame does not fit.
    :raises Exception: an error of delta-rs, for `classify`.
    """
    path, storage, layout = options.path, options.storage_options, options.layout
    written = without_operation(schema, options.operation_column, (), path)
    if not DeltaTable.is_deltatable(path, storage):
        refuse_unknown_columns(layout, written)
        columns = _new_columns(written, layout.key)
        properties = _properties(columns, layout)
        statement = _statement(path, written, layout, properties)
        if not options.create_table:
            schema_text = f"deltalake.Schema.from_json({Schema.from_arrow(columns).to_json()!r})"
            by_python = f"deltalake.DeltaTable.create({path!r}, {schema_text}, configuration={properties!r})"
            raise SchemaMismatch(
                f"There is no Delta table at {path}.",
                f"Correct option delta.path, or set {CREATE_TABLE} to true, or create it by Spark:"
                f" {statement}; or by Python: {by_python}",
            )
        planned = _plan(options, schema, key, columns, layout.partition)
        if not changes:
            return planned.that_creates(statement)
        DeltaTable.create(
            path,
            Schema.from_arrow(columns),
            mode="ignore",  # another process may create it first
            partition_by=list(layout.partition),
            configuration=properties,
            storage_options=storage,
        )
        logger.info("created the table: %s", statement)
    table = Table(path, storage, Files(path, storage))
    refuse_unfit(table, replaces=bool(options.keys))
    types, new = table.types, pa.schema([])
    if options.merge_schema and not table.maps_columns:
        # delta-rs adds no column to a table that maps columns. There the error has Spark's statement.
        names = {name.lower() for name in types.names}  # Delta ignores the case of names
        new = _new_columns([field for field in written if field.name.lower() not in names])
    planned = _plan(options, schema, key, pa.schema([*types, *new]), table.partitioned_by)
    if len(new) and changes:
        table.add_columns(new)  # after the checks: an unfit DataFrame changes nothing
    return planned


def _plan(
    options: DeltaOptions,
    schema: pa.Schema,
    key: str,
    types: pa.Schema,
    partitioned_by: Sequence[str],
) -> Plan:
    """Return the plan for a table with these columns.

    :raises SchemaMismatch: the DataFrame does not fit.
    """
    operation, table = options.operation_column, f"the Delta table {options.path}"
    written = without_operation(schema, operation, types.names, table)
    columns = match_columns(
        written,
        table_columns(types, words),
        table,
        ArrowRules(
            types,
            f"delta.`{options.path}`",
            "" if options.merge_schema else "delta.mergeSchema",
        ),
        about_partitions(written, types, partitioned_by, replaces=bool(options.keys)),
    )
    planned = pa.schema([plain(types.field(name)) for name in written.names])
    details: dict[str, Any] = {PARTITIONS: list(partitioned_by), ARROW: noted(planned)}
    if options.keys:
        details[KEY] = list(options.keys)
    if options.timestamp_column:
        details[EVENT] = options.timestamp_column
    _refuse_keys(options.keys, planned)
    _refuse_event(options.timestamp_column, planned)
    return Plan(
        key=key,
        target="delta",
        table=options.path,
        columns=with_operation(columns, schema, operation),
        operations=dict(options.words) if operation else {},
        unavailable=options.unavailable_value,
        details=details,
    )


def _refuse_keys(keys: Sequence[str], types: pa.Schema) -> None:
    """Check that the DataFrame has each column of the key, and that its values are compared by equality.

    :param types: the columns that are written.
    :raises SchemaMismatch: a column is missing, or its values have no equality.
    """
    refuse_unknown_columns(Layout(key=tuple(keys)), types)
    for name in keys:
        if not can_be_key(types.field(name).type):
            raise SchemaMismatch(
                f"Option {KEY_COLUMNS} names {name}, which is {words(types.field(name))}: such values are not"
                " compared by equality.",
                f"Name another column in {KEY_COLUMNS}, such as one with its value as a text or a decimal.",
            )


def _refuse_event(column: str, types: pa.Schema) -> None:
    """Check that DataFrame and table have the column of `delta.timestampColumn`, with values in an order.

    :param types: the columns that are written.
    :raises SchemaMismatch: a column is missing, or it is not a time, a date or a whole number.
    """
    is_there = column in types.names
    kinds = (pt.is_timestamp, pt.is_date, pt.is_integer)
    if column and not (is_there and any(is_kind(types.field(column).type) for is_kind in kinds)):
        type_ = words(types.field(column)) if is_there else "not in the DataFrame"
        raise SchemaMismatch(
            f"Option {EVENT_COLUMN} names {column}, which is {type_}.",
            "Name a column of DataFrame and table that is a timestamp, a date or a whole number.",
        )


def _new_columns(schema: Sequence[pa.Field], key: Sequence[str] = ()) -> pa.Schema:
    """Return new columns in the types that delta-rs gives them.

    :raises SchemaMismatch: Delta, or delta-rs, has no type for a column.
    """
    columns = new_columns(schema, key, _delta_type, "Delta")
    return pa.schema(Schema.from_arrow(columns).to_arrow())


_NO_TYPE = re.compile(r'PrimitiveType\("void"\)|MapType.*timestamp_ntz')
"""Types with which delta-rs 1.6.6 creates a table that no reader opens."""


def _delta_type(column: pa.Schema) -> None:
    (field,) = Schema.from_arrow(column).fields
    if _NO_TYPE.search(str(field.type)):
        raise TypeError(str(field.type))


def _properties(columns: pa.Schema, layout: Layout) -> dict[str, str]:
    """Return the properties of a new table."""
    properties = bounds_of_key(columns, layout) if layout.key else {}
    if layout.key and layout.partition:
        # Without it delta-spark may name a file so that no merge of delta-rs can remove it.
        properties[RANDOM_PREFIXES] = "true"
    return properties


def _statement(path: str, schema: pa.Schema, layout: Layout, properties: dict[str, str]) -> str:
    """Return Spark's statement that creates the table."""
    listed = ", ".join(f"'{name}' = '{value}'" for name, value in properties.items())
    suffix = f" TBLPROPERTIES ({listed})" if listed else ""
    partition = [*map(spark_name, layout.partition)]
    return spark_statement(f"delta.`{path}`", schema, layout.key, partition, "DELTA") + suffix

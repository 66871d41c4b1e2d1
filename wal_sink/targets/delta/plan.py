"""Makes the plan when a query starts, and refuses a table that cannot be written exactly once.

If options request that, a start also creates the table or adds columns. A flusher calls `refuse_unfit` again
before it stages rows.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.types as pt
from deltalake import DeltaTable, Schema

from wal_sink.errors import SchemaMismatch
from wal_sink.model.plan import Plan
from wal_sink.model.spark_types import fields
from wal_sink.targets.arrow_columns import (
    ARROW,
    ArrowRules,
    encoded_types,
    new_columns,
    plain,
    refuse_table,
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
from wal_sink.targets.delta.columns import EVENT, can_be_key, words
from wal_sink.targets.delta.files import Files, no_table
from wal_sink.targets.delta.options import EVENT_COLUMN, DeltaOptions
from wal_sink.targets.delta.partitions import PARTITIONS, about_partitions
from wal_sink.targets.delta.table import RANDOM_PREFIXES, Table
from wal_sink.targets.operation_options import with_operation, without_operation

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
            raise no_table(path, f"set {CREATE_TABLE} to true, or create it by Spark: {statement}")
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
    if options.merge_schema and table.properties.get(_MAPPING, "none") == "none":
        # delta-rs adds no column to a table with column mapping. The error has Spark's statement for it.
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
        about_partitions(written, types, partitioned_by),
    )
    planned = pa.schema([plain(types.field(name)) for name in written.names])
    details: dict[str, Any] = {PARTITIONS: list(partitioned_by), ARROW: encoded_types(planned)}
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
    """Check that the DataFrame has each column of the key, in a type that can be a key.

    :param types: the columns that are written.
    :raises SchemaMismatch: a column is missing, or its type cannot be a key.
    """
    refuse_unknown_columns(Layout(key=tuple(keys)), types)
    for name in keys:
        if not can_be_key(types.field(name).type):
            raise SchemaMismatch(
                f"Option {KEY_COLUMNS} names {name}, which is {words(types.field(name))}. Such values are not"
                " compared by equality, so they cannot be a key.",
                f"Name another column in {KEY_COLUMNS}, for example a copy cast to STRING or DECIMAL.",
            )


def _refuse_event(column: str, types: pa.Schema) -> None:
    """Check the column that `delta.timestampColumn` names.

    :param types: the columns that are written.
    :raises SchemaMismatch: the column is missing, or is not a timestamp, a date or a whole number.
    """
    exists = column in types.names
    kinds = (pt.is_timestamp, pt.is_date, pt.is_integer)
    if column and not (exists and any(is_kind(types.field(column).type) for is_kind in kinds)):
        type_ = words(types.field(column)) if exists else "not in the DataFrame"
        raise SchemaMismatch(
            f"Option {EVENT_COLUMN} names {column}, which is {type_}.",
            "Name a column of DataFrame and table that is a timestamp, a date or a whole number.",
        )


def _new_columns(schema: Sequence[pa.Field], key: Sequence[str] = ()) -> pa.Schema:
    """Return new columns with the types that delta-rs creates for them.

    :raises SchemaMismatch: Delta, or delta-rs, has no type for a column.
    """
    columns = new_columns(schema, key, _delta_type, "Delta")
    return pa.schema(Schema.from_arrow(columns).to_arrow())


_NO_TYPE = re.compile(r'PrimitiveType\("void"\)|MapType.*timestamp_ntz')
"""The types with which delta-rs 1.6.6 creates a table that no reader can open."""


def _delta_type(column: pa.Schema) -> None:
    (field,) = Schema.from_arrow(column).fields
    if _NO_TYPE.search(str(field.type)):
        raise TypeError(str(field.type))


def _properties(columns: pa.Schema, layout: Layout) -> dict[str, str]:
    properties = _bounds_of_key(columns, layout) if layout.key else {}
    if layout.key and layout.partition:
        # Without the property, delta-spark may name a file so that no merge of delta-rs can remove it.
        properties[RANDOM_PREFIXES] = "true"
    return properties


def _statement(path: str, schema: pa.Schema, layout: Layout, properties: dict[str, str]) -> str:
    listed = ", ".join(f"'{name}' = '{value}'" for name, value in properties.items())
    suffix = f" TBLPROPERTIES ({listed})" if listed else ""
    partition = [*map(spark_name, layout.partition)]
    return spark_statement(f"delta.`{path}`", schema, layout.key, partition, "DELTA") + suffix


# --- tables that cannot be written -----------------------------------------------------------------

_MAPPING = "delta.columnMapping.mode"
_APPEND_ONLY = "delta.appendOnly"
_TRANSACTION_RETENTION = "delta.setTransactionRetentionDuration"
_BOUNDED, _MOST_BOUNDED = "delta.dataSkippingStatsColumns", "delta.dataSkippingNumIndexedCols"

_KNOWN_FEATURES = {
    *("appendOnly", "changeDataFeed", "checkConstraints", "columnMapping", "deletionVectors"),
    *("generatedColumns", "invariants", "timestampNtz", "v2Checkpoint"),
    *("variantType", "variantType-preview"),
}
"""The table features with which delta-rs commits. Some features require nothing of a writer that appends
files. For each other feature a column or property of the table shows what it requires. The test
`test_table_with_a_known_feature_takes_a_commit` commits to a table with each feature."""

_DROPPED = ("rowTracking", "inCommitTimestamp", "materializePartitionColumns", "domainMetadata")
"""The features for which the remedy is DROP FEATURE, in the order in which Spark can drop them. Spark drops
neither clustering nor column defaults. If it drops a feature that readers must know, such as typeWidening,
the table then requires the feature checkpointProtection."""

_EXACT_DIGITS = 15
"""The most digits that a double keeps. delta-rs (1.6.6) writes the bounds of a decimal as doubles."""

_UNWRITABLE_COLUMNS = {
    b"delta.generationExpression": "is generated",
    b"delta.identity.start": "is an identity",
    b"delta.invariants": "has an invariant",
}


def refuse_unfit(table: Table, *, replaces: bool) -> None:
    """Refuse a table with a requirement that a commit of delta-rs does not meet, such as a constraint.

    :param replaces: True if a commit also replaces rows by their key.
    :raises SchemaMismatch: the table cannot be written. The error names a reason and a remedy.
    """
    refuse_table(f"The Delta table {table.path}", _obstacles(table))
    if replaces:
        table.refuse_upserts(_about_upserts(table))
        table.refuse_unremovable()


def _about_upserts(table: Table) -> Iterator[tuple[str, str]]:
    alter = f"ALTER TABLE delta.`{table.path}` SET TBLPROPERTIES"
    key_alone = f"{alter} ('{_BOUNDED}' = '…'), with the columns of the key"
    if table.properties.get(_APPEND_ONLY, "false").lower() == "true":
        yield (
            f"it is append-only ({_APPEND_ONLY})",
            f"{alter} ('{_APPEND_ONLY}' = 'false'); or set delta.mode to append.",
        )
    for field in table.types:
        if pt.is_null(field.type):
            yield (
                f"a row is replaced whole, and wal_sink does not write the type of {field.name}",
                "Drop that column, or set delta.mode to append.",
            )
    for field in _columns_with_bounds(table):
        if _has_inexact_bounds(field.type):
            what = (
                f"delta-rs rounds the bounds of {field.name}, a decimal of more than {_EXACT_DIGITS} digits,"
                " so readers that filter by it would miss rows"
            )
            none = f"('{_MOST_BOUNDED}' = '0')"
            yield (
                what,
                f"Let delta-rs write bounds of the key only: {key_alone}; or of no column: {none}.",
            )


def _has_inexact_bounds(type_: pa.DataType) -> bool:
    """Return True if delta-rs rounds a column's bounds (least and greatest value). Lists have no bounds."""
    if pt.is_struct(type_):
        return any(_has_inexact_bounds(field.type) for field in fields(type_))
    return bool(pt.is_decimal(type_) and type_.precision > _EXACT_DIGITS)


def _columns_with_bounds(table: Table) -> list[pa.Field]:
    """Return the columns whose bounds (least and greatest value) delta-rs may write."""
    in_files = [field for field in table.types if field.name not in table.partitioned_by]
    if (listed := table.properties.get(_BOUNDED)) is not None:
        names = {name.strip().strip("`").partition(".")[0] for name in listed.split(",")}
        return [field for field in in_files if field.name in names]
    most = table.properties.get(_MOST_BOUNDED, "32")
    return in_files[: int(most)] if most.isdecimal() else in_files


def _bounds_of_key(types: pa.Schema, layout: Layout) -> dict[str, str]:
    """Return the properties of a new table with which delta-rs writes only the bounds of the key.

    A merge skips files by these bounds. Bounds of other columns may be wrong, such as the bounds of a long
    decimal or of a float that is not finite.
    """
    # Spark refuses a boolean or binary column in this list.
    unbounded = (pt.is_boolean, pt.is_binary, pt.is_decimal)
    names = [
        name
        for name in types.names
        if name in layout.key
        and name not in layout.partition
        and not any(is_kind(types.field(name).type) for is_kind in unbounded)
        and re.fullmatch(r"\w+", name)
    ]
    return {_BOUNDED: ",".join(names)} if names else {_MOST_BOUNDED: "0"}


def _obstacles(table: Table) -> Iterator[tuple[str, str]]:
    path = table.path
    copy = f"Write to a copy: {_to_copy(table)} and set delta.path to {path}-copy."
    for name, rule in table.properties.items():
        if name.startswith("delta.constraints."):
            short = name.removeprefix("delta.constraints.")
            yield (
                f"it has the constraint {short}, which is not checked for files that wal_sink adds",
                f"ALTER TABLE delta.`{path}` DROP CONSTRAINT {short}; and filter by .where('{rule}').",
            )
    if _TRANSACTION_RETENTION in table.properties:
        yield (
            f"its property {_TRANSACTION_RETENTION} drops old transactions, and with them the ledger",
            f"ALTER TABLE delta.`{path}` UNSET TBLPROPERTIES ('{_TRANSACTION_RETENTION}');",
        )
    for field in table.types:
        for key, what in _UNWRITABLE_COLUMNS.items():
            if key in (field.metadata or {}):
                yield f"its column {field.name} {what}", copy
    if unknown := sorted(set(table.features) - _KNOWN_FEATURES):
        drop = " ".join(
            f"ALTER TABLE delta.`{path}` DROP FEATURE {feature};"
            for feature in _DROPPED
            if feature in unknown
        )
        restore = (
            " If the feature is newer than the last rows, restore by Spark the version before it, n in"
            f" DESCRIBE HISTORY: SET spark.databricks.delta.restore.protocolDowngradeAllowed = true; RESTORE"
            f" TABLE delta.`{path}` TO VERSION AS OF n;"
        )
        yield (
            f"it requires features that wal_sink or delta-rs does not write: {', '.join(unknown)}",
            drop if {*unknown} <= {*_DROPPED} else f"{copy}{restore}",
        )


def _to_copy(table: Table) -> str:
    """Return Spark's statement that copies the rows to a table without properties and features."""
    path, names = table.path, ", ".join(f"`{name}`" for name in table.partitioned_by)
    parts = f" PARTITIONED BY ({names})" if names else ""
    rows = f"SELECT * FROM delta.`{path}`"  # noqa: S608 -- only shown
    return f"CREATE TABLE delta.`{path}-copy` USING delta{parts} AS {rows};"

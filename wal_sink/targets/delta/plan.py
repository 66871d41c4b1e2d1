"""Makes the plan when a query starts, and refuses a table that cannot be written exactly once.

On request, a start creates the table or adds columns. `refuse_unfit` also checks the table before rows are
staged.
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
from wal_sink.model.plan import Plan, fields
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
from wal_sink.targets.delta.options import EVENT_COLUMN, DeltaOptions
from wal_sink.targets.delta.table import RANDOM_PREFIXES, Files, Table
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
    properties = _bounds_of_key(columns, layout) if layout.key else {}
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


# --- tables that cannot be written -----------------------------------------------------------------

_APPEND_ONLY = "delta.appendOnly"
_TRANSACTION_RETENTION = "delta.setTransactionRetentionDuration"
_BOUNDED, _MOST_BOUNDED = "delta.dataSkippingStatsColumns", "delta.dataSkippingNumIndexedCols"

_KNOWN_FEATURES = {
    *("appendOnly", "changeDataFeed", "checkConstraints", "columnMapping", "deletionVectors"),
    *("generatedColumns", "invariants", "timestampNtz", "v2Checkpoint"),
    *("variantType", "variantType-preview"),
}
"""Features with which delta-rs commits. Such a feature requires nothing of a writer that appends files, or a
column or property of the table shows what it requires. `test_feature_is_known_if_a_commit_succeeds` makes a
commit with each."""

_DROPPED = ("rowTracking", "inCommitTimestamp", "materializePartitionColumns", "domainMetadata")
"""Features that Spark can drop, in the order in which it drops them. It drops neither clustering nor column
defaults. After the drop of a feature that readers must know, such as typeWidening, the table requires
checkpointProtection."""

_EXACT_DIGITS = 15
"""The digits of a double. delta-rs (1.6.6) writes the bounds of a decimal as doubles."""

_UNWRITABLE_COLUMNS = {
    b"delta.generationExpression": "is generated",
    b"delta.identity.start": "is an identity",
    b"delta.invariants": "has an invariant",
}


def refuse_unfit(table: Table, *, replaces: bool) -> None:
    """Check that a writer which knows columns and partitions only may add files.

    :param replaces: True if rows are replaced, too.
    :raises SchemaMismatch: names the reason, and a remedy.
    """
    for what, remedy in _obstacles(table):
        raise SchemaMismatch(f"The Delta table {table.path} cannot be written: {what}.", remedy)
    if not replaces:
        return
    for what, remedy in _about_upserts(table):
        raise SchemaMismatch(f"The Delta table {table.path} takes no rows by key: {what}.", remedy)
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
    """Return True if delta-rs rounds the bounds of a type. Arrays and maps have no bounds."""
    if pt.is_struct(type_):
        return any(_has_inexact_bounds(field.type) for field in fields(type_))
    return bool(pt.is_decimal(type_) and type_.precision > _EXACT_DIGITS)


def _columns_with_bounds(table: Table) -> list[pa.Field]:
    """Return the columns for whose values delta-rs may write bounds."""
    in_files = [field for field in table.types if field.name not in table.partitioned_by]
    if (listed := table.properties.get(_BOUNDED)) is not None:
        names = {name.strip().strip("`").partition(".")[0] for name in listed.split(",")}
        return [field for field in in_files if field.name in names]
    most = table.properties.get(_MOST_BOUNDED, "32")
    return in_files[: int(most)] if most.isdecimal() else in_files


def _bounds_of_key(types: pa.Schema, layout: Layout) -> dict[str, str]:
    """Return the properties of a new table by which delta-rs writes bounds of the key only.

    A merge skips files by the bounds of the key. Bounds of other columns may be wrong: of a long decimal, or
    of a float that is not finite.
    """
    # Spark allows no boolean and no binary in this list.
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
    """Return Spark's statement that copies the rows to a table without requirements."""
    path, names = table.path, ", ".join(f"`{name}`" for name in table.partitioned_by)
    parts = f" PARTITIONED BY ({names})" if names else ""
    rows = f"SELECT * FROM delta.`{path}`"  # noqa: S608 -- only shown
    return f"CREATE TABLE delta.`{path}-copy` USING delta{parts} AS {rows};"

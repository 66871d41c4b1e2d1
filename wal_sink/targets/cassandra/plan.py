"""Makes the plan by which a DataFrame is written, when a query starts; creates missing tables."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Collection, Iterable

import msgspec
import pyarrow as pa
from cassandra import AlreadyExists

from wal_sink.model.plan import Column, Plan, Role, canonical
from wal_sink.targets.cassandra.compare import (
    match_columns,
    refuse_no_update,
    refuse_repeated_lists,
    used_types,
)
from wal_sink.targets.cassandra.ddl import create_statement, new_table
from wal_sink.targets.cassandra.driver.connection import connect, errors_translated
from wal_sink.targets.cassandra.driver.errors import create_table
from wal_sink.targets.cassandra.ledger import ensure_ledger_table
from wal_sink.targets.cassandra.options import (
    EXPIRES_AT_COLUMN,
    TIMESTAMP_COLUMN,
    TTL_COLUMN,
    CassandraOptions,
    primary_key,
)
from wal_sink.targets.cassandra.row_plan import KEY, CassandraPlan, CassandraRowPlan, RowTtl
from wal_sink.targets.cassandra.server import inspect_server, refuse_missing_permissions
from wal_sink.targets.cassandra.table import TableMetadata, read_table
from wal_sink.targets.cassandra.types import has_lists
from wal_sink.targets.operations import refuse_type, refuse_written, without_operation
from wal_sink.targets.table_options import refuse_other_key

log = logging.getLogger(__name__)


def make_plan(
    options: CassandraOptions, schema: pa.Schema, key: str, *, create: bool = True
) -> Plan:
    """Connect, compare the DataFrame with the table, and create the table and the ledger's table if missing.

    :param create: False to create nothing, and to note in the plan what would be created.
    :raises SchemaMismatch: the DataFrame does not fit, or a table cannot be written exactly once.
    :raises TargetUnavailable: the cluster does not answer.
    :raises TargetRefused: the cluster refuses a statement, such as for a missing permission.
    :raises OptionError: the options do not fit the cluster.
    """
    with connect(options) as connection, errors_translated(options):
        inspect_server(connection.session, options, connection.datacenter)
        metadata = read_table(connection.session, options.data)
        new = _table_to_create(options, schema, metadata) if options.create_table else None
        plan = _plan_for_table(options, schema, key, new or metadata)
        ensure_ledger_table(connection.session, options.ledger, create=create)
        refuse_missing_permissions(connection.session, options, metadata)
        if new is None:
            return plan
        statement = create_statement(new)
        if not create:
            return plan.that_creates(statement)
        with contextlib.suppress(AlreadyExists):  # another start was faster
            create_table(connection.session, statement.rstrip(";"), new.name)
        log.info("created the table: %s", statement)
        return _plan_for_table(options, schema, key, read_table(connection.session, new.name))


def _table_to_create(
    options: CassandraOptions, schema: pa.Schema, metadata: TableMetadata
) -> TableMetadata | None:
    """Return the table that createTable creates; None if its name is used, or the keyspace is missing."""
    is_used = metadata.exists or metadata.name.table in metadata.views
    if is_used or metadata.name.keyspace not in metadata.keyspaces:
        return None
    written = written_columns(schema, options, set(), str(metadata.name))
    layout, names = primary_key(options.layout), options.column_names
    return new_table(metadata, written, layout, names)


def _plan_for_table(
    options: CassandraOptions, schema: pa.Schema, key: str, metadata: TableMetadata
) -> Plan:
    """Return the plan by which a DataFrame is written to a table.

    :raises SchemaMismatch: the DataFrame does not fit the table.
    """
    table_names = {column.name for column in metadata.columns}
    written = written_columns(schema, options, table_names, str(metadata.name))
    has_deletes, update = bool(options.operation_column), options.write_mode == "update"
    columns = match_columns(written, metadata, options.column_names, update=update)
    key_names = [column.name for column in columns if column.role in KEY]
    refuse_other_key(metadata.name, options.layout, key_names)
    if update:
        refuse_no_update(metadata, columns, options.operation_column)
    details = CassandraRowPlan(
        keyspace=options.keyspace,
        table=metadata.name.table,
        nulls=options.nulls,
        update=update,
        clustering=_clustering_order(metadata, columns) if has_deletes else (),
        ttl=_row_ttl(options, metadata),
        timestamp_column=options.timestamp_column,
        types=used_types(columns, metadata),
    )
    by_name = {column.name: column for column in columns}
    controls = {*options.controls.values()}
    plan = CassandraPlan(
        key=key,
        target="cassandra",
        table=str(metadata.name),
        columns=tuple(
            by_name.get(field.name) or _control(field, options.operation_column)
            for field in schema
            if field.name in by_name or field.name in controls
        ),
        operations=dict(options.words) if has_deletes else {},
        unavailable=options.unavailable_value,
        details=details,
    )
    refuse_repeated_lists(plan, metadata)
    return msgspec.structs.replace(plan, sent_once=has_lists(plan)).plain


def _control(field: pa.Field, operation: str) -> Column:
    """Return the plan's entry of a control column: it is read, and not written."""
    role: Role = "operation" if field.name == operation else "control"
    return Column(name=field.name, source=str(canonical(field.type)), type=role, role=role)


HINT_WINDOW_S = 3 * 3600
"""Seconds for which other nodes keep writes for a replica that is down (`max_hint_window`)."""


def written_columns(
    schema: pa.Schema, options: CassandraOptions, table: Collection[str], table_text: str
) -> pa.Schema:
    """Return the columns of a DataFrame that are written to the table.

    A column with the time of expiry or of the event is written if the table has a column of its name. Other
    control columns are not written.

    :param table: the names of the table's columns.
    :param table_text: the table, as errors show it.
    :raises SchemaMismatch: a control column is missing, has another type, or is a column of the table.
    """
    names = options.column_names
    known = {name for name in schema.names if names.get(name, name) in table}
    schema = without_operation(schema, options.operation_column, known, table_text)
    if column := options.ttl_column:
        integers = ("tinyint", "smallint", "int", "bigint")
        remedy = 'Make it whole seconds: .cast("bigint").'
        refuse_type(schema, TTL_COLUMN, column, integers, remedy)
        refuse_written(TTL_COLUMN, column, known, table_text, "TTLs are")
    if column := options.expires_at_column:
        remedy = 'Make it an instant: .cast("timestamp").'
        refuse_type(schema, EXPIRES_AT_COLUMN, column, ("timestamp",), remedy)
    if column := options.timestamp_column:
        remedy = 'Make it an instant, .cast("timestamp"), or a bigint of microseconds since 1970.'
        refuse_type(schema, TIMESTAMP_COLUMN, column, ("timestamp", "bigint"), remedy)
    controls = {options.ttl_column, options.expires_at_column, options.timestamp_column}
    return pa.schema([field for field in schema if field.name not in controls - known])


def _clustering_order(metadata: TableMetadata, columns: Iterable[Column]) -> tuple[str, ...]:
    """Return the clustering columns in the table's order, by the DataFrame's names; warn of resurrected rows.

    A delete with the first of these columns deletes the range of rows under them.
    """
    if metadata.gc_grace_s < HINT_WINDOW_S:
        log.warning(
            "%s has gc_grace_seconds = %d. If a replica misses a delete and is not repaired"
            " within that time, the deleted row comes back. The default is 864000, ten days",
            metadata.name,
            metadata.gc_grace_s,
        )
    in_dataframe = {column.in_table: column.name for column in columns}
    return tuple(in_dataframe[key.name] for key in metadata.key if key.role == "clustering")


def _row_ttl(options: CassandraOptions, metadata: TableMetadata) -> RowTtl | None:
    """Return the TTL that the options set; None if only the table may have a default TTL."""
    ttl = RowTtl(
        ttl_s=options.ttl,
        ttl_column=options.ttl_column,
        expires_at_column=options.expires_at_column,
    )
    if ttl != RowTtl():
        return ttl
    if metadata.default_ttl:
        log.info(
            "%s has default_time_to_live = %d. A row expires that many seconds after it was published",
            metadata.name,
            metadata.default_ttl,
        )
    return None

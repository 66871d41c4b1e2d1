"""Makes the plan by which a DataFrame is written, when a query starts; creates missing tables."""

from __future__ import annotations

import contextlib
import logging

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
    CassandraOptions,
    primary_key,
)
from wal_sink.targets.cassandra.row_plan import KEY, CassandraPlan, CassandraRowPlan
from wal_sink.targets.cassandra.rows import clustering_order, row_ttl, written_columns
from wal_sink.targets.cassandra.server import inspect_server, refuse_missing_permissions
from wal_sink.targets.cassandra.table import TableMetadata, read_table
from wal_sink.targets.cassandra.types import has_lists
from wal_sink.targets.ddl import refuse_other_key

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
        clustering=clustering_order(metadata, columns) if has_deletes else (),
        ttl=row_ttl(options, metadata),
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

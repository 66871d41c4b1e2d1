"""Agrees with the cluster on how a DataFrame is written; the only step that may create anything."""

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
from wal_sink.targets.cassandra.driver.connection import connect, explained
from wal_sink.targets.cassandra.driver.errors import create_table
from wal_sink.targets.cassandra.fitness import inspect_server
from wal_sink.targets.cassandra.ledger import ensure_ledger_table
from wal_sink.targets.cassandra.options import CassandraOptions, primary_key
from wal_sink.targets.cassandra.permissions import refuse_missing_permissions
from wal_sink.targets.cassandra.row_plan import KEY, CassandraPlan, CassandraRowPlan
from wal_sink.targets.cassandra.rows import (
    agreed_ttl,
    clustering_order,
    written_columns,
)
from wal_sink.targets.cassandra.table import TableMetadata, read_table
from wal_sink.targets.cassandra.types import has_lists
from wal_sink.targets.table_options import refuse_other_key

log = logging.getLogger(__name__)


def make_plan(
    options: CassandraOptions, schema: pa.Schema, key: str, *, create: bool = True
) -> Plan:
    """Connect, compare the DataFrame with the table, and create what is missing of ledger and table.

    :param create: False creates nothing: the plan says what would be created.
    :raises SchemaMismatch: the DataFrame does not fit, or a table cannot be written exactly once.
    :raises TargetUnavailable: the cluster does not answer.
    :raises TargetRefused: the cluster refuses a statement that this takes.
    :raises OptionError: the options do not fit the cluster.
    """
    with connect(options) as connection, explained(options):
        inspect_server(connection.session, options, connection.datacenter)
        live = read_table(connection.session, options.data)
        new = _missing(options, schema, live) if options.create_table else None
        plan = _agree(options, schema, key, new or live)
        ensure_ledger_table(connection.session, options.ledger, create=create)
        refuse_missing_permissions(connection.session, options, live)
        if new is None:
            return plan
        statement = create_statement(new)
        if not create:
            return plan.that_creates(statement)
        with contextlib.suppress(AlreadyExists):  # what it is like is compared next
            create_table(connection.session, statement.rstrip(";"), new.name)
        log.info("made the table: %s", statement)
        made = read_table(connection.session, new.name)  # another start may have created it first
        return _agree(options, schema, key, made)


def _missing(
    options: CassandraOptions, schema: pa.Schema, live: TableMetadata
) -> TableMetadata | None:
    """Return the table that createTable makes; None where there is one, or a view, or no keyspace."""
    taken = live.exists or live.name.table in live.views
    if taken or live.name.keyspace not in live.keyspaces:
        return None
    written = written_columns(schema, options, set(), str(live.name))
    layout, names = primary_key(options.layout), options.column_names
    return new_table(live, written, layout, names)


def _agree(options: CassandraOptions, schema: pa.Schema, key: str, live: TableMetadata) -> Plan:
    """Compare the DataFrame with the table; return the plan of its rows."""
    known = {column.name for column in live.columns}
    written = written_columns(schema, options, known, str(live.name))
    deletes, update = options.operation_column, options.write_mode == "update"
    columns = match_columns(written, live, options.column_names, update=update)
    key_names = [column.name for column in columns if column.role in KEY]
    refuse_other_key(live.name, options.layout, key_names)
    if update:
        refuse_no_update(live, columns, deletes)
    details = CassandraRowPlan(
        keyspace=options.keyspace,
        table=live.name.table,
        nulls=options.nulls,
        update=update,
        clustering=clustering_order(live, columns) if deletes else (),
        ttl=agreed_ttl(options, live),
        timestamp_column=options.timestamp_column,
        types=used_types(columns, live),
    )
    by_name = {column.name: column for column in columns}
    controls = {*options.controls.values()}
    plan = CassandraPlan(
        key=key,
        target="cassandra",
        table=str(live.name),
        columns=tuple(
            by_name.get(field.name) or _control(field, options.operation_column)
            for field in schema
            if field.name in by_name or field.name in controls
        ),
        operations=dict(options.words) if options.operation_column else {},
        unavailable=options.unavailable_value,
        details=details,
    )
    refuse_repeated_lists(plan, live)
    return msgspec.structs.replace(plan, sent_once=has_lists(plan)).plain


def _control(field: pa.Field, operation: str) -> Column:
    """Return the plan's entry for a column that is read, but not written."""
    role: Role = "operation" if field.name == operation else "control"
    return Column(name=field.name, source=str(canonical(field.type)), type=role, role=role)

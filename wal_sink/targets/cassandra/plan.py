"""Agrees with the cluster on how a DataFrame is written; the only step that may create anything."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence

import msgspec
import pyarrow as pa
from cassandra import AlreadyExists

from wal_sink.model.plan import Column, Plan, Role, canonical
from wal_sink.targets.cassandra.compare import Wanted, match_columns, match_tables, used_types
from wal_sink.targets.cassandra.ddl import create_statement, new_table
from wal_sink.targets.cassandra.driver.connection import connect, explained
from wal_sink.targets.cassandra.driver.errors import create_table
from wal_sink.targets.cassandra.feature import Agreement
from wal_sink.targets.cassandra.features import FEATURES, demands, refuse_server, used
from wal_sink.targets.cassandra.fitness import Server, inspect_server
from wal_sink.targets.cassandra.options import CassandraOptions
from wal_sink.targets.cassandra.row_options import primary_key
from wal_sink.targets.cassandra.row_plan import KEY, CassandraPlan, CassandraRowPlan, OneOfSeveral
from wal_sink.targets.cassandra.session import ensure_ledger_table
from wal_sink.targets.cassandra.table import TableMetadata, index_rules, read_table, term_limits
from wal_sink.targets.create_table import refuse_other_key

log = logging.getLogger(__name__)


def make_plan(
    options: CassandraOptions, schema: pa.Schema, key: str, *, create: bool = True
) -> Plan:
    """Connect, compare the DataFrame with the tables, and create what is missing of ledger and table.

    :param create: False creates nothing: the plan says what would be created.
    :raises SchemaMismatch: the DataFrame does not fit, or a table cannot be written exactly once.
    :raises TargetUnavailable: the cluster does not answer.
    :raises TargetRefused: the cluster refuses a statement that this takes.
    :raises OptionError: the options do not fit the cluster.
    """
    with connect(options) as connection, explained(options):
        server = inspect_server(connection.session, options)
        refuse_server(server, options)
        tables = [read_table(connection.session, name) for name in options.data]
        new = _missing(options, schema, tables[0]) if options.create_table else None
        plan = _agree(options, server, schema, key, [new] if new else tables)
        ensure_ledger_table(connection.session, options.ledger, create=create)
        if new is None:
            return plan
        statement = create_statement(new)
        if not create:
            return plan.that_creates(statement)
        with contextlib.suppress(AlreadyExists):  # what it is like is compared next
            create_table(connection.session, statement.rstrip(";"), new.name)
        log.info("made the table: %s", statement)
        made = read_table(connection.session, new.name)  # by another start, perhaps
        return _agree(options, server, schema, key, [made])


def _missing(
    options: CassandraOptions, schema: pa.Schema, live: TableMetadata
) -> TableMetadata | None:
    """Return the table that createTable makes; None where there is one, or a view, or no keyspace."""
    taken = live.exists or live.name.table in live.views
    if taken or live.name.keyspace not in live.keyspaces:
        return None
    written = _written(options, schema, set(), str(live.name))
    layout, names = primary_key(options.layout), options.column_names
    return new_table(live, written, layout, names, totals=bool(options.added))


def _written(
    options: CassandraOptions, schema: pa.Schema, known: set[str], place: str
) -> pa.Schema:
    """Return the columns that are written, without those that only say what becomes of a row.

    :param known: the tables' columns.
    :param place: the tables, as errors show them.
    """
    names = options.column_names
    in_tables = {name for name in schema.names if names.get(name, name) in known}
    for feature in FEATURES:
        schema = feature.written(schema, options, in_tables, place)
    return schema


def _agree(
    options: CassandraOptions,
    server: Server,
    schema: pa.Schema,
    key: str,
    tables: Sequence[TableMetadata],
) -> Plan:
    """Compare the DataFrame with the tables."""
    known = {column.name for live in tables for column in live.columns}
    written = _written(options, schema, known, ", ".join(str(live.name) for live in tables))
    wanted = Wanted(options.column_names)
    for feature in FEATURES:
        wanted = feature.wanted(wanted, options, written.names)
    if options.tables:
        matched = match_tables(written, tables, wanted)
    else:
        matched = [match_columns(written, tables[0], wanted)]
        key_names = [column.name for column in matched[0] if column.role in KEY]
        refuse_other_key(tables[0].name, options.layout, key_names)
    agreed = [
        Agreement(options, server, live, columns, wanted.among([each.name for each in columns]))
        for live, columns in zip(tables, matched, strict=True)
    ]
    plans = [_plan(each, schema, key) for each in agreed]
    whole = of_several(plans, schema, options.table_column) if options.tables else plans[0]
    return msgspec.structs.replace(whole, demands=demands(plans)).plain


def _plan(agreed: Agreement, schema: pa.Schema, key: str) -> CassandraPlan:
    """Return the plan of one table.

    :param schema: of the DataFrame.
    """
    options, live, columns = agreed.options, agreed.live, agreed.columns
    details = CassandraRowPlan(
        keyspace=options.keyspace,
        table=live.name.table,
        nulls=options.nulls,
        types=used_types(columns, live),
    )
    for feature in FEATURES:
        details = feature.agree(details, agreed)
    by_name = {column.name: column for column in columns}
    controls = {*options.controls.values()} - {options.table_column}
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
        details=details,
    )
    limits = term_limits(agreed.server.settings)
    indexes = index_rules(live.indexes, plan.indexed_columns, live.types, limits)
    plan = plan.noting(indexes=indexes)
    for feature in used(plan):
        feature.refuse_drift(plan, live)
    return plan


def of_several(plans: Sequence[CassandraPlan], schema: pa.Schema, naming: str) -> CassandraPlan:
    """Return the plan that the log has, of the plans of the tables.

    A column that several tables have is noted as the first one of them has it.

    :param schema: of the DataFrame.
    :param naming: the column that names the table of a row; empty: each row goes to every one.
    """
    found: dict[str, Column] = {}
    for plan in plans:
        for column in plan.columns:
            if column.name not in found or found[column.name].role == "control":
                found[column.name] = column
    if naming:
        text = str(pa.string())
        found[naming] = Column(name=naming, source=text, type="control", role="control")
    among = ",".join(plan.details.table for plan in plans)
    tables = tuple(OneOfSeveral(plan.columns, plan.noting(among=among).details) for plan in plans)
    columns = tuple(found[name] for name in schema.names)
    whole = msgspec.structs.replace(
        plans[0], table=", ".join(plan.table for plan in plans), columns=columns
    )
    return whole.noting(table=among, tables=tables, table_column=naming)


def _control(field: pa.Field, operation: str) -> Column:
    """Return the plan's column of one that is not written."""
    role: Role = "operation" if field.name == operation else "control"
    return Column(name=field.name, source=str(canonical(field.type)), type=role, role=role)

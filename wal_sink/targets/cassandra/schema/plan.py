"""Agrees with the cluster on how a DataFrame is written; the only step that may create anything."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

import pyarrow as pa

from wal_sink.model.plan import Column, Plan
from wal_sink.targets.cassandra.driver.connection import connect, explained
from wal_sink.targets.cassandra.options import CassandraOptions
from wal_sink.targets.cassandra.schema.compare import match_columns, used_types
from wal_sink.targets.cassandra.schema.indexes import TermLimits, index_rules, term_limits
from wal_sink.targets.cassandra.schema.inspection import inspect_server
from wal_sink.targets.cassandra.schema.ledger_table import ensure_ledger_table
from wal_sink.targets.cassandra.schema.lists import refuse_beside_lists
from wal_sink.targets.cassandra.schema.several import match_tables, of_several
from wal_sink.targets.cassandra.schema.table_metadata import TableMetadata, read_table
from wal_sink.targets.cassandra.schema.totals import refuse_no_totals
from wal_sink.targets.cassandra.schema.updates import (
    found_changes,
    refuse_no_condition,
    refuse_no_update,
)
from wal_sink.targets.cassandra.times.given import (
    EVENT_COLUMN,
    for_server,
    latest_expiry_s,
    with_times,
    without_times,
)
from wal_sink.targets.cassandra.totals.given import as_planned, names, totals_details
from wal_sink.targets.cassandra.types.absent import absent_details
from wal_sink.targets.cassandra.types.clustering import clustering_details
from wal_sink.targets.cassandra.types.collection_mode import (
    Change,
    changes_details,
    changes_of,
    with_values,
)
from wal_sink.targets.cassandra.types.cql_type import has_lists, user_types_text
from wal_sink.targets.cassandra.types.index_rule import DETAIL, rules_text
from wal_sink.targets.cassandra.types.write_mode import mode_beside, mode_details
from wal_sink.targets.operations import operation_details, with_operation, without_operation
from wal_sink.targets.tables import without_table_column

log = logging.getLogger(__name__)

SHORT_GC_GRACE_S = 3 * 3600
"""For so long other nodes keep what a replica misses while it is away (`max_hint_window`)."""


def make_plan(
    options: CassandraOptions, schema: pa.Schema, key: str, *, create: bool = True
) -> Plan:
    """Connect, compare the DataFrame with the table, and create the ledger's table if it is missing.

    :param create: False creates nothing.
    :raises SchemaMismatch: the DataFrame does not fit, or the table cannot be written exactly once.
    :raises TargetUnavailable: the cluster does not answer.
    :raises TargetRefused: the cluster refuses a statement that this takes.
    :raises OptionError: the options do not fit the cluster.
    """
    with connect(options) as connection, explained(options):
        server = inspect_server(connection.session, options)
        tables = [read_table(connection.session, name) for name in options.data]
        known = {column.name for live in tables for column in live.columns}
        place, other = ", ".join(str(live.name) for live in tables), options.column_names
        rows = without_table_column(schema, options.table_column, known, place)
        rows = without_operation(rows, options.operation_column, known, place)
        kept = [name for name in rows.names if other.get(name, name) in known]
        written = without_times(rows, options.times, kept, place)
        changes = found_changes(options.changes, written.names)
        if options.tables:
            matched = match_tables(written, tables, other, options.write_mode, changes)
        else:
            by = mode_beside(options.write_mode, changes)
            matched = [match_columns(written, tables[0], other, by, changes)]
        settings = server.settings or {}
        latest_s = latest_expiry_s(settings.get("storage_compatibility_mode"))
        times = for_server(options.times, latest_s, int(time.time()))
        ensure_ledger_table(connection.session, options.ledger, create=create)
    limits, named = term_limits(server.settings), set(times.columns.values())
    plans = []
    for live, columns in zip(tables, matched, strict=True):
        own = changes_of(options.changes, [column.name for column in columns])
        if mode_beside(options.write_mode, own) == "update":
            refuse_no_update(live, columns, options.operation_column)
        if options.if_not_exists:
            refuse_no_condition(live, columns)
        refuse_no_totals(live, columns, names(options.add_columns))
        _log_consequences(options, live)
        has = {column.name for column in columns}
        of_rows = pa.schema([field for field in rows if field.name in has | named])
        plans.append(
            Plan(
                key=key,
                target="cassandra",
                table=str(live.name),
                columns=with_operation(
                    with_times(columns, of_rows), schema, options.operation_column
                ),
                details=_details(options, live, columns, limits, own) | times.details,
            )
        )
    whole = of_several(plans, schema, options.table_column) if options.tables else plans[0]
    lists = [live for live, each in zip(tables, plans, strict=True) if has_lists(each)]
    for live in lists:
        refuse_beside_lists(options.times, live)
    return as_planned(whole).as_sent_once() if lists else as_planned(whole)


def _details(
    options: CassandraOptions,
    live: TableMetadata,
    columns: tuple[Column, ...],
    limits: TermLimits,
    changes: Mapping[str, Change],
) -> dict[str, str]:
    details = {"keyspace": options.keyspace, "table": live.name.table, "nulls": options.nulls}
    details |= mode_details(mode_beside(options.write_mode, changes)) | changes_details(changes)
    details |= totals_details(options.add_columns) | absent_details(options.if_not_exists)
    if options.operation_column:
        details |= operation_details(options.operation_column, options.words)
        in_dataframe = {column.in_table: column.name for column in columns}
        details |= clustering_details(
            [in_dataframe[column.name] for column in live.key if column.role == "clustering"]
        )
    if types := used_types(columns, live):
        details["types"] = user_types_text(types)
    indexed = with_values(columns, changes)
    if rules := index_rules(live.indexes, indexed, live.types, limits):
        details[DETAIL] = rules_text(rules)
    return details


def _log_consequences(options: CassandraOptions, live: TableMetadata) -> None:
    if options.nulls == "unset":
        log.info(
            "%s: a null leaves the older value of its cell (cassandra.nulls = unset)", live.name
        )
    else:
        log.info("%s: a null clears its cell, a tombstone (cassandra.nulls = write)", live.name)
    if options.consistency_level in ("ONE", "LOCAL_ONE"):
        log.warning(
            "cassandra.consistencyLevel is %s: a row counts as written when one replica has it, and "
            "is lost with that replica",
            options.consistency_level,
        )
    if options.operation_column and live.gc_grace_s < SHORT_GC_GRACE_S:
        log.warning(
            "%s has gc_grace_seconds = %d: a replica that misses a delete, and is not repaired within that"
            " time, brings the row back; the default is 864000, ten days",
            live.name,
            live.gc_grace_s,
        )
    if live.default_ttl and not set(options.times.shape) - {EVENT_COLUMN}:
        log.info(
            "%s has default_time_to_live = %d: rows live that long from when they were published",
            live.name,
            live.default_ttl,
        )

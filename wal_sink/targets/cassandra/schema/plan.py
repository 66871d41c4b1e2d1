"""Agrees with the cluster on how a DataFrame is written; the only step that may create anything.

Compares the DataFrame with several tables, and makes one plan of what was agreed with each. Pure.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

import pyarrow as pa

from wal_sink.errors import SchemaMismatch
from wal_sink.model.plan import Column, Plan
from wal_sink.targets.cassandra.driver.connection import connect, explained
from wal_sink.targets.cassandra.names import did_you_mean
from wal_sink.targets.cassandra.options import CassandraOptions
from wal_sink.targets.cassandra.row_plan import (
    EVENT_COLUMN,
    Change,
    absent_details,
    as_planned,
    changes_details,
    changes_of,
    clustering_details,
    for_server,
    latest_expiry_s,
    mode_beside,
    mode_details,
    names,
    totals_details,
    with_times,
    with_values,
    without_times,
)
from wal_sink.targets.cassandra.rules import DETAIL, rules_text
from wal_sink.targets.cassandra.schema.compare import (
    about_other_names,
    found_changes,
    match_columns,
    refuse_beside_lists,
    refuse_no_condition,
    refuse_no_totals,
    refuse_no_update,
    used_types,
)
from wal_sink.targets.cassandra.schema.ledger_table import ensure_ledger_table
from wal_sink.targets.cassandra.schema.server import inspect_server
from wal_sink.targets.cassandra.schema.table import (
    TableMetadata,
    TermLimits,
    index_rules,
    read_table,
    term_limits,
)
from wal_sink.targets.cassandra.table_plans import table_details
from wal_sink.targets.cassandra.types import CqlType, has_lists, parse, user_types_text
from wal_sink.targets.operations import (
    operation_details,
    table_column,
    with_operation,
    without_operation,
    without_table_column,
)

log = logging.getLogger(__name__)


def match_tables(
    schema: pa.Schema,
    tables: Sequence[TableMetadata],
    names: Mapping[str, str],
    mode: str = "insert",
    changes: Mapping[str, Change] = MappingProxyType({}),
) -> list[tuple[Column, ...]]:
    """Match the DataFrame's columns with those of each table, which may lack some.

    :param names: the tables' names of columns that have another one there, by the DataFrame's.
    :param mode: by INSERT or UPDATE, where no collection is changed.
    :param changes: what is done to collections that are not written whole, by the DataFrame's names.
    :returns: for each table the columns that it has, in the DataFrame's order.
    :raises SchemaMismatch: no table has a column; a table does not fit; or two have a column in two types.
    """
    matched = []
    for live in tables:
        has = {column.name for column in live.columns}
        # Where there is no table, its own error says so, with all columns.
        own = [f for f in schema if names.get(f.name, f.name) in has or not has]
        mine = {name: column for name, column in names.items() if column in has or not has}
        by = mode_beside(mode, changes.keys() & {field.name for field in own})
        matched.append(match_columns(pa.schema(own), live, mine, by, changes))
    problems = [
        *about_other_names(schema, names),
        *_about_no_table(schema, tables, names),
        *_about_two_types(tables, matched),
    ]
    if problems:
        raise SchemaMismatch(
            f"The DataFrame does not fit {', '.join(str(live.name) for live in tables)}:\n"
            + "\n".join(f"  - {problem}" for problem in problems),
            "Correct each line above, in the DataFrame or in the tables, and start again.",
        )
    for live, columns in zip(tables, matched, strict=True):
        if lacking := [name for name in schema.names if name not in {c.name for c in columns}]:
            log.info("%s does not have %s: not written there", live.name, ", ".join(lacking))
    return matched


def of_several(plans: Sequence[Plan], schema: pa.Schema, naming: str) -> Plan:
    """Return the plan that the log has, of the plans of the tables.

    A column that several tables have is noted as the first one of them has it.

    :param schema: of the DataFrame.
    :param naming: the column that names the table of a row; empty: each row goes to every one.
    """
    found: dict[str, Column] = {}
    for plan in plans:
        for column in plan.columns:
            if column.name not in found or found[column.name].role == "time":
                found[column.name] = column
    if naming:
        found[naming] = table_column(naming)
    first = plans[0]
    noted = ("keyspace", "nulls", "operations", "times", "absent")
    shared = {name: text for name, text in first.details.items() if name in noted}
    return Plan(
        key=first.key,
        target=first.target,
        table=", ".join(plan.table for plan in plans),
        columns=tuple(found[name] for name in schema.names),
        details={**shared, **table_details(plans)},
    )


def _about_no_table(
    schema: pa.Schema, tables: Sequence[TableMetadata], names: Mapping[str, str]
) -> Iterator[str]:
    known = {column.name for live in tables for column in live.columns}
    written = {names.get(name, name) for name in schema.names}
    for name in schema.names:
        if (column := names.get(name, name)) not in known:
            near = did_you_mean(column, known - written)
            yield f"{name}: none of the tables has a column {column}. {near}".rstrip() + (
                " Rename or drop it."
            )


def _about_two_types(
    tables: Sequence[TableMetadata], matched: Sequence[tuple[Column, ...]]
) -> Iterator[str]:
    first: dict[str, tuple[TableMetadata, Column]] = {}
    for live, columns in zip(tables, matched, strict=True):
        for column in columns:
            other, noted = first.setdefault(column.name, (live, column))
            if _bare(parse(column.type, live.types)) != _bare(parse(noted.type, other.types)):
                yield (
                    f"{column.name}: it is {noted.type} in {other.name} and {column.type} in {live.name}, and"
                    " the log has each value once. Give it one type in both, or add a copy of the column"
                    " under another name."
                )


def _bare(tree: CqlType) -> CqlType:
    """Return the type without what does not change its values: whether it is frozen, how it is printed."""
    parts = tuple(_bare(part) for part in tree.parts)
    return tree._replace(frozen=False, label="", parts=parts)


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

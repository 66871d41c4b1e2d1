"""Makes the plan of a query when the query starts: compares the DataFrame with the table, creates tables."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import msgspec
import pyarrow as pa
from cassandra import AlreadyExists

from wal_sink.errors import SchemaMismatch
from wal_sink.model.plan import Column, Plan, Role
from wal_sink.model.spark_types import canonical
from wal_sink.targets.cassandra.driver.connection import connect
from wal_sink.targets.cassandra.ledger import ensure_ledger_table
from wal_sink.targets.cassandra.options import (
    COLUMNS_OPTION,
    EXPIRES_AT_COLUMN,
    TIMESTAMP_COLUMN,
    TTL,
    TTL_COLUMN,
    WRITE_MODE,
    CassandraOptions,
    primary_key,
)
from wal_sink.targets.cassandra.row_plan import KEY, CassandraPlan, CassandraRowPlan
from wal_sink.targets.cassandra.server import inspect_server, refuse_missing_permissions
from wal_sink.targets.cassandra.table import (
    TableMetadata,
    create_statement,
    create_table,
    keyspace_statement,
    new_table,
    proposed_statement,
    read_table,
    refuse_disagreement,
    refuse_not_durable,
    suggest_type,
)
from wal_sink.targets.cassandra.type_mismatches import mismatches
from wal_sink.targets.cassandra.types import has_lists, parse, user_type_names
from wal_sink.targets.columns import (
    SAME,
    TableColumn,
    TableRules,
    match_columns,
    refuse_column_in_table,
    refuse_named_column,
)
from wal_sink.targets.ddl import CREATE_TABLE, KEY_COLUMNS, quote, refuse_other_key
from wal_sink.targets.operation_options import without_operation
from wal_sink.unknown_names import did_you_mean

logger = logging.getLogger(__name__)


def make_plan(options: CassandraOptions, schema: pa.Schema, key: str, *, changes: bool) -> Plan:
    """Compare the DataFrame with the table. Create the ledger's table, and with createTable also the table.

    :param changes: False to create nothing. Then the plan has the statement that a start would run.
    :raises SchemaMismatch: the DataFrame does not fit, or a table cannot be written exactly once.
    :raises TargetUnavailable: createTable is set, the table is missing, and the nodes do not agree.
    :raises TargetRefused: the role lacks a permission.
    :raises OptionError: the options do not fit the cluster.
    :raises Exception: an error of the driver.
    """
    with connect(options) as connection:
        inspect_server(connection.session, options, connection.datacenter)
        metadata = read_table(connection.session, options.data)
        if options.create_table and not metadata.exists:
            refuse_disagreement(connection.session, options.data)
            metadata = read_table(connection.session, options.data)
        new = _table_to_create(options, schema, metadata) if options.create_table else None
        plan = _plan_for_table(options, schema, key, new or metadata)
        ensure_ledger_table(connection.session, options.ledger, create=changes)
        refuse_missing_permissions(connection.session, options, metadata)
        if new is None:
            return plan
        statement = create_statement(new)
        if not changes:
            return plan.that_creates(statement)
        with contextlib.suppress(AlreadyExists):  # another start was faster
            create_table(connection.session, statement.rstrip(";"), new.name)
        logger.info("created the table: %s", statement)
        return _plan_for_table(options, schema, key, read_table(connection.session, new.name))


def _table_to_create(
    options: CassandraOptions, schema: pa.Schema, metadata: TableMetadata
) -> TableMetadata | None:
    """Return the table that createTable creates; None if the name is in use, or the keyspace is missing."""
    if metadata.exists or metadata.name.keyspace not in metadata.keyspaces:
        return None
    written = written_columns(schema, options, set(), str(metadata.name))
    layout, names = primary_key(options.layout), options.column_names
    return new_table(metadata, written, layout, names)


def _plan_for_table(
    options: CassandraOptions, schema: pa.Schema, key: str, metadata: TableMetadata
) -> Plan:
    """Return the plan for a table, as the log stores it.

    :param metadata: the table, which exists or which createTable will create.
    :raises SchemaMismatch: the DataFrame or an option does not fit the table.
    """
    table_names = {column.name for column in metadata.columns}
    written = written_columns(schema, options, table_names, str(metadata.name))
    update = options.write_mode == "update"
    columns = plan_columns(written, metadata, options.column_names, update=update)
    key_names = [column.name for column in columns if column.role in KEY]
    refuse_other_key(metadata.name, options.layout, key_names)
    if update:
        refuse_no_update(metadata, columns, options.operation_column)
    plan = CassandraPlan(
        key=key,
        target="cassandra",
        table=str(metadata.name),
        columns=_with_controls(schema, columns, options),
        operations=dict(options.words) if options.operation_column else {},
        unavailable=options.unavailable_value,
        details=_details(options, metadata, columns),
    )
    refuse_repeated_lists(plan, metadata)
    return msgspec.structs.replace(plan, sent_once=has_lists(plan)).plain


def _details(
    options: CassandraOptions, metadata: TableMetadata, columns: tuple[Column, ...]
) -> CassandraRowPlan:
    return CassandraRowPlan(
        keyspace=options.keyspace,
        table=metadata.name.table,
        nulls=options.nulls,
        update=options.write_mode == "update",
        clustering=_clustering_order(metadata, columns) if options.operation_column else (),
        ttl_s=options.ttl,
        ttl_column=options.ttl_column,
        expires_at_column=options.expires_at_column,
        timestamp_column=options.timestamp_column,
        types=used_types(columns, metadata),
    )


def _with_controls(
    schema: pa.Schema, columns: Iterable[Column], options: CassandraOptions
) -> tuple[Column, ...]:
    """Add the control columns to the columns of the plan. The order is that of the DataFrame."""
    by_name, controls = {column.name: column for column in columns}, {*options.controls.values()}
    return tuple(
        by_name.get(field.name) or _control(field, options.operation_column)
        for field in schema
        if field.name in by_name or field.name in controls
    )


def _control(field: pa.Field, operation: str) -> Column:
    role: Role = "operation" if field.name == operation else "control"
    return Column(name=field.name, source=str(canonical(field.type)), type=role, role=role)


def written_columns(
    schema: pa.Schema, options: CassandraOptions, table_columns: Collection[str], table_text: str
) -> pa.Schema:
    """Return the columns of a DataFrame that are written to the table.

    Control columns are not written, with one exception: a column of expiry times or event times is written if
    the table has a column of its name.

    :param table_columns: the names of the table's columns.
    :param table_text: the table's name for errors.
    :raises SchemaMismatch: a control column is missing or has another type. Or the table has the column of
        operations or of TTLs.
    """
    names = options.column_names
    known = {name for name in schema.names if names.get(name, name) in table_columns}
    schema = without_operation(schema, options.operation_column, known, table_text)
    if column := options.ttl_column:
        integers = ("tinyint", "smallint", "int", "bigint")
        remedy = 'Make it whole seconds: .cast("bigint").'
        refuse_named_column(schema, TTL_COLUMN, column, integers, remedy)
        refuse_column_in_table(TTL_COLUMN, column, known, table_text, "TTLs are")
    if column := options.expires_at_column:
        remedy = 'Make it an instant: .cast("timestamp").'
        refuse_named_column(schema, EXPIRES_AT_COLUMN, column, ("timestamp",), remedy)
    if column := options.timestamp_column:
        remedy = 'Make it an instant, .cast("timestamp"), or a bigint of microseconds since 1970.'
        refuse_named_column(schema, TIMESTAMP_COLUMN, column, ("timestamp", "bigint"), remedy)
    controls = {options.ttl_column, options.expires_at_column, options.timestamp_column}
    return pa.schema([field for field in schema if field.name not in controls - known])


def _clustering_order(metadata: TableMetadata, columns: Iterable[Column]) -> tuple[str, ...]:
    """Return the DataFrame's names of the clustering columns, in the table's order."""
    in_dataframe = {column.in_table: column.name for column in columns}
    return tuple(in_dataframe[key.name] for key in metadata.key if key.role == "clustering")


def plan_columns(
    schema: pa.Schema,
    metadata: TableMetadata,
    names: Mapping[str, str] = SAME,
    *,
    update: bool = False,
) -> tuple[Column, ...]:
    """Return the columns of the plan in the DataFrame's order, without control columns.

    :param names: the table's names of renamed columns, by the DataFrame's names.
    :param update: True if rows are written by UPDATE.
    :raises SchemaMismatch: the error has a line for each column that does not fit.
    """
    _refuse_table(schema, metadata)
    rules = _Rules(schema, metadata, names, update=update)
    others = _about_other_names(schema, names)
    return match_columns(schema, rules.columns, str(metadata.name), rules, others, names)


class _Rules(TableRules):
    """The rules for columns of a table of Cassandra, and the remedies for columns that break them."""

    def __init__(
        self, schema: pa.Schema, metadata: TableMetadata, names: Mapping[str, str], *, update: bool
    ) -> None:
        self._metadata, self._names, self._update = metadata, names, update
        written = {names.get(name, name) for name in schema.names}
        roles = {column.role for column in metadata.columns if column.name in written}
        self._static_alone = "static" in roles and not roles & {"regular", "clustering"}

    @property
    def columns(self) -> list[TableColumn]:
        """The columns of the table."""
        # An UPDATE that sets only static columns needs no clustering columns.
        optional = ("clustering",) if self._update and self._static_alone else ()
        return [
            TableColumn(
                column.name,
                column.type,
                required=column in self._metadata.key and column.role not in optional,
                role=column.role,
            )
            for column in self._metadata.columns
        ]

    def about_type(self, field: pa.Field, column: TableColumn) -> Sequence[str]:
        """Return a line for each part of the column whose type does not fit."""
        tree = parse(column.type, self._metadata.types)
        return [*mismatches(field.name, field.type, tree)]

    def about_missing(self, field: pa.Field, free: Collection[str]) -> str:
        """Return the remedy for a column that the table lacks."""
        if field.name in self._names:
            return f"Correct {COLUMNS_OPTION}."
        return super().about_missing(field, free)

    def to_add(self, field: pa.Field) -> str:
        """Return the ALTER TABLE that adds the column; empty if CQL has no type for the column."""
        cql = suggest_type(field.type)
        add = f"run: ALTER TABLE {self._metadata.name} ADD {quote(field.name)} {cql};"
        return add if cql else ""

    def about_required(self, column: TableColumn) -> str:
        """Return problem and remedy for a key column that the DataFrame lacks."""
        return (
            f"it is in the table's primary key ({column.role} key, {column.type}) and not in the DataFrame."
            " Add it."
        )


def used_types(
    columns: tuple[Column, ...], metadata: TableMetadata
) -> dict[str, tuple[tuple[str, str], ...]]:
    """Return the user-defined types of the columns by name, including types inside other types."""
    trees = [parse(column.type, metadata.types) for column in columns]
    names = {name for tree in trees for name in user_type_names(tree)}
    return {name: tuple(metadata.types[name]) for name in sorted(names)}


def _refuse_table(schema: pa.Schema, metadata: TableMetadata) -> None:
    keyspace, table = metadata.name
    if keyspace not in metadata.keyspaces:
        raise SchemaMismatch(
            f"Keyspace {keyspace} does not exist. {did_you_mean(keyspace, metadata.keyspaces)}".rstrip(),
            f"Correct option keyspace, or create it with the replication that you need:\n"
            f"{keyspace_statement(keyspace)}",
        )
    refuse_not_durable(metadata)
    if not metadata.exists:
        raise SchemaMismatch(
            f"Table {metadata.name} does not exist. {did_you_mean(table, metadata.tables)}".rstrip(),
            f"Correct option table; or set {CREATE_TABLE} to true and {KEY_COLUMNS} to the columns of its"
            f" key; or create it:\n{proposed_statement(metadata.name, schema)}",
        )
    if any(column.type == "counter" for column in metadata.columns):
        raise SchemaMismatch(
            f"{metadata.name} is a counter table: counters have no write timestamp, so "
            "an increment cannot be written exactly once.",
            "Write the totals to a table without counters: aggregate in Spark, and write them by"
            " wal_sink.batch_writer in update mode.",
        )


def _about_other_names(schema: pa.Schema, names: Mapping[str, str]) -> Iterator[str]:
    """Yield the problems of the option `cassandra.columns` with this DataFrame.

    :param names: the table's names of renamed columns, by the DataFrame's names.
    """
    for name, column in names.items():
        if name not in schema.names:
            yield (
                f"{name}: {COLUMNS_OPTION} names it, and the DataFrame has no such column."
                f" {did_you_mean(name, schema.names)}"
            ).rstrip() + f" Correct it in {COLUMNS_OPTION}, or leave it out."
        elif column in schema.names and column not in names:
            yield (
                f"{name}: {COLUMNS_OPTION} writes it to {column}, to which the DataFrame's {column} is"
                f" written, too. Drop one of the two, or write {column} to another column."
            )


def refuse_no_update(metadata: TableMetadata, columns: Sequence[Column], operation: str) -> None:
    """Refuse columns that no UPDATE can write.

    :param columns: the table's columns that the DataFrame has.
    :param operation: the value of the option `operationColumn`.
    :raises SchemaMismatch: the DataFrame has only the key. Or all other columns of the DataFrame are static,
        and the DataFrame has clustering columns or deletes.
    """
    roles = {column.role for column in columns}
    if not roles & {"static", "regular"}:
        raise SchemaMismatch(
            f"The DataFrame has only the key of {metadata.name}, and {WRITE_MODE} is update: no value is"
            " set.",
            f"Add a column, or leave out {WRITE_MODE}: an insert writes rows of keys alone.",
        )
    if "regular" not in roles and "clustering" in roles:
        raise SchemaMismatch(
            f"The DataFrame has only static columns of {metadata.name} beside the whole key, and Cassandra"
            " refuses an UPDATE of static columns alone that names clustering columns.",
            "Drop the clustering columns, to write partitions; or add a column that is not static.",
        )
    if "regular" not in roles and operation and any(c.role == "clustering" for c in metadata.key):
        raise SchemaMismatch(
            f"The DataFrame has only static columns of {metadata.name}, and operationColumn is {operation}: a"
            " delete would delete the whole partition with all its rows.",
            "Leave out operationColumn, and clear values by nulls, with cassandra.nulls=write; or add the"
            " clustering columns and a column that is not static.",
        )


_FROZEN = "Make the columns frozen<list<…>>, leave them out of the DataFrame"


def refuse_repeated_lists(plan: CassandraPlan, metadata: TableMetadata) -> None:
    """Refuse options that conflict with lists that are not frozen.

    If such a list is written twice with one timestamp, it has each element twice. So the flusher sends a row
    with a higher timestamp each time, and the timestamp cannot be an event time. A TTL in seconds would count
    from the higher timestamp, and the row would expire later.

    :raises SchemaMismatch: the plan has such a list, and event times or a TTL in seconds.
    """
    if not has_lists(plan):
        return
    if plan.details.timestamp_column:
        raise SchemaMismatch(
            f"{metadata.name} has lists that are not frozen, and {TIMESTAMP_COLUMN} is given: if a row is"
            " written twice with the time of its event, its lists have each element twice.",
            f"{_FROZEN}, or leave out the option.",
        )
    seconds = {
        TTL: plan.details.ttl_s,
        TTL_COLUMN: plan.details.ttl_column,
        f"default_time_to_live = {metadata.default_ttl}": metadata.default_ttl,
    }
    if names := ", ".join(name for name, value in seconds.items() if value):
        raise SchemaMismatch(
            f"{metadata.name} has lists that are not frozen, and its rows have a TTL in seconds ({names})."
            " The TTL counts from a row's timestamp, which is higher each time that a list is sent.",
            f"{_FROZEN}; or use only {EXPIRES_AT_COLUMN}, and run:\nALTER TABLE {metadata.name} WITH"
            " default_time_to_live = 0;",
        )

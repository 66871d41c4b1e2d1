"""Compares the DataFrame, or the plan that was made for it, with the table's metadata. Pure."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence

import pyarrow as pa

from wal_sink.errors import SchemaMismatch
from wal_sink.model.plan import Column
from wal_sink.targets.cassandra import ddl
from wal_sink.targets.cassandra.options import (
    COLUMNS_OPTION,
    EXPIRES_AT_COLUMN,
    TIMESTAMP_COLUMN,
    TTL,
    TTL_COLUMN,
    WRITE_MODE,
)
from wal_sink.targets.cassandra.row_plan import CassandraPlan, RowTtl
from wal_sink.targets.cassandra.table import ColumnMetadata, TableMetadata
from wal_sink.targets.cassandra.types import has_lists, mismatches, parse, user_type_names
from wal_sink.targets.columns import SAME, TableColumn, TableRules, has_changed
from wal_sink.targets.columns import match_columns as compare
from wal_sink.targets.sql_text import quote
from wal_sink.targets.table_options import CREATE_TABLE, KEY_COLUMNS
from wal_sink.text import did_you_mean


def match_columns(
    schema: pa.Schema,
    live: TableMetadata,
    names: Mapping[str, str] = SAME,
    *,
    update: bool = False,
) -> tuple[Column, ...]:
    """Match the DataFrame's columns with the table's; return them in the DataFrame's order.

    :param names: the table's names of columns that have another one there, by the DataFrame's.
    :param update: True for rows that are written by UPDATE.
    :raises SchemaMismatch: with a line for each thing that does not fit.
    """
    _refuse_table(schema, live)
    rules = CassandraRules(schema, live, names, update=update)
    others = about_other_names(schema, names)
    return compare(schema, rules.columns, str(live.name), rules, others, names)


class CassandraRules(TableRules):
    """The rules for types and keys in Cassandra, and the statements that repair a table."""

    def __init__(
        self, schema: pa.Schema, live: TableMetadata, names: Mapping[str, str], *, update: bool
    ) -> None:
        self._live, self._names, self._update = live, names, update
        written = {names.get(name, name) for name in schema.names}
        roles = {column.role for column in live.columns if column.name in written}
        self._static_alone = "static" in roles and not roles & {"regular", "clustering"}

    @property
    def columns(self) -> list[TableColumn]:
        """The table's columns; the DataFrame needs those of the key, but for rows that are partitions."""
        may_lack = ("clustering",) if self._update and self._static_alone else ()
        return [
            TableColumn(
                column.name,
                column.type,
                required=column in self._live.key,
                default=column.role in may_lack,
                role=column.role,
            )
            for column in self._live.columns
        ]

    def about_type(self, field: pa.Field, column: TableColumn) -> Sequence[str]:
        """Return a line for each place where the types do not fit."""
        tree = parse(column.type, self._live.types)
        return [*map(str, mismatches(field.name, field.type, tree))]

    def about_missing(self, field: pa.Field, free: Collection[str]) -> str:
        """Return what to do; a name in another case is taken for a slip, not for a new column."""
        name = field.name
        if name in self._names:
            return f"Correct {COLUMNS_OPTION}."
        if meant := [other for other in sorted(free) if other.lower() == name.lower()]:
            return (
                f'Rename it, .withColumnRenamed("{name}", "{meant[0]}"), or set {COLUMNS_OPTION} to'
                f" {json.dumps({name: meant[0]}, ensure_ascii=False)}."
            )
        return super().about_missing(field, free)

    def to_add(self, field: pa.Field) -> str:
        """Return the statement that adds the column."""
        add = ddl.add_column(self._live.name, field)
        return f"run: {add}" if add else ""

    def about_required(self, column: TableColumn) -> str:
        """Return that the column is in the key."""
        update = (
            ", or set cassandra.writeMode to update, which writes a partition's static columns alone"
            if column.role == "clustering" and not self._update and self._static_alone
            else ""
        )
        return (
            f"it is in the table's primary key ({column.role} key, {column.type}) and not in the DataFrame."
            f" Add it{update}."
        )


def used_types(
    columns: tuple[Column, ...], live: TableMetadata
) -> dict[str, tuple[tuple[str, str], ...]]:
    """Return the user-defined types that the columns use, also inside of other types."""
    trees = [parse(column.type, live.types) for column in columns]
    names = {name for tree in trees for name in user_type_names(tree)}
    return {name: tuple(live.types[name]) for name in sorted(names)}


def refuse_changed(plan: CassandraPlan, live: TableMetadata) -> None:
    """Refuse a table that is no longer what the plan says; new columns and new fields do not matter.

    :raises SchemaMismatch: a column is gone, has another type or role, or is new in the key; a
        field is gone, or has another name or type; or the keyspace bypasses the commit log.
    """
    now = {column.name: column for column in live.columns}
    changes = [
        f"{column.in_table} was {column.type} ({column.role}), "
        + (f"is {_described(now[column.in_table])}" if column.in_table in now else "is gone")
        for column in plan.columns
        if now.get(column.in_table) != (column.in_table, column.type, column.role)
    ]
    planned = {column.in_table for column in plan.columns}
    changes += [
        f"{column.name} is new, {_described(column)}"
        for column in live.key
        if column.name not in planned and not (column.role == "clustering" and plan.static_alone)
    ]
    changes += [
        f"type {name} was ({_fields(fields)}), is ({_fields(live.types.get(name, ()))})"
        for name, fields in plan.details.types.items()
        if tuple(live.types.get(name, ()))[: len(fields)] != fields
    ]
    if not live.exists:
        changes = ["the table is gone"]
    else:
        refuse_not_durable(live)
    if changes:
        raise has_changed(plan.table, changes)
    refuse_repeated_lists(plan, live)


def refuse_not_durable(live: TableMetadata) -> None:
    """Refuse a keyspace that loses acknowledged writes when a server's process crashes.

    :raises SchemaMismatch: the keyspace bypasses the commit log.
    """
    if not live.durable:
        raise SchemaMismatch(
            f"Keyspace {live.name.keyspace} has durable_writes = false: acknowledged rows are lost when a"
            " server's process ends, and the log would not have them any more.",
            f"Run:\nALTER KEYSPACE {quote(live.name.keyspace)} WITH durable_writes = true;",
        )


def _refuse_table(schema: pa.Schema, live: TableMetadata) -> None:
    keyspace, table = live.name
    if keyspace not in live.keyspaces:
        raise SchemaMismatch(
            f"Keyspace {keyspace} does not exist. {did_you_mean(keyspace, live.keyspaces)}".rstrip(),
            f"Correct option keyspace, or create it with the replication that you need:\n"
            f"{ddl.create_keyspace(keyspace)}",
        )
    refuse_not_durable(live)
    if table in live.views:
        raise SchemaMismatch(
            f"{live.name} is a materialized view, which cannot be written to.",
            "Name its base table.",
        )
    if not live.exists:
        raise SchemaMismatch(
            f"Table {live.name} does not exist. {did_you_mean(table, live.tables)}".rstrip(),
            f"Correct option table; or set {CREATE_TABLE} to true and {KEY_COLUMNS} to the columns of its"
            f" key; or create it:\n{ddl.create_table(live.name, schema)}",
        )
    if any(column.type == "counter" for column in live.columns):
        raise SchemaMismatch(
            f"{live.name} is a counter table: counters take no write timestamp, so "
            "an increment cannot be written exactly once.",
            "Write the totals to a table without counters: aggregate in Spark, and write them by"
            " wal_sink.batch_writer in update mode.",
        )


def about_other_names(schema: pa.Schema, names: Mapping[str, str]) -> Iterator[str]:
    """Yield what is wrong with the option that gives columns another name in the table."""
    for name, column in names.items():
        if name not in schema.names:
            yield (
                f"{name}: {COLUMNS_OPTION} names it, and the DataFrame has no such column."
                f" {did_you_mean(name, schema.names)}"
            ).rstrip() + f" Correct it in {COLUMNS_OPTION}, or leave it out."
        elif column in schema.names and column not in names:
            yield (
                f"{name}: {COLUMNS_OPTION} writes it to {column}, and so is the DataFrame's {column}. Drop"
                f" one of the two, or write {column} to another column."
            )


def refuse_no_update(live: TableMetadata, columns: Sequence[Column], operation: str) -> None:
    """Refuse what no UPDATE can write.

    :param columns: those of the table that the DataFrame has.
    :param operation: the value of `operationColumn`.
    :raises SchemaMismatch: there is no value to set; or clustering columns are beside static ones alone; or
        rows are partitions, and some are deletes.
    """
    roles = {column.role for column in columns}
    if not roles & {"static", "regular"}:
        raise SchemaMismatch(
            f"The DataFrame has only the key of {live.name}, and {WRITE_MODE} is update: no value is set.",
            f"Add a column, or leave out {WRITE_MODE}: an insert writes rows of keys alone.",
        )
    if "regular" not in roles and "clustering" in roles:
        raise SchemaMismatch(
            f"Of {live.name} the DataFrame has static columns and clustering columns: an UPDATE of static"
            " columns alone is of a partition, and Cassandra refuses it with clustering columns.",
            "Drop the clustering columns, to write partitions; or add a column that is not static.",
        )
    if "regular" not in roles and operation and any(c.role == "clustering" for c in live.key):
        raise SchemaMismatch(
            f"Of {live.name} the DataFrame has static columns alone, and operationColumn is {operation}: a"
            " delete would take the whole partition, with all its rows.",
            "Leave out operationColumn, and clear values by nulls, with cassandra.nulls=write; or add the"
            " clustering columns and a column that is not static.",
        )


_FROZEN = "Make the columns frozen<list<…>>, leave them out of the DataFrame"


def refuse_repeated_lists(plan: CassandraPlan, live: TableMetadata) -> None:
    """Refuse what hangs on the timestamp of a row with a list that is not frozen: each attempt raises it.

    The server gives each write of such a list elements of its own, so its rows are sent once with each
    timestamp (rule `repeatable`).

    :raises SchemaMismatch: rows bring their timestamps along, or have a TTL in seconds.
    """
    if not has_lists(plan):
        return
    if plan.details.timestamp_column:
        raise SchemaMismatch(
            f"{live.name} has lists that are not frozen, and {TIMESTAMP_COLUMN} is given: a row that is"
            " written twice at the time of its event would have their elements twice.",
            f"{_FROZEN}, or leave out the option.",
        )
    ttl = plan.details.ttl or RowTtl()
    seconds = {
        TTL: ttl.ttl_s,
        TTL_COLUMN: ttl.ttl_column,
        f"default_time_to_live = {live.default_ttl}": live.default_ttl,
    }
    if names := ", ".join(name for name, value in seconds.items() if value):
        raise SchemaMismatch(
            f"{live.name} has lists that are not frozen, and its rows have a TTL in seconds ({names}), which"
            " counts from a row's timestamp: each attempt at its lists raises that.",
            f"{_FROZEN}; or say when rows expire by {EXPIRES_AT_COLUMN} alone, and ALTER TABLE {live.name}"
            " WITH default_time_to_live = 0.",
        )


def _described(column: ColumnMetadata) -> str:
    return f"{column.type} ({column.role})"


def _fields(fields: Sequence[tuple[str, str]]) -> str:
    return ", ".join(f"{quote(name)} {cql}" for name, cql in fields)

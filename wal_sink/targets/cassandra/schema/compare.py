"""Does the DataFrame fit the table? Pure: every problem is found and said, a line each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import pyarrow as pa

from wal_sink.errors import SchemaMismatch
from wal_sink.model.plan import Column, Plan
from wal_sink.targets.cassandra.names import near, qualified, quote
from wal_sink.targets.cassandra.schema import ddl
from wal_sink.targets.cassandra.schema.live_table import LiveColumn, LiveTable
from wal_sink.targets.cassandra.types.cql_type import Types, parse, planned_types, user_types
from wal_sink.targets.cassandra.types.fit import misfits
from wal_sink.targets.cassandra.types.spark_types import canonical


def agree(schema: pa.Schema, live: LiveTable) -> tuple[Column, ...]:
    """Return the columns to write, in the DataFrame's order.

    :raises SchemaMismatch: with all that does not fit.
    """
    _refuse_table(schema, live)
    problems = [*_about_names(schema, live), *_about_types(schema, live)]
    if problems:
        raise SchemaMismatch(
            f"The DataFrame does not fit {qualified(*live.name)}:\n"
            + "\n".join(f"  - {problem}" for problem in problems),
            "Correct each line above, in the DataFrame or in the table, and start again.",
        )
    by_name = {column.name: column for column in live.columns}
    return tuple(
        Column(
            name=field.name,
            source=str(canonical(field.type)),
            type=by_name[field.name].type,
            role=by_name[field.name].role,
        )
        for field in schema
    )


def types_of(columns: tuple[Column, ...], live: LiveTable) -> Types:
    """Return the user-defined types that columns are made of."""
    trees = [parse(column.type, live.types) for column in columns]
    names = {name for tree in trees for name in user_types(tree)}
    return {name: live.types[name] for name in sorted(names)}


def refuse_changed(plan: Plan, live: LiveTable) -> None:
    """See that the table is still what the plan says; new columns and new fields are no change.

    :raises SchemaMismatch: a column is gone, has another type or role, or is new in the key; a
        field is gone, or has another name or type; or the keyspace bypasses the commit log.
    """
    now = {column.name: column for column in live.columns}
    changes = [
        f"{column.name} was {column.type} ({column.role}), "
        + (f"is {_described(now[column.name])}" if column.name in now else "is gone")
        for column in plan.columns
        if now.get(column.name) != (column.name, column.type, column.role)
    ]
    planned = {column.name for column in plan.columns}
    changes += [
        f"{column.name} is new, {_described(column)}"
        for column in _key(live)
        if column.name not in planned
    ]
    changes += [
        f"type {name} was ({_fields(fields)}), is ({_fields(live.types.get(name, ()))})"
        for name, fields in planned_types(plan).items()
        if tuple(live.types.get(name, ()))[: len(fields)] != tuple(fields)
    ]
    if not live.exists:
        changes = ["the table is gone"]
    else:
        refuse_not_durable(live)
    if changes:
        raise SchemaMismatch(
            f"{plan.table} is no longer what plan {plan.key} was made for: {'; '.join(changes)}.",
            "What waits in the log was checked against the plan: bring the table back to it, let the "
            "log be flushed, then change table and DataFrame together.",
        )


def refuse_hidden(plan: Plan, live: LiveTable, first_us: int) -> None:
    """See that no column was dropped since rows got their timestamps, and added again.

    The server would acknowledge their values, and show none of them.

    :param first_us: the lowest write timestamp, microseconds since 1970.
    :raises SchemaMismatch: one was.
    """
    hidden = [column for column in plan.columns if live.dropped.get(column.name, -1) >= first_us]
    if hidden:
        names = ", ".join(column.name for column in hidden)
        before_us = first_us - 1_000  # the server keeps milliseconds
        again = " ".join(
            f"ALTER TABLE {plan.table} DROP {quote(column.name)} USING TIMESTAMP {before_us};"
            f" ALTER TABLE {plan.table} ADD {quote(column.name)} {column.type}"
            f"{' static' if column.role == 'static' else ''};"
            for column in hidden
        )
        raise SchemaMismatch(
            f"{plan.table} was without {names} for a while since rows that wait in the log were computed:"
            " Cassandra hides what is written to a column with a time before it was dropped.",
            f"Drop it once more, as of before these rows; what is newer stays: {again} The flush then goes"
            " on by itself.",
        )


def refuse_not_durable(live: LiveTable) -> None:
    """See that acknowledged writes survive the crash of the servers' processes.

    :raises SchemaMismatch: the keyspace bypasses the commit log.
    """
    if not live.durable:
        raise SchemaMismatch(
            f"Keyspace {live.name.keyspace} has durable_writes = false: what it acknowledges is lost "
            "when a server's process ends, and the log would be trimmed by then.",
            ddl.make_durable(live.name.keyspace),
        )


def _refuse_table(schema: pa.Schema, live: LiveTable) -> None:
    keyspace, table = live.name
    if keyspace not in live.keyspaces:
        raise SchemaMismatch(
            f"Keyspace {keyspace} does not exist. {near(keyspace, live.keyspaces)}".rstrip(),
            f"Create it with the replication that you need:\n{ddl.create_keyspace(keyspace)}",
        )
    refuse_not_durable(live)
    if table in live.views:
        raise SchemaMismatch(
            f"{qualified(keyspace, table)} is a materialized view, which cannot be written to.",
            "Name its base table.",
        )
    if not live.exists:
        raise SchemaMismatch(
            f"Table {qualified(keyspace, table)} does not exist. "
            f"{near(table, live.tables)}".rstrip(),
            f"Correct option table, or create it:\n{ddl.create_table(live.name, schema)}",
        )
    if any(column.type == "counter" for column in live.columns):
        raise SchemaMismatch(
            f"{qualified(keyspace, table)} is a counter table: counters take no write timestamp, so "
            "an increment cannot be written exactly once.",
            "Aggregate in Spark and write the totals to a table without counters.",
        )


def _about_names(schema: pa.Schema, live: LiveTable) -> Iterator[str]:
    known = {column.name for column in live.columns}
    for name, count in Counter(schema.names).items():
        if count > 1:
            yield f"{name}: the DataFrame has {count} columns of this name. Rename all but one."
        if name not in known:
            yield (
                f"{name}: the table has no such column. {near(name, known - {*schema.names})}"
            ).rstrip() + " Rename or drop it."
    for column in _key(live):
        if column.name not in schema.names:
            yield (
                f"{column.name}: it is in the table's primary key ({column.role} key, {column.type}) "
                "and not in the DataFrame. Add it."
            )


def _about_types(schema: pa.Schema, live: LiveTable) -> Iterator[str]:
    types = {column.name: column.type for column in live.columns}
    for field in schema:
        if field.name in types:
            tree = parse(types[field.name], live.types)
            yield from map(str, misfits(field.name, field.type, tree))


def _key(live: LiveTable) -> list[LiveColumn]:
    return [column for column in live.columns if column.role in ("partition", "clustering")]


def _described(column: LiveColumn) -> str:
    return f"{column.type} ({column.role})"


def _fields(fields: Sequence[tuple[str, str]]) -> str:
    return ", ".join(f"{quote(name)} {cql}" for name, cql in fields)

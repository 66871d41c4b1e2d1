"""Compares the DataFrame, or the plan made for it, with the table's metadata. Pure.

Which DataFrames can be written by UPDATE: values, static columns, elements of collections. Pure.

Which tables can hold totals that rows are added to. Pure.

What cannot be said of rows with lists that are not frozen (rule 26). Pure.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from types import MappingProxyType

import pyarrow as pa

from wal_sink.errors import SchemaMismatch
from wal_sink.model.plan import Column, Plan, canonical
from wal_sink.targets.cassandra.names import COLUMNS_OPTION, did_you_mean, quote
from wal_sink.targets.cassandra.row_plan import (
    ADD_COLUMNS,
    ADDED_COLUMN,
    EVENT_COLUMN,
    EXPIRES_COLUMN,
    IF_NOT_EXISTS,
    WRITE_MODE,
    Change,
    RowTimes,
    added_columns,
    changes_of,
    option_of,
    planned_times,
    static_alone,
)
from wal_sink.targets.cassandra.schema import ddl
from wal_sink.targets.cassandra.schema.table import ColumnMetadata, TableMetadata, alike
from wal_sink.targets.cassandra.types import (
    CqlType,
    UserTypes,
    has_lists,
    mismatches,
    parse,
    planned_user_types,
    taken,
    user_type_names,
)


def writes_static_alone(live: TableMetadata, written: Collection[str]) -> bool:
    """Whether only static columns are written beside the partition key.

    :param written: the table's names of the columns that are.
    """
    roles = {column.role for column in live.columns if column.name in written}
    return "static" in roles and not roles & {"regular", "clustering"}


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


def refuse_no_condition(live: TableMetadata, columns: Sequence[Column]) -> None:
    """Refuse a table of which the first row of a key cannot be told, where that one stays.

    Rows of a partition are written one after the other, so only partition keys have to be told apart.

    :param columns: those of the table that the DataFrame has.
    :raises SchemaMismatch: there are static columns; or two encodings of a partition key are one row.
    """
    for column in columns:
        if column.role == "partition" and (why := alike(column, live)):
            raise SchemaMismatch(
                f"{column.name} of {live.name}: {why}, which are written beside each other, so that"
                f" {IF_NOT_EXISTS} could not say which one is first.",
                "Write a table whose partition key has another type, such as a frozen list.",
            )
    if static := [column.name for column in columns if column.role == "static"]:
        raise SchemaMismatch(
            f"Of {live.name} the DataFrame has the static columns {', '.join(static)}, and {IF_NOT_EXISTS} is"
            " true: each new row of a partition would write them, in no order.",
            "Write them by a query of their own, and drop them from this one.",
        )


def found_changes(modes: Mapping[str, Change], columns: Sequence[str]) -> dict[str, Change]:
    """Return what is done to the columns of a DataFrame, by their names there.

    :param modes: by column in lower case, as options name them.
    :raises SchemaMismatch: an option names no column, or two that differ in upper and lower case only.
    """
    found = changes_of(modes, columns)
    for column in modes:
        named = [name for name in columns if name.lower() == column]
        option = option_of(column)
        if not named:
            near = did_you_mean(column, columns)
            raise SchemaMismatch(
                f"Option {option} names no column of the DataFrame that is written; it has"
                f" {', '.join(columns)}. {near}".rstrip(),
                "Correct its last part, which is the DataFrame's name of the column, or leave it out.",
            )
        if len(set(named)) > 1:
            raise SchemaMismatch(
                f"Option {option} could mean {' or '.join(named)}: Spark passes the names of options in"
                " lower case.",
                f"Rename one of the two in the DataFrame; {COLUMNS_OPTION} then says which column of the"
                " table it is written to.",
            )
    return found


def about_change(field: pa.Field, column: ColumnMetadata, tree: CqlType, change: Change) -> str:
    """Say why a column's elements cannot be added or taken out one by one; empty: they can.

    :param field: the DataFrame's column.
    :param column: the table's.
    :param tree: its type.
    """
    begins = f"{field.name}: {option_of(field.name)} is {change}, and"
    leave = "Leave out the option"
    if column.role in ("partition", "clustering"):
        return f"{begins} {column.name} is in the table's primary key. {leave}."
    if tree.kind == "list":
        return (
            f"{begins} the table's {tree.label} is a list: to append to it twice doubles its elements, and a"
            f" write can be repeated. {leave}, or make the table's column a set or a map."
        )
    if tree.kind not in ("set", "map"):
        return f"{begins} the table's {tree.label} is no set and no map. {leave}."
    if tree.frozen:
        return (
            f"{begins} the table's {tree.label} is frozen: it can only be written whole. {leave}, or give"
            " the table a column that is not frozen."
        )
    if change == "remove" and tree.kind == "map" and pa.types.is_map(field.type):
        return (
            f"{begins} entries are taken out by their keys. Give an array of them,"
            f' .withColumn("{field.name}", map_keys("{field.name}")).'
        )
    return ""


NUMBERS = ("tinyint", "smallint", "int", "bigint", "varint", "decimal", "float", "double")


def refuse_no_totals(live: TableMetadata, columns: Sequence[Column], added: Sequence[str]) -> None:
    """Refuse a table, or a DataFrame, by which values cannot be added to totals exactly once.

    :param columns: those of the table that the DataFrame has.
    :param added: the columns whose values are added, as the DataFrame names them; empty refuses nothing.
    :raises SchemaMismatch: with a line for each thing that does not fit.
    """
    if not added:
        return
    by_name = {column.name: column for column in columns}
    about = [(name, _why_no_total(by_name.get(name))) for name in added]
    about += [(c.name, _why_not_beside(c, live)) for c in columns if c.name not in added]
    problems = [f"{name}: {why}" for name, why in about if why] + [*_about_table(live)]
    problems += [*_about_lives(live)]
    if problems:
        raise SchemaMismatch(
            f"{live.name} cannot hold the totals of {ADD_COLUMNS}:\n"
            + "\n".join(f"  - {problem}" for problem in problems),
            "Correct each line above, and start again.",
        )


def refuse_expiring(live: TableMetadata) -> None:
    """Refuse a table whose totals would expire since it was altered.

    :raises SchemaMismatch: it has a default time to live.
    """
    for problem in _about_lives(live):
        raise SchemaMismatch(
            f"{live.name} cannot hold the totals of {ADD_COLUMNS} any more:\n  - {problem}",
            "The flush then goes on by itself. What was written meanwhile expires: write such totals again.",
        )


def _why_no_total(column: Column | None) -> str:
    """Say why a column cannot hold a total; empty: it can."""
    if column is None:
        return f"the DataFrame has no such column. Add it, or correct {ADD_COLUMNS}."
    if column.role != "regular":
        return f"it is a {column.role} column. Only a regular column can hold a total."
    if column.type not in NUMBERS:
        return f"it is {column.type}. A total is one of {', '.join(NUMBERS)}."
    if column.source in ("string", "large_string"):
        return 'the DataFrame has text. Make it a number, .cast("decimal(38,0)").'
    return ""


def _why_not_beside(column: Column, live: TableMetadata) -> str:
    """Say why a column cannot be written beside totals; empty: it can."""
    tree = parse(column.type, live.types)
    if column.in_table == ADDED_COLUMN:
        return f"the sink writes {ADDED_COLUMN}. Drop it, or rename it."
    if column.role == "static":
        return "it is static, so it is not of the row alone. Write it by another query."
    if why := alike(column, live):
        return f"{why}, and would be added to as two. Take another type."
    if tree.kind == "list" and not tree.frozen:
        return "it is a list that is not frozen. Write it by another query."
    return ""


def _about_table(live: TableMetadata) -> Iterator[str]:
    found = next((column for column in live.columns if column.name == ADDED_COLUMN), None)
    if found is None:
        yield (
            f"{ADDED_COLUMN}: the table has no such column, which says what is in the totals of a row. Run:"
            f" ALTER TABLE {live.name} ADD {ADDED_COLUMN} text;"
        )
    elif (found.type, found.role) != ("text", "regular"):
        yield f"{ADDED_COLUMN}: it is {found.type} ({found.role}), and has to be text (regular)."


def _about_lives(live: TableMetadata) -> Iterator[str]:
    if live.default_ttl:
        yield (
            f"default_time_to_live is {live.default_ttl}: a total that expires forgets what was added. Run:"
            f" ALTER TABLE {live.name} WITH default_time_to_live = 0;"
        )


_FROZEN = "Make the columns frozen<list<…>>, leave them out of the DataFrame"


def refuse_beside_lists(times: RowTimes, live: TableMetadata) -> None:
    """Refuse what hangs on a row's timestamp, which each attempt at its list raises.

    :param times: what the options say of the rows' times.
    :raises SchemaMismatch: rows bring their timestamps along, or live for a number of seconds.
    """
    if times.event_column:
        raise SchemaMismatch(
            f"{live.name} has lists that are not frozen, and {EVENT_COLUMN} is given: a row that is written"
            " twice at the time of its event would have their elements twice.",
            f"{_FROZEN}, or leave out the option.",
        )
    seconds = ", ".join(
        (*(name for name in times.shape if name != EXPIRES_COLUMN),)
        + ((f"default_time_to_live = {live.default_ttl}",) if live.default_ttl else ())
    )
    if seconds:
        raise SchemaMismatch(
            f"{live.name} has lists that are not frozen, and its rows live for a number of seconds"
            f" ({seconds}): they count from a row's timestamp, which each attempt at its lists raises.",
            f"{_FROZEN}; or say when rows expire by {EXPIRES_COLUMN} alone, and ALTER TABLE {live.name} WITH"
            " default_time_to_live = 0.",
        )


_SAME: Mapping[str, str] = MappingProxyType({})
_NO_CHANGES: Mapping[str, Change] = MappingProxyType({})


def match_columns(
    schema: pa.Schema,
    live: TableMetadata,
    names: Mapping[str, str] = _SAME,
    mode: str = "insert",
    changes: Mapping[str, Change] = _NO_CHANGES,
) -> tuple[Column, ...]:
    """Match the DataFrame's columns with the table's; return them in the DataFrame's order.

    :param names: the table's names of columns that have another one there, by the DataFrame's.
    :param mode: by INSERT or UPDATE, as `cassandra.writeMode` has it.
    :param changes: what is done to collections that are not written whole, by the DataFrame's names.
    :raises SchemaMismatch: with a line for each thing that does not fit.
    """
    _refuse_table(schema, live)
    problems = [
        *about_other_names(schema, names),
        *_about_names(schema, live, names, mode),
        *_about_types(schema, live, names, changes),
    ]
    if problems:
        raise SchemaMismatch(
            f"The DataFrame does not fit {live.name}:\n"
            + "\n".join(f"  - {problem}" for problem in problems),
            "Correct each line above, in the DataFrame or in the table, and start again.",
        )
    by_name = {column.name: column for column in live.columns}
    found = ((field, by_name[names.get(field.name, field.name)]) for field in schema)
    return tuple(
        Column(
            name=field.name,
            source=str(canonical(field.type)),
            type=column.type,
            role=column.role,
            column=names.get(field.name, ""),
        )
        for field, column in found
    )


def used_types(columns: tuple[Column, ...], live: TableMetadata) -> UserTypes:
    """Return the user-defined types that the columns use, also inside of other types."""
    trees = [parse(column.type, live.types) for column in columns]
    names = {name for tree in trees for name in user_type_names(tree)}
    return {name: live.types[name] for name in sorted(names)}


def refuse_changed(plan: Plan, live: TableMetadata) -> None:
    """Refuse a table that is no longer what the plan says; new columns and new fields do not matter.

    :raises SchemaMismatch: a column is gone, has another type or role, or is new in the key; a
        field is gone, or has another name or type; the keyspace bypasses the commit log; or what the plan
        adds to would expire.
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
        if column.name not in planned and not (column.role == "clustering" and static_alone(plan))
    ]
    changes += [
        f"type {name} was ({_fields(fields)}), is ({_fields(live.types.get(name, ()))})"
        for name, fields in planned_user_types(plan).items()
        if tuple(live.types.get(name, ()))[: len(fields)] != tuple(fields)
    ]
    if not live.exists:
        changes = ["the table is gone"]
    else:
        refuse_not_durable(live)
    if has_lists(plan):
        refuse_beside_lists(planned_times(plan), live)
    if added_columns(plan):
        refuse_expiring(live)
    if changes:
        raise SchemaMismatch(
            f"{plan.table} is no longer what plan {plan.key} was made for: {'; '.join(changes)}.",
            "What waits in the log was checked against the plan: bring the table back to it, let the "
            "log be flushed, then change table and DataFrame together.",
        )


def refuse_hidden(plan: Plan, live: TableMetadata, first_us: int) -> None:
    """Refuse a table in which a column was dropped after rows got their timestamps, and added again.

    The server would acknowledge the rows' values in that column, and show none of them.

    :param first_us: the lowest write timestamp of the rows, microseconds since 1970.
    :raises SchemaMismatch: there is such a column.
    """
    hidden = [c for c in plan.columns if live.dropped.get(c.in_table, -1) >= first_us]
    if hidden:
        names = ", ".join(column.in_table for column in hidden)
        before_us = first_us - 1_000  # the server keeps milliseconds
        again = " ".join(
            f"ALTER TABLE {plan.table} DROP {quote(column.in_table)} USING TIMESTAMP {before_us};"
            f" ALTER TABLE {plan.table} ADD {quote(column.in_table)} {column.type}"
            f"{' static' if column.role == 'static' else ''};"
            for column in hidden
        )
        raise SchemaMismatch(
            f"{plan.table} was without {names} for a while since rows that wait in the log were computed:"
            " Cassandra hides what is written to a column with a time before it was dropped.",
            f"Drop it once more, as of before these rows; what is newer stays: {again} The flush then goes"
            " on by itself.",
        )


def refuse_not_durable(live: TableMetadata) -> None:
    """Refuse a keyspace in which acknowledged writes are lost when the servers' processes crash.

    :raises SchemaMismatch: the keyspace bypasses the commit log.
    """
    if not live.durable:
        raise SchemaMismatch(
            f"Keyspace {live.name.keyspace} has durable_writes = false: what it acknowledges is lost "
            "when a server's process ends, and the log would be trimmed by then.",
            f"Run: ALTER KEYSPACE {quote(live.name.keyspace)} WITH durable_writes = true;",
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
            f"Correct option table, or create it:\n{ddl.create_table(live.name, schema)}",
        )
    if any(column.type == "counter" for column in live.columns):
        raise SchemaMismatch(
            f"{live.name} is a counter table: counters take no write timestamp, so "
            "an increment cannot be written exactly once.",
            "Write the totals to a table without counters: aggregate in Spark, or let the sink add them up"
            " (cassandra.addColumns).",
        )


def about_other_names(schema: pa.Schema, names: Mapping[str, str]) -> Iterator[str]:
    """Yield what is wrong with the table's names of columns that have another one there."""
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


def _about_names(
    schema: pa.Schema, live: TableMetadata, names: Mapping[str, str], mode: str
) -> Iterator[str]:
    known = {column.name for column in live.columns}
    written = [names.get(name, name) for name in schema.names]
    for name, count in Counter(schema.names).items():
        if count > 1:
            yield f"{name}: the DataFrame has {count} columns of this name. Rename all but one."
        if (column := names.get(name, name)) not in known:
            near = did_you_mean(column, known - {*written})
            where = (
                f"the table has no column {column}"
                if name in names
                else "the table has no such column"
            )
            remedy = _about_missing(live, schema, name, known - {*written})
            remedy = f"Correct {COLUMNS_OPTION}." if name in names else remedy
            yield f"{name}: {where}. {near}".rstrip() + f" {remedy}"
    for key in live.key:
        if key.role == "clustering" and mode == "update" and writes_static_alone(live, written):
            continue
        if key.name not in written:
            yield (
                f"{key.name}: it is in the table's primary key ({key.role} key, {key.type}) "
                f"and not in the DataFrame. Add it{_or_update(live, key, written, mode)}."
            )


def _about_missing(
    live: TableMetadata, schema: pa.Schema, name: str, unwritten: Collection[str]
) -> str:
    """Return what to do about a column that the table lacks: another case is a slip, and no new column."""
    if meant := [other for other in sorted(unwritten) if other.lower() == name.lower()]:
        return (
            f'Rename it, .withColumnRenamed("{name}", "{meant[0]}"), or set {COLUMNS_OPTION} to'
            f" {json.dumps({name: meant[0]}, ensure_ascii=False)}."
        )
    add = ddl.add_column(live.name, schema.field(schema.names.index(name)))
    return "Rename or drop it" + (f", or run: {add}" if add else ".")


def _or_update(
    live: TableMetadata, key: ColumnMetadata, written: Collection[str], mode: str
) -> str:
    if key.role != "clustering" or mode == "update" or not writes_static_alone(live, written):
        return ""
    return ", or set cassandra.writeMode to update, which writes a partition's static columns alone"


def _about_types(
    schema: pa.Schema,
    live: TableMetadata,
    names: Mapping[str, str],
    changes: Mapping[str, Change],
) -> Iterator[str]:
    by_name = {column.name: column for column in live.columns}
    for field in schema:
        if (column := by_name.get(names.get(field.name, field.name))) is None:
            continue
        tree, change = parse(column.type, live.types), changes.get(field.name)
        if change and (unchangeable := about_change(field, column, tree, change)):
            yield unchangeable
        else:
            yield from map(str, mismatches(field.name, field.type, taken(tree, change)))


def _described(column: ColumnMetadata) -> str:
    return f"{column.type} ({column.role})"


def _fields(fields: Sequence[tuple[str, str]]) -> str:
    return ", ".join(f"{quote(name)} {cql}" for name, cql in fields)

"""Compares the DataFrame with several tables, and makes one plan of what was agreed with each. Pure."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

import pyarrow as pa

from wal_sink.errors import SchemaMismatch
from wal_sink.model.plan import Column, Plan
from wal_sink.targets.cassandra.names import did_you_mean
from wal_sink.targets.cassandra.schema.compare import about_other_names, match_columns
from wal_sink.targets.cassandra.schema.table_metadata import TableMetadata
from wal_sink.targets.cassandra.types.collection_mode import Change
from wal_sink.targets.cassandra.types.cql_type import CqlType, parse
from wal_sink.targets.cassandra.types.table_plans import table_details
from wal_sink.targets.cassandra.types.write_mode import mode_beside
from wal_sink.targets.tables import table_column

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

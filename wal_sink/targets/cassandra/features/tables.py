"""Several tables: each row goes to every one of them, or to the one that a column names.

The log has a value once, whichever tables take it. A row that one of its tables cannot take is refused for
all of them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence

import msgspec
import pyarrow as pa

from wal_sink.model.plan import Column
from wal_sink.targets.cassandra.row_plan import CassandraPlan, OneOfSeveral
from wal_sink.targets.cassandra.schema.compare import (
    AS_IT_IS,
    Wanted,
    about_other_names,
    match_columns,
)
from wal_sink.targets.cassandra.schema.table import TableMetadata
from wal_sink.targets.cassandra.types import CqlType, parse
from wal_sink.targets.columns import does_not_fit
from wal_sink.targets.names import did_you_mean

log = logging.getLogger(__name__)


def match_tables(
    schema: pa.Schema,
    tables: Sequence[TableMetadata],
    wanted: Wanted = AS_IT_IS,
) -> list[tuple[Column, ...]]:
    """Match the DataFrame's columns with those of each table, which may lack some.

    :returns: for each table the columns that it has, in the DataFrame's order.
    :raises SchemaMismatch: no table has a column; a table does not fit; or two have a column in two types.
    """
    matched, names = [], wanted.names
    for live in tables:
        has = {column.name for column in live.columns}
        # Where there is no table, its own error says so, with all columns.
        own = [f for f in schema if names.get(f.name, f.name) in has or not has]
        mine = {name: column for name, column in names.items() if column in has or not has}
        here = wanted._replace(names=mine).among([field.name for field in own])
        matched.append(match_columns(pa.schema(own), live, here))
    problems = [
        *about_other_names(schema, names),
        *_about_no_table(schema, tables, names),
        *_about_two_types(tables, matched),
    ]
    if problems:
        raise does_not_fit(", ".join(str(live.name) for live in tables), problems)
    for live, columns in zip(tables, matched, strict=True):
        if lacking := [name for name in schema.names if name not in {c.name for c in columns}]:
            log.info(
                "table %s lacks the column %s, which is not written there",
                live.name,
                ", ".join(lacking),
            )
    return matched


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

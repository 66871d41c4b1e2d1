"""Several tables: each row goes to every one of them, or to the one that a column names.

The log has a value once, whichever tables take it. A row that one of its tables cannot take is refused for
all of them.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from wal_sink.errors import InvalidRow
from wal_sink.model.plan import Column
from wal_sink.targets import arrow_values
from wal_sink.targets.arrow_values import FALSE
from wal_sink.targets.cassandra.compare import AS_IT_IS, Wanted, about_other_names, match_columns
from wal_sink.targets.cassandra.feature import Feature
from wal_sink.targets.cassandra.options import CassandraOptions
from wal_sink.targets.cassandra.row_options import TABLE_COLUMN, TABLES
from wal_sink.targets.cassandra.row_plan import KEY, CassandraPlan, OneOfSeveral, columns_of
from wal_sink.targets.cassandra.rules import InvalidValue, refuse_invalid
from wal_sink.targets.cassandra.table import TableMetadata
from wal_sink.targets.cassandra.types import CqlType, parse
from wal_sink.targets.columns import does_not_fit
from wal_sink.targets.names import did_you_mean
from wal_sink.targets.operations import without_words

log = logging.getLogger(__name__)


Check = Callable[[pa.RecordBatch, CassandraPlan], pa.RecordBatch]
"""Casts rows to the types that the log holds for one table, or raises InvalidRow."""


class SeveralTables(Feature):
    """`tables` and `tableColumn`."""

    noted = "tables"

    def describe(self, options: CassandraOptions) -> Mapping[str, str]:
        """Say which rows go where."""
        if not options.tables:
            return {}
        if column := options.table_column:
            return {"rows": f"each to the table that {column} names ({TABLE_COLUMN})"}
        return {"rows": f"each to every table, by the columns that it has ({TABLES})"}

    def written(
        self, schema: pa.Schema, options: CassandraOptions, known: set[str], place: str
    ) -> pa.Schema:
        """Leave out the column that names the table."""
        words, tables = f"the names that {TABLES} has", f"one of {place}"
        return without_words(schema, TABLE_COLUMN, options.table_column, known, tables, words)


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
        matched.append(match_columns(pa.schema(own), live, wanted._replace(names=mine)))
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


def check_for_every(batch: pa.RecordBatch, plan: CassandraPlan, check: Check) -> pa.RecordBatch:
    """Check rows that go to every table."""
    found: dict[str, pa.Array] = {}
    for table in plan.tables:
        stored = check(columns_of(batch, plan, table), table)
        # A delete has the keys of all tables, and nothing else: see `keys_of_deletes`.
        keys = {column.name for column in table.columns if column.role in KEY}
        for name, values in zip(stored.schema.names, stored.columns, strict=True):
            if name not in found or name in keys:
                found[name] = values
    return in_order(found, plan)


def check_for_named(batch: pa.RecordBatch, plan: CassandraPlan, check: Check) -> pa.RecordBatch:
    """Check the rows of each table apart; where a row's table lacks a column, the log has null."""
    column, tables = plan.details.table_column, plan.tables
    words = batch.column(column).cast(pa.string())
    names = [table.details.table for table in tables]
    rows_of = [pc.equal(words, arrow_values.text(name)).fill_null(FALSE) for name in names]
    unknown = pc.invert(functools.reduce(pc.or_, rows_of))
    problem = f"names no table: option tables has {', '.join(names)}"
    remedy = "Correct or drop such rows, or add the table to tables."
    invalid = InvalidValue.first(unknown, column, batch.column(column), problem, remedy)
    refuse_invalid(batch, plan, invalid)
    parts = [
        _of_table(batch, rows, plan, table, check)
        for rows, table in zip(rows_of, tables, strict=True)
    ]
    positions = pa.concat_arrays([pc.indices_nonzero(rows) for rows in rows_of])
    places = pc.sort_indices(positions)  # of a permutation: its inverse
    kinds = {field.name: field.type for part in parts for field in part.schema}
    found = {column: words}
    for name, kind in kinds.items():
        pieces = [
            part.column(name) if name in part.schema.names else pa.nulls(part.num_rows, kind)
            for part in parts
        ]
        found[name] = pa.concat_arrays(pieces).take(places)
    return in_order(found, plan)


def _of_table(
    batch: pa.RecordBatch, rows: pa.Array, plan: CassandraPlan, table: CassandraPlan, check: Check
) -> pa.RecordBatch:
    """Check the rows of a batch that go to a table.

    :param rows: which these are, booleans.
    """
    try:
        return check(columns_of(batch.filter(rows), plan, table), table)
    except InvalidRow as error:
        if error.rows is not None:
            none = pa.nulls(batch.num_rows).is_valid()
            error.rows = pc.replace_with_mask(none, rows, error.rows)
        raise


def in_order(found: dict[str, pa.Array], plan: CassandraPlan) -> pa.RecordBatch:
    """Return columns in the plan's order, and behind them those that only the log has."""
    names = [column.name for column in plan.columns if column.name in found]
    names += [name for name in found if name not in names]
    return pa.RecordBatch.from_arrays([found[name] for name in names], names=names)

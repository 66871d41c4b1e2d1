"""Several tables: each row goes to every one of them, or to the one that a column names.

The log has a value once, whichever tables take it. A row that one of its tables cannot take is refused for
all of them.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from wal_sink.errors import InvalidRow
from wal_sink.targets import arrow_values
from wal_sink.targets.arrow_values import FALSE
from wal_sink.targets.cassandra.feature import Check, Feature
from wal_sink.targets.cassandra.options import CassandraOptions
from wal_sink.targets.cassandra.row_options import TABLE_COLUMN, TABLES
from wal_sink.targets.cassandra.row_plan import KEY, CassandraPlan, columns_of, in_order
from wal_sink.targets.cassandra.rules import InvalidValue, refuse_invalid
from wal_sink.targets.operations import without_words


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

    def wrap_check(self, check: Check, plan: CassandraPlan) -> Check:
        """Check the rows of each table apart."""
        of_tables = check_for_named if plan.details.table_column else check_for_every
        return functools.partial(of_tables, check=check)


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

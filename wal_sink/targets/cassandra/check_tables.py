"""Checks the rows of a task for each table that they go to: one, several, or that which a row names.

The log has a value once, whichever tables take it. A row that one of its tables cannot take is refused for
all of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from wal_sink.errors import InvalidRow
from wal_sink.model.plan import Plan
from wal_sink.targets.cassandra.check import check, refuse_other_schema
from wal_sink.targets.cassandra.types.row_text import row_text
from wal_sink.targets.cassandra.types.table_plans import columns_of, table_names, table_plans
from wal_sink.targets.values import literals
from wal_sink.targets.values.literals import TRUE
from wal_sink.targets.values.text import plain, shorten

_KEY = ("partition", "clustering")


def check_for_tables(batch: pa.RecordBatch, plan: Plan) -> pa.RecordBatch:
    """Cast `batch` to the types that the log holds.

    :raises SchemaMismatch: the columns are not those of the plan.
    :raises InvalidRow: a row cannot be written to one of its tables, or names no table.
    """
    tables = table_plans(plan)
    if tables == (plan,):
        return check(batch, plan)
    refuse_other_schema(batch.schema, plan)
    if plan.table_column is None:
        return _for_every_table(batch, plan, tables)
    return _for_named_tables(batch, plan, tables)


def _for_every_table(batch: pa.RecordBatch, plan: Plan, tables: Sequence[Plan]) -> pa.RecordBatch:
    found: dict[str, pa.Array] = {}
    for table in tables:
        stored = check(columns_of(batch, plan, table), table)
        # A delete has the keys of all tables, and nothing else: see `keys_of_deletes`.
        keys = {column.name for column in table.columns if column.role in _KEY}
        for name, values in zip(stored.schema.names, stored.columns, strict=True):
            if name not in found or name in keys:
                found[name] = values
    return _in_order(found, plan)


def _for_named_tables(batch: pa.RecordBatch, plan: Plan, tables: Sequence[Plan]) -> pa.RecordBatch:
    """Check the rows of each table apart; where a row's table lacks a column, the log has null."""
    column = str(plan.table_column)
    words = batch.column(column).cast(pa.string())
    names = table_names(plan)
    rows_of = [pc.equal(words, literals.text(name)).fill_null(literals.FALSE) for name in names]
    _refuse_unknown(batch, plan, rows_of)
    parts = [
        _of_table(batch, rows, plan, table) for rows, table in zip(rows_of, tables, strict=True)
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
    return _in_order(found, plan)


def _of_table(batch: pa.RecordBatch, rows: pa.Array, plan: Plan, table: Plan) -> pa.RecordBatch:
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


def _in_order(found: dict[str, pa.Array], plan: Plan) -> pa.RecordBatch:
    names = [column.name for column in plan.columns if column.name in found]
    names += [name for name in found if name not in names]
    return pa.RecordBatch.from_arrays([found[name] for name in names], names=names)


def _refuse_unknown(batch: pa.RecordBatch, plan: Plan, rows_of: Sequence[pa.Array]) -> None:
    known = rows_of[0]
    for rows in rows_of[1:]:
        known = pc.or_(known, rows)
    row = pc.index(pc.invert(known), TRUE).as_py()
    if row >= 0:
        value = shorten(plain(batch.column(plan.table_column)[row]))
        raise InvalidRow(
            f"Column {plan.table_column} ({value}) names no table: option tables has"
            f" {', '.join(table_names(plan))}; in {row_text(batch, plan, row)}.",
            "Correct or drop such rows, or add the table to tables.",
            column=str(plan.table_column),
            problem=f"Column {plan.table_column} names no table.",
            rows=pc.invert(known),
        )

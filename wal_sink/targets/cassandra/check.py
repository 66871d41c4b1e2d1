"""Casts a batch to what the log holds, and refuses rows that Cassandra would refuse; done in the tasks.

The server takes every row that passes, so no row stops the flush. The check neither connects nor imports
the driver.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from wal_sink.clock import now_us
from wal_sink.errors import InvalidRow
from wal_sink.model.plan import Column, Plan
from wal_sink.model.spark_types import canonical
from wal_sink.targets.cassandra.times.given import NO_TIMES, planned_times
from wal_sink.targets.cassandra.times.read import EVENT_US, read_times
from wal_sink.targets.cassandra.times.ties import by_key, settled
from wal_sink.targets.cassandra.types.cast import cast_column
from wal_sink.targets.cassandra.types.clustering import clustering_of
from wal_sink.targets.cassandra.types.cql_type import column_types
from wal_sink.targets.cassandra.types.index_rule import IndexRule, first_refused, planned_rules
from wal_sink.targets.cassandra.types.invalid_value import InvalidValue, first_invalid_value
from wal_sink.targets.cassandra.types.row_text import row_text
from wal_sink.targets.cassandra.types.value_sizes import sizes
from wal_sink.targets.values.literals import TRUE, long
from wal_sink.targets.values.operations import (
    are_deletes,
    keys_of_deletes,
    not_deleted,
    planned_operations,
)
from wal_sink.targets.values.text import other_columns, plain, shorten

_KEY = ("partition", "clustering")

MAX_KEY_BYTES = 65_535
"""Most bytes of a partition key, and of the clustering columns of a row together; the server's limit."""
MAX_ROW_BYTES = 8 * 1024 * 1024
"""Most bytes of a row: half of what a server with default settings takes as one mutation."""


def check(batch: pa.RecordBatch, plan: Plan) -> pa.RecordBatch:
    """Cast `batch` to the types that the log holds.

    :raises SchemaMismatch: the columns are not those of the plan.
    :raises InvalidRow: a row cannot be written; names the column and the first such row.
    """
    refuse_other_schema(batch.schema, plan)
    table = plan.of_table()
    if table is plan and planned_times(plan) == NO_TIMES:
        return _checked(batch, plan)
    operations = planned_operations(batch, plan, functools.partial(row_text, batch, plan))
    deletes = None if operations is None else are_deletes(operations)
    times = read_times(batch, plan, deletes, now_us())
    _refuse_invalid(batch, plan, times.invalid)
    rows = batch.select([column.name for column in table.columns])
    if deletes is not None:
        keys = {column.name for column in table.columns if column.role in _KEY}
        rows = keys_of_deletes(rows, deletes, keys)
        _refuse_gaps(rows, table)
    stored = _checked(rows, table, deletes)
    columns = {
        column.name: operations if column.role == "operation" else stored.column(column.name)
        for column in plan.columns
        if column.role != "time"
    } | times.columns
    batch = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
    if EVENT_US not in columns:
        return batch
    return settled(batch, plan, EVENT_US, functools.partial(by_key, batch, table, EVENT_US))


def _checked(batch: pa.RecordBatch, plan: Plan, deletes: pa.Array | None = None) -> pa.RecordBatch:
    """Cast the columns of the table.

    :param deletes: which rows are deletes; None: no row is one.
    """
    stored = []
    for column, tree, values in zip(plan.columns, column_types(plan), batch.columns, strict=True):
        name, key = column.name, column.role in _KEY
        _refuse_null(batch, plan, column, values, deletes)
        _refuse_invalid(batch, plan, first_invalid_value(name, values, tree, key=key))
        stored.append(cast_column(values, tree))
    names = [column.name for column in plan.columns]
    result = pa.RecordBatch.from_arrays(stored, names=names)
    _refuse_sizes(batch, plan, result)
    refuse_indexed(batch, result, plan, planned_rules(plan))
    return result


def refuse_indexed(
    batch: pa.RecordBatch, stored: pa.RecordBatch, plan: Plan, rules: Sequence[IndexRule]
) -> None:
    """Refuse a row with a value that an index of the table does not take.

    :param batch: as errors show it.
    :param stored: as `check` returns it.
    :raises InvalidRow: there is such a row.
    """
    for rule in rules:
        if found := first_refused(rule, stored.column(rule.column)):
            value = batch.column(rule.column)[found.row]
            invalid = InvalidValue(
                found.row, rule.column, value, found.problem, found.remedy, found.rows
            )
            _refuse_invalid(batch, plan, invalid)


def refuse_other_schema(schema: pa.Schema, plan: Plan) -> None:
    """Refuse a batch that the plan was not made for.

    :raises SchemaMismatch: a column has another name or type, or another place.
    """
    got = [(field.name, str(canonical(field.type))) for field in schema]
    planned = [(column.name, column.source) for column in plan.columns]
    if got != planned:
        raise other_columns(plan, got)


def _refuse_gaps(batch: pa.RecordBatch, plan: Plan) -> None:
    """Refuse a delete with a null before a clustering column that has a value: that is no range of rows."""
    names = clustering_of(plan)
    for name, following in itertools.pairwise(names):
        gaps = pc.and_(batch.column(name).is_null(), batch.column(following).is_valid())
        row = pc.index(gaps, TRUE).as_py()
        if row >= 0:
            raise InvalidRow(
                f"Column {name} is null and {following} after it is not, in {row_text(batch, plan, row)}:"
                f" of {plan.table} a delete takes the rows under the first values of ({', '.join(names)}).",
                f"Fill {name} in; or make {following} null, too, to delete all rows under what is before"
                f" {name}.",
                column=name,
                problem=f"Column {name} is null and {following} after it is not.",
                rows=gaps,
            )


def _refuse_null(
    batch: pa.RecordBatch,
    plan: Plan,
    column: Column,
    values: pa.Array,
    deletes: pa.Array | None,
) -> None:
    if column.role not in _KEY or not values.null_count:
        return
    # A delete without clustering columns takes all rows under those that it has.
    missing = values.is_null()
    if column.role == "clustering":
        missing = not_deleted(missing, deletes)
    row = pc.index(missing, TRUE).as_py()
    if row >= 0:
        raise InvalidRow(
            f"Column {column.name} is part of the primary key of {plan.table} and null in "
            f"{row_text(batch, plan, row)}.",
            f'Drop such rows, .na.drop(subset=["{column.name}"]), or fill them in.',
            column=column.name,
            problem=f"Column {column.name} is part of the primary key of {plan.table} and null.",
            rows=missing,
        )


def _refuse_invalid(batch: pa.RecordBatch, plan: Plan, invalid: InvalidValue | None) -> None:
    if invalid:
        raise InvalidRow(
            f"Column {invalid.path} of {plan.table} ({shorten(plain(invalid.value))}) {invalid.problem}, in "
            f"{row_text(batch, plan, invalid.row)}.",
            invalid.remedy,
            column=invalid.path,
            problem=f"Column {invalid.path} of {plan.table} {invalid.problem}.",
            rows=invalid.rows,
        )


def _refuse_sizes(batch: pa.RecordBatch, plan: Plan, stored: pa.RecordBatch) -> None:
    bytes_of = {
        column.name: sizes(values)
        for column, values in zip(plan.columns, stored.columns, strict=True)
    }
    partition = [column.name for column in plan.columns if column.role == "partition"]
    clustering = [column.name for column in plan.columns if column.role == "clustering"]
    refuse = functools.partial(_refuse, batch, plan)
    if len(partition) == 1:
        refuse(
            pc.equal(bytes_of[partition[0]], long(0)),
            partition[0],
            "is empty, and it is the whole partition key",
            "Drop such rows, or fill them in.",
        )
    # A composite key stores two bytes of length and one of separator with each component.
    overhead = 3 * len(partition) if len(partition) > 1 else 0
    for names, extra, what in (
        (partition, overhead, "partition key"),
        (clustering, 0, "clustering key"),
    ):
        if names:
            total = functools.reduce(pc.add, [bytes_of[name] for name in names])
            refuse(
                pc.greater(total, long(MAX_KEY_BYTES - extra)),
                ", ".join(names),
                f"is longer than the {MAX_KEY_BYTES:,} bytes that a {what} may have",
                "Use a digest of the value as the key: sha2(col, 256).",
            )
    refuse(
        pc.greater(functools.reduce(pc.add, bytes_of.values()), long(MAX_ROW_BYTES)),
        max(bytes_of, key=lambda name: pc.max(bytes_of[name]).as_py() or 0),
        f"makes a row of more than {MAX_ROW_BYTES:,} bytes, too near to what a server takes as one "
        "write",
        "Split the value, or keep it elsewhere and write a reference.",
    )


def _refuse(
    batch: pa.RecordBatch, plan: Plan, bad: pa.Array, column: str, problem: str, remedy: str
) -> None:
    row = pc.index(bad, TRUE).as_py()
    if row >= 0:
        # `column` names several where a key of several columns is too long.
        one = column in batch.schema.names
        value = f" ({shorten(plain(batch.column(column)[row]))})" if one else ""
        raise InvalidRow(
            f"Column {column} of {plan.table}{value} {problem}, in {row_text(batch, plan, row)}.",
            remedy,
            column=column,
            problem=f"Column {column} of {plan.table} {problem}.",
            rows=bad,
        )

"""Casts a batch to what the log holds, and refuses rows that Cassandra would refuse, in the tasks.

The server takes every row that passes the check. The check neither connects nor imports the driver.
"""

from __future__ import annotations

import functools

import pyarrow as pa
import pyarrow.compute as pc

from wal_sink.targets.arrow_scalars import int64
from wal_sink.targets.cassandra.arrow_buffers import sizes
from wal_sink.targets.cassandra.row_plan import KEY, CassandraPlan, in_order
from wal_sink.targets.cassandra.rows import read_controls, without_deleted_values
from wal_sink.targets.cassandra.rules import InvalidValue, invalid_values, refuse_invalid
from wal_sink.targets.cassandra.types import cast_column, column_types
from wal_sink.targets.columns import refuse_other_schema
from wal_sink.targets.deletes import not_deleted
from wal_sink.targets.unavailable import mark, with_flags

MAX_KEY_BYTES = 65_535
"""The most bytes of a partition key, and of all clustering columns of a row; the server's limit."""
MAX_ROW_BYTES = 8 * 1024 * 1024
"""The most bytes of a row: half of what a server with default settings takes as one mutation."""


def check(batch: pa.RecordBatch, plan: CassandraPlan) -> pa.RecordBatch:
    """Cast `batch` to the types that the log holds.

    :raises SchemaMismatch: the columns are not those of the plan.
    :raises InvalidRow: a row cannot be written; names the column and the first such row.
    """
    refuse_other_schema(batch.schema, plan)
    controls = read_controls(batch, plan)
    table = plan.of_table()
    rows = batch.select([column.name for column in table.columns])
    if controls.deletes is not None:
        rows = without_deleted_values(rows, table, controls.deletes)
    key = [column.name for column in plan.columns if column.role in KEY]
    marked = mark(rows, plan, key)
    stored = _checked(marked.rows, table, controls.deletes)
    columns = dict(zip(stored.schema.names, stored.columns, strict=True)) | controls.columns
    return with_flags(in_order(columns, plan), marked.flags)


def _checked(
    batch: pa.RecordBatch, plan: CassandraPlan, deletes: pa.Array | None = None
) -> pa.RecordBatch:
    """Cast the columns of the table.

    :param deletes: which rows are deletes; None: no row is one.
    """
    stored = []
    for column, tree, values in zip(plan.columns, column_types(plan), batch.columns, strict=True):
        name, key = column.name, column.role in KEY
        if key and values.null_count:
            missing = values.is_null()
            if column.role == "clustering":  # a delete without it takes all rows under the others
                missing = not_deleted(missing, deletes)
            problem = "is part of the primary key and null"
            remedy = f'Drop such rows, .na.drop(subset=["{name}"]), or fill them in.'
            refuse_invalid(batch, plan, InvalidValue.first(missing, name, None, problem, remedy))
        refuse_invalid(batch, plan, next(invalid_values(name, values, tree, key=key), None))
        stored.append(cast_column(values, tree))
    names = [column.name for column in plan.columns]
    result = pa.RecordBatch.from_arrays(stored, names=names)
    _refuse_sizes(batch, plan, result)
    return result


def _refuse_sizes(batch: pa.RecordBatch, plan: CassandraPlan, stored: pa.RecordBatch) -> None:
    bytes_of = {
        column.name: sizes(values)
        for column, values in zip(plan.columns, stored.columns, strict=True)
    }
    partition = [column.name for column in plan.columns if column.role == "partition"]
    clustering = [column.name for column in plan.columns if column.role == "clustering"]

    def refuse(bad: pa.Array, column: str, problem: str, remedy: str) -> None:
        # `column` names several columns where a key of several columns is too long.
        values = batch.column(column) if column in batch.schema.names else None
        refuse_invalid(batch, plan, InvalidValue.first(bad, column, values, problem, remedy))

    if len(partition) == 1:
        refuse(
            pc.equal(bytes_of[partition[0]], int64(0)),
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
                pc.greater(total, int64(MAX_KEY_BYTES - extra)),
                ", ".join(names),
                f"is longer than the {MAX_KEY_BYTES:,} bytes that a {what} may have",
                "Use a digest of the value as the key: sha2(col, 256).",
            )
    refuse(
        pc.greater(functools.reduce(pc.add, bytes_of.values()), int64(MAX_ROW_BYTES)),
        max(bytes_of, key=lambda name: pc.max(bytes_of[name]).as_py() or 0),
        f"makes a row of more than {MAX_ROW_BYTES:,} bytes, too near to what a server takes as one "
        "write",
        "Split the value, or keep it elsewhere and write a reference.",
    )

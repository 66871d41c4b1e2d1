"""Casts a batch to the types of the log, and refuses rows that Cassandra would refuse. Runs in the tasks.

The tasks neither connect nor load the driver. Rows that only the server can refuse, such as for an index,
are found by `write.refusals`.
"""

from __future__ import annotations

import functools

import pyarrow as pa
import pyarrow.compute as pc

from wal_sink.targets.arrow_values import int64
from wal_sink.targets.cassandra.arrow_buffers import sizes
from wal_sink.targets.cassandra.invalid_values import InvalidValue, invalid_values, refuse_invalid
from wal_sink.targets.cassandra.row_plan import (
    KEY,
    CassandraPlan,
    in_order,
)
from wal_sink.targets.cassandra.rows import read_controls, without_deleted_values
from wal_sink.targets.cassandra.types import (
    cast_column,
    column_types,
)
from wal_sink.targets.cdc import (
    except_deletes,
    mark,
    with_flags,
)
from wal_sink.targets.columns import refuse_other_schema

MAX_KEY_BYTES = 65_535
"""The server's limit of a partition key, and of all clustering columns of a row together."""
MAX_ROW_BYTES = 8 * 1024 * 1024
"""The limit of a row: half of the largest mutation that a server with default settings accepts."""


def check(batch: pa.RecordBatch, plan: CassandraPlan) -> pa.RecordBatch:
    """Cast a batch of the DataFrame to the types of the log.

    :raises SchemaMismatch: the columns of the batch are not those of the plan.
    :raises InvalidRow: a row cannot be written. The error names the column and the first such row.
    """
    refuse_other_schema(batch.schema, plan)
    controls = read_controls(batch, plan)
    table = plan.of_table()
    rows = batch.select([column.name for column in table.columns])
    if controls.deletes is not None:
        rows = without_deleted_values(rows, table, controls.deletes)
    key = [column.name for column in plan.columns if column.role in KEY]
    marked = mark(rows, plan, key)
    stored = _cast_rows(marked.rows, table, controls.deletes)
    columns = dict(zip(stored.schema.names, stored.columns, strict=True)) | controls.columns
    return with_flags(in_order(columns, plan), marked.flags)


def _cast_rows(
    batch: pa.RecordBatch, plan: CassandraPlan, deletes: pa.Array | None
) -> pa.RecordBatch:
    """Refuse invalid values and cast the columns of the table.

    :param deletes: flags of the rows that are deletes; None if no row is one.
    """
    stored = []
    for column, tree, values in zip(plan.columns, column_types(plan), batch.columns, strict=True):
        name, key = column.name, column.role in KEY
        if key and values.null_count:
            missing = values.is_null()
            if column.role == "clustering":  # a delete without it is a delete of a range
                missing = except_deletes(missing, deletes)
            problem = "is part of the primary key and null"
            remedy = f'Drop such rows, .na.drop(subset=["{name}"]), or fill them in.'
            refuse_invalid(batch, plan, InvalidValue.first(missing, name, None, problem, remedy))
        refuse_invalid(batch, plan, next(invalid_values(name, values, tree, key=key), None))
        stored.append(cast_column(values, tree))
    names = [column.name for column in plan.columns]
    rows = pa.RecordBatch.from_arrays(stored, names=names)
    _refuse_sizes(batch, plan, rows)
    return rows


def _refuse_sizes(batch: pa.RecordBatch, plan: CassandraPlan, stored: pa.RecordBatch) -> None:
    """Refuse keys and rows that are too long, and an empty partition key.

    :param batch: the rows as errors show them.
    :param stored: the same rows after the cast.
    """
    bytes_of = {
        column.name: sizes(values)
        for column, values in zip(plan.columns, stored.columns, strict=True)
    }
    partition = [column.name for column in plan.columns if column.role == "partition"]
    clustering = [column.name for column in plan.columns if column.role == "clustering"]

    def refuse(bad: pa.Array, path: str, problem: str, remedy: str) -> None:
        # The path of a key of several columns is not a column: then the error shows no value.
        values = batch.column(path) if path in batch.schema.names else None
        refuse_invalid(batch, plan, InvalidValue.first(bad, path, values, problem, remedy))

    if len(partition) == 1:
        refuse(
            pc.equal(bytes_of[partition[0]], int64(0)),
            partition[0],
            "is empty, and it is the whole partition key",
            "Drop such rows, or fill them in.",
        )
    # With each component of a composite key the server stores two bytes of length and a separator.
    overhead = 3 * len(partition) if len(partition) > 1 else 0
    for names, extra, noun in (
        (partition, overhead, "partition key"),
        (clustering, 0, "clustering key"),
    ):
        if names:
            total = functools.reduce(pc.add, [bytes_of[name] for name in names])
            refuse(
                pc.greater(total, int64(MAX_KEY_BYTES - extra)),
                ", ".join(names),
                f"is longer than the {MAX_KEY_BYTES:,} bytes that a {noun} may have",
                "Use a digest of the value as the key: sha2(col, 256).",
            )
    refuse(
        pc.greater(functools.reduce(pc.add, bytes_of.values()), int64(MAX_ROW_BYTES)),
        max(bytes_of, key=lambda name: pc.max(bytes_of[name]).as_py() or 0),
        f"makes a row of more than {MAX_ROW_BYTES:,} bytes, and a server accepts hardly more in one write",
        "Split the value, or keep it elsewhere and write a reference.",
    )

"""Adds the column that says which epoch a row came with, so that readers can leave unfinished ones out."""

from __future__ import annotations

import pyarrow as pa

from wal_sink.errors import OptionError

_TYPE = pa.int64()


def with_epoch_field(schema: pa.Schema, name: str) -> pa.Schema:
    """Add the column to a DataFrame's schema; no change for an empty name.

    :raises OptionError: the DataFrame has a column of that name.
    """
    if not name:
        return schema
    if name in schema.names:
        raise OptionError(
            f"Option epochColumn is {name}, and the DataFrame has a column of that name.",
            "Name a column of the table that the DataFrame does not have, or drop it.",
        )
    return schema.append(pa.field(name, _TYPE, nullable=False))


def with_epoch(batch: pa.RecordBatch, name: str, epoch: int) -> pa.RecordBatch:
    """Add the column to a batch, the same value in every row."""
    if not name:
        return batch
    packed = pa.py_buffer(epoch.to_bytes(8, "little", signed=True) * batch.num_rows)
    column = pa.Array.from_buffers(_TYPE, batch.num_rows, [None, packed])  # loads no pandas
    return pa.RecordBatch.from_arrays(
        [*batch.columns, column], schema=batch.schema.append(pa.field(name, _TYPE, nullable=False))
    )

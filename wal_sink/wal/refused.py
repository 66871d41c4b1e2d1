"""Says what a segment of refused rows holds: each row as it was, and why it was refused.

Such a segment is an Arrow file like any other. The row is one of its columns, a struct, so no name of the
user's columns meets ours; and it keeps its types, so that it can be sent again.
"""

from __future__ import annotations

import struct

import pyarrow as pa

ROW = "row"
_PLAN = "plan"
TEXTS = ("kind", "target", "column", "reason", "remedy")
"""The kind of the error, `InvalidRow` from a task or `TargetRefused` from the flush; which of several targets
refuses, else empty; the column, empty where none alone is to blame; what is wrong; and what to do."""


def refused_rows(rows: pa.RecordBatch, texts: tuple[str, ...], plan: str = "") -> pa.RecordBatch:
    """Return rows with why they are refused, as a segment holds them.

    :param texts: one for each of `TEXTS`, the same for all rows.
    :param plan: key of the plan by which the rows were cast; empty: they are as the DataFrame has them.
    """
    structs = pa.StructArray.from_arrays(rows.columns, fields=list(rows.schema))
    why = [_repeated(text, rows.num_rows) for text in texts]
    found = pa.RecordBatch.from_arrays([structs, *why], names=[ROW, *TEXTS])
    return found.replace_schema_metadata({_PLAN: plan}) if plan else found


def plan_of(schema: pa.Schema) -> str:
    """Return the key of the plan by which the rows of a segment were cast; empty for none."""
    found: bytes = (schema.metadata or {}).get(_PLAN.encode(), b"")
    return found.decode()


def rows_of(refused: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows as they were before `refused_rows`."""
    structs = refused.column(ROW)
    return pa.RecordBatch.from_arrays(structs.flatten(), schema=pa.schema(list(structs.type)))


def _repeated(text: str, rows: int) -> pa.Array:
    """Return a column of one text; made of buffers, as `pa.scalar` would load pandas in each new worker."""
    data = text.encode()
    offsets = pa.py_buffer(struct.pack("=ii", 0, len(data)))
    return pa.repeat(
        pa.Array.from_buffers(pa.string(), 1, [None, offsets, pa.py_buffer(data)])[0], rows
    )

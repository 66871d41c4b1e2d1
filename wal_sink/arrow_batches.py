"""Joins small Arrow batches to larger ones.

The flush groups rows by partition inside a batch, so more rows together make larger requests to the target;
and each batch costs something on its own, on both sides of the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

BATCH_ROWS = 65_536
BATCH_BYTES = 8 * 1024 * 1024
"""What a batch of the log may have, unless Spark hands over a larger one: it is held in memory, in the task
and in the flush."""


def coalesced(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the same rows in the same order, in as few batches as the bounds allow, none of them empty.

    :param batches: of one schema.
    """
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        if held and (rows + batch.num_rows > BATCH_ROWS or size + batch.nbytes > BATCH_BYTES):
            yield from concatenated(held)
            held, rows, size = [], 0, 0
        held.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
    yield from concatenated(held)


def concatenated(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Return the same rows in one batch, or in as few as Arrow can make of them; none for none."""
    if len(batches) < 2:
        return batches
    return list(pa.Table.from_batches(batches).combine_chunks().to_batches())

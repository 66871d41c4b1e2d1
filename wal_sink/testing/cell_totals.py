"""Totals in a `cell_store`: what its table holds is read, and the rows are added by the target's own code."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from wal_sink.targets.base import Slice
from wal_sink.targets.cassandra.times.read import EVENT_US
from wal_sink.targets.cassandra.totals.given import ADDED_COLUMN, added_columns
from wal_sink.targets.cassandra.totals.sums import NOTHING, Adding, Current, totals
from wal_sink.testing.cell_table import CellTable, Key


def of_totals(rows: Slice, table: CellTable, adding: Adding) -> Slice:
    """Return the rows to write in place of a slice, with their timestamps as a column of event times."""
    keys = list(zip(*(rows.batch.column(name).to_pylist() for name in table.keys), strict=True))
    numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    stamps = np.arange(rows.first_us, rows.first_us + len(keys), dtype=np.int64)
    batch, written = totals(
        rows.batch,
        stamps,
        np.array([numbers[key] for key in keys], np.int64),
        [_current(table, key, added_columns(adding.plan)) for key in numbers],
        adding,
    )
    batch = batch.append_column(EVENT_US, pa.array(written))
    return Slice(rows.epoch, batch, rows.first_us)


def _current(table: CellTable, key: Key, added: Sequence[str]) -> Current:
    if (row := table.rows.get(key)) is None:
        return NOTHING
    deleted_us = table.deleted_us(key)
    cells = [row.cells.get(name) for name in (*added, ADDED_COLUMN)]
    cells = [cell if cell is not None and cell.us > deleted_us else None for cell in cells]
    *values, told = (None if cell is None else cell.value for cell in cells)
    written = [-1 if cell is None or cell.value is None else cell.us for cell in cells]
    return Current(tuple(values), told, max(written), written[-1])

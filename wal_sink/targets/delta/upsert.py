"""Rows that replace those of their key: staged in their order, merged by the commit. See `Table.merge`.

Each row of a window that is staged for an upsert has its write timestamp beside it. Of rows with one key the
one with the highest stays: the later one of the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from wal_sink.targets.base import Slice
from wal_sink.targets.delta.table import MERGED, Files

_ORDER = "wal_sink:us"
"""The column of staged rows with their write timestamps."""


def in_order(rows: Slice, *, keyed: bool) -> pa.RecordBatch:
    """Return rows as they are staged.

    :param keyed: whether they replace those of their key. Those that were published before an upsert was
        asked for do not, and are added.
    """
    batch = rows.batch
    number = batch.num_rows
    order = pa.array(range(rows.first_us, rows.first_us + number), pa.int64())
    merged = pa.array([keyed] * number, pa.bool_())
    return pa.record_batch(
        [*batch.columns, order, merged], names=[*batch.schema.names, _ORDER, MERGED]
    )


def last_rows(
    files: Files, paths: Iterable[str], keys: Sequence[str], types: pa.Schema
) -> pa.Table:
    """Return the staged rows that a commit merges: of each key the last one.

    :param types: of the table. Columns that rows lack are null, as a row is replaced whole.
    """
    read = [pq.read_table(pa.BufferReader(files.read(path))) for path in paths]
    rows = pa.concat_tables(read, promote_options="default")
    merged = rows[MERGED]
    last = rows.filter(merged).group_by(list(keys)).aggregate([(_ORDER, "max")])
    stay = pc.or_(pc.invert(merged), pc.is_in(rows[_ORDER], last[f"{_ORDER}_max"]))
    rows = rows.filter(stay)
    columns = [
        rows[field.name] if field.name in rows.column_names else pa.nulls(len(rows), field.type)
        for field in types
    ]
    return pa.table([*columns, rows[MERGED]], names=[*types.names, MERGED])

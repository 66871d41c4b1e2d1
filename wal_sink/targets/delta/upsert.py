"""Rows that replace or delete those of their key: staged in order, merged by the commit. See `Table.merge`.

Each row of a window that is staged for an upsert has its write timestamp beside it. Of rows with one key the
one with the highest stays: the later one of the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from wal_sink.targets.arrow_values import are_deletes
from wal_sink.targets.base import Slice
from wal_sink.targets.delta.table import DELETED, MERGED, Files

_ORDER = "wal_sink:us"
"""The column of staged rows with their write timestamps."""


def in_order(rows: Slice, operation: str | None, *, keyed: bool) -> pa.RecordBatch:
    """Return rows as they are staged.

    :param operation: the column that says which rows are deletes; None: none is.
    :param keyed: whether they replace those of their key. Those that were published before an upsert was
        asked for do not, and are added.
    """
    batch = rows.batch
    number = batch.num_rows
    order = pa.array(range(rows.first_us, rows.first_us + number), pa.int64())
    merged = pa.array([keyed] * number, pa.bool_())
    deleted = pa.array([False] * number, pa.bool_())
    if operation is not None:
        deleted = are_deletes(batch.column(operation))
        batch = batch.select([name for name in batch.schema.names if name != operation])
    return pa.record_batch(
        [*batch.columns, order, merged, deleted],
        names=[*batch.schema.names, _ORDER, MERGED, DELETED],
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
    return pa.table([*columns, rows[MERGED], rows[DELETED]], names=[*types.names, MERGED, DELETED])

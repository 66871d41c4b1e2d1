"""Stages rows of one plan in Parquet files that no version of the table names, under receipts.

Each row that is staged for an upsert has its write timestamp beside it. Of rows with one key the one with
the highest stays, the later one of the log, or that of the latest time; the commit merges them: see
`Table.merge`.
"""

from __future__ import annotations

import contextlib
import logging
import time
import uuid
from collections.abc import Iterable, Sequence
from typing import Self

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from wal_sink.targets.arrow_values import are_deletes
from wal_sink.targets.base import Slice
from wal_sink.targets.delta.columns import Values, folder, split
from wal_sink.targets.delta.table import DELETED, MERGED, Files


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """A Parquet file that no version of the table names yet."""

    path: str
    """Below the table's folder."""
    size: int
    rows: int
    partition: dict[str, str | None]
    staged_ms: int
    """Milliseconds since 1970."""
    table: str
    """Digest of what the table was when the file was written: see `table.fingerprint`."""
    merged: bool = False
    """Whether a commit reads its rows, and merges them; the file itself never is one of the table's."""

    def to_bytes(self) -> bytes:
        """Encode for the way from a task to the flusher."""
        return msgspec.json.encode(self)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Decode what `to_bytes` has encoded."""
        return msgspec.json.decode(data, type=cls)


logger = logging.getLogger(__name__)

MOST_WAITING_BYTES = 128 * 1024 * 1024
"""Of Arrow, over all partitions; then the rows of the largest one are written."""
_BATCH_BYTES = 4_096
"""What a batch takes in memory beside its values."""


class Stage:
    """Rows wait in memory, by partition. A file is opened, written and closed at once.

    :param partitioned_by: the columns that a file's folder has, and not the file.
    :param table: fingerprint of the table for which the files are right.
    :param merged: whether a commit merges the rows, and does not add the files.
    """

    def __init__(
        self, files: Files, partitioned_by: Sequence[str], table: str, *, merged: bool = False
    ) -> None:
        self._files = files
        self._table = table
        self._merged = merged
        self._partitioned_by = partitioned_by
        self._waiting: dict[Values, _Rows] = {}
        self._waiting_bytes = 0
        self._begun: list[str] = []
        """Paths of files, those that could not be written included."""
        self._done: list[Receipt] = []

    def add(self, batch: pa.RecordBatch) -> None:
        """Take rows; a bounded number of them waits in memory."""
        for values, rows in split(batch, self._partitioned_by):
            self._waiting_bytes += self._waiting.setdefault(values, _Rows()).add(rows)
        while self._waiting_bytes > MOST_WAITING_BYTES:
            self._write(max(self._waiting, key=lambda values: self._waiting[values].bytes))

    def drain(self) -> list[Receipt]:
        """Write all rows; return the files' receipts when they are durable."""
        for values in list(self._waiting):
            self._write(values)
        done, self._done, self._begun = self._done, [], []
        self._files.sync(receipt.path for receipt in done)
        return done

    def abandon(self) -> None:
        """Delete what is staged and has no receipt, as far as that is possible."""
        paths, self._begun = self._begun, []
        self._waiting.clear()
        self._waiting_bytes = 0
        self._done.clear()
        for path in paths:
            try:
                self._files.delete(path)
            except OSError as error:
                logger.info(
                    "the unused file %s could not be deleted, and no reader reads it: %r",
                    path,
                    error,
                )

    def _write(self, values: Values) -> None:
        waiting = self._waiting.pop(values)
        self._waiting_bytes -= waiting.bytes
        table = pa.Table.from_batches(waiting.batches)
        path = f"{folder(self._partitioned_by, values)}part-{uuid.uuid4()}.snappy.parquet"
        self._begun.append(path)
        with contextlib.closing(self._files.open_output(path)) as output:
            pq.write_table(table, output, compression="snappy")
        receipt = Receipt(
            path=path,
            size=output.size,
            rows=table.num_rows,
            partition=dict(zip(self._partitioned_by, values, strict=True)),
            staged_ms=time.time_ns() // 1_000_000,
            table=self._table,
            merged=self._merged,
        )
        self._done.append(receipt)


class _Rows:
    """Those of a partition that wait."""

    def __init__(self) -> None:
        self.batches: list[pa.RecordBatch] = []
        self.bytes = 0

    def add(self, rows: pa.RecordBatch) -> int:
        """Take rows; return their bytes."""
        self.batches.append(rows)
        taken = int(rows.nbytes) + _BATCH_BYTES
        self.bytes += taken
        return taken


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
    files: Files,
    paths: Iterable[str],
    keys: Sequence[str],
    types: pa.Schema,
    event: str = "",
) -> pa.Table:
    """Return the staged rows that a commit merges: of each key the last one.

    :param types: of the table. Columns that rows lack are null, as a row is replaced whole.
    :param event: the column by which a row is the last one; empty: the order of the log.
    """
    read = [pq.read_table(pa.BufferReader(files.read(path))) for path in paths]
    rows = pa.concat_tables(read, promote_options="default")
    if event in rows.column_names:
        # Of equal times the later row of the log is the last one; a null is the earliest.
        names = ["has", "time", "order"]
        by = pa.table([pc.is_valid(rows[event]), rows[event], rows[_ORDER]], names)
        found = pc.sort_indices(by, sort_keys=[(name, "ascending") for name in names])
        ranks = pc.sort_indices(found)
        rows = rows.set_column(rows.column_names.index(_ORDER), _ORDER, ranks)
    merged = rows[MERGED]
    last = rows.filter(merged).group_by(list(keys)).aggregate([(_ORDER, "max")])
    stay = pc.or_(pc.invert(merged), pc.is_in(rows[_ORDER], last[f"{_ORDER}_max"]))
    rows = rows.filter(stay)
    columns = [
        rows[field.name] if field.name in rows.column_names else pa.nulls(len(rows), field.type)
        for field in types
    ]
    return pa.table([*columns, rows[MERGED], rows[DELETED]], names=[*types.names, MERGED, DELETED])

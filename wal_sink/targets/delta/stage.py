"""Stages rows of one plan in Parquet files that no version of the table names, under receipts."""

from __future__ import annotations

import contextlib
import logging
import time
import uuid
from collections.abc import Sequence
from typing import Self

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from wal_sink.targets.delta.columns import Values, folder, split
from wal_sink.targets.delta.table import Files


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

"""Stages rows of one plan in Parquet files that no version of the table names."""

from __future__ import annotations

import logging
import time
import uuid
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from wal_sink.model.plan import Plan
from wal_sink.targets.delta.columns import partitions
from wal_sink.targets.delta.files import Files
from wal_sink.targets.delta.partitions import Values, folder, split
from wal_sink.targets.delta.receipts import Receipt
from wal_sink.targets.delta.statistics import of_file

logger = logging.getLogger(__name__)

GROUP_BYTES = 16 * 1024 * 1024
"""Of Arrow, in a row group."""
FILE_BYTES = 128 * 1024 * 1024
"""Of Parquet, after which a file is full."""
MOST_WAITING_BYTES = 128 * 1024 * 1024
"""Of Arrow, over the files of all partitions; then the largest of them is ended."""


class Stage:
    """One open file for each partition.

    :param table: fingerprint of the table for which the files are right.
    """

    def __init__(self, files: Files, plan: Plan, table: str) -> None:
        self._files = files
        self._table = table
        self._partitioned_by = partitions(plan)
        self._open: dict[Values, _File] = {}
        self._done: list[Receipt] = []

    def add(self, batch: pa.RecordBatch) -> None:
        """Take rows; a bounded number of them waits in memory."""
        for values, rows in split(batch, self._partitioned_by):
            file = self._open.get(values)
            if file is None:
                file = self._open[values] = _File(self._new(values), rows.schema, self._files)
            file.add(rows)
            if file.size >= FILE_BYTES:
                self._end(values)
        while sum(file.waiting_bytes for file in self._open.values()) > MOST_WAITING_BYTES:
            self._end(max(self._open, key=lambda values: self._open[values].waiting_bytes))

    def drain(self) -> list[Receipt]:
        """End all files; return their receipts when they are durable."""
        for values in list(self._open):
            self._end(values)
        done, self._done = self._done, []
        self._files.sync(receipt.path for receipt in done)
        return done

    def abandon(self) -> None:
        """Delete what is staged and has no receipt, as far as that is possible."""
        paths = [receipt.path for receipt in self._done]
        paths += [file.path for file in self._open.values()]
        for file in self._open.values():
            file.abandon()
        self._open.clear()
        self._done.clear()
        for path in paths:
            try:
                self._files.delete(path)
            except OSError as error:
                logger.info("%s stays, where no reader looks: %r", path, error)

    def _new(self, values: Values) -> str:
        return f"{folder(self._partitioned_by, values)}part-{uuid.uuid4()}.snappy.parquet"

    def _end(self, values: Values) -> None:
        file = self._open.pop(values)
        statistics = file.end()
        receipt = Receipt(
            path=file.path,
            size=file.size,
            partition=dict(zip(self._partitioned_by, values, strict=True)),
            staged_ms=time.time_ns() // 1_000_000,
            statistics=statistics,
            table=self._table,
        )
        self._done.append(receipt)


class _File:
    """A Parquet file that is being written, a row group at a time."""

    def __init__(self, path: str, schema: pa.Schema, files: Files) -> None:
        self.path = path
        self.waiting_bytes = 0
        self._schema = schema
        self._waiting: list[pa.RecordBatch] = []
        self._with_nan: set[str] = set()
        self._output = files.open_output(path)
        self._metadata: list[Any] = []
        self._writer = pq.ParquetWriter(
            self._output, schema, compression="snappy", metadata_collector=self._metadata
        )

    @property
    def size(self) -> int:
        return self._output.size

    def add(self, rows: pa.RecordBatch) -> None:
        self._waiting.append(rows)
        self.waiting_bytes += rows.nbytes
        for name, column in zip(rows.schema.names, rows.columns, strict=True):
            if pa.types.is_floating(column.type) and pc.any(pc.is_nan(column)).as_py():
                self._with_nan.add(name)
        if self.waiting_bytes >= GROUP_BYTES:
            self._write()

    def end(self) -> str:
        """Close the file; return its statistics."""
        self._write()
        self._writer.close()
        self._output.close()
        return of_file(self._metadata[0], self._schema, self._with_nan)

    def abandon(self) -> None:
        """Close the file, whatever is in it."""
        self._waiting.clear()
        try:
            self._writer.close()
            self._output.close()
        except Exception as error:  # noqa: BLE001 -- it is deleted, or stays where no reader looks
            logger.info("%s could not be closed: %r", self.path, error)

    def _write(self) -> None:
        if self._waiting:
            self._writer.write_table(pa.Table.from_batches(self._waiting, self._schema))
        self._waiting.clear()
        self.waiting_bytes = 0

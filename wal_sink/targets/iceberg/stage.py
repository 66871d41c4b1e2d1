"""Stages rows of one plan in Parquet files that no snapshot of the table names.

The receipt of a staged file has what its commit has to know of it, in Iceberg's own encoding of manifests.
"""

from __future__ import annotations

import io
import logging
import uuid

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.avro.decoder import new_decoder
from pyiceberg.avro.encoder import BinaryEncoder
from pyiceberg.avro.resolver import construct_writer, resolve_reader
from pyiceberg.io.pyarrow import (
    _dataframe_to_data_files,
    _get_field_from_arrow_table,
    schema_to_pyarrow,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, data_file_with_partition
from pyiceberg.table import Table
from pyiceberg.table.sorting import NullOrder, SortDirection
from pyiceberg.typedef import Record
from pyiceberg.types import StructType

from wal_sink.errors import SchemaMismatch
from wal_sink.targets.iceberg.table import FORMAT, IcebergTable, sync

logger = logging.getLogger(__name__)

MOST_WAITING_BYTES = 128 * 1024 * 1024
"""Of Arrow; then they are written, a file for each partition."""


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """A Parquet file that no snapshot names yet."""

    path: str
    rows: int
    table: str
    """What the table was when the file was written: see `IcebergTable.fingerprint`."""
    entry: bytes
    """The file, as a manifest has it."""

    def to_bytes(self) -> bytes:
        """Encode for the way from a task to the flusher."""
        return msgspec.msgpack.encode(self)

    def file(self, table: Table) -> DataFile:
        """Return what a commit adds."""
        struct = _struct(table)
        read = resolve_reader(struct, struct, {-1: DataFile, 102: Record}, _ENUMS)
        file: DataFile = read.read(new_decoder(self.entry))
        file.spec_id = table.metadata.default_spec_id
        return file


def receipt(data: bytes) -> Receipt:
    """Decode what `Receipt.to_bytes` has encoded."""
    return msgspec.msgpack.decode(data, type=Receipt)


class Stage:
    """Rows wait in memory, then become a file for each partition, sorted as the table says.

    :param table: as it was looked at; the files are right for this version of its columns and partitions.
    """

    def __init__(self, table: IcebergTable) -> None:
        self._table = table.table
        self._fingerprint = table.fingerprint
        self._arrow = arrow_schema(self._table)
        self._waiting: list[pa.Table] = []
        self._waiting_bytes = 0
        self._done: list[Receipt] = []

    def add(self, batch: pa.RecordBatch) -> None:
        """Take rows; a bounded number of them waits in memory."""
        rows = pa.Table.from_batches([batch])
        self._waiting.append(rows)
        self._waiting_bytes += rows.nbytes
        if self._waiting_bytes > MOST_WAITING_BYTES:
            self._write()

    def drain(self) -> list[Receipt]:
        """Write all rows; return the files' receipts when they are durable."""
        self._write()
        done, self._done = self._done, []
        sync(each.path for each in done)
        return done

    def abandon(self) -> None:
        """Delete what is staged and has no receipt, as far as that is possible."""
        done, self._done = self._done, []
        self._waiting, self._waiting_bytes = [], 0
        for each in done:
            try:
                self._table.io.delete(each.path)
            except OSError as error:
                logger.info(
                    "the unused file %s could not be deleted, and no reader reads it: %r",
                    each.path,
                    error,
                )

    def _write(self) -> None:
        waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
        if not waiting:
            return
        rows = ordered(self._completed(pa.concat_tables(waiting)), self._table)
        written = 0
        for file in _dataframe_to_data_files(
            self._table.metadata, rows, self._table.io, uuid.uuid4()
        ):
            entry = io.BytesIO()
            construct_writer(_struct(self._table)).write(BinaryEncoder(entry), file)
            self._done.append(
                Receipt(
                    path=file.file_path,
                    rows=file.record_count,
                    table=self._fingerprint,
                    entry=entry.getvalue(),
                )
            )
            written += file.record_count
        if written != len(rows):
            # Of a partition that pyiceberg finds by a comparison which no value of it meets, such as NaN's.
            raise SchemaMismatch(
                f"Of {len(rows)} rows pyiceberg wrote {written}, by the partitions of the table.",
                "Partition it by other columns, and report this as a bug.",
            )

    def _completed(self, rows: pa.Table) -> pa.Table:
        """Return rows with all columns of the table, those that the DataFrame lacks as nulls."""
        columns = []
        for field in self._arrow:
            if field.name not in rows.column_names:
                columns.append(pa.nulls(len(rows), field.type))
            elif pa.types.is_nested(field.type):  # the names of their parts
                columns.append(rows.column(field.name).cast(field.type))
            else:
                columns.append(rows.column(field.name))
        return pa.table(columns, names=self._arrow.names)


def arrow_schema(table: Table) -> pa.Schema:
    """Return the table's columns as pyiceberg writes them."""
    return schema_to_pyarrow(table.schema(), include_field_ids=False)


def ordered(rows: pa.Table, table: Table) -> pa.Table:
    """Return rows sorted by the table's sort order."""
    keys: dict[str, pa.ChunkedArray] = {}
    order: list[tuple[str, str]] = []
    for field in table.sort_order().fields:
        name = table.schema().find_column_name(field.source_id) or ""
        values = field.transform.pyarrow_transform(table.schema().find_type(field.source_id))(
            _get_field_from_arrow_table(rows, name)
        )
        # Arrow puts the nulls of all keys on one side.
        first = field.null_order is NullOrder.NULLS_FIRST
        keys[f"null{len(keys)}"] = pc.is_null(values)
        order.append((f"null{len(order)}", "descending" if first else "ascending"))
        keys[f"value{len(keys)}"] = values
        down = field.direction is SortDirection.DESC
        order.append((f"value{len(order)}", "descending" if down else "ascending"))
    return rows.take(pc.sort_indices(pa.table(keys), sort_keys=order)) if order else rows


def _struct(table: Table) -> StructType:
    """Return the fields of a file in a manifest."""
    return data_file_with_partition(table.spec().partition_type(table.schema()), FORMAT)


_ENUMS = {101: FileFormat, 134: DataFileContent}

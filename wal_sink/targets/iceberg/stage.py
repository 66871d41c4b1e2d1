"""Stages rows of one plan in Parquet files that no snapshot of the table names.

The receipt of a staged file has what its commit has to know of it, in Iceberg's own encoding of manifests.
"""

from __future__ import annotations

import dataclasses
import io
import uuid
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.avro.decoder import new_decoder
from pyiceberg.avro.encoder import BinaryEncoder
from pyiceberg.avro.resolver import construct_writer, resolve_reader
from pyiceberg.io.fileformat import DataFileStatistics, FileFormatFactory
from pyiceberg.io.pyarrow import (
    _determine_partitions,
    _get_field_from_arrow_table,
    bin_pack_arrow_table,
    schema_to_pyarrow,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, data_file_with_partition
from pyiceberg.partitioning import PartitionKey
from pyiceberg.schema import sanitize_column_names
from pyiceberg.table import Table, TableProperties
from pyiceberg.table.sorting import NullOrder, SortDirection
from pyiceberg.typedef import Record
from pyiceberg.types import StructType
from pyiceberg.utils.concurrent import ExecutorFactory
from pyiceberg.utils.properties import property_as_int

from wal_sink.errors import SchemaMismatch
from wal_sink.targets.iceberg.table import FORMAT, IcebergTable
from wal_sink.targets.staged_files import Receipt, Stage, renamed


class IcebergReceipt(Receipt, frozen=True, kw_only=True):
    """A Parquet file; its path is its location."""

    entry: bytes
    """The file, as a manifest has it."""

    def file(self, table: Table) -> DataFile:
        """Return what a commit adds."""
        struct = _struct(table)
        read = resolve_reader(struct, struct, {-1: DataFile, 102: Record}, _ENUMS)
        file: DataFile = read.read(new_decoder(self.entry))
        file.spec_id = table.metadata.default_spec_id
        return file


class IcebergStage(Stage[IcebergReceipt]):
    """Rows of one plan; each file is sorted as the table says.

    :param table: as it was looked at; the files are right for this version of its columns and partitions.
    """

    def __init__(self, table: IcebergTable) -> None:
        super().__init__(table.files)
        self._table = table.table
        self._fingerprint = table.fingerprint
        self._arrow = arrow_schema(self._table)

    def _write(self, rows: pa.Table) -> Iterator[IcebergReceipt]:
        rows, written = ordered(self._completed(rows), self._table), 0
        for file in write_files(self._table, rows, self._begun):
            entry = io.BytesIO()
            construct_writer(_struct(self._table)).write(BinaryEncoder(entry), file)
            yield IcebergReceipt(
                path=file.file_path,
                rows=file.record_count,
                table=self._fingerprint,
                entry=entry.getvalue(),
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
            if field.name in rows.column_names:
                columns.append(rows.column(field.name).cast(field.type))
            else:
                columns.append(pa.nulls(len(rows), field.type))
        return pa.table(columns, names=self._arrow.names)


def write_files(table: Table, rows: pa.Table, begun: list[str]) -> Iterator[DataFile]:
    """Write rows to Parquet files, at least one for each partition, in threads.

    pyiceberg's own `write_file` makes an empty list of a null one whose elements are structs, and an empty
    map of a null one whose values are (`ArrowProjectionVisitor`). A file has one group of rows: of several,
    pyiceberg skips one without bounds, as of a long text, and a filter would skip its rows. The rest
    here is as there.

    :param rows: in the columns of `arrow_schema`.
    :param begun: gets the location of each file before it is written.
    """
    properties, parts = table.metadata.properties, [(None, rows)]
    in_one_group = properties | {TableProperties.PARQUET_ROW_GROUP_LIMIT: str(len(rows))}
    if not table.spec().is_unpartitioned():
        partitions = _determine_partitions(table.spec(), table.schema(), rows)
        parts = [
            (partition.partition_key, partition.arrow_table_partition) for partition in partitions
        ]
    largest = property_as_int(
        properties,
        TableProperties.WRITE_TARGET_FILE_SIZE_BYTES,
        TableProperties.WRITE_TARGET_FILE_SIZE_BYTES_DEFAULT,
    )
    tasks = [
        (key, rows_of_file)
        for key, part in parts
        for rows_of_file in bin_pack_arrow_table(part, largest)
    ]
    columns = sanitize_column_names(table.schema())
    name, model = uuid.uuid4(), FileFormatFactory.get(FileFormat.PARQUET)
    arrow = schema_to_pyarrow(columns)  # with the ids of fields

    def write(number: int, task: tuple[PartitionKey | None, list[pa.RecordBatch]]) -> DataFile:
        key, batches = task
        location = table.location_provider().new_data_location(
            f"00000-{number}-{name}.parquet", key
        )
        begun.append(location)
        output = table.io.new_output(location)
        writer = model.create_writer(output, columns, in_one_group)
        with writer:
            writer.write(renamed(batches, arrow))
        return DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=location,
            file_format=FileFormat.PARQUET,
            partition=key.partition if key else Record(),
            file_size_in_bytes=len(output),
            sort_order_id=None,
            spec_id=table.metadata.default_spec_id,
            equality_ids=None,
            key_metadata=None,
            **_serialized(writer.result()),
        )

    files: Iterator[DataFile] = ExecutorFactory.get_or_create().map(write, range(len(tasks)), tasks)
    return files


def _serialized(statistics: DataFileStatistics) -> dict[str, Any]:
    """Return what a manifest says of a file's columns."""
    try:
        columns: dict[str, Any] = statistics.to_serialized_dict()
    except UnicodeEncodeError:
        # pyiceberg cuts a text, and adds one to the last character: U+D800 after U+D7FF is none.
        columns = dataclasses.replace(statistics, column_aggregates={}).to_serialized_dict()
    return columns


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

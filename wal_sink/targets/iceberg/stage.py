"""Stages rows in Parquet files, sorted by the table's sort order, one for each partition."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.io.fileformat import FileFormatFactory
from pyiceberg.io.pyarrow import _determine_partitions, _get_field_from_arrow_table
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionKey
from pyiceberg.schema import sanitize_column_names
from pyiceberg.table import Table, TableProperties
from pyiceberg.table.sorting import NullOrder, SortDirection
from pyiceberg.typedef import Record
from pyiceberg.utils.concurrent import ExecutorFactory

from wal_sink.errors import SchemaMismatch
from wal_sink.targets.arrow_columns import renamed
from wal_sink.targets.iceberg.table import IcebergTable, arrow_types
from wal_sink.targets.staged_files import Receipt, Stage


class IcebergStage(Stage):
    """Stages the rows of one plan. Each file is sorted by the table's sort order."""

    def __init__(self, table: IcebergTable) -> None:
        super().__init__(table)
        self._table = table.table

    def _write(self, rows: pa.Table) -> Iterator[Receipt]:
        written = 0
        for file in write_files(self._table, ordered(rows, self._table), self._begun):
            yield Receipt(file.file_path, self._fingerprint, file)
            written += file.record_count
        if written != len(rows):
            # pyiceberg selects the rows of a partition by `=`, and a NaN equals nothing.
            raise SchemaMismatch(
                f"Only {written} of {len(rows)} rows were written to the partitions of the table.",
                "Partition the table by other columns, and report this as a bug.",
            )


def write_files(table: Table, rows: pa.Table, begun: list[str]) -> Iterator[DataFile]:
    """Write rows to Parquet files, one for each partition, in threads.

    This function replaces pyiceberg's `write_file`, which has two faults. It writes a null list of structs as
    an empty list (`ArrowProjectionVisitor`). If a file has several row groups, a filter of pyiceberg skips a
    group without bounds, such as a group with a long text. So each file here has one row group.

    :param rows: rows with all columns of the table, in their order.
    :param begun: gets the location of each file before the file is written.
    """
    properties, parts = table.metadata.properties, [(None, rows)]
    in_one_group = properties | {TableProperties.PARQUET_ROW_GROUP_LIMIT: str(len(rows))}
    if not table.spec().is_unpartitioned():
        partitions = _determine_partitions(table.spec(), table.schema(), rows)
        parts = [
            (partition.partition_key, partition.arrow_table_partition) for partition in partitions
        ]
    columns = sanitize_column_names(table.schema())
    name, model = uuid.uuid4(), FileFormatFactory.get(FileFormat.PARQUET)
    arrow = arrow_types(columns, ids=True)

    def write(number: int, part: tuple[PartitionKey | None, pa.Table]) -> DataFile:
        key, rows_of_file = part
        location = table.location_provider().new_data_location(
            f"00000-{number}-{name}.parquet", key
        )
        begun.append(location)
        output = table.io.new_output(location)
        writer = model.create_writer(output, columns, in_one_group)
        with writer:
            writer.write(renamed(rows_of_file.to_batches(), arrow))
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
            **writer.result().to_serialized_dict(),
        )

    files: Iterator[DataFile] = ExecutorFactory.get_or_create().map(write, range(len(parts)), parts)
    return files


def ordered(rows: pa.Table, table: Table) -> pa.Table:
    """Return rows in the table's sort order."""
    keys: dict[str, pa.ChunkedArray] = {}
    order: list[tuple[str, str]] = []
    for field in table.sort_order().fields:
        name = table.schema().find_column_name(field.source_id) or ""
        values = field.transform.pyarrow_transform(table.schema().find_type(field.source_id))(
            _get_field_from_arrow_table(rows, name)
        )
        # Arrow puts the nulls of all keys on the same side.
        first = field.null_order is NullOrder.NULLS_FIRST
        keys[f"null{len(keys)}"] = pc.is_null(values)
        order.append((f"null{len(order)}", "descending" if first else "ascending"))
        keys[f"value{len(keys)}"] = values
        down = field.direction is SortDirection.DESC
        order.append((f"value{len(order)}", "descending" if down else "ascending"))
    return rows.take(pc.sort_indices(pa.table(keys), sort_keys=order)) if order else rows

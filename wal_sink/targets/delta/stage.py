"""Stages rows of one plan in Parquet files that no version of the table names yet.

For an upsert, a further column of the files has the write timestamp of each row. The commit merges only the
last row of each key (`Table.merge`). The last row has the highest write timestamp, or the latest event
time if option `delta.timestampColumn` is set.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake.transaction import AddAction

from wal_sink.model.plan import Plan
from wal_sink.targets.arrow_columns import renamed
from wal_sink.targets.arrow_values import FALSE
from wal_sink.targets.base import RowSlice
from wal_sink.targets.casts import key_of
from wal_sink.targets.cdc import any_unavailable, are_deletes, flag_name
from wal_sink.targets.delta.columns import physical_name, stored_field
from wal_sink.targets.delta.files import Files
from wal_sink.targets.delta.partitions import PARTITIONS, folder, split
from wal_sink.targets.delta.table import DELETED, Table
from wal_sink.targets.staged_files import Receipt, Stage


class DeltaStage(Stage):
    """Stages the rows of one plan. The paths of files are relative to the table's folder."""

    def __init__(self, table: Table, plan: Plan) -> None:
        super().__init__(table)
        self._files = table.files
        self._plan = plan
        self._merged = bool(key_of(plan))
        """True if the commit merges the rows by key. False if it adds the files."""

    def _staged(self, rows: RowSlice) -> pa.RecordBatch:
        return _with_order(rows, self._plan.operation) if self._merged else rows.batch

    def _write(self, rows: pa.Table) -> Iterator[Receipt]:
        names = () if self._merged else self._plan.details[PARTITIONS]
        for values, split_rows in split(rows, names):
            part = split_rows
            if not self._merged:
                stored = [stored_field(self._types.field(name)) for name in part.column_names]
                part = renamed(part.to_batches(), pa.schema(stored))
            output = pa.BufferOutputStream()
            pq.write_table(part, output, compression="snappy", write_statistics=_bounded(part))
            data = output.getvalue().to_pybytes()
            path = f"{folder(names, values)}part-{uuid.uuid4()}.snappy.parquet"
            self._begun.append(path)
            self._files.write(path, data)
            physical = (physical_name(self._types.field(name)) for name in names)
            yield Receipt(
                path,
                self._fingerprint,
                _action(path, len(data), dict(zip(physical, values, strict=True)), len(part)),
            )


def _action(path: str, size: int, partition: dict[str, str | None], rows: int) -> AddAction:
    """Return the entry for a file in the table's log, with the number of rows as its only statistic.

    If the entry had bounds of some columns, a dataset of delta-rs would treat every other column, such as a
    boolean, as empty. So the dataset would skip the file.
    """
    return AddAction(
        path=path,
        size=size,
        partition_values=partition,
        modification_time=time.time_ns() // 1_000_000,
        data_change=True,
        stats=msgspec.json.encode({"numRecords": rows}).decode(),
    )


def _bounded(part: pa.Table) -> list[str] | bool:
    """Return True if Parquet stores the bounds of all columns, or else the columns with bounds.

    A column with a NaN gets no bounds (least and greatest value). Arrow leaves NaN out of the bounds. For
    Spark NaN is the greatest number, so Spark would skip a file that has the NaN.
    """
    floats = [name for name in part.column_names if pa.types.is_floating(part[name].type)]
    nans = {name for name in floats if pc.any(pc.is_nan(part[name])).as_py()}
    return [name for name in part.column_names if name not in nans] if nans else True


ORDER, AFTER_DELETE = "wal_sink:us", "wal_sink:after delete"
"""Columns of staged rows. `ORDER` has the write timestamp. `AFTER_DELETE` is True if an earlier staged row
deletes the same key."""


def _with_order(rows: RowSlice, operation: str | None) -> pa.RecordBatch:
    """Replace the operation column by the columns `ORDER` and `DELETED`.

    :param operation: the operation column. None if no row is a delete.
    """
    batch = rows.batch
    number = batch.num_rows
    order = pa.array(range(rows.first_us, rows.first_us + number), pa.int64())
    deleted = pa.array([False] * number, pa.bool_())
    if operation is not None:
        deleted = are_deletes(batch.column(operation))
        batch = batch.select([name for name in batch.schema.names if name != operation])
    return pa.record_batch(
        [*batch.columns, order, deleted], names=[*batch.schema.names, ORDER, DELETED]
    )


def last_rows(
    files: Files,
    paths: Iterable[str],
    keys: Sequence[str],
    names: Sequence[str],
    event: str = "",
) -> tuple[pa.Table, pa.Table]:
    """Return the rows that a commit merges: the last row of each key.

    :param names: the table's columns.
    :param event: the column with the event time. Empty if the order of the log decides which row is last.
    :returns: two tables. The first table has the rows, with the table's columns, `DELETED` and flags of
        unavailable cells. The second table has all staged rows with unavailable cells, and the column
        `AFTER_DELETE`.
    """
    read = [pq.read_table(pa.BufferReader(files.read(path))) for path in paths]
    rows = pa.concat_tables(read, promote_options="default")
    rows, partial = _with_known_values(rows.sort_by(ORDER), keys, names)
    if event:
        # If times are equal, the later row of the log is the last one.
        order = pc.sort_indices(rows, [(event, "ascending"), (ORDER, "ascending")])
        rows = _replaced(rows, ORDER, pc.sort_indices(order))
    last = rows.group_by(list(keys)).aggregate([(ORDER, "max")])
    stay = pc.is_in(rows[ORDER], last[f"{ORDER}_max"])
    flags = [name for name in map(flag_name, names) if name in rows.column_names]
    return rows.filter(stay).select([*names, DELETED, *flags]), partial


def _with_known_values(
    rows: pa.Table, keys: Sequence[str], columns: Sequence[str]
) -> tuple[pa.Table, pa.Table]:
    """Fill each unavailable cell with the last known value of its key, unless a delete lies between.

    :param rows: the staged rows in the order of the log.
    :param columns: the columns of the table.
    :returns: two tables. The first table has all rows, and a flag for each cell that stays unavailable. The
        second table has only the rows with such a cell, and the column `AFTER_DELETE`, which is True if an
        earlier row deletes the same key.
    """
    flags = {
        name: pc.fill_null(rows[flag_name(name)], FALSE)
        for name in columns
        if flag_name(name) in rows.column_names
    }
    after_delete = [False] * len(rows)
    if any(pc.any(flag).as_py() for flag in flags.values()):
        sources, after_delete = _sources(rows, keys, flags)
        for name, source in sources.items():
            rows = _replaced(rows, name, rows[name].take(source))
            flags[name] = flags[name].take(source)
    for name, flag in flags.items():
        rows = _replaced(rows, flag_name(name), flag)
    partial = rows.append_column(AFTER_DELETE, pa.array(after_delete, pa.bool_()))
    return rows, partial.filter(any_unavailable(flags.values())) if flags else partial.slice(0, 0)


def _sources(
    rows: pa.Table, keys: Sequence[str], flags: Mapping[str, pa.ChunkedArray]
) -> tuple[dict[str, pa.Array], list[bool]]:
    """Return the source of each cell: the position of the row that has the cell's value.

    :returns: by column, the sources of its cells; and for each row True if it comes after a delete of its
        key. A cell's source is its own row if the value is available, or if no earlier row has the value.
    """
    deletes = rows[DELETED].to_pylist()
    unavailable = {name: flag.to_pylist() for name, flag in flags.items()}
    positions = {name: [*range(len(rows))] for name in flags}
    after_delete, deleted = list[bool](), set[tuple[Any, ...]]()
    known = dict[tuple[Any, ...], dict[str, int]]()
    for row, key in enumerate(zip(*(rows[name].to_pylist() for name in keys), strict=True)):
        if deletes[row]:
            known.pop(key, None)
            deleted.add(key)
        after_delete.append(key in deleted)
        newest = known.setdefault(key, {})
        for name, flag in unavailable.items():
            if flag[row]:
                positions[name][row] = newest.get(name, row)
            elif not deletes[row]:
                newest[name] = row
    return {name: pa.array(numbers) for name, numbers in positions.items()}, after_delete


def _replaced(rows: pa.Table, name: str, values: pa.ChunkedArray) -> pa.Table:
    return rows.set_column(rows.column_names.index(name), name, values)

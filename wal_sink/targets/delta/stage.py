"""Stages rows of one plan in Parquet files that no version of the table names, under receipts.

Each row that is staged for an upsert has its write timestamp beside it. Of rows with one key the one with
the highest stays, the later one of the log, or that of the latest time; the commit merges them: see
`Table.merge`.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from wal_sink.model.plan import Plan
from wal_sink.targets.arrow_values import FALSE, are_deletes
from wal_sink.targets.base import RowSlice
from wal_sink.targets.casts import key_of
from wal_sink.targets.delta.columns import (
    PARTITIONS,
    folder,
    physical_name,
    split,
    stored_field,
    to_arrow,
)
from wal_sink.targets.delta.files import Files
from wal_sink.targets.delta.table import DELETED, MERGED, Table
from wal_sink.targets.staged_files import Receipt, Stage, renamed
from wal_sink.targets.unavailable import either, flag_name


class DeltaReceipt(Receipt, frozen=True, kw_only=True):
    """A Parquet file; its path is below the table's folder."""

    size: int
    partition: dict[str, str | None]
    staged_ms: int
    """Milliseconds since 1970."""
    merged: bool = False
    """Whether a commit reads its rows, and merges them; the file itself never is one of the table's."""


class DeltaStage(Stage[DeltaReceipt]):
    """Rows of one plan.

    :param table: as it was looked at; the files are right for this version of its columns and partitions.
    :param merged: whether a commit merges the rows, and does not add the files.
    """

    def __init__(self, table: Table, plan: Plan, *, merged: bool) -> None:
        super().__init__(table.files)
        self._files = table.files
        self._fingerprint = table.fingerprint
        self._plan = plan
        self._merged = merged
        self._types = {field["name"]: to_arrow(field["type"]) for field in table.fields}
        self._stored = {field["name"]: stored_field(field) for field in table.fields}
        self._physical = {field["name"]: physical_name(field) for field in table.fields}

    def _staged(self, rows: RowSlice) -> pa.RecordBatch:
        batch = self._of_now(rows.batch)
        if not self._merged:
            return batch
        operation, keyed = self._plan.operation, bool(key_of(self._plan))
        return in_order(rows._replace(batch=batch), operation, keyed=keyed)

    def _of_now(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows by the types of the table, which may be wider than those of the plan."""
        names = batch.schema.names
        columns = zip(names, batch.columns, strict=True)
        values = [column.cast(self._types.get(name, column.type)) for name, column in columns]
        return pa.record_batch(values, names=names)

    def _write(self, rows: pa.Table) -> Iterator[DeltaReceipt]:
        names = () if self._merged else self._plan.details[PARTITIONS]
        for values, split_rows in split(rows, names):
            part = split_rows
            if not self._merged:
                part = renamed(
                    part.to_batches(), pa.schema([self._stored[name] for name in part.column_names])
                )
            path = f"{folder(names, values)}part-{uuid.uuid4()}.snappy.parquet"
            self._begun.append(path)
            with contextlib.closing(self._files.open_output(path)) as output:
                pq.write_table(part, output, compression="snappy", write_statistics=_bounded(part))
            yield DeltaReceipt(
                path=path,
                size=output.size,
                rows=part.num_rows,
                partition=dict(zip((self._physical[name] for name in names), values, strict=True)),
                staged_ms=time.time_ns() // 1_000_000,
                table=self._fingerprint,
                merged=self._merged,
            )


def _bounded(part: pa.Table) -> list[str] | bool:
    """Return the columns whose bounds are written: all, or those without a NaN and nothing nested.

    Arrow's bounds leave NaN out, and Spark, to which it is above every number, would skip its rows.
    """
    floats = [name for name in part.column_names if pa.types.is_floating(part[name].type)]
    nans = {name for name in floats if pc.any(pc.is_nan(part[name])).as_py()}
    return [name for name in part.column_names if name not in nans] if nans else True


ORDER, AFTER_DELETE = "wal_sink:us", "wal_sink:after delete"
"""Columns of staged rows with their write timestamps, and whether a delete of their key comes before them."""


class LastRows(NamedTuple):
    """The rows of a merge."""

    rows: pa.Table
    """All columns of the table, `MERGED`, `DELETED`, and flags of unavailable cells."""
    partial: pa.Table
    """Rows with such cells, as they were staged, and `AFTER_DELETE`."""


def in_order(rows: RowSlice, operation: str | None, *, keyed: bool) -> pa.RecordBatch:
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
        names=[*batch.schema.names, ORDER, MERGED, DELETED],
    )


def last_rows(
    files: Files,
    paths: Iterable[str],
    keys: Sequence[str],
    types: pa.Schema,
    event: str = "",
) -> LastRows:
    """Return the staged rows that a commit merges: of each key the last one.

    :param types: of the table. Columns that rows lack are null, as a row is replaced whole.
    :param event: the column by which a row is the last one; empty: the order of the log.
    """
    read = [pq.read_table(pa.BufferReader(files.read(path))) for path in paths]
    rows = pa.concat_tables(read, promote_options="default")
    rows, partial = _with_known_values(rows.sort_by(ORDER), keys, types.names)
    if event in rows.column_names:
        # Of equal times the later row of the log is the last one; a null is the earliest.
        names = ["has", "time", "order"]
        by = pa.table([pc.is_valid(rows[event]), rows[event], rows[ORDER]], names)
        order = pc.sort_indices(by, sort_keys=[(name, "ascending") for name in names])
        ranks = pc.sort_indices(order)
        rows = rows.set_column(rows.column_names.index(ORDER), ORDER, ranks)
    merged = rows[MERGED]
    last = rows.filter(merged).group_by(list(keys)).aggregate([(ORDER, "max")])
    stay = pc.or_(pc.invert(merged), pc.is_in(rows[ORDER], last[f"{ORDER}_max"]))
    rows = rows.filter(stay)
    columns = [
        rows[field.name].cast(field.type)
        if field.name in rows.column_names
        else pa.nulls(len(rows), field.type)
        for field in types
    ]
    flags = [name for name in map(flag_name, types.names) if name in rows.column_names]
    names = [MERGED, DELETED, *flags]
    table = pa.table([*columns, *(rows[name] for name in names)], names=[*types.names, *names])
    return LastRows(table, partial)


def _with_known_values(
    rows: pa.Table, keys: Sequence[str], columns: Sequence[str]
) -> tuple[pa.Table, pa.Table]:
    """Give unavailable cells the value that a row of their key has before them, after the last delete.

    :param rows: in the order of the log.
    :param columns: of the table.
    :returns: the rows, with flags of the cells that have none; and the rows with such cells, see `LastRows`.
    """
    flags = {
        name: pc.fill_null(rows[flag_name(name)], FALSE)
        for name in columns
        if flag_name(name) in rows.column_names
    }
    after_delete = [False] * len(rows)
    if any(pc.any(flag).as_py() for flag in flags.values()):
        row_keys = [*zip(*(rows[key].to_pylist() for key in keys), strict=True)]
        deletes = rows[DELETED].to_pylist()
        deleted = set[tuple[object, ...]]()
        for row, key in enumerate(row_keys):
            deleted |= {key} if deletes[row] else set()
            after_delete[row] = key in deleted
        for name, flag in flags.items():
            source = pa.array(_sources(row_keys, deletes, flag.to_pylist()))
            rows = _replaced(rows, name, rows[name].take(source))
            flags[name] = flag.take(source)
    for name, flag in flags.items():
        rows = _replaced(rows, flag_name(name), flag)
    partial = rows.append_column(AFTER_DELETE, pa.array(after_delete, pa.bool_()))
    return rows, partial.filter(either(flags.values())) if flags else partial.slice(0, 0)


def _sources(
    keys: Sequence[tuple[object, ...]], deletes: Sequence[bool], unavailable: Sequence[bool]
) -> list[int]:
    """Return for each row the row whose value it has: its own, or the last one that is known of its key."""
    sources, known = [*range(len(keys))], dict[tuple[object, ...], int]()
    for row, key in enumerate(keys):
        if deletes[row]:
            known.pop(key, None)
        elif unavailable[row]:
            sources[row] = known.get(key, row)
        else:
            known[key] = row
    return sources


def _replaced(rows: pa.Table, name: str, values: pa.ChunkedArray) -> pa.Table:
    return rows.set_column(rows.column_names.index(name), name, values)

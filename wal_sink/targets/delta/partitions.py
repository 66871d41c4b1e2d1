"""The partitions of a Delta table: which rows belong to which, and how the log writes values. No I/O."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

CAN_PARTITION = (
    "string",
    "long",
    "integer",
    "short",
    "byte",
    "boolean",
    "date",
    "timestamp",
    "timestamp_ntz",
)
"""Types of partition columns, beside decimals. Others have no text that every reader takes alike."""

Values = tuple[str | None, ...]
"""The values of a partition, in the order of the table's partition columns."""

_PLAIN = re.compile(r"[^A-Za-z0-9._-]")


def can_partition(type_: Any) -> bool:
    """Whether a table of wal_sink may be partitioned by columns of a type, as Delta's log has it."""
    return type_ in CAN_PARTITION or (isinstance(type_, str) and type_.startswith("decimal"))


def split(batch: pa.RecordBatch, names: Sequence[str]) -> Iterator[tuple[Values, pa.RecordBatch]]:
    """Yield the rows of each partition, without the partition columns; their order is kept."""
    if not names:
        yield (), batch
        return
    keys = pa.table([batch.column(name) for name in names], names=list(names))
    rows = keys.append_column("row", pa.array(range(batch.num_rows), pa.int64()))
    groups = rows.group_by(list(names), use_threads=False).aggregate([("row", "list")])
    rest = batch.select([name for name in batch.schema.names if name not in names])
    for group in range(groups.num_rows):
        values = tuple(_text(groups.column(name)[group]) for name in names)
        yield values, rest.take(pc.list_flatten(groups.column("row_list").slice(group, 1)).chunk(0))


def folder(names: Sequence[str], values: Values) -> str:
    """Return the folder for files of a partition, for people: the log alone says what is in a file."""
    parts = [
        f"{_PLAIN.sub('_', name)}={_PLAIN.sub('_', '__null__' if value is None else value)[:60]}/"
        for name, value in zip(names, values, strict=True)
    ]
    return "".join(parts)


def _text(scalar: pa.Scalar) -> str | None:
    """Return a value as the log of a Delta table writes it."""
    if pa.types.is_timestamp(scalar.type):
        return _moment(scalar.value, zoned=scalar.type.tz is not None) if scalar.is_valid else None
    value: Any = scalar.as_py()
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    return value.isoformat() if isinstance(value, datetime.date) else str(value)


def _moment(us: int, *, zoned: bool) -> str:
    """Return microseconds since 1970 as a time; in UTC and saying so, where it is one of all zones."""
    moment = datetime.datetime(1970, 1, 1) + datetime.timedelta(microseconds=us)  # noqa: DTZ001 -- UTC
    return moment.isoformat("T" if zoned else " ", "microseconds") + ("Z" if zoned else "")

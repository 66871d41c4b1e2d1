"""What the log of a Delta table says of a file, by which readers skip it: rows, nulls, and bounds. No I/O."""

from __future__ import annotations

import datetime
import math
from collections.abc import Collection
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

MOST_COLUMNS = 32
"""As many as Delta's own writers look at, unless they are told otherwise."""

_LONGEST = 32
"""Characters of a text; a longer one is cut."""

_HIGHEST = "\U0010ffff"
_EXACT_DIGITS = 15
"""Of a decimal: readers may take numbers of JSON for floats."""

_ENCODER = msgspec.json.Encoder(decimal_format="number")


def of_file(
    metadata: pq.FileMetaData, schema: pa.Schema, with_nan: Collection[str] = frozenset()
) -> str:
    """Return the statistics of a file as JSON: of its first plain columns, bounds where they are certain.

    A bound that is left out costs a reader nothing but time; a wrong one costs it rows.

    :param with_nan: columns of floats that have a NaN, which Parquet's bounds leave out.
    """
    low: dict[str, Any] = {}
    high: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for field in list(schema)[:MOST_COLUMNS]:
        parts = _parts(metadata, field.name)
        if not parts or any(part is None or not part.has_null_count for part in parts):
            continue
        nulls[field.name] = sum(part.null_count for part in parts)
        full = [part for part in parts if part.num_values]
        if field.name in with_nan or not full or not all(part.has_min_max for part in full):
            continue
        try:
            least, most = min(part.min for part in full), max(part.max for part in full)
        except OverflowError:  # a time that Python does not know
            continue
        if (bound := _bound(least, field.type, up=False)) is not None:
            low[field.name] = bound
        if (bound := _bound(most, field.type, up=True)) is not None:
            high[field.name] = bound
    counted = {"numRecords": metadata.num_rows, "minValues": low, "maxValues": high}
    return _ENCODER.encode({**counted, "nullCount": nulls}).decode()


def _parts(metadata: pq.FileMetaData, name: str) -> list[Any]:
    """Return a plain column's statistics of each row group; none for a nested one."""
    column = next(
        (i for i in range(metadata.num_columns) if metadata.schema.column(i).path == name), None
    )
    if column is None:
        return []
    groups = range(metadata.num_row_groups)
    return [metadata.row_group(group).column(column).statistics for group in groups]


def _bound(value: Any, type_: pa.DataType, *, up: bool) -> Any:
    """Return a value as a bound, a bit outside of it where it has to be cut; None for none."""
    match value:
        case str():
            return _cut(value, up=up)
        case datetime.datetime():
            return _millisecond(value, "Z" if type_.tz else "", up=up)
        case datetime.date():
            return value.isoformat()
        case Decimal():
            certain = type_.precision <= _EXACT_DIGITS
        case float():
            certain = math.isfinite(value)
        case _:
            certain = not isinstance(value, bool | bytes)
    return value if certain else None


def _cut(text: str, *, up: bool) -> str | None:
    if len(text) <= _LONGEST:
        return text
    if not up:
        return text[:_LONGEST]
    return None if text[_LONGEST] == _HIGHEST else text[:_LONGEST] + _HIGHEST


def _millisecond(moment: datetime.datetime, zone: str, *, up: bool) -> str | None:
    """Return a time in milliseconds, as Delta has bounds."""
    plain = moment.replace(tzinfo=None)
    rest = plain.microsecond % 1_000
    try:
        plain += datetime.timedelta(microseconds=(1_000 - rest) if up and rest else -rest)
    except OverflowError:
        return None
    return plain.isoformat("T", "milliseconds") + zone

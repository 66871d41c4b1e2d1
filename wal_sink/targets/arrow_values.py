"""Arrow values: scalars, their texts in errors, and checks of texts and dates. No I/O.

`pyarrow.scalar` and `pyarrow.array` import pandas if pandas is installed. In each Python worker this import
takes half a second. So this module makes scalars from buffers.
"""

from __future__ import annotations

import datetime
import struct
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from wal_sink.errors import InvalidRow
from wal_sink.model.spark_types import is_array

# --- single values --------------------------------------------------------------------------------

TRUE = pa.nulls(1).is_null()[0]

FALSE = pa.nulls(1).is_valid()[0]


def int64(value: int) -> pa.Scalar:
    """Return an int64 scalar."""
    return pa.Array.from_buffers(pa.int64(), 1, [None, pa.py_buffer(struct.pack("=q", value))])[0]


def string(value: str) -> pa.Scalar:
    """Return a string scalar."""
    return _of_bytes(pa.string(), value.encode())


def blob(value: bytes) -> pa.Scalar:
    """Return a binary scalar."""
    return _of_bytes(pa.binary(), value)


def _of_bytes(type_: pa.DataType, value: bytes) -> pa.Scalar:
    offsets = pa.py_buffer(struct.pack("=ii", 0, len(value)))
    return pa.Array.from_buffers(type_, 1, [None, offsets, pa.py_buffer(value)])[0]


def null(type_: pa.DataType) -> pa.Scalar:
    """Return a null scalar of a type."""
    return pa.nulls(1, type_)[0]


def as_python(value: pa.Scalar) -> Any:
    """Convert a scalar to a Python object.

    A text that is not UTF-8 becomes bytes. A time outside of Python's years becomes its number of units since
    1970.
    """
    try:
        return value.as_py()
    except (ValueError, OverflowError) as error:
        if value.type.num_fields:
            return str(value.type)
        number = pa.int32() if pa.types.is_date32(value.type) else pa.int64()
        kind = pa.binary() if isinstance(error, UnicodeDecodeError) else number
        return value.cast(kind).as_py()


def shorten(value: Any, limit: int = 60) -> str:
    """Return the text of a value, cut to about `limit` characters. None becomes NULL."""
    if value is None:
        return "NULL"
    if isinstance(value, datetime.date | datetime.time):  # includes datetime
        return value.isoformat()
    cut = value[:limit] if isinstance(value, str | bytes) else value
    text = repr(cut)
    if isinstance(value, str | bytes) and len(value) > limit:
        return f"{text}… of {len(value):,}"
    return text if len(text) <= limit else text[:limit] + "…"


# --- checks of any column ---------------------------------------------------------------------

_SHOWN = 3
"""The number of columns by which an error names a row."""


def leaves(values: pa.Array) -> Iterator[pa.Array]:
    """Yield the flat columns inside of a nested column, such as a list's elements, or a flat column itself.

    Values inside of a null are left out.
    """
    type_ = values.type
    if pt.is_dictionary(type_):
        yield from leaves(values.cast(type_.value_type))
    elif pt.is_map(type_):
        yield from leaves(values.cast(pa.list_(pa.struct([*type_.field(0).type]))))
    elif pt.is_struct(type_):
        for part in values.flatten():
            yield from leaves(part)
    elif is_array(type_):
        yield from leaves(values.flatten())
    else:
        yield values


def refuse_invalid_utf8(batch: pa.RecordBatch) -> None:
    """Refuse texts that are not UTF-8, also inside structs, lists and maps.

    Arrow validates a whole column fast, in some nanoseconds a row. But Arrow also validates bytes under a
    null and outside of a slice. So a column that fails is checked again, row by row.

    :raises InvalidRow: a text is not UTF-8. The error names the column and flags its rows.
    """
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        try:
            column.validate(full=True)
        except pa.ArrowInvalid:
            rows = pa.array([not _is_utf8(column.slice(i, 1)) for i in range(len(column))])
            row = pc.index(rows, TRUE).as_py()
            if row < 0:
                continue
            shown = ", ".join(
                f"{shown_name}={shorten(as_python(batch.column(shown_name)[row]))}"
                for shown_name in batch.schema.names[:_SHOWN]
            )
            raise InvalidRow(
                f"Column {name} is not UTF-8, in the row with {shown}.",
                "Repair it by make_valid_utf8(…), or write the bytes as binary, without a cast to string.",
                column=name,
                problem=f"Column {name} is not UTF-8.",
                rows=rows,
            ) from None


def _is_utf8(values: pa.Array) -> bool:
    try:
        for part in leaves(values):
            pa.concat_arrays([part.drop_null()]).validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


_DAYS = -719_162, 2_932_896
"""0001-01-01 and 9999-12-31, in days since 1970."""

_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


def beyond_python(column: pa.Array) -> pa.Array | None:
    """Flag the rows with a date or timestamp outside of the years 1 to 9999. None if there is no such row.

    Python's `datetime` has no such value, nor have most databases and readers.
    """
    if not _is_beyond(column):
        return None
    if not pt.is_nested(column.type):
        return outside(column, *_DAYS)
    return pa.array([_is_beyond(column.slice(i, 1)) for i in range(len(column))])


def _is_beyond(values: pa.Array) -> bool:
    return any(
        pc.any(outside(part, *_DAYS)).as_py()
        for part in leaves(values)
        if pt.is_date(part.type) or pt.is_timestamp(part.type)
    )


def outside(values: pa.Array, first: int, last: int) -> pa.Array:
    """Flag the dates or timestamps outside of a range of days. The flag of a null is False.

    :param first: the first day of the range, in days since 1970.
    :param last: the last day of the range, in days since 1970.
    """
    if pt.is_timestamp(values.type):
        per_day = 86_400 * _PER_SECOND[values.type.unit]
        first, last = first * per_day, (last + 1) * per_day - 1
        numbers = values.cast(pa.int64())
    else:
        numbers = values.cast(pa.date32()).cast(pa.int32()).cast(pa.int64())
    first, last = max(first, -(2**63)), min(last, 2**63 - 1)
    flags = pc.or_(pc.less(numbers, int64(first)), pc.greater(numbers, int64(last)))
    return flags.fill_null(fill_value=False)

"""Checks of values that do not depend on a table: texts are UTF-8, dates are in the years 1 to 9999. No I/O.

Spark's strings may hold any bytes. For every target a text that is not UTF-8 is refused before the target's
own check.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from wal_sink.errors import InvalidRow
from wal_sink.model.plan import is_array
from wal_sink.targets.arrow_scalars import TRUE, as_python, int64, shorten

_SHOWN = 3
"""The number of columns by which an error names a row."""


def leaves(values: pa.Array) -> Iterator[pa.Array]:
    """Yield the values of a column, or of all parts inside of its values.

    Values inside a null are left out.
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

    Arrow validates a whole column at some nanoseconds a row. That includes bytes under a null and outside of
    a slice, so a failed column is checked row by row.

    :raises InvalidRow: there is such a text. The error names the column and flags its rows.
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
    """Return flags of the rows with a date or an instant outside of the years 1 to 9999.

    None if there is none.

    Python has no object for such a date, and most databases and readers have no value.
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
    """Return which dates or instants are outside of a range. False for a null.

    :param first: the first day of the range, in days since 1970.
    :param last: the last day of the range.
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

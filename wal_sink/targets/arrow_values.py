"""Checks and converts values in Arrow columns for every target, by kernels of Arrow: no Python objects.

First come scalars for `pyarrow.compute`. They are made of buffers, since `pyarrow.scalar` and `pyarrow.array`
import pandas where it is installed: half a second in each Python worker. Then come UUIDs (RFC 9562), numbers
written as text, values as errors show them, the operation column, and values that no target accepts.

Spark's strings hold any bytes. A text that is not UTF-8 is refused for every target, before its own check.
Dates outside of the years 1 to 9999 are refused by those targets for which they have to be Python's.
"""

from __future__ import annotations

import datetime
import decimal
import struct
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from wal_sink.errors import InvalidRow, SchemaMismatch
from wal_sink.model.plan import Plan, canonical, is_array
from wal_sink.targets.operations import DELETE, OPERATION_COLUMN, OPERATIONS

TRUE = pa.nulls(1).is_null()[0]
FALSE = pa.nulls(1).is_valid()[0]


def int64(value: int) -> pa.Scalar:
    """Return an int64."""
    return pa.Array.from_buffers(pa.int64(), 1, [None, pa.py_buffer(struct.pack("=q", value))])[0]


def float32(value: float) -> pa.Scalar:
    """Return a float of 32 bits, the nearest."""
    return pa.Array.from_buffers(pa.float32(), 1, [None, pa.py_buffer(struct.pack("=f", value))])[0]


def text(value: str) -> pa.Scalar:
    """Return a string."""
    return _of_bytes(pa.string(), value.encode())


def blob(value: bytes) -> pa.Scalar:
    """Return a binary."""
    return _of_bytes(pa.binary(), value)


def _of_bytes(type_: pa.DataType, value: bytes) -> pa.Scalar:
    offsets = pa.py_buffer(struct.pack("=ii", 0, len(value)))
    return pa.Array.from_buffers(type_, 1, [None, offsets, pa.py_buffer(value)])[0]


def null(type_: pa.DataType) -> pa.Scalar:
    """Return a null of a type."""
    return pa.nulls(1, type_)[0]


def cast_values(values: pa.Array, to: pa.DataType) -> pa.Array:
    """Cast values unaltered, or refuse one that does not fit.

    Arrow casts integers only to a decimal that fits every value of their type. So they are first cast to a
    wider decimal: the cast from there refuses single values.

    :raises ArrowInvalid: one does not fit.
    """
    if values.type.num_fields and values.type != to:
        values = pa.concat_arrays([values])  # of a slice Arrow casts its neighbours' elements, too
    between = _between(values.type, to)
    return (values if between is None else values.cast(between)).cast(to)


def _between(source: pa.DataType, to: pa.DataType) -> pa.DataType | None:
    if is_array(source) and is_array(to):
        element = _between(source.value_type, to.value_type)
        return None if element is None else pa.list_(element)
    if pt.is_struct(source) and pt.is_struct(to):
        between = [_between(field.type, to.field(field.name).type) for field in source]
        if all(type_ is None for type_ in between):
            return None
        parts = zip(source, between, strict=True)
        return pa.struct(
            [field if type_ is None else field.with_type(type_) for field, type_ in parts]
        )
    if pt.is_integer(source) and pt.is_decimal(to):
        return pa.decimal256(76, to.scale)
    return None


_HEX = "[0-9a-fA-F]"
UUID_PATTERN = rf"\A{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}\z"
"""The pattern of a UUID written as text."""
_VERSION_1_PATTERN = rf"\A{_HEX}{{8}}-{_HEX}{{4}}-1{_HEX}{{3}}-{_HEX}{{4}}-{_HEX}{{12}}\z"
_UUID_BYTES = r"(?s)\A.{16}\z"
_VERSION_1_BYTES = r"(?s)\A.{6}[\x10-\x1f].{9}\z"
"""The upper half of the seventh byte is the version."""

_UUID = pa.binary(16)
_NO_UUID = text("00000000-0000-0000-0000-000000000000")


def are_no_uuids(column: pa.Array) -> pa.Array:
    """Return which texts or bytes are no uuids; null for nulls."""
    return _unlike(column, UUID_PATTERN, _UUID_BYTES)


def are_no_version_1_uuids(column: pa.Array) -> pa.Array:
    """Return which are no uuids of version 1 (a time and a node); null for nulls."""
    return _unlike(column, _VERSION_1_PATTERN, _VERSION_1_BYTES)


def as_uuid(column: pa.Array) -> pa.Array:
    """Parse texts, and take bytes as they are. All are UUIDs, see `are_no_uuids`; nulls stay null."""
    if _in_bytes(column):
        return column.cast(pa.binary()).cast(_UUID)
    texts = column.cast(pa.string())
    digits = pc.replace_substring(texts.fill_null(_NO_UUID), "-", "")  # 32 of each, no gaps
    _, offsets, characters = digits.buffers()
    begin = memoryview(offsets).cast("i")[digits.offset] if len(digits) else 0
    whole = memoryview(characters or b"")[begin : begin + 32 * len(digits)]
    packed = pa.py_buffer(bytes.fromhex(str(whole, "ascii")))
    uuids = pa.Array.from_buffers(_UUID, len(digits), [None, packed])
    return pc.if_else(texts.is_valid(), uuids, null(_UUID))


def _unlike(column: pa.Array, text: str, in_bytes: str) -> pa.Array:
    if _in_bytes(column):
        matches = pc.match_substring_regex(column.cast(pa.binary()), in_bytes)  # byte by byte
    else:
        matches = pc.match_substring_regex(column.cast(pa.string()), text)
    return pc.invert(matches)


def _in_bytes(column: pa.Array) -> bool:
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    is_bytes = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view)
    return any(is_kind(kind) for is_kind in is_bytes)


MOST_CHARACTERS = 4_000
"""The longest number written as text: Python parses an integer of at most 4,300 digits."""

WHOLE = r"\A[+-]?[0-9]+\z"
"""A whole number."""
WHOLE_ONCE = r"\A(0|-?[1-9][0-9]*)\z"
"""A whole number in its only form: no plus sign, no zeros in front."""
DECIMAL = r"\A[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,4})?\z"
"""A number with or without a fraction, and with or without an exponent."""
DECIMAL_ONCE = r"\A(0|-?([1-9][0-9]*|(0|[1-9][0-9]*)\.[0-9]*[1-9]))\z"
"""A number in its only form: no exponent, no zeros in front or at the end of a fraction."""


class Scaled(NamedTuple):
    """The number `unscaled` · 10^-`scale`."""

    unscaled: int
    scale: int


def scaled(text: str) -> Scaled:
    """Parse a text that matches `DECIMAL`, as Java's `new BigDecimal(text)` does: 1.50 is not 1.5."""
    sign, digits, exponent = decimal.Decimal(text).as_tuple()
    assert isinstance(exponent, int), "neither infinite nor NaN"
    unscaled = int("".join(map(str, digits)))
    return Scaled(-unscaled if sign else unscaled, -exponent)


def as_python(value: pa.Scalar) -> Any:
    """Return a value as a Python object; one that has none as bytes, or as a number of units."""
    try:
        return value.as_py()
    except (ValueError, OverflowError) as error:
        if value.type.num_fields:
            return str(value.type)
        number = pa.int32() if pa.types.is_date32(value.type) else pa.int64()
        kind = pa.binary() if isinstance(error, UnicodeDecodeError) else number
        return value.cast(kind).as_py()


def shorten(value: Any, limit: int = 60) -> str:
    """Print a value in about `limit` characters at most."""
    if isinstance(value, datetime.date | datetime.time):  # a datetime, too
        return value.isoformat()
    cut = value[:limit] if isinstance(value, str | bytes) else value
    text = repr(cut)
    if isinstance(value, str | bytes) and len(value) > limit:
        return f"{text}… of {len(value):,}"
    return text if len(text) <= limit else text[:limit] + "…"


def refuse_other_schema(schema: pa.Schema, plan: Plan) -> None:
    """Refuse a batch that the plan was not made for.

    :raises SchemaMismatch: a column has another name or type, or another place.
    """
    columns = [(field.name, str(canonical(field.type))) for field in schema]
    planned = [(column.name, column.source) for column in plan.columns]
    if columns != planned:
        raise SchemaMismatch(
            f"A batch for {plan.table} has the columns {_listed(columns)}; the plan {plan.key} was made for"
            f" {_listed(planned)}.",
            "Start the query again, so that a plan is made for this DataFrame.",
        )


def _listed(columns: Iterable[tuple[str, str]]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in columns)


_DELETE = text(DELETE)


def planned_operations(
    batch: pa.RecordBatch, plan: Plan, row_text: Callable[[int], str]
) -> pa.Array | None:
    """Return what each row of a batch does, as the log has it; None where a plan has no operation column.

    :param row_text: names a row by its position in the batch, for errors.
    :raises InvalidRow: a word is unknown, or null.
    """
    if plan.operation is None:
        return None
    values = batch.column(plan.operation)
    words, operations = values.cast(pa.string()), pa.nulls(len(values), pa.string())
    for word, meaning in plan.operations.items():
        is_word = pc.fill_null(pc.equal(words, text(word)), FALSE)
        operations = pc.if_else(is_word, text(meaning), operations)
    if operations.null_count:
        bad = operations.is_null()
        row = pc.index(bad, TRUE).as_py()
        listed = ", ".join(f"{word!r} ({meaning})" for word, meaning in plan.operations.items())
        problem = f"is not an operation: {OPERATION_COLUMN} knows {listed}"
        raise InvalidRow(
            f"Column {plan.operation} ({shorten(as_python(values[row]))}) {problem}, in {row_text(row)}.",
            f"Correct or drop such rows, or add the word to {OPERATIONS}.",
            column=plan.operation,
            problem=f"Column {plan.operation} {problem}.",
            rows=bad,
        )
    return operations


def are_deletes(operations: pa.Array) -> pa.Array:
    """Return which rows are deletes.

    :param operations: as the log has them.
    """
    return pc.equal(operations, _DELETE)


def keys_of_deletes(
    batch: pa.RecordBatch, deletes: pa.Array, keys: Collection[str]
) -> pa.RecordBatch:
    """Return the batch with nulls for the values of deletes outside of the key.

    Nobody writes these values: no row is refused for one, and the log does not hold them.
    """
    if not pc.any(deletes).as_py():
        return batch
    columns = [
        column if name in keys else pc.if_else(deletes, null(column.type), column)
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def not_deleted(flags: pa.Array, deletes: pa.Array | None) -> pa.Array:
    """Return flags of rows, False for deletes; None: no row is a delete."""
    return flags if deletes is None else pc.if_else(deletes, FALSE, flags)


_DAYS = -719_162, 2_932_896
"""0001-01-01 and 9999-12-31, in days since 1970."""
_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_SHOWN = 3
"""Columns by which a row is named."""


def leaves(values: pa.Array) -> Iterator[pa.Array]:
    """Yield the values of a column, or of all parts inside of its values, without what lies in a null."""
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
    """Refuse texts that are not UTF-8, in columns, their structs, lists and maps.

    Arrow validates a whole column in some nanoseconds a row, with what lies in a null or outside of a slice.

    :raises InvalidRow: there is one; names the column, and flags its rows.
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
                "Mend it by make_valid_utf8(…), or write the bytes as binary: do not cast them to string.",
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


def beyond_python(column: pa.Array) -> pa.Array | None:
    """Return the rows with a date or an instant outside of the years 1 to 9999, as flags; None for none.

    Python has no object for it, and most databases and readers have no value.
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
    """Return which dates or instants are outside; False for a null.

    :param first: in days since 1970, as `last`.
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

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
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from wal_sink.errors import InvalidRow, SchemaMismatch
from wal_sink.model.plan import Operation, Plan, canonical, is_array, is_text
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
    data = value.encode()
    offsets = pa.py_buffer(struct.pack("=ii", 0, len(data)))
    return pa.Array.from_buffers(pa.string(), 1, [None, offsets, pa.py_buffer(data)])[0]


def null(type_: pa.DataType) -> pa.Scalar:
    """Return a null of a type."""
    return pa.nulls(1, type_)[0]


def blob(value: bytes) -> pa.Scalar:
    """Return a binary."""
    offsets = pa.py_buffer(struct.pack("=ii", 0, len(value)))
    return pa.Array.from_buffers(pa.binary(), 1, [None, offsets, pa.py_buffer(value)])[0]


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
"""Of a UUID written as text."""
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
"""Of a number written as text: Python parses an integer of at most 4,300 digits."""

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


class BadWord(NamedTuple):
    """The first row that is neither an upsert nor a delete."""

    row: int
    problem: str
    """Continues "Column c of t (value) …"."""
    remedy: str
    rows: pa.Array
    """All such rows, as flags."""


class ReadOperations(NamedTuple):
    """A parsed operation column."""

    operations: pa.Array
    """Strings, `upsert` or `delete`; null for a word that is not known."""
    bad: BadWord | None


def read_operations(words: pa.Array, known: Mapping[str, Operation]) -> ReadOperations:
    """Translate the words of a DataFrame's column.

    :param known: what each word means.
    """
    encoded = words.cast(pa.string()).dictionary_encode()
    meant = {word.encode(): meaning for word, meaning in known.items()}
    distinct = [meant.get(word) for word in encoded.dictionary.cast(pa.binary()).to_pylist()]
    texts = [null(pa.string()) if m is None else text(m) for m in distinct]
    operations = _array(texts).take(encoded.indices)
    if not operations.null_count:
        return ReadOperations(operations, None)
    row = pc.index(operations.is_null(), TRUE).as_py()
    listed = ", ".join(f"{word!r} ({meaning})" for word, meaning in known.items())
    return ReadOperations(
        operations,
        BadWord(
            row,
            f"is not an operation: {OPERATION_COLUMN} knows {listed}",
            f"Correct or drop such rows, or add the word to {OPERATIONS}.",
            operations.is_null(),
        ),
    )


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
    operations, bad = read_operations(values, plan.operations)
    if bad:
        raise InvalidRow(
            f"Column {plan.operation} ({shorten(as_python(values[bad.row]))}) {bad.problem}, in"
            f" {row_text(bad.row)}.",
            bad.remedy,
            column=plan.operation,
            problem=f"Column {plan.operation} {bad.problem}.",
            rows=bad.rows,
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
    positions: pa.Array | None = None
    columns = []
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if name not in keys and column.null_count < len(column):
            if positions is None:
                positions = _positions(deletes)
            column = column.take(positions)  # noqa: PLW2901 -- a null position makes a null of any type
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _positions(deletes: pa.Array) -> pa.Array:
    """Return each row's own position, null for a delete."""
    ends = pc.cumulative_sum(pc.is_valid(deletes).cast(pa.int64()))
    own = pc.subtract(ends, int64(1))
    return pc.if_else(deletes, null(pa.int64()), own)


def _array(scalars: list[pa.Scalar]) -> pa.Array:
    """Return strings in one array."""
    if not scalars:
        return pa.nulls(0, pa.string())
    return pa.concat_arrays([pa.repeat(scalar, 1) for scalar in scalars])


def not_deleted(flags: pa.Array, deletes: pa.Array | None) -> pa.Array:
    """Return flags of rows, False for deletes; None: no row is a delete."""
    return flags if deletes is None else pc.if_else(deletes, FALSE, flags)


_DAYS = -719_162, 2_932_896
"""0001-01-01 and 9999-12-31, in days since 1970."""
_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_SHOWN = 3
"""Columns by which a row is named."""


class _Part(NamedTuple):
    """The values of a column, or of one field inside of its values."""

    path: str
    values: pa.Array
    """Flat; null where the column, or anything between, is null."""
    rows: pa.Array
    """The row of each value."""


def refuse_invalid_utf8(batch: pa.RecordBatch) -> None:
    """Refuse texts that are not UTF-8, in columns, their structs, lists and maps.

    Arrow validates a whole column in some nanoseconds a row; it goes on by value where that fails.

    :raises InvalidRow: there is one; names the column, and flags its rows.
    """
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if not _has(column.type, is_text):
            continue
        try:
            column.validate(full=True)
        except pa.ArrowInvalid:
            # What lies under a null, or outside of a slice, is validated too: there may be none.
            for part in _parts(name, column, is_text):
                _refuse_part(batch, part)


def beyond_python(column: pa.Array) -> pa.Array | None:
    """Return the rows with a date or an instant outside of the years 1 to 9999, as flags; None for none.

    Python has no object for it, and most databases and readers have no value.
    """
    if not _has(column.type, _is_date):
        return None
    bad_rows = [
        part.rows.filter(out)
        for part in _parts("", column, _is_date)
        if pc.any(out := outside(part.values, *_DAYS)).as_py()
    ]
    return _flags(len(column), pa.concat_arrays(bad_rows)) if bad_rows else None


def _refuse_part(batch: pa.RecordBatch, part: _Part) -> None:
    encoded = part.values.cast(pa.large_binary()).to_pylist()
    bad = [i for i, value in enumerate(encoded) if not _decodes(value)]
    if not bad:
        return
    rows = part.rows.take(pa.array(bad, pa.int64()))
    row = rows[0].as_py()
    shown = ", ".join(
        f"{name}={shorten(as_python(batch.column(name)[row]))}"
        for name in batch.schema.names[:_SHOWN]
    )
    raise InvalidRow(
        f"Column {part.path} ({shorten(encoded[bad[0]])}) is not UTF-8, in the row with {shown}.",
        "Mend it by make_valid_utf8(…), or write the bytes as binary: do not cast them to string.",
        column=part.path,
        problem=f"Column {part.path} is not UTF-8.",
        rows=_flags(batch.num_rows, rows),
    )


def _decodes(encoded: bytes | None) -> bool:
    try:
        str(encoded or b"", "utf-8")
    except UnicodeDecodeError:
        return False
    return True


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


def _flags(number: int, rows: pa.Array) -> pa.Array:
    return pc.is_in(pa.array(range(number), pa.int64()), value_set=rows)


def _parts(
    path: str, values: pa.Array, wanted: Callable[[pa.DataType], bool], rows: pa.Array | None = None
) -> Iterator[_Part]:
    """Yield the parts of a column whose types are wanted."""
    if rows is None:
        rows = pa.array(range(len(values)), pa.int64())
    type_ = values.type
    if pt.is_dictionary(type_):
        values, type_ = values.cast(type_.value_type), type_.value_type
    if wanted(type_):
        yield _Part(path, values, rows)
    elif pt.is_struct(type_):
        for i, part in enumerate(values.flatten()):
            yield from _parts(f"{path}.{type_.field(i).name}", part, wanted, rows)
    elif pt.is_map(type_) or hasattr(type_, "value_type"):
        valid = values.is_valid()
        values, rows = values.filter(valid), rows.filter(valid)
        if pt.is_map(type_):
            values = values.cast(pa.list_(pa.struct([*type_.field(0).type])))
        rows = rows.take(pc.list_parent_indices(values))
        inner = values.flatten()
        if pt.is_map(type_):
            for name, part in zip(("key", "value"), inner.flatten(), strict=True):
                yield from _parts(f"{path}.{name}", part, wanted, rows)
        else:
            yield from _parts(f"{path}.element", inner, wanted, rows)


def _has(type_: pa.DataType, wanted: Callable[[pa.DataType], bool]) -> bool:
    """Return True if a type, or one inside of it, is wanted."""
    if pt.is_dictionary(type_):
        return _has(type_.value_type, wanted)
    inner = (type_.field(i).type for i in range(type_.num_fields))
    return wanted(type_) or any(_has(part, wanted) for part in inner)


def _is_date(type_: pa.DataType) -> bool:
    return bool(pt.is_date(type_) or pt.is_timestamp(type_))

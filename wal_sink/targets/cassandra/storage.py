"""What the log holds for each CQL type: vectorised casts, done in the tasks; pyarrow only.

CQL type    in the log
==========  ====================================================
text        string
boolean     bool
int         int32
bigint      int64
double      double
decimal     decimal128 or decimal256 as it came
timestamp   int64, milliseconds since 1970 in UTC, floored
date        date32
uuid        fixed_size_binary[16]
blob        binary
==========  ====================================================
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from wal_sink.targets.cassandra import constants

UUID_PATTERN = r"\A[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}\z"
_UUID = pa.binary(16)
_NO_UUID = constants.text("00000000-0000-0000-0000-000000000000")
_THOUSAND = constants.long(1_000)
_NOTHING = constants.long(0)


def as_is(column: pa.Array) -> pa.Array:
    """Return the column, decoded when it is a dictionary."""
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def as_text(column: pa.Array) -> pa.Array:
    """Cast any layout of strings."""
    return column.cast(pa.string())


def as_blob(column: pa.Array) -> pa.Array:
    """Cast any layout of bytes."""
    return column.cast(pa.binary())


def as_int(column: pa.Array) -> pa.Array:
    """Widen integers to 32 bits."""
    return column.cast(pa.int32())


def as_bigint(column: pa.Array) -> pa.Array:
    """Widen integers to 64 bits."""
    return column.cast(pa.int64())


def as_double(column: pa.Array) -> pa.Array:
    """Widen floats to 64 bits."""
    return column.cast(pa.float64())


def as_decimal(column: pa.Array) -> pa.Array:
    """Make decimals of scale 0 of integers; decimals stay as they are."""
    column = as_is(column)
    if pa.types.is_integer(column.type):
        return column.cast(pa.int64()).cast(pa.decimal128(19, 0))
    return column


def as_milliseconds(column: pa.Array) -> pa.Array:
    """Floor an instant in microseconds to milliseconds since 1970, before 1970 too."""
    micros = as_is(column).cast(pa.int64())
    truncated = pc.divide(micros, _THOUSAND)  # towards zero
    below = pc.less(micros, pc.multiply(truncated, _THOUSAND)).cast(pa.int64())
    return pc.subtract(truncated, below)


def as_uuid(column: pa.Array) -> pa.Array:
    """Parse strings that match `UUID_PATTERN`; nulls stay null."""
    texts = as_text(column)
    digits = pc.replace_substring(texts.fill_null(_NO_UUID), "-", "")  # 32 of each, no gaps
    _, offsets, characters = digits.buffers()
    begin = memoryview(offsets).cast("i")[digits.offset] if len(digits) else 0
    whole = memoryview(characters or b"")[begin : begin + 32 * len(digits)]
    packed = pa.py_buffer(bytes.fromhex(str(whole, "ascii")))
    uuids = pa.Array.from_buffers(_UUID, len(digits), [None, packed])
    return pc.if_else(texts.is_valid(), uuids, constants.null(_UUID))


def sub_milliseconds(column: pa.Array) -> pa.Array:
    """Which instants have digits that milliseconds cannot hold."""
    micros = as_is(column).cast(pa.int64())
    return pc.not_equal(pc.multiply(pc.divide(micros, _THOUSAND), _THOUSAND), micros)


def sizes(stored: pa.Array) -> pa.Array:
    """Bytes that each value takes on the wire, as int64; 0 for null, an upper bound for decimals."""
    if pa.types.is_string(stored.type) or pa.types.is_binary(stored.type):
        return pc.binary_length(stored).cast(pa.int64()).fill_null(_NOTHING)
    if pa.types.is_decimal(stored.type):
        width = 4 + stored.type.bit_width // 8 + 1  # scale, then the unscaled number
    else:
        width = max(stored.type.bit_width // 8, 1)
    return pc.if_else(stored.is_valid(), constants.long(width), _NOTHING)

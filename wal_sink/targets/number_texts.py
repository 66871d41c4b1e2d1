"""Numbers and UUIDs (RFC 9562), written as texts: patterns that match them, and conversions. No I/O."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from wal_sink.targets.arrow_values import null, string

_HEX = "[0-9a-fA-F]"

UUID_PATTERN = rf"\A{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}\z"
"""Matches a UUID, written as text."""

_VERSION_1_PATTERN = rf"\A{_HEX}{{8}}-{_HEX}{{4}}-1{_HEX}{{3}}-{_HEX}{{4}}-{_HEX}{{12}}\z"

_UUID_BYTES = r"(?s)\A.{16}\z"

_VERSION_1_BYTES = r"(?s)\A.{6}[\x10-\x1f].{9}\z"
"""Matches the bytes of a UUID of version 1. The upper half of the seventh byte is the version."""

_UUID = pa.binary(16)

_NO_UUID = string("00000000-0000-0000-0000-000000000000")


def are_no_uuids(column: pa.Array) -> pa.Array:
    """Flag the texts or bytes that are not UUIDs. The flag of a null is null."""
    return _unlike(column, UUID_PATTERN, _UUID_BYTES)


def are_no_version_1_uuids(column: pa.Array) -> pa.Array:
    """Flag the texts or bytes that are not UUIDs of version 1. The flag of a null is null."""
    return _unlike(column, _VERSION_1_PATTERN, _VERSION_1_BYTES)


def as_uuid(column: pa.Array) -> pa.Array:
    """Convert UUIDs, as texts or bytes, to 16 bytes. Nulls stay null.

    :param column: a column of which `are_no_uuids` flags no value.
    """
    if _in_bytes(column):
        return column.cast(pa.binary()).cast(_UUID)
    texts = column.cast(pa.string())
    digits = pc.replace_substring(texts.fill_null(_NO_UUID), "-", "")  # 32 for each value
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
"""The most characters of a number that is written as text. Python parses at most 4,300 digits."""

WHOLE = r"\A[+-]?[0-9]+\z"
"""Matches a whole number."""

DECIMAL = r"\A[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,4})?\z"
"""Matches a number with or without a fraction, and with or without an exponent."""

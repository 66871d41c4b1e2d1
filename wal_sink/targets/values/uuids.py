"""UUIDs (RFC 9562), in texts and as their 16 bytes."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from wal_sink.targets.values import literals

_HEX = "[0-9a-fA-F]"
PATTERN = rf"\A{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}\z"
"""What a text has to match."""
_PATTERN_1 = rf"\A{_HEX}{{8}}-{_HEX}{{4}}-1{_HEX}{{3}}-{_HEX}{{4}}-{_HEX}{{12}}\z"
_BYTES = r"(?s)\A.{16}\z"
_BYTES_1 = r"(?s)\A.{6}[\x10-\x1f].{9}\z"
"""The upper half of the seventh byte is the version."""

_UUID = pa.binary(16)
_NO_UUID = literals.text("00000000-0000-0000-0000-000000000000")


def are_none(column: pa.Array) -> pa.Array:
    """Return which texts or bytes are no uuids; null for nulls."""
    return _unlike(column, PATTERN, _BYTES)


def are_not_of_version_1(column: pa.Array) -> pa.Array:
    """Return which are no uuids of version 1, that of a time and a node; null for nulls."""
    return _unlike(column, _PATTERN_1, _BYTES_1)


def as_uuid(column: pa.Array) -> pa.Array:
    """Parse texts, and take bytes as they are, none of which `are_none`; nulls stay null."""
    if _in_bytes(column):
        return column.cast(pa.binary()).cast(_UUID)
    texts = column.cast(pa.string())
    digits = pc.replace_substring(texts.fill_null(_NO_UUID), "-", "")  # 32 of each, no gaps
    _, offsets, characters = digits.buffers()
    begin = memoryview(offsets).cast("i")[digits.offset] if len(digits) else 0
    whole = memoryview(characters or b"")[begin : begin + 32 * len(digits)]
    packed = pa.py_buffer(bytes.fromhex(str(whole, "ascii")))
    uuids = pa.Array.from_buffers(_UUID, len(digits), [None, packed])
    return pc.if_else(texts.is_valid(), uuids, literals.null(_UUID))


def _unlike(column: pa.Array, text: str, in_bytes: str) -> pa.Array:
    if _in_bytes(column):
        found = pc.match_substring_regex(column.cast(pa.binary()), in_bytes)  # byte by byte
    else:
        found = pc.match_substring_regex(column.cast(pa.string()), text)
    return pc.invert(found)


def _in_bytes(column: pa.Array) -> bool:
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    is_bytes = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view)
    return any(each(kind) for each in is_bytes)

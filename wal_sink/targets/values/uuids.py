"""UUIDs in texts, and as their 16 bytes."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from wal_sink.targets.values import literals

_HEX = "[0-9a-fA-F]"
PATTERN = rf"\A{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}\z"
"""What a text has to match."""

_UUID = pa.binary(16)
_NO_UUID = literals.text("00000000-0000-0000-0000-000000000000")


def as_uuid(column: pa.Array) -> pa.Array:
    """Parse strings that match `PATTERN`; nulls stay null."""
    texts = column.cast(pa.string())
    digits = pc.replace_substring(texts.fill_null(_NO_UUID), "-", "")  # 32 of each, no gaps
    _, offsets, characters = digits.buffers()
    begin = memoryview(offsets).cast("i")[digits.offset] if len(digits) else 0
    whole = memoryview(characters or b"")[begin : begin + 32 * len(digits)]
    packed = pa.py_buffer(bytes.fromhex(str(whole, "ascii")))
    uuids = pa.Array.from_buffers(_UUID, len(digits), [None, packed])
    return pc.if_else(texts.is_valid(), uuids, literals.null(_UUID))

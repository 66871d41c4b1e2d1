"""A value of a row as text that can be printed anywhere. No I/O."""

from __future__ import annotations

import uuid

import pyarrow as pa

from wal_sink.progress.printable import printable

_UUID = pa.binary(16)
_MOST = 80
"""Characters after which a value is cut."""


def value_text(value: pa.Scalar) -> str | None:
    """Return a value as text; None for null.

    What a terminal would act on is escaped; bytes are in hexadecimal, but of a type with 16 for each value
    they are a uuid; what is long is cut, with `…` at its end.
    """
    if not value.is_valid:
        return None
    try:
        found = value.as_py()
    except (ValueError, OverflowError):  # a date or time that Python has not
        return _of_arrow(value)
    if value.type == _UUID:
        return str(uuid.UUID(bytes=found))
    if isinstance(found, bytes):
        text = "0x" + found[:_MOST].hex()
        return _cut(text)
    return printable(_cut(str(found)))


def _of_arrow(value: pa.Scalar) -> str:
    try:
        return str(value.cast(pa.string()).as_py())
    except pa.ArrowException:  # it is inside of a list or a struct
        return f"(a {value.type} that cannot be shown)"


def _cut(text: str) -> str:
    return text if len(text) <= _MOST else text[: _MOST - 1] + "…"

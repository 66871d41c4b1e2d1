"""A value of a row as JSON has it, whole: for files that programs read. No I/O."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.types as pt


def json_value(value: pa.Scalar) -> Any:
    r"""Return what `msgspec.json.encode` writes of a value; None for null.

    Bytes become base64 and decimals texts. A text that is not UTF-8 keeps its bytes, as `\xff`; a date that
    Python has not is the text that Arrow makes of it. A map is a list of pairs, as its keys may be of any
    type.
    """
    if not value.is_valid:
        return None
    kind = value.type
    if pt.is_struct(kind):
        return {field.name: json_value(value[field.name]) for field in kind}
    if pt.is_map(kind):
        return [[json_value(entry["key"]), json_value(entry["value"])] for entry in value.values]
    if pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind):
        return [json_value(each) for each in value.values]
    return _of_scalar(value)


def _of_scalar(value: pa.Scalar) -> Any:
    if pt.is_string(value.type) or pt.is_large_string(value.type):
        return bytes(value.as_buffer()).decode("utf-8", errors="backslashreplace")
    try:
        return value.as_py()
    except (ValueError, OverflowError):  # a date or time that Python has not
        return str(value.cast(pa.string()).as_py())

"""Values and rows as errors show them: short, and nothing but the key of a row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from wal_sink.model.plan import Plan


def row_text(batch: pa.RecordBatch, plan: Plan, row: int) -> str:
    """Name a row by its key."""
    return key_text(plan, [plain(values[row]) for values in batch.columns])


def key_text(plan: Plan, values: Sequence[Any]) -> str:
    """Name a row by its key, from its values in the order of the plan's columns."""
    key = ", ".join(
        f"{column.name}={shorten(value)}"
        for column, value in zip(plan.columns, values, strict=True)
        if column.role in ("partition", "clustering")
    )
    return f"the row with {key}"


def plain(value: pa.Scalar) -> Any:
    """Return a value as a Python object; one that Python cannot hold as bytes or as a count of units."""
    try:
        return value.as_py()
    except (ValueError, OverflowError) as error:
        if value.type.num_fields:
            return str(value.type)
        kind = pa.binary() if isinstance(error, UnicodeDecodeError) else pa.int64()
        return value.cast(kind).as_py()


def shorten(value: Any, limit: int = 60) -> str:
    """Print a value in about `limit` characters at most."""
    cut = value[:limit] if isinstance(value, str | bytes) else value
    text = repr(cut)
    if isinstance(value, str | bytes) and len(value) > limit:
        return f"{text}… of {len(value):,}"
    return text if len(text) <= limit else text[:limit] + "…"

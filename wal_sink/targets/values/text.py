"""Values and columns as errors show them: short."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from wal_sink.errors import SchemaMismatch
from wal_sink.model.plan import Plan


def plain(value: pa.Scalar) -> Any:
    """Return a value as a Python object; one that Python cannot hold as bytes or as a count of units."""
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
    cut = value[:limit] if isinstance(value, str | bytes) else value
    text = repr(cut)
    if isinstance(value, str | bytes) and len(value) > limit:
        return f"{text}… of {len(value):,}"
    return text if len(text) <= limit else text[:limit] + "…"


def other_columns(plan: Plan, found: Iterable[tuple[str, str]]) -> SchemaMismatch:
    """Return the error for a batch that a plan was not made for.

    :param found: names and types of the batch's columns.
    """
    planned = ((column.name, column.source) for column in plan.columns)
    return SchemaMismatch(
        f"A batch for {plan.table} has the columns {_listed(found)}; the plan {plan.key} was made for"
        f" {_listed(planned)}.",
        "Start the query again, so that a plan is made for this DataFrame.",
    )


def _listed(columns: Iterable[tuple[str, str]]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in columns)

"""Rows as errors show them: nothing but the key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from wal_sink.model.plan import Plan
from wal_sink.targets.values.text import plain, shorten


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

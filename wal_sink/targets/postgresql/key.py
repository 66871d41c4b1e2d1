"""The columns of a plan by which an upsert finds the row to replace."""

from __future__ import annotations

import json
from collections.abc import Sequence

from wal_sink.model.plan import Plan

DETAIL = "key"
"""The detail of a plan that holds them, as a JSON array."""


def key_of(plan: Plan) -> tuple[str, ...]:
    """Return the key's columns; none where each row is added."""
    return tuple(json.loads(plan.details.get(DETAIL, "[]")))


def key_text(columns: Sequence[str]) -> str:
    """Return what a plan holds of them."""
    return json.dumps(list(columns))

"""The clustering columns in the table's order: by a prefix of them a delete takes a range of rows."""

from __future__ import annotations

import json
from collections.abc import Sequence

from wal_sink.model.plan import Plan

DETAIL = "clustering"
"""Under which name the details of a plan with deletes have them, as a JSON array."""


def clustering_details(names: Sequence[str]) -> dict[str, str]:
    """Return what a plan's details have of them.

    :param names: as the DataFrame calls them, in the table's order, which is not the DataFrame's.
    """
    return {DETAIL: json.dumps(list(names))}


def clustering_of(plan: Plan) -> tuple[str, ...]:
    """Return the names, in the table's order; only for a plan with an operation column."""
    return tuple(json.loads(plan.details[DETAIL]))

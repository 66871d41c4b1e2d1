"""By which statement rows are written: the option, and what the plan has of it. Pure."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Literal

from msgspec import Meta

from wal_sink.model.plan import Plan

OPTION = "cassandra.writeMode"

WriteMode = Annotated[
    Literal["insert", "update"],
    Meta(
        description="insert: a row without values exists, too; update: a row exists as long as one of its"
        " values does"
    ),
]

_DETAIL = "write"
"""Under which name a plan's details have it; a plan for inserts has none."""


def mode_beside(mode: str, changes: Collection[str]) -> str:
    """Return how rows are written whose collections are changed: an INSERT only writes them whole.

    :param changes: the columns of collections that are added to, or taken from.
    """
    return "update" if changes else mode


def mode_shape(mode: str) -> dict[str, str]:
    """Return what a target's shape has of the option: nothing for its default."""
    return {OPTION: mode} if mode == "update" else {}


def mode_details(mode: str) -> dict[str, str]:
    """Return what a plan's details have of the option."""
    return {_DETAIL: mode} if mode == "update" else {}


def updates(plan: Plan) -> bool:
    """Whether rows are written by UPDATE."""
    return plan.details.get(_DETAIL) == "update"


def static_alone(plan: Plan) -> bool:
    """Whether rows are partitions: their static columns are written, and no clustering column is known."""
    return updates(plan) and not any(column.role == "clustering" for column in plan.columns)

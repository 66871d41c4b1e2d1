"""Rows that are written where there is none of their key yet: the option, and what plans have of it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from msgspec import Meta

from wal_sink.model.plan import ABSENT, Plan
from wal_sink.targets.cassandra.types.beside import refuse_beside

OPTION = "cassandra.ifNotExists"

IfNotExists = Annotated[
    bool,
    Meta(
        description="true: a row is written where there is none of its key yet, by a round of Paxos for each;"
        " false: of the rows of a key the newest one stays"
    ),
]

_BY_ITSELF = "Leave out one of the two; or write such rows by a query of their own"
_BESIDE = {
    "cassandra.timestampColumn": "Cassandra itself dates an insert that has a condition, so no event can"
    f" decide. {_BY_ITSELF}",
    "operationColumn": "a repeated insert would bring back what a delete behind it has deleted."
    f" {_BY_ITSELF}",
    "cassandra.writeMode": f"an UPDATE has no such condition. {_BY_ITSELF}",
    "cassandra.collections.<column>": f"elements are changed by UPDATE. {_BY_ITSELF}",
    "cassandra.addColumns": f"totals are written over and over. {_BY_ITSELF}",
}
"""Options that contradict it: why, and what to do."""


def refuse_contradictions(if_not_exists: bool, given: Mapping[str, object]) -> None:
    """Refuse options that contradict the condition.

    :param if_not_exists: the value of the option.
    :param given: values of other options by their names; those that are empty or the default are not given.
    :raises OptionError: one of them is given.
    """
    if if_not_exists:
        refuse_beside(OPTION, _BESIDE, given)


def absent_shape(if_not_exists: bool) -> dict[str, str]:
    """Return what a target's shape has of the option: nothing for its default."""
    return {OPTION: "true"} if if_not_exists else {}


def absent_details(if_not_exists: bool) -> dict[str, str]:
    """Return what a plan's details have of the option."""
    return {ABSENT: "true"} if if_not_exists else {}


def only_absent(plan: Plan) -> bool:
    """Whether a row is written only where there is none of its key."""
    return ABSENT in plan.details

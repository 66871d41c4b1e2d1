"""What is said of totals: by the options, and in the plan. Pure.

An **added** column holds a total. What a row has in it is added to what the table holds, and `ADDED_COLUMN`
says, in the same row of the table, up to which row of which query that was done (rule 27).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec
from msgspec import Meta

from wal_sink.errors import OptionError
from wal_sink.model.plan import Column, Plan
from wal_sink.targets.cassandra.types.absent import only_absent
from wal_sink.targets.cassandra.types.beside import refuse_beside

OPTION = "cassandra.addColumns"
AFTER = "cassandra.addColumnsAfter"

ADDED_COLUMN = "wal_sink_added"
"""The column of the table that says, of each row, what is in its totals."""

AddColumns = Annotated[
    str,
    Meta(
        description="columns, comma-separated, whose values are added to what the table holds, which has a"
        f" column {ADDED_COLUMN} text for it"
    ),
]
AddColumnsAfter = Annotated[
    str,
    Meta(
        description="ids of queries, comma-separated, that have added to the table before, and never will"
        " again"
    ),
]

READ_LEVELS: Mapping[str, str] = {
    "QUORUM": "QUORUM",
    "LOCAL_QUORUM": "LOCAL_QUORUM",
    "EACH_QUORUM": "LOCAL_QUORUM",
    "ALL": "QUORUM",
}
"""At which level totals are read, by the level of writes: so that a read sees every acknowledged write."""

_DETAIL = "added"
"""Under which name a plan's details have the columns, as a JSON list."""
_BESIDE = {
    "operationColumn": "a delete takes what was added along, and which row was the last: a flush that is"
    " repeated would add again what lies before it. Set a total to null by a query of its own",
    "tables": "each row has one total to be added to. Write each table by a query of its own, or make them"
    " several targets: docs/targets.md",
    "cassandra.ttl": "a total that expires forgets what was added. Leave out the life",
    "cassandra.ttlColumn": "a total that expires forgets what was added. Leave out the life",
    "cassandra.expiresAtColumn": "a total that expires forgets what was added. Leave out the life",
    "cassandra.timestampColumn": "totals are added in the order of the rows, whenever their events were."
    " Leave out the event time",
    "cassandra.writeMode": "totals are written by INSERT. Leave out update",
    "cassandra.collections.<column>": "of several rows of a key the newest one's elements would be written"
    " alone. Write sets and maps by a query of their own, or whole",
}
"""Options that contradict totals: why, and what to do."""


def names(text: str) -> tuple[str, ...]:
    """Return the names in a comma-separated text."""
    return tuple(name for part in text.split(",") if (name := part.strip()))


def refuse_contradictions(text: str, given: Mapping[str, object]) -> None:
    """Refuse options that contradict totals.

    :param text: the value of the option.
    :param given: values of other options by their names; those that are empty or the default are not given.
    :raises OptionError: one of them is given, or a column is named twice.
    """
    if len(set(names(text))) < len(names(text)):
        raise OptionError(f"Option {OPTION} names a column twice: {text}.", "Name each one once.")
    if names(text):
        refuse_beside(OPTION, _BESIDE, given)


def read_level(level: str) -> str:
    """Return at which consistency level totals are read.

    :param level: of writes.
    :raises OptionError: no read is certain to see what was written at it.
    """
    if level not in READ_LEVELS:
        raise OptionError(
            f"Option cassandra.consistencyLevel is {level}: a total is read before it is written, and this"
            " level does not promise that the read sees what was written last.",
            f"With {OPTION} use {' or '.join(READ_LEVELS)}.",
        )
    return READ_LEVELS[level]


def totals_shape(text: str) -> dict[str, str]:
    """Return what a target's shape has of the option; nothing where it is not given."""
    return {OPTION: ",".join(names(text))} if names(text) else {}


def totals_details(text: str) -> dict[str, str]:
    """Return what a plan's details have of the option; nothing where it is not given."""
    return {_DETAIL: msgspec.json.encode(names(text)).decode()} if names(text) else {}


def as_planned(plan: Plan) -> Plan:
    """Return a plan as it is kept: one session writes the rows where their order decides.

    Totals are added in it, and of rows that are written where there is none the first one stays.
    """
    return plan.of_one_session() if added_columns(plan) or only_absent(plan) else plan


def totals_described(text: str) -> dict[str, str]:
    """Return what is logged of them when a query starts: a text by its heading."""
    if not names(text):
        return {}
    return {"totals": f"{', '.join(names(text))} are added to what the table holds ({OPTION})"}


def added_columns(plan: Plan) -> tuple[str, ...]:
    """Return the names of the columns, in the DataFrame, whose values are added; empty for none."""
    text = plan.details.get(_DETAIL)
    return msgspec.json.decode(text, type=tuple[str, ...]) if text else ()


def with_added(plan: Plan) -> Plan:
    """Return the plan by which totals are written: with the column that says what is in them."""
    column = Column(name=ADDED_COLUMN, source="string", type="text", role="regular")
    return msgspec.structs.replace(plan, columns=(*plan.columns, column))

"""How sets and maps are written, by column: whole, added to, or taken from: the options, and the plan. Pure.

To add an element writes its cell, to take one out deletes its cell, each with the row's timestamp: either may
be repeated, and changes nothing when it comes late.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Annotated, Literal, get_args

import msgspec
from msgspec import Meta

from wal_sink.errors import OptionError
from wal_sink.model.plan import Column, Plan
from wal_sink.options import COLUMN, of_column

OPTION = f"cassandra.collections.{COLUMN}"

Change = Literal["add", "remove"]
"""What is done to a collection that is not written whole."""

_WHOLE = "overwrite"
_WORDS = (_WHOLE, *get_args(Change))

CollectionModes = Annotated[
    dict[str, str],
    Meta(
        description="of a set or a map that is not frozen: overwrite, it is written whole; add, elements are"
        " added to what the row has; remove, they are taken out, those of a map by an array of keys"
    ),
]

_DETAIL = "collections"
"""Under which name a plan's details have the changes by column, as a JSON object; others have none."""


def option_of(column: str) -> str:
    """Return the name of the option for a column."""
    return of_column(OPTION, column)


def read_modes(given: Mapping[str, str]) -> Mapping[str, Change]:
    """Return what is done to collections that are not written whole, by column in lower case.

    :raises OptionError: a word is unknown.
    """
    words = {column: word.strip().lower() for column, word in given.items()}
    for column, word in words.items():
        if word not in _WORDS:
            raise OptionError(
                f"Option {option_of(column)} is {given[column]}.",
                f"Write one of {', '.join(_WORDS)}: the column is written whole, its elements are added to"
                " what the row has, or taken out.",
            )
    return {c: msgspec.convert(word, Change) for c, word in words.items() if word != _WHOLE}


def changes_of(modes: Mapping[str, Change], columns: Iterable[str]) -> dict[str, Change]:
    """Return what is done to columns, by their names as the DataFrame has them.

    :param modes: as `read_modes` returns them.
    """
    return {name: modes[name.lower()] for name in columns if name.lower() in modes}


def modes_shape(modes: Mapping[str, Change]) -> dict[str, str]:
    """Return what a target's shape has of the options: nothing where collections are written whole."""
    return {option_of(column): modes[column] for column in sorted(modes)}


def changes_details(changes: Mapping[str, Change]) -> dict[str, str]:
    """Return what a plan's details have of the changes, by the DataFrame's names of the columns."""
    return {_DETAIL: msgspec.json.encode(changes).decode()} if changes else {}


def planned_changes(plan: Plan) -> Mapping[str, Change]:
    """Return what is done to a plan's collections that are not written whole, by column."""
    return _read(plan.details.get(_DETAIL, "{}"))


def taking_out(plan: Plan) -> Plan:
    """Return the plan with elements taken out where it has them added: those of rows whose life is over."""
    changes: dict[str, Change] = dict.fromkeys(planned_changes(plan), "remove")
    return msgspec.structs.replace(plan, details=plan.details | changes_details(changes))


def with_values(columns: Sequence[Column], changes: Mapping[str, Change]) -> list[Column]:
    """Return the columns into which values are written, not only taken out of."""
    return [column for column in columns if changes.get(column.name) != "remove"]


@lru_cache(maxsize=64)
def _read(text: str) -> Mapping[str, Change]:
    return msgspec.json.decode(text, type=dict[str, Change])


_read("{}")  # so that one thread learns the type, see `model.codec.learn`

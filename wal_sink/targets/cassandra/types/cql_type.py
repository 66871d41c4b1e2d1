"""CQL types as trees, parsed from the text that `system_schema` has."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import msgspec

from wal_sink.model.plan import Plan
from wal_sink.targets.cassandra.types.collection_mode import Change, planned_changes
from wal_sink.targets.cassandra.types.mapping import NESTED, TYPES

UserTypes = Mapping[str, Sequence[tuple[str, str]]]
"""User-defined types by name: the names and types of their fields, in order."""

_WORD = re.compile(r'\s*("(?:[^"]|"")*"|[^<>,"\s]+)\s*(?:<(.+)>)?\s*', re.DOTALL)
_PART = re.compile(r'"(?:[^"]|"")*"|[<>,]')


class CqlType(NamedTuple):
    """A CQL type, and the types of its parts."""

    kind: str
    """A name in `TYPES` or `NESTED`; any other cannot be written."""
    label: str
    """As the server prints it."""
    frozen: bool
    """Whether it is written as one value; all that is inside of another type is."""
    parts: tuple[CqlType, ...] = ()
    """The types of the element, of key and value, or of the fields."""
    name: str = ""
    """Name of a user-defined type, unquoted."""
    fields: tuple[str, ...] = ()
    """Names of its fields, unquoted."""
    length: int = 0
    """Number of elements of a vector."""


def parse(text: str, types: UserTypes, *, frozen: bool = False) -> CqlType:
    """Parse a type; one that is not understood gets its text as its kind."""
    unknown = CqlType(kind=text, label=text, frozen=frozen)
    match = _WORD.fullmatch(text)
    if match is None:
        return unknown
    word, inside = match[1], match[2]
    if inside is None:
        return _named(word, types, unknown)
    if word == "frozen":
        return parse(inside, types, frozen=True)._replace(label=text)
    return _with_parts(word, _split(inside), types, unknown)


def _with_parts(word: str, arguments: list[str], types: UserTypes, unknown: CqlType) -> CqlType:
    length = 0
    if word == "vector" and len(arguments) == 2 and arguments[1].isdecimal():
        length = int(arguments.pop())
    counts = {"list": 1, "set": 1, "map": 2, "tuple": len(arguments), "vector": 1 if length else 0}
    if counts.get(word) != len(arguments):
        return unknown
    parts = tuple(parse(each, types, frozen=True) for each in arguments)
    frozen = unknown.frozen or word in ("tuple", "vector")
    return unknown._replace(kind=word, frozen=frozen, parts=parts, length=length)


def _named(word: str, types: UserTypes, unknown: CqlType) -> CqlType:
    name = word[1:-1].replace('""', '"') if word.startswith('"') else word
    if word in TYPES:
        return unknown._replace(kind=word)
    if name not in types or word in NESTED:
        return unknown
    return unknown._replace(
        kind="udt",
        name=name,
        parts=tuple(parse(cql, types, frozen=True) for _, cql in types[name]),
        fields=tuple(field for field, _ in types[name]),
    )


def _split(inside: str) -> list[str]:
    """Split at the commas outside of brackets and quoted names."""
    depth, begin, arguments = 0, 0, []
    for match in _PART.finditer(inside):
        if match[0] == "," and depth == 0:
            arguments.append(inside[begin : match.start()].strip())
            begin = match.end()
        depth += {"<": 1, ">": -1}.get(match[0], 0)
    return [*arguments, inside[begin:].strip()]


def user_type_names(tree: CqlType) -> Iterator[str]:
    """Yield the name of each user-defined type in a tree, as often as it is there."""
    if tree.kind == "udt":
        yield tree.name
    for part in tree.parts:
        yield from user_type_names(part)


def has_lists(plan: Plan) -> bool:
    """Whether a column is a list that is not frozen: the server gives each write elements of its own."""
    return any(tree.kind == "list" and not tree.frozen for tree in column_types(plan))


def user_types_text(types: UserTypes) -> str:
    """Return the JSON of user-defined types for a plan's details."""
    return msgspec.json.encode(types).decode()


def planned_user_types(plan: Plan) -> UserTypes:
    """Return the user-defined types that a plan was made for."""
    return _read(plan.details.get("types", "{}"))


def column_types(plan: Plan) -> tuple[CqlType, ...]:
    """Return the types of the values that a plan's columns take, in order."""
    types, changes = plan.details.get("types", "{}"), planned_changes(plan)
    return tuple(_planned(each.type, types, changes.get(each.name)) for each in plan.columns)


def taken(tree: CqlType, change: Change | None) -> CqlType:
    """Return the type of the values that a statement takes of a column: to take entries out, of their keys.

    :param change: what is done to the column; None: it is written whole.
    """
    if change != "remove" or tree.kind != "map":
        return tree
    label = f"set<{tree.parts[0].label}> of the keys of {tree.label}"
    return CqlType("set", label, frozen=False, parts=tree.parts[:1])


@lru_cache(maxsize=1024)
def _planned(text: str, types: str, change: Change | None) -> CqlType:
    return taken(parse(text, _read(types)), change)


@lru_cache(maxsize=64)
def _read(types: str) -> UserTypes:
    return msgspec.json.decode(types, type=dict[str, tuple[tuple[str, str], ...]])

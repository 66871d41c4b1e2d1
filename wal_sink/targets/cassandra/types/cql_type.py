"""A CQL type as a tree, read from the way `system_schema` prints it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import msgspec

from wal_sink.model.plan import Plan
from wal_sink.targets.cassandra.types.mapping import NESTED, TYPES

Types = Mapping[str, Sequence[tuple[str, str]]]
"""User-defined types: by name, the names and types of the fields in their order."""

_WORD = re.compile(r'\s*("(?:[^"]|"")*"|[^<>,"\s]+)\s*(?:<(.+)>)?\s*', re.DOTALL)
_PART = re.compile(r'"(?:[^"]|"")*"|[<>,]')


class Cql(NamedTuple):
    """A CQL type and the types of its parts."""

    kind: str
    """A name of `TYPES` or of `NESTED`; anything else cannot be written."""
    label: str
    """As the server prints it."""
    frozen: bool
    """Written as one value; so is all that is inside of another type."""
    parts: tuple[Cql, ...] = ()
    """Element; key and value; fields."""
    name: str = ""
    """Of a user-defined type."""
    fields: tuple[str, ...] = ()
    """Of a user-defined type."""
    length: int = 0
    """Of a vector."""


def parse(text: str, types: Types, *, frozen: bool = False) -> Cql:
    """Read a type; one that is not understood gets itself as its kind."""
    unknown = Cql(kind=text, label=text, frozen=frozen)
    match = _WORD.fullmatch(text)
    if match is None:
        return unknown
    word, inside = match[1], match[2]
    if inside is None:
        return _named(word, types, unknown)
    if word == "frozen":
        return parse(inside, types, frozen=True)._replace(label=text)
    return _with_parts(word, _split(inside), types, unknown)


def _with_parts(word: str, arguments: list[str], types: Types, unknown: Cql) -> Cql:
    length = 0
    if word == "vector" and len(arguments) == 2 and arguments[1].isdecimal():
        length = int(arguments.pop())
    counts = {"list": 1, "set": 1, "map": 2, "tuple": len(arguments), "vector": 1 if length else 0}
    if counts.get(word) != len(arguments):
        return unknown
    parts = tuple(parse(each, types, frozen=True) for each in arguments)
    frozen = unknown.frozen or word in ("tuple", "vector")
    return unknown._replace(kind=word, frozen=frozen, parts=parts, length=length)


def _named(word: str, types: Types, unknown: Cql) -> Cql:
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
    """Split at the commas that are in no inner brackets and in no quoted name."""
    depth, begin, arguments = 0, 0, []
    for match in _PART.finditer(inside):
        if match[0] == "," and depth == 0:
            arguments.append(inside[begin : match.start()].strip())
            begin = match.end()
        depth += {"<": 1, ">": -1}.get(match[0], 0)
    return [*arguments, inside[begin:].strip()]


def user_types(tree: Cql) -> Iterator[str]:
    """Yield the names of all user-defined types in a tree, some more than once."""
    if tree.kind == "udt":
        yield tree.name
    for part in tree.parts:
        yield from user_types(part)


def written(types: Types) -> str:
    """Write types for a plan's details."""
    return msgspec.json.encode(types).decode()


def planned_types(plan: Plan) -> Types:
    """Read the user-defined types that a plan was made for."""
    return _read(plan.details.get("types", "{}"))


def with_types(plan: Plan, types: Types) -> Plan:
    """Return a plan with user-defined types as they are now: some may have got more fields.

    :param types: among others those of the plan; `compare.refuse_changed` has seen to that.
    """
    planned = {name: types[name] for name in planned_types(plan)}
    return msgspec.structs.replace(plan, details={**plan.details, "types": written(planned)})


def planned(plan: Plan) -> tuple[Cql, ...]:
    """Return the types of a plan's columns."""
    return tuple(_planned(each.type, plan.details.get("types", "{}")) for each in plan.columns)


@lru_cache(maxsize=1024)
def _planned(text: str, types: str) -> Cql:
    return parse(text, _read(types))


@lru_cache(maxsize=64)
def _read(types: str) -> Types:
    return msgspec.json.decode(types, type=dict[str, tuple[tuple[str, str], ...]])

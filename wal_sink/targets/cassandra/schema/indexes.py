"""Derives from a table's indexes what they refuse of its columns' values. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from msgspec.structs import replace

from wal_sink.model.plan import Column
from wal_sink.targets.cassandra.types.cql_type import CqlType, UserTypes, parse
from wal_sink.targets.cassandra.types.index_rule import IndexRule, Part

_SAI = ("sai", "storageattachedindex")
_TARGET = re.compile(r"(?:(keys|values|entries|full)\((.*)\)|(.*))", re.DOTALL)
_PARTS: dict[str, Part] = {"keys": "keys", "values": "values", "entries": "entries"}

LEGACY_BYTES = 65_534
"""Most bytes of a value under a secondary index that is kept in a table of its own: it is a key there."""
TERM_BYTES = 8 * 1024
"""Most bytes of a term under SAI, text or frozen, where the server does not say it."""
VECTOR_BYTES = 32 * 1024
"""Most bytes of a vector under SAI, where the server does not say it."""

_UNITS = {"B": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}


_Taken = tuple[int, Literal["", "finite", "cosine"]]
"""Most bytes, 0 for any number; and what is required of a vector."""
_NOTHING: _Taken = (0, "")
"""Nothing is known to be refused."""


class IndexMetadata(NamedTuple):
    """An index of a table, as `system_schema.indexes` has it."""

    name: str
    kind: str
    """COMPOSITES and KEYS: a table of its own; CUSTOM: `class_name` in the options says which."""
    options: Mapping[str, str]


class TermLimits(NamedTuple):
    """Most bytes of a term under SAI, by what it is of; 0: any number."""

    text: int = TERM_BYTES
    frozen: int = TERM_BYTES
    vector: int = VECTOR_BYTES


def term_limits(settings: Mapping[str, str | None] | None) -> TermLimits:
    """Return the limits that a server has.

    :param settings: by their names in `system_views.settings`; None, or without the limits: unknown.
    """
    defaults = TermLimits()
    return TermLimits(
        *(
            _bytes(settings[name]) if settings and name in settings else getattr(defaults, field)
            for field, name in (
                ("text", "sai_string_term_size_fail_threshold"),
                ("frozen", "sai_frozen_term_size_fail_threshold"),
                ("vector", "sai_vector_term_size_fail_threshold"),
            )
        )
    )


def _bytes(value: str | None) -> int:
    """Return the number of bytes that a setting such as 8KiB says; 0 where there is no limit."""
    match = re.fullmatch(r"(\d+)\s*(\w+)", value or "")
    return int(match[1]) * _UNITS.get(match[2], 0) if match else 0


def index_rules(
    indexes: Sequence[IndexMetadata],
    columns: Sequence[Column],
    types: UserTypes,
    limits: TermLimits,
) -> tuple[IndexRule, ...]:
    """Return what the indexes refuse of the columns that are written.

    :param types: the keyspace's user-defined types.
    :returns: with the DataFrame's names of the columns.
    """
    trees = {column.in_table: parse(column.type, types) for column in columns}
    names = {column.in_table: column.name for column in columns}
    rules = (_rule(index, trees, limits) for index in indexes)
    return tuple(replace(rule, column=names[rule.column]) for rule in rules if rule is not None)


def _rule(
    index: IndexMetadata, trees: Mapping[str, CqlType], limits: TermLimits
) -> IndexRule | None:
    """Return what an index refuses; None: nothing that is written, or nothing that is known."""
    match = _TARGET.fullmatch(index.options.get("target", ""))
    assert match is not None  # the last alternative fits everything
    name = _unquoted(match[2] if match[1] else match[3])
    if name not in trees:
        return None  # also the JSON by which Scylla describes a local index
    tree = trees[name]
    part: Part = _PARTS.get(match[1] or "", "value")
    if part == "values" and tree.kind != "map":
        part = "elements"
    most, vector = _NOTHING
    if index.kind != "CUSTOM":
        most = LEGACY_BYTES
    elif index.options.get("class_name", "").rpartition(".")[2].lower() in _SAI:
        most, vector = _under_sai(_indexed(part, tree), index.options, limits)
    if not vector and (not most or not _varies(_indexed(part, tree))):
        return None
    return IndexRule(name, index.name, part, most, vector)


def _indexed(part: Part, tree: CqlType) -> CqlType:
    """Return the type of what is indexed; of a map's entries the map's."""
    if part in ("value", "entries"):
        return tree
    return tree.parts[-1 if part == "values" else 0]


def _varies(tree: CqlType) -> bool:
    """Whether a value of the type can be long."""
    return tree.kind in ("text", "ascii", "blob") or bool(tree.parts)


def _under_sai(tree: CqlType, options: Mapping[str, str], limits: TermLimits) -> _Taken:
    if tree.kind == "vector":
        # The model from which the embeddings come may imply another function.
        implied = "" if "source_model" in options else "cosine"
        cosine = options.get("similarity_function", implied).lower() == "cosine"
        return limits.vector, "cosine" if cosine else "finite"
    if "index_analyzer" in options:
        return _NOTHING  # a text's words are indexed, not the text
    if tree.kind == "map" and not tree.frozen:  # its entries, each as one term
        return min(filter(None, (limits.text, limits.frozen)), default=0), ""
    return (limits.frozen if tree.parts else limits.text), ""


def _unquoted(name: str) -> str:
    return name[1:-1].replace('""', '"') if name.startswith('"') else name

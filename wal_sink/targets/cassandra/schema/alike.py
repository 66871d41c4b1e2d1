"""Which columns of a key can have one value in two encodings: the server takes such keys for one row. Pure.

Rows are told apart here by the bytes of their keys. Where the order of a key's rows decides, two encodings of
one key would be written beside each other, each as if the other one did not exist.
"""

from __future__ import annotations

from collections.abc import Iterator

from wal_sink.model.plan import Column
from wal_sink.targets.cassandra.schema.table_metadata import TableMetadata
from wal_sink.targets.cassandra.types.cql_type import CqlType, parse

_SORTED = ("set", "map")
"""The server sorts the elements of such a key, and drops what comes twice."""
_COMPARED = {
    "decimal": "1.5 and 1.50 are one row in a clustering column of decimals",
    "float": "each NaN is the same row in a clustering column of floats, and has many encodings",
    "double": "each NaN is the same row in a clustering column of doubles, and has many encodings",
}
"""A clustering column is compared by values, a partition key by its bytes."""


def alike(column: Column, live: TableMetadata) -> str:
    """Say how two encodings in a column of the key are one row; empty: each value has one."""
    if column.role not in ("partition", "clustering"):
        return ""
    kinds = {each.kind for each in _leaves(parse(column.type, live.types))}
    for kind in _SORTED:
        if kind in kinds:
            return f"it is a {kind}, and the same elements in another order are one row"
    if column.role == "clustering":
        return next((why for kind, why in _COMPARED.items() if kind in kinds), "")
    return ""


def _leaves(tree: CqlType) -> Iterator[CqlType]:
    """Yield a type and all types within it."""
    yield tree
    for part in tree.parts:
        yield from _leaves(part)

"""The CQL type that a new table would have for a column of a DataFrame."""

from __future__ import annotations

import re

import pyarrow as pa

from wal_sink.targets.cassandra.names import qualified, quote
from wal_sink.targets.cassandra.types.spark_types import (
    CQL_FOR,
    canonical,
    fields,
    is_array,
    spark_type,
)


def suggest(keyspace: str, path: str, source: pa.DataType, types: dict[str, str]) -> str | None:
    """Return a type that takes a column; None when there is none.

    :param path: where it is; names the types that structs need.
    :param types: where the CREATE TYPE of each is added, inner ones first.
    """
    source = canonical(source)
    if is_array(source):
        element = suggest(keyspace, f"{path}_element", source.value_type, types)
        return element and f"frozen<list<{_frozen(element)}>>"
    if pa.types.is_map(source):
        key = suggest(keyspace, f"{path}_key", source.key_type, types)
        value = suggest(keyspace, f"{path}_value", source.item_type, types)
        return "map<{}, {}>".format(*map(_frozen, (key, value))) if key and value else None
    if pa.types.is_struct(source):
        return _user_type(keyspace, path, source, types)
    return CQL_FOR.get(spark_type(source))


def _frozen(cql: str) -> str:
    return f"frozen<{cql}>" if cql.startswith("map<") else cql


def _user_type(keyspace: str, path: str, source: pa.DataType, types: dict[str, str]) -> str | None:
    lines = []
    for field in fields(source):
        cql = suggest(keyspace, f"{path}_{field.name}", field.type, types)
        if cql is None:
            return None
        lines.append(f"  {quote(field.name)} {_frozen(cql)}")
    name = re.sub(r"\W", "_", path, flags=re.ASCII)
    while name in types:
        name += "_"
    body = ",\n".join(lines)
    types[name] = f"CREATE TYPE {qualified(keyspace, name)} (\n{body}\n);"
    return f"frozen<{quote(name)}>"

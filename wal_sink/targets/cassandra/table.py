"""The metadata of a table as the cluster has it now, read from `system_schema`, and what follows from it.

What its indexes refuse of the columns' values; and which columns of its key can have one value in two
encodings, which the server takes for one row. Rows are told apart here by the bytes of their keys: where the
order of a key's rows decides, two encodings of one key would be written beside each other, each as if the
other one did not exist.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, cast
from uuid import UUID

from msgspec.structs import replace

from wal_sink.model.plan import Column
from wal_sink.targets.cassandra.row_plan import KEY, IndexedPart, IndexRule, TableName
from wal_sink.targets.cassandra.types import CqlType, UserTypes, parse

_SAI = ("sai", "storageattachedindex")
_TARGET = re.compile(r"(?:(keys|values|entries|full)\((.*)\)|(.*))", re.DOTALL)
_PARTS: dict[str, IndexedPart] = {"keys": "keys", "values": "values", "entries": "entries"}

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
    part: IndexedPart = _PARTS.get(match[1] or "", "value")
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


def _indexed(part: IndexedPart, tree: CqlType) -> CqlType:
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


Role = Literal["partition", "clustering", "static", "regular"]


class ColumnMetadata(NamedTuple):
    """A column of a table."""

    name: str
    type: str
    """As `system_schema` prints it, `frozen<list<int>>`; varchar is text there."""
    role: Role


class TableMetadata(NamedTuple):
    """What the cluster has under a table's name; also that there is no such table or keyspace."""

    name: TableName
    keyspaces: tuple[str, ...]
    """All keyspaces of the cluster."""
    durable: bool
    """Whether writes to the keyspace go through the commit log."""
    tables: tuple[str, ...]
    """All tables of the keyspace, without materialized views."""
    views: tuple[str, ...]
    columns: tuple[ColumnMetadata, ...]
    """Empty when there is no such table or view."""
    default_ttl: int
    """Seconds that a row lives when the write does not say; 0: for ever."""
    types: UserTypes = MappingProxyType({})
    """The keyspace's user-defined types."""
    dropped: Mapping[str, int] = MappingProxyType({})
    """When each dropped column was dropped, microseconds since 1970. Values with a write timestamp up to then
    stay hidden, also when a column of the name is added again."""
    indexes: tuple[IndexMetadata, ...] = ()
    gc_grace_s: int = 864_000
    """Seconds after which a tombstone may be dropped."""
    id: UUID | None = None
    """The table's id; a table that is dropped and created again under the same name has another."""

    @property
    def exists(self) -> bool:
        """Whether there is a table, not a view, of this name."""
        return self.name.table in self.tables

    @property
    def key(self) -> list[ColumnMetadata]:
        """The columns of the primary key."""
        return [column for column in self.columns if column.role in KEY]


def read_table(session: Any, name: TableName, node: Any = None) -> TableMetadata:
    """Read a table's metadata; also for one that does not exist.

    Where the node that is asked lacks the table, one that has it answers in its place: the first one lags
    behind, or another start has made the table just now.

    :param session: the driver's session.
    :param node: the driver's host to ask; None: any.
    :raises Exception: of the driver.
    """
    live = _read(session, name, node)
    if not live.exists and (other := _where_it_is(session, name)) is not None:
        return _read(session, name, other)
    return live


def _read(session: Any, name: TableName, node: Any) -> TableMetadata:
    def rows(what: str, source: str, *key: str) -> list[Any]:
        names = ("keyspace_name", "table_name")[: len(key)]
        where = " AND ".join(f"{column} = %s" for column in names)
        query = f"SELECT {what} FROM system_schema.{source}" + (where and f" WHERE {where}")  # noqa: S608 -- constants
        nonlocal node  # another one may lag behind, and have the table without its columns
        answer = session.execute(query, key, host=node)
        node = answer.response_future.coordinator_host
        return list(answer)

    keyspaces = {row.keyspace_name: row.durable_writes for row in rows("*", "keyspaces")}
    tables = {
        row.table_name: row
        for row in rows(
            "table_name, default_time_to_live, gc_grace_seconds, id", "tables", name.keyspace
        )
    }
    table = tables.get(name.table)
    views = rows("view_name", "views", name.keyspace)
    columns = rows("column_name, kind, position, type", "columns", *name)
    # As a number: a column can be dropped at a time that Python's datetime cannot hold.
    dropped_ms = "blobasbigint(timestampasblob(dropped_time)) AS dropped_ms"
    dropped = rows(f"column_name, {dropped_ms}", "dropped_columns", *name)
    return TableMetadata(
        name=name,
        keyspaces=tuple(sorted(keyspaces)),
        durable=keyspaces.get(name.keyspace, True),
        tables=tuple(sorted(tables)),
        views=tuple(sorted(row.view_name for row in views)),
        columns=tuple(
            ColumnMetadata(
                row.column_name, cast("str", row.type), cast("Role", row.kind.removesuffix("_key"))
            )
            for row in sorted(columns, key=lambda row: (row.kind, row.position, row.column_name))
        ),
        default_ttl=(table.default_time_to_live or 0) if table else 0,
        types={
            row.type_name: tuple(zip(row.field_names, row.field_types, strict=True))
            for row in rows("type_name, field_names, field_types", "types", name.keyspace)
        },
        indexes=tuple(
            IndexMetadata(row.index_name, row.kind, dict(row.options or {}))
            for row in rows("index_name, kind, options", "indexes", *name)
        ),
        dropped={row.column_name: row.dropped_ms * 1_000 + 999 for row in dropped},
        gc_grace_s=table.gc_grace_seconds if table else 864_000,
        id=table.id if table else None,
    )


_MOST_ASKED = 3
"""Nodes that are asked for a table that one of them lacks: few lag behind at the same time."""


def _where_it_is(session: Any, name: TableName) -> Any:
    """Return a node that has the table; None where no node that answers has."""
    from wal_sink.targets.cassandra.driver.errors import classify  # noqa: PLC0415 -- not in tasks

    query = "SELECT id FROM system_schema.tables WHERE keyspace_name = %s AND table_name = %s"
    for pool in itertools.islice(tuple(session.get_pools()), _MOST_ASKED):
        try:
            if session.execute(query, name, host=pool.host).one():
                return pool.host
        except Exception as error:
            if classify(error) == "fatal":
                raise
            # It is down, and cannot say that the table is there.
    return None


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
    if column.role not in KEY:
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

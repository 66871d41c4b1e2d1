"""Compares a DataFrame, or the plan that was made for it, with a table: names, keys and types."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import pyarrow as pa

from wal_sink.errors import SchemaMismatch
from wal_sink.model.plan import (
    Column,
    canonical,
    is_array,
    spark_ddl,
    spark_type,
    struct_ddl,
)
from wal_sink.model.plan import fields as fields_of
from wal_sink.targets.cassandra import ddl
from wal_sink.targets.cassandra.options import (
    COLUMNS_OPTION,
    EXPIRES_AT_COLUMN,
    TIMESTAMP_COLUMN,
    TTL,
    TTL_COLUMN,
    WRITE_MODE,
)
from wal_sink.targets.cassandra.row_plan import CassandraPlan, RowTtl
from wal_sink.targets.cassandra.table import ColumnMetadata, TableMetadata
from wal_sink.targets.cassandra.types import (
    CQL_FOR,
    NESTED,
    TYPES,
    WHOLE_DECIMAL,
    CqlType,
    accepts,
    has_lists,
    parse,
    user_type_names,
)
from wal_sink.targets.columns import SAME, TableColumn, TableRules, has_changed, to_cast
from wal_sink.targets.columns import match_columns as compare
from wal_sink.targets.ddl import CREATE_TABLE, KEY_COLUMNS, quote
from wal_sink.unknown_names import did_you_mean


def match_columns(
    schema: pa.Schema,
    metadata: TableMetadata,
    names: Mapping[str, str] = SAME,
    *,
    update: bool = False,
) -> tuple[Column, ...]:
    """Match the columns of the DataFrame with the columns of the table.

    Return them in the DataFrame's order.

    :param names: the names that columns of the DataFrame have in the table, if they differ there.
    :param update: True if rows are written by UPDATE.
    :raises SchemaMismatch: has a line for each column that does not fit.
    """
    _refuse_table(schema, metadata)
    rules = CassandraRules(schema, metadata, names, update=update)
    others = about_other_names(schema, names)
    return compare(schema, rules.columns, str(metadata.name), rules, others, names)


class CassandraRules(TableRules):
    """The rules for types and keys of Cassandra, and the statements that alter a table."""

    def __init__(
        self, schema: pa.Schema, metadata: TableMetadata, names: Mapping[str, str], *, update: bool
    ) -> None:
        self._metadata, self._names, self._update = metadata, names, update
        written = {names.get(name, name) for name in schema.names}
        roles = {column.role for column in metadata.columns if column.name in written}
        self._static_alone = "static" in roles and not roles & {"regular", "clustering"}

    @property
    def columns(self) -> list[TableColumn]:
        """The columns of the table. The DataFrame must have the columns of the key.

        An UPDATE of static columns alone needs no clustering columns.
        """
        may_lack = ("clustering",) if self._update and self._static_alone else ()
        return [
            TableColumn(
                column.name,
                column.type,
                required=column in self._metadata.key,
                default=column.role in may_lack,
                role=column.role,
            )
            for column in self._metadata.columns
        ]

    def about_type(self, field: pa.Field, column: TableColumn) -> Sequence[str]:
        """Return a line for each part of a column whose type does not fit."""
        tree = parse(column.type, self._metadata.types)
        return [*map(str, mismatches(field.name, field.type, tree))]

    def about_missing(self, field: pa.Field, free: Collection[str]) -> str:
        """Return the remedy for a column that the table lacks.

        A name that differs only in case gets no ALTER TABLE: it is probably a slip.
        """
        name = field.name
        if name in self._names:
            return f"Correct {COLUMNS_OPTION}."
        if meant := [other for other in sorted(free) if other.lower() == name.lower()]:
            return (
                f'Rename it, .withColumnRenamed("{name}", "{meant[0]}"), or set {COLUMNS_OPTION} to'
                f" {json.dumps({name: meant[0]}, ensure_ascii=False)}."
            )
        return super().about_missing(field, free)

    def to_add(self, field: pa.Field) -> str:
        """Return the statement that adds the column; empty if the column needs more than one statement."""
        add = ddl.add_column(self._metadata.name, field)
        return f"run: {add}" if add else ""

    def about_required(self, column: TableColumn) -> str:
        """Return the problem and the remedy for a column of the key that the DataFrame lacks."""
        update = (
            ", or set cassandra.writeMode to update, which writes a partition's static columns alone"
            if column.role == "clustering" and not self._update and self._static_alone
            else ""
        )
        return (
            f"it is in the table's primary key ({column.role} key, {column.type}) and not in the DataFrame."
            f" Add it{update}."
        )


def used_types(
    columns: tuple[Column, ...], metadata: TableMetadata
) -> dict[str, tuple[tuple[str, str], ...]]:
    """Return the user-defined types of the columns, including types inside of other types."""
    trees = [parse(column.type, metadata.types) for column in columns]
    names = {name for tree in trees for name in user_type_names(tree)}
    return {name: tuple(metadata.types[name]) for name in sorted(names)}


def refuse_changed(plan: CassandraPlan, metadata: TableMetadata) -> None:
    """Refuse a table that has changed since the plan was made.

    New columns and new fields of types are accepted.

    :raises SchemaMismatch: a column is gone, has another type or role, or is new in the key; or a field is
        gone, or has another name or type; or the keyspace bypasses the commit log.
    """
    now = {column.name: column for column in metadata.columns}
    changes = [
        f"{column.in_table} was {column.type} ({column.role}), "
        + (f"is {_described(now[column.in_table])}" if column.in_table in now else "is gone")
        for column in plan.columns
        if now.get(column.in_table) != (column.in_table, column.type, column.role)
    ]
    planned = {column.in_table for column in plan.columns}
    changes += [
        f"{column.name} is new, {_described(column)}"
        for column in metadata.key
        if column.name not in planned and not (column.role == "clustering" and plan.static_alone)
    ]
    changes += [
        f"type {name} was ({_fields(fields)}), is ({_fields(metadata.types.get(name, ()))})"
        for name, fields in plan.details.types.items()
        if tuple(metadata.types.get(name, ()))[: len(fields)] != fields
    ]
    if not metadata.exists:
        changes = ["the table is gone"]
    else:
        refuse_not_durable(metadata)
    if changes:
        raise has_changed(plan.table, changes)
    refuse_repeated_lists(plan, metadata)


def refuse_not_durable(metadata: TableMetadata) -> None:
    """Refuse a keyspace whose acknowledged writes are lost when a server process crashes.

    :raises SchemaMismatch: the keyspace bypasses the commit log.
    """
    if not metadata.durable:
        raise SchemaMismatch(
            f"Keyspace {metadata.name.keyspace} has durable_writes = false: acknowledged rows are lost when a"
            " server's process ends, after the log has deleted them.",
            f"Run:\nALTER KEYSPACE {quote(metadata.name.keyspace)} WITH durable_writes = true;",
        )


def _refuse_table(schema: pa.Schema, metadata: TableMetadata) -> None:
    keyspace, table = metadata.name
    if keyspace not in metadata.keyspaces:
        raise SchemaMismatch(
            f"Keyspace {keyspace} does not exist. {did_you_mean(keyspace, metadata.keyspaces)}".rstrip(),
            f"Correct option keyspace, or create it with the replication that you need:\n"
            f"{ddl.create_keyspace(keyspace)}",
        )
    refuse_not_durable(metadata)
    if table in metadata.views:
        raise SchemaMismatch(
            f"{metadata.name} is a materialized view, which cannot be written to.",
            "Name its base table.",
        )
    if not metadata.exists:
        raise SchemaMismatch(
            f"Table {metadata.name} does not exist. {did_you_mean(table, metadata.tables)}".rstrip(),
            f"Correct option table; or set {CREATE_TABLE} to true and {KEY_COLUMNS} to the columns of its"
            f" key; or create it:\n{ddl.create_table(metadata.name, schema)}",
        )
    if any(column.type == "counter" for column in metadata.columns):
        raise SchemaMismatch(
            f"{metadata.name} is a counter table: counters take no write timestamp, so "
            "an increment cannot be written exactly once.",
            "Write the totals to a table without counters: aggregate in Spark, and write them by"
            " wal_sink.batch_writer in update mode.",
        )


def about_other_names(schema: pa.Schema, names: Mapping[str, str]) -> Iterator[str]:
    """Yield the problems of the option that names columns of the table."""
    for name, column in names.items():
        if name not in schema.names:
            yield (
                f"{name}: {COLUMNS_OPTION} names it, and the DataFrame has no such column."
                f" {did_you_mean(name, schema.names)}"
            ).rstrip() + f" Correct it in {COLUMNS_OPTION}, or leave it out."
        elif column in schema.names and column not in names:
            yield (
                f"{name}: {COLUMNS_OPTION} writes it to {column}, to which the DataFrame's {column} is"
                f" written, too. Drop one of the two, or write {column} to another column."
            )


def refuse_no_update(metadata: TableMetadata, columns: Sequence[Column], operation: str) -> None:
    """Refuse rows that no UPDATE can write.

    :param columns: the columns of the table that the DataFrame has.
    :param operation: the value of `operationColumn`.
    :raises SchemaMismatch: there is no value to set; or clustering columns are beside static columns alone;
        or rows are partitions and may be deletes.
    """
    roles = {column.role for column in columns}
    if not roles & {"static", "regular"}:
        raise SchemaMismatch(
            f"The DataFrame has only the key of {metadata.name}, and {WRITE_MODE} is update: no value is"
            " set.",
            f"Add a column, or leave out {WRITE_MODE}: an insert writes rows of keys alone.",
        )
    if "regular" not in roles and "clustering" in roles:
        raise SchemaMismatch(
            f"The DataFrame has only static columns of {metadata.name} beside the whole key, and Cassandra"
            " refuses an UPDATE of static columns alone that names clustering columns.",
            "Drop the clustering columns, to write partitions; or add a column that is not static.",
        )
    if "regular" not in roles and operation and any(c.role == "clustering" for c in metadata.key):
        raise SchemaMismatch(
            f"The DataFrame has only static columns of {metadata.name}, and operationColumn is {operation}: a"
            " delete would delete the whole partition with all its rows.",
            "Leave out operationColumn, and clear values by nulls, with cassandra.nulls=write; or add the"
            " clustering columns and a column that is not static.",
        )


_FROZEN = "Make the columns frozen<list<…>>, leave them out of the DataFrame"


def refuse_repeated_lists(plan: CassandraPlan, metadata: TableMetadata) -> None:
    """Refuse options that conflict with lists that are not frozen.

    Each write of such a list adds new elements. So each sending of its rows has new, higher timestamps (rule
    `repeatable`).

    :raises SchemaMismatch: the timestamp is the event time and cannot change; or a TTL in seconds counts
        from the timestamp, and would grow.
    """
    if not has_lists(plan):
        return
    if plan.details.timestamp_column:
        raise SchemaMismatch(
            f"{metadata.name} has lists that are not frozen, and {TIMESTAMP_COLUMN} is given: if a row is"
            " written twice with the time of its event, its lists have each element twice.",
            f"{_FROZEN}, or leave out the option.",
        )
    ttl = plan.details.ttl or RowTtl()
    seconds = {
        TTL: ttl.ttl_s,
        TTL_COLUMN: ttl.ttl_column,
        f"default_time_to_live = {metadata.default_ttl}": metadata.default_ttl,
    }
    if names := ", ".join(name for name, value in seconds.items() if value):
        raise SchemaMismatch(
            f"{metadata.name} has lists that are not frozen, and its rows have a TTL in seconds ({names})."
            " The TTL counts from a row's timestamp, which grows each time that a list is sent.",
            f"{_FROZEN}; or use only {EXPIRES_AT_COLUMN}, and run:\nALTER TABLE {metadata.name} WITH"
            " default_time_to_live = 0;",
        )


def _described(column: ColumnMetadata) -> str:
    return f"{column.type} ({column.role})"


def _fields(fields: Sequence[tuple[str, str]]) -> str:
    return ", ".join(f"{quote(name)} {cql}" for name, cql in fields)


class Mismatch(NamedTuple):
    """A column, or a part of a column, that cannot be written."""

    path: str
    """The column or its part: `address.zip`; `prices.element` for elements, as Spark names them."""
    problem: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.path}: {self.problem} {self.remedy}"


def mismatches(column: str, source: pa.DataType, tree: CqlType) -> list[Mismatch]:
    """Return everything that keeps a column of an Arrow type from being written to a CQL type."""
    source = canonical(source)
    cast = _wanted(source, tree)
    return [
        mismatch
        if mismatch.remedy
        else mismatch._replace(remedy=_remedy(column, cast, spark_type(inner), part))
        for mismatch, inner, part in _differences(column, source, tree)
    ]


def _remedy(column: str, cast: str | None, spark: str, part: str | None) -> str:
    if cast is None and part is not None:
        return f"Cast it to {part}, in the type to which the whole column is cast."
    if cast is None:
        return "Cast it to a supported type, or drop it from the DataFrame."
    cast_it = to_cast(column, cast)
    if spark == "timestamp_ntz":
        return f"Set spark.sql.session.timeZone to the zone of the readings. {cast_it}."
    if spark not in CQL_FOR:
        return f"{cast_it}."
    an = "an" if CQL_FOR[spark] == "int" else "a"
    return f"{cast_it}, or write to a table where it is {an} {CQL_FOR[spark]}."


_Differences: TypeAlias = Iterator[tuple[Mismatch, pa.DataType, str | None]]
"""Tuples of a mismatch, the Arrow type of the part, and the type to cast the part to, in Spark's DDL. A
mismatch without a remedy is cured by that cast."""


def _differences(path: str, source: pa.DataType, tree: CqlType) -> _Differences:
    if tree.kind in TYPES:
        yield from _of_value(path, source, tree)
    elif tree.kind not in NESTED or (tree.kind == "vector" and tree.parts[0].kind != "float"):
        problem = f"the table's type {tree.label} is not supported yet."
        yield Mismatch(path, problem, _instead()), source, None
    elif not NESTED[tree.kind](source):
        yield _lossy(path, source, tree), source, _wanted(source, tree)
    elif tree.kind == "udt":
        yield from _of_user_type(path, source, tree)
    elif tree.kind == "tuple":
        yield from _of_tuple(path, source, tree)
    elif tree.kind == "map":
        yield from _differences(f"{path}.key", source.key_type, tree.parts[0])
        yield from _differences(f"{path}.value", source.item_type, tree.parts[1])
    else:
        yield from _differences(f"{path}.element", source.value_type, tree.parts[0])


def _lossy(path: str, source: pa.DataType, tree: CqlType) -> Mismatch:
    problem = f"{_printed(source)} does not fit the table's {tree.label} without loss."
    return Mismatch(path, problem, "")


def _of_value(path: str, source: pa.DataType, tree: CqlType) -> _Differences:
    if spark_type(source) == "timestamp_ntz" and tree.kind == "timestamp":
        problem = (
            "timestamp_ntz is a clock reading without a zone, the table's timestamp is an instant."
        )
        yield Mismatch(path, problem, ""), source, "timestamp"
    elif not accepts(tree.kind, source):
        yield _lossy(path, source, tree), source, _wanted(source, tree)


def _of_tuple(path: str, source: pa.DataType, tree: CqlType) -> _Differences:
    if source.num_fields != len(tree.parts):
        problem = (
            f"the struct has {source.num_fields} fields, the table's {tree.label} "
            f"{len(tree.parts)}; they go by position."
        )
        yield Mismatch(path, problem, "Make the struct with as many fields."), source, None
        return
    for field, part in zip(fields_of(source), tree.parts, strict=True):
        yield from _differences(f"{path}.{field.name}", field.type, part)


def _of_user_type(path: str, source: pa.DataType, tree: CqlType) -> _Differences:
    parts = dict(zip(tree.fields, tree.parts, strict=True))
    fields = fields_of(source)
    for name, count in Counter(field.name for field in fields).items():
        if count > 1:
            problem = f"the struct has {count} fields of this name."
            yield Mismatch(f"{path}.{name}", problem, "Rename all but one."), source, None
    for field in fields:
        inner = f"{path}.{field.name}"
        if field.name in parts:
            yield from _differences(inner, field.type, parts[field.name])
        else:
            nearest = did_you_mean(field.name, set(parts) - {known.name for known in fields})
            problem = f"the table's type {tree.name} has no such field. {nearest}".rstrip()
            yield Mismatch(inner, problem, "Rename or drop it."), source, None


def _wanted(source: pa.DataType, tree: CqlType) -> str | None:
    """Return the type to which the column has to be cast, in Spark's DDL; None if no cast helps."""
    if tree.kind in TYPES:
        return _wanted_value(source, tree.kind)
    if tree.kind in ("list", "set", "vector") and is_array(source):
        element = _wanted(source.value_type, tree.parts[0])
        return element and f"array<{element}>"
    if tree.kind == "map" and pa.types.is_map(source):
        key = _wanted(source.key_type, tree.parts[0])
        value = _wanted(source.item_type, tree.parts[1])
        return f"map<{key},{value}>" if key and value else None
    if tree.kind in ("tuple", "udt") and pa.types.is_struct(source):
        return _wanted_struct(source, tree)
    return None


def _wanted_value(source: pa.DataType, cql: str) -> str | None:
    if accepts(cql, source):
        return spark_ddl(source)
    if spark_type(source) not in CQL_FOR and not pa.types.is_null(source):
        return None
    first = TYPES[cql].accepts[0]
    return {"decimal": "decimal(38,18)", WHOLE_DECIMAL: "decimal(38,0)"}.get(first, first)


def _wanted_struct(source: pa.DataType, tree: CqlType) -> str | None:
    fields = fields_of(source)
    names = tree.fields or tuple(field.name for field in fields)
    parts = dict(zip(names, tree.parts, strict=False))
    named = []
    for field in fields:
        ddl = _wanted(field.type, parts[field.name]) if field.name in parts else None
        if ddl is None:
            return None
        named.append((field.name, ddl))
    return struct_ddl(named)


def _printed(source: pa.DataType) -> str:
    spark, arrow = spark_type(source), str(canonical(source))
    nested = source.num_fields > 0
    return spark if spark == arrow or nested else f"{spark} (Arrow {arrow})"


def _instead() -> str:
    return (
        "Leave the column out of the DataFrame, or give the table one of the types "
        f"{', '.join(TYPES)}; list, set and map of them, tuples, user-defined types, vector<float, n>."
    )

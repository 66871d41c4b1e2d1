"""Rows as the Cassandra driver serializes them: tests compare the encoder with it."""

from __future__ import annotations

import io
import ipaddress
import itertools
import struct
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID

import numpy as np
import pyarrow as pa
from cassandra import cqltypes
from cassandra.protocol import ColumnMetadata, write_value
from cassandra.query import UNSET_VALUE, BoundStatement, PreparedStatement
from cassandra.util import Duration

from wal_sink.model.plan import Column, Role
from wal_sink.model.spark_types import canonical
from wal_sink.targets.cassandra.driver.frames import EncodedBatch, statement_head
from wal_sink.targets.cassandra.encode import Varying, encode
from wal_sink.targets.cassandra.row_plan import CassandraPlan, CassandraRowPlan
from wal_sink.targets.cassandra.statements import Statement
from wal_sink.targets.cassandra.types import CqlType, UserTypes, column_types

NAMES = ["Ascii", "UTF8", "Boolean", "Byte", "Short", "Int32", "Long", "Integer", "Float", "Double"]
NAMES += ["Decimal", "Timestamp", "SimpleDate", "Time", "Duration", "UUID", "TimeUUID"]
NAMES += ["InetAddress", "Bytes"]
SIMPLE = {kind.typename: kind for kind in (getattr(cqltypes, f"{name}Type") for name in NAMES)}

Field = tuple[str, Role, str, pa.DataType]
"""A column: its name, its role, its CQL type, and its type in the DataFrame."""


def plan_of(*fields: Field, operations: Any = None, **details: Any) -> CassandraPlan:
    """Return a plan of the table "ks"."t", unless `details` name another table."""
    noted = {"keyspace": "ks", "table": "t", **details}
    return CassandraPlan(
        key="k",
        target="cassandra",
        table=f'"{noted["keyspace"]}"."{noted["table"]}"',
        columns=tuple(
            Column(name=name, source=str(canonical(kind)), type=cql, role=role)
            for name, role, cql, kind in fields
        ),
        operations=operations or {},
        details=CassandraRowPlan(**noted),
    )


def plan_of_column(cql: str, arrow: pa.DataType, nulls: str, types: UserTypes) -> CassandraPlan:
    """Return a plan of a table with the key `id` and a column `c`."""
    user_types = {name: tuple(fields) for name, fields in types.items()}
    key, column = ("id", "partition", "int", pa.int32()), ("c", "regular", cql, arrow)
    return plan_of(key, column, nulls=nulls, types=user_types)  # type: ignore[arg-type]


def driver_type(tree: CqlType) -> Any:
    """Return the driver's type, which serializes values."""
    parts = tuple(driver_type(part) for part in tree.parts)
    match tree.kind:
        case "udt":
            return cqltypes.UserType.make_udt_class("ks", "udt", tree.fields, parts)
        case "list" | "set" | "map" | "tuple":
            kind = getattr(cqltypes, f"{tree.kind.title()}Type")
            return kind.apply_parameters(parts)
        case "vector":
            return cqltypes.VectorType.apply_parameters([*parts, tree.length], None)
        case _:
            return SIMPLE[tree.kind]


class Pairs(tuple[Any, ...]):
    """A map for the driver's serializers; its keys need not be hashable."""

    __slots__ = ()

    def items(self) -> Pairs:
        """Return the pairs."""
        return self


def _address(text: str) -> str:
    address = ipaddress.ip_address(text)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


_SCALARS: dict[str, Any] = {
    "date": lambda day: (day.toordinal() - 719_163 if hasattr(day, "toordinal") else day) + 2**31,
    "uuid": lambda packed: UUID(bytes=packed),
    "timeuuid": lambda packed: UUID(bytes=packed),
    "varint": int,
    "decimal": Decimal,
    "inet": _address,
    "duration": lambda nanoseconds: Duration(nanoseconds=nanoseconds),
}


def for_driver(value: Any, tree: CqlType) -> Any:
    """Convert a value of the log to a value for the driver's serializers."""
    if value is None:
        return None
    if tree.kind in ("tuple", "udt"):
        fields = [*(value.values() if isinstance(value, dict) else value)]
        fields += [None] * (
            len(tree.parts) - len(fields)
        )  # fields that were added to the type later
        return tuple(map(for_driver, fields, tree.parts))
    if tree.kind == "map":
        return Pairs((for_driver(k, tree.parts[0]), for_driver(v, tree.parts[1])) for k, v in value)
    if tree.parts:
        return tuple(for_driver(item, tree.parts[0]) for item in value)
    return _SCALARS.get(tree.kind, lambda same: same)(value)


def column_for_driver(column: pa.Array, tree: CqlType) -> list[Any]:
    """Convert a column of the log to values for the driver's serializers."""
    values = column.cast(pa.int32()) if column.type == pa.date32() else column
    return [for_driver(value, tree) for value in values.to_pylist()]


def bind(
    batch: pa.RecordBatch, plan: CassandraPlan, timestamps_us: Sequence[int]
) -> list[tuple[Any, ...]]:
    """Return what the driver would bind of rows: the values, then the timestamp."""
    columns = []
    keeps = plan.details.nulls == "unset"
    for tree, values in zip(column_types(plan), batch.columns, strict=True):
        bound = column_for_driver(values, tree)
        columns.append([UNSET_VALUE if value is None and keeps else value for value in bound])
    return list(zip(*columns, timestamps_us, strict=True))


class DriverRow:
    """A row that the driver binds to an INSERT of the plan's columns and the timestamp."""

    def __init__(self, plan: CassandraPlan, values: Any, protocol: int, key: list[int]) -> None:
        kinds = [*map(driver_type, column_types(plan)), cqltypes.LongType]
        metadata = [ColumnMetadata("ks", "t", f"c{i}", kind) for i, kind in enumerate(kinds)]
        prepared = PreparedStatement(metadata, b"", key, "", "ks", protocol, [], None)
        self._bound = prepared.bind(values)

    @property
    def wire(self) -> bytes:
        """The bytes of the values in a message of the driver."""
        buffer = io.BytesIO()
        for value in self._bound.values:
            write_value(buffer, value)
        return buffer.getvalue()

    @property
    def routing_key(self) -> bytes:
        """The routing key that the driver computes."""
        return bytes(self._bound.routing_key)


def driver_rows(
    batch: pa.RecordBatch,
    plan: CassandraPlan,
    first_us: int = 0,
    *,
    protocol: int = 5,
    key: tuple[int, ...] = (0,),
) -> list[DriverRow]:
    """Bind the rows of a batch that `check` returned.

    :param key: the numbers of the partition key's columns, in the table's order.
    """
    values = bind(batch, plan, range(first_us, first_us + batch.num_rows))
    return [DriverRow(plan, row, protocol, list(key)) for row in values]


def prepared(query: str, key: Sequence[int] = ()) -> PreparedStatement:
    """Return a prepared statement whose id is its text.

    :param key: the numbers of the partition key's values.
    """
    return PreparedStatement([], query.encode(), list(key), query, "ks", 5, [], None)


class OwnStatements(NamedTuple):
    """The statements of a test's requests, in place of the `Statements` of a plan."""

    by_id: dict[bytes, Statement]
    keyspace: str = ""
    sent_once: bool = False


def request_of(*rows: BoundStatement) -> EncodedBatch:
    """Return a request of rows that the driver has bound."""
    prepared = {row.prepared_statement.query_id: row.prepared_statement for row in rows}
    by_id = {key: Statement(own, plan_of(), b"", False) for key, own in prepared.items()}
    data = io.BytesIO()
    for row in rows:
        data.write(statement_head(row.prepared_statement.query_id, len(row.values)))
        for value in row.values:
            write_value(data, value)
    return EncodedBatch(len(rows), data.getvalue(), OwnStatements(by_id))


def encode_from(
    batch: pa.RecordBatch, plan: CassandraPlan, first_us: int, head: bytes = b""
) -> Varying:
    """Encode rows; row i has the write timestamp `first_us + i`."""
    timestamps_us = np.arange(first_us, first_us + batch.num_rows, dtype=np.int64)
    return encode(batch, plan, timestamps_us, head)


class DecodedRow(NamedTuple):
    """A row of the encoder, decoded by the driver."""

    values: dict[str, Any]
    """The values by column: None for null, `UNSET_VALUE` for a cell that is not written."""
    timestamp_us: int


def decoded(encoded: Varying, plan: CassandraPlan) -> list[DecodedRow]:
    """Decode the rows of an INSERT by the driver; fail if a byte is not part of a value."""
    data, bounds = encoded.data.to_pybytes(), encoded.offsets.tolist()
    trees = dict(zip([column.name for column in plan.columns], column_types(plan), strict=True))
    rows = []
    for begin, end in itertools.pairwise(bounds):
        *values, timestamp = _parts(data[begin:end])
        row = {
            name: driver_type(tree).from_binary(part, 5) if isinstance(part, bytes) else part
            for (name, tree), part in zip(trees.items(), values, strict=True)
        }
        rows.append(DecodedRow(row, int.from_bytes(timestamp, "big", signed=True)))
    return rows


def _parts(row: bytes) -> Iterator[Any]:
    at = 0
    while at < len(row):
        (length,) = struct.unpack_from(">i", row, at)
        at += 4 + max(length, 0)
        yield {-1: None, -2: UNSET_VALUE}.get(length, row[at - length : at] if length > 0 else b"")
    assert at == len(row)

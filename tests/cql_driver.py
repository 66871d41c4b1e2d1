"""What the driver itself makes of rows: the oracle for bytes."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
from cassandra import cqltypes
from cassandra.protocol import ColumnMetadata, write_value
from cassandra.query import PreparedStatement

from wal_sink.model.plan import Column, Plan, canonical
from wal_sink.targets.cassandra.types import CqlType, UserTypes, column_types, user_types_text
from wal_sink.targets.cassandra.write.statements import bind

NAMES = ["Ascii", "UTF8", "Boolean", "Byte", "Short", "Int32", "Long", "Integer", "Float", "Double"]
NAMES += ["Decimal", "Timestamp", "SimpleDate", "Time", "Duration", "UUID", "TimeUUID"]
NAMES += ["InetAddress", "Bytes"]
SIMPLE = {kind.typename: kind for kind in (getattr(cqltypes, f"{name}Type") for name in NAMES)}


def plan_of_column(cql: str, arrow: pa.DataType, nulls: str, types: UserTypes) -> Plan:
    """Plan a table of a key, id, and a column c of a type."""
    return Plan(
        key="k",
        target="cassandra",
        table='"ks"."t"',
        columns=(
            Column(name="id", source="int32", type="int", role="partition"),
            Column(name="c", source=str(canonical(arrow)), type=cql, role="regular"),
        ),
        details={"nulls": nulls, "types": user_types_text(types)},
    )


def driver_type(tree: CqlType) -> Any:
    """Return the driver's serializer."""
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


class DriverRow:
    """A row bound to a prepared INSERT of the plan's columns and the timestamp.

    :param live: the plan with the types that the server has, where they are no longer the plan's.
    """

    def __init__(
        self, plan: Plan, values: Any, protocol: int, key: list[int], live: Plan | None = None
    ) -> None:
        kinds = [*map(driver_type, column_types(live or plan)), cqltypes.LongType]
        metadata = [ColumnMetadata("ks", "t", f"c{i}", kind) for i, kind in enumerate(kinds)]
        prepared = PreparedStatement(metadata, b"", key, "", "ks", protocol, [], None)
        self._bound = prepared.bind(values)

    @property
    def wire(self) -> bytes:
        """The values as the driver's messages write them."""
        buffer = io.BytesIO()
        for value in self._bound.values:
            write_value(buffer, value)
        return buffer.getvalue()

    @property
    def routing_key(self) -> bytes:
        """What the driver hashes."""
        return bytes(self._bound.routing_key)


def driver_rows(
    batch: pa.RecordBatch,
    plan: Plan,
    first_us: int = 0,
    *,
    protocol: int = 5,
    key: tuple[int, ...] = (0,),
    live: Plan | None = None,
) -> list[DriverRow]:
    """Bind a batch that `check` returned.

    :param key: which columns are the partition key, in the table's order.
    """
    values = bind(batch, plan, range(first_us, first_us + batch.num_rows)).values
    return [DriverRow(plan, each, protocol, list(key), live) for each in values]

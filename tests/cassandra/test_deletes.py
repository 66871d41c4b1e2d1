"""Deletes and unavailable cells on a real node, with a key of two and three columns."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.support.cassandra import NodeTable
from wal_sink.demo.cassandra import Node
from wal_sink.targets.cassandra.driver.connection import connect
from wal_sink.targets.cassandra.sender import first_row_text
from wal_sink.targets.cassandra.session import CassandraSession
from wal_sink.targets.cassandra.statements import TimestampedRows

pytestmark = pytest.mark.cassandra

US = 1_700_000_000_000_000
SCHEMA = pa.schema(
    [
        ("v", pa.list_(pa.int32())),
        ("c", pa.decimal128(5, 2)),
        ("op", pa.string()),
        ("b", pa.string()),
        ("k2", pa.int64()),
        ("a", pa.date32()),
        ("k1", pa.string()),
        ("s", pa.string()),
    ]
)
KEYS = ["k1", "k2", "a", "b", "c"]
IDS = [f"00000000-0000-0000-0000-{n:012}" for n in range(3)]
DAY_0 = dt.date(1970, 1, 1)
DELETES = {"operationColumn": "op"}
Key = tuple[Any, ...]


@pytest.fixture
def table(cassandra: Node, shared: str) -> NodeTable:
    """A table whose key has another order than the DataFrame."""
    columns = "k1 uuid, k2 bigint, a date, b text, c decimal, v set<int>, s text static"
    return NodeTable(cassandra, shared, f"{columns}, PRIMARY KEY ((k1, k2), a, b, c)")


def frame(*rows: dict[str, Any]) -> pa.RecordBatch:
    full = [{name: row.get(name) for name in SCHEMA.names} for row in rows]
    return pa.RecordBatch.from_pylist(full, SCHEMA)


def change(operation: str, key: Key, **values: Any) -> dict[str, Any]:
    """Return a row with the first columns of the key."""
    return {"op": operation, **dict(zip(KEYS, key, strict=False)), **values}


def test_delete_of_a_partition_deletes_its_static_columns(table: NodeTable) -> None:
    """A delete of a row keeps the static columns."""
    key: Key = (IDS[0], 1, DAY_0, "x", Decimal(1))
    rows = [change("upsert", key, s="static"), change("delete", key)]
    table.write((US, frame(*rows)), **DELETES)
    assert [row.s for row in table.select("s")] == ["static"]
    table.write((US, frame(*rows, change("delete", key[:2]))), **DELETES)
    assert table.select("s") == []


def test_error_names_a_refused_delete_by_its_key(table: NodeTable) -> None:
    """The error decodes the key by the types of the DELETE statement."""
    target = table.target(**DELETES)
    plan = target.plan(SCHEMA, "key")
    day = dt.date(2026, 1, 2)
    deletes = [change("delete", (IDS[1], 5)), change("delete", (IDS[2], 6, day))]
    batch = target.check(frame(*deletes), plan)
    with connect(target.options) as connection:
        session = CassandraSession(connection, target.options, "q")
        rows = TimestampedRows(batch, np.arange(US, US + 2))
        made = session.prepare(plan).requests(rows)
        texts = [first_row_text(part) for request in made for part in request.halves() or [request]]
    first, second = texts
    assert "k2=5" in first
    assert IDS[1] in first
    assert "a=" not in first
    for part in ("k2=6", IDS[2], "a=", f"{(day - DAY_0).days}"):
        assert part in second


@pytest.mark.parametrize("mode", ["insert", "update"])
@pytest.mark.parametrize("nulls", ["unset", "write"])
def test_unavailable_cells_keep_their_values(
    cassandra: Node, shared: str, nulls: str, mode: str
) -> None:
    """A null is not an unavailable cell, and the key may hold the text."""
    table = NodeTable(cassandra, shared, "k text PRIMARY KEY, v int, t text, b blob")
    names = {"k": pa.string(), "op": pa.string(), "v": pa.int32(), "t": pa.string()}
    schema = pa.schema({**names, "b": pa.binary()})
    rows = [
        ("a", "upsert", 1, "t1", b"b1"),
        ("a", "upsert", 2, "?", b"?"),
        ("b", "upsert", 1, "t1", b"b1"),
        ("b", "upsert", 2, "t2", b"?"),
        ("b", "upsert", 3, "?", None),
        ("c", "upsert", 1, "t1", b"b1"),
        ("c", "delete", None, None, None),
        ("c", "upsert", 2, "?", b"b2"),
        ("?", "upsert", 1, "t1", b"b1"),
    ]
    columns = zip(zip(*rows, strict=True), schema, strict=True)
    batch = pa.record_batch([pa.array(c, f.type) for c, f in columns], schema=schema)
    options = {"cassandra.nulls": nulls, "cassandra.writeMode": mode, "unavailableValue": "?"}
    table.write((US, batch), **DELETES, **options)
    assert {row.k: (row.v, row.t, row.b) for row in table.select()} == {
        "a": (2, "t1", b"b1"),
        "b": (3, "t2", b"b1" if nulls == "unset" else None),
        "c": (2, None, b"b2"),
        "?": (1, "t1", b"b1"),
    }

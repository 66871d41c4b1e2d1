"""A night with three ALTERs and no stop: first the table, then the DataFrame, then a type get more."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from tests.support.cassandra import target_of
from wal_sink.model.ledger import Owner
from wal_sink.targets.base import Slice
from wal_sink.testing.servers.cassandra import Node

pytestmark = pytest.mark.cassandra

US = 1_700_000_000_000_000
SMALL = pa.struct([("x", pa.int32())])
WIDE = pa.struct([("x", pa.int32()), ("y", pa.string())])


def test_a_night_with_three_alters(cassandra: Node, keyspace: str) -> None:
    """Over one connection, whose statements the server forgets each time; then plans take turns."""
    cassandra.execute(f"CREATE TYPE {keyspace}.pair (x int)")
    cassandra.execute(
        f"CREATE TABLE {keyspace}.t (k int PRIMARY KEY, v int, u frozen<pair>, s set<frozen<pair>>)"
    )
    target = target_of(cassandra, keyspace)
    first = pa.schema([("k", pa.int32()), ("v", pa.int32()), ("u", SMALL), ("s", pa.list_(SMALL))])
    second = first.append(pa.field("w", pa.string()))
    third = pa.schema(
        [
            ("k", pa.int32()),
            ("v", pa.int32()),
            ("u", WIDE),
            ("s", pa.list_(WIDE)),
            second.field("w"),
        ]
    )
    plans = {"first": (target.plan(first, "first"), first)}
    written = 0

    def write(name: str, values: dict[str, Any]) -> int:
        nonlocal written
        plan, schema = plans[name]
        row = {"k": written, "v": written, "u": {"x": written}, "s": [{"x": written}], **values}
        batch = pa.RecordBatch.from_pylist([row], schema=schema)
        session.write(plan, Slice(written, target.check(batch, plan), US + written))
        session.drain()
        written += 1
        return written - 1

    def read(key: int) -> tuple[Any, ...]:
        (row,) = cassandra.execute(f"SELECT * FROM {keyspace}.t WHERE k = {key}")
        wide = getattr(row, "w", None)
        return row.v, tuple(row.u), [tuple(each) for each in row.s], wide

    with target.connect(Owner("query", "log", "checkpoint")) as session:
        assert read(write("first", {})) == (0, (0,), [(0,)], None)
        cassandra.execute(f"ALTER TABLE {keyspace}.t ADD w text")
        assert read(write("first", {})) == (1, (1,), [(1,)], None)
        plans["second"] = target.plan(second, "second"), second
        assert read(write("second", {"w": "w"})) == (2, (2,), [(2,)], "w")
        cassandra.execute(f"ALTER TYPE {keyspace}.pair ADD y text")
        assert read(write("second", {"w": "w"})) == (3, (3, None), [(3, None)], "w")
        plans["third"] = target.plan(third, "third"), third
        more = {"u": {"x": 4, "y": "y"}, "s": [{"x": 4, "y": "z"}], "w": "w"}
        assert read(write("third", more)) == (4, (4, "y"), [(4, "z")], "w")
        for name in ("first", "second", "first"):
            key = write(name, {"w": name} if name == "second" else {})
            word = name if name == "second" else None
            assert read(key) == (key, (key, None), [(key, None)], word)
    again = target_of(cassandra, keyspace).connect(Owner("query", "log", "checkpoint"))
    with again as session:
        assert read(write("first", {}))[0] == 8

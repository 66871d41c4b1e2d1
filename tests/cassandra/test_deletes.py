"""Deletes on a real node, beside the contract: wide keys, every statement, static columns, refusals."""

from __future__ import annotations

import datetime as dt
import logging
import random
import secrets
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.support import cassandra as tables
from wal_sink.demo.servers.cassandra import Node
from wal_sink.targets.base import RowSlice
from wal_sink.targets.cassandra import CassandraTarget
from wal_sink.targets.cassandra.driver.connection import connect
from wal_sink.targets.cassandra.session import CassandraSession
from wal_sink.targets.cassandra.write.batches import requests
from wal_sink.targets.cassandra.write.refusals import described
from wal_sink.targets.cassandra.write.statements import TimestampedRows

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
TABLE = (
    "k1 uuid, k2 bigint, a date, b text, c decimal, v set<int>, s text static,"
    " PRIMARY KEY ((k1, k2), a, b, c)"
)
IDS = [f"00000000-0000-0000-0000-{n:012}" for n in range(3)]
DAY = dt.date(2026, 1, 2)
Key = tuple[Any, ...]


@pytest.fixture
def table(cassandra: Node, shared: str) -> str:
    """A table whose key has two and three columns, which the DataFrame has in another order."""
    name = f"t_{secrets.token_hex(4)}"
    cassandra.execute(f"CREATE TABLE {shared}.{name} ({TABLE})")
    return f"{shared}.{name}"


def target_of(node: Node, table: str, **more: str) -> CassandraTarget:
    keyspace, _, name = table.partition(".")
    return tables.target_of(node, keyspace, name, **{"operationColumn": "op", **more})


def write(target: CassandraTarget, *batches: pa.RecordBatch) -> None:
    """Plan, check and write, as planner, task and flusher do it; each batch after the one before."""
    plan = target.plan(batches[0].schema, "key")
    with target.connect(secrets.token_hex(8)) as session:
        us = US
        for batch in batches:
            session.write(plan, RowSlice(0, target.check(batch, plan), us))
            us += batch.num_rows
        session.drain()


def frame(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        [{name: row.get(name) for name in SCHEMA.names} for row in rows], SCHEMA
    )


def drawn(chance: random.Random) -> dict[str, Any]:
    """Draw an upsert of one of some hundred keys, or a delete of a row, a range or a partition."""
    key: Key = (
        chance.choice(IDS),
        chance.randrange(2),
        chance.randrange(3),
        chance.choice("xyz"),
        chance.randrange(3),
    )
    if chance.random() < 0.7:
        return {"op": "upsert", "key": key, "v": [chance.randrange(9), 9]}
    return {"op": "delete", "key": key[: chance.choice([2, 3, 4, 5, 5, 5, 5, 5, 5])], "v": [0]}


def test_random_upserts_and_deletes_end_as_one_by_one(cassandra: Node, table: str) -> None:
    """Random changes end as if they had been made one by one."""
    chance = random.Random(2)
    changes = [drawn(chance) for _ in range(3_000)]
    expected: dict[Key, set[int]] = {}
    for change in changes:
        if change["op"] == "upsert":
            expected[change["key"]] = set(change["v"])
        else:
            gone = [key for key in expected if key[: len(change["key"])] == change["key"]]
            for key in gone:
                del expected[key]
    assert 20 < len(expected) < 150
    names = ["k1", "k2", "a", "b", "c"]
    rows = [{**change, **dict(zip(names, change["key"], strict=False))} for change in changes]
    options = {name: [row.get(name) for row in rows] for name in SCHEMA.names}
    options["c"] = [None if c is None else str(c) for c in options["c"]]
    plain = {"a": pa.int32(), "c": pa.string()}  # of which Arrow makes dates and decimals
    batch = pa.record_batch(
        [pa.array(options[f.name], plain.get(f.name, f.type)).cast(f.type) for f in SCHEMA],
        schema=SCHEMA,
    )
    write(target_of(cassandra, table), batch[:1_000], batch[1_000:1_001], batch[1_001:])
    result = cassandra.execute(f"SELECT k1, k2, a, b, c, v FROM {table} PER PARTITION LIMIT 1000")
    assert {
        (str(r.k1), r.k2, r.a.days_from_epoch, r.b, int(r.c)): set(r.v)
        for r in result
        if r.a is not None
    } == expected


def test_partition_goes_with_its_static_columns(cassandra: Node, table: str) -> None:
    """The delete of a row leaves them."""
    row = {
        "op": "upsert",
        "k1": IDS[0],
        "k2": 1,
        "a": DAY,
        "b": "x",
        "c": Decimal(1),
        "s": "static",
    }
    rows = [row, {**row, "op": "delete"}]
    whole = {"op": "delete", "k1": IDS[0], "k2": 1}
    write(target_of(cassandra, table), frame(rows))
    assert [r.s for r in cassandra.execute(f"SELECT s FROM {table}")] == ["static"]
    write(target_of(cassandra, table), frame([*rows, whole]))
    assert cassandra.execute(f"SELECT s FROM {table}") == []


def test_delete_is_named_by_its_part_of_the_key(cassandra: Node, table: str) -> None:
    """As errors name it; by the types of the statement, whose timestamp comes first."""
    target = target_of(cassandra, table)
    deletes: list[dict[str, Any]] = [
        {"op": "delete", "k1": IDS[1], "k2": 5},
        {"op": "delete", "k1": IDS[2], "k2": 6, "a": DAY},
    ]
    plan = target.plan(SCHEMA, "key")
    batch = target.check(frame(deletes), plan)
    with connect(target.options) as connection:
        session = CassandraSession(connection, target.options, "q")
        rows = TimestampedRows(batch, np.arange(US, US + 2))
        made = requests(session.prepare(plan), rows)
        named = [described(part) for request in made for part in request.halves() or [request]]
    for text, key in zip(
        named,
        (["k2=5", IDS[1]], ["k2=6", IDS[2], "a=", f"{(DAY - dt.date(1970, 1, 1)).days}"]),
        strict=True,
    ):
        assert [part for part in key if part not in text] == []
    assert "a=" not in named[0]


def test_start_warns_of_a_short_gc_grace(
    cassandra: Node, table: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Only where rows are deleted, and not of the default."""
    with caplog.at_level(logging.WARNING, logger="wal_sink"):
        target_of(cassandra, table).plan(SCHEMA, "key")
        cassandra.execute(f"ALTER TABLE {table} WITH gc_grace_seconds = 600")
        written = SCHEMA.remove(SCHEMA.names.index("op"))
        target_of(cassandra, table, operationColumn="").plan(written, "key")
        assert "gc_grace" not in caplog.text
        target_of(cassandra, table).plan(SCHEMA, "key")
    assert "gc_grace_seconds = 600" in caplog.text


@pytest.mark.parametrize("mode", ["insert", "update"])
@pytest.mark.parametrize("nulls", ["unset", "write"])
def test_unavailable_cells_keep_their_values(
    cassandra: Node, shared: str, nulls: str, mode: str
) -> None:
    """Texts and bytes, in a window with other rows of the key and deletes; a null is a null."""
    name = f"{shared}.u_{secrets.token_hex(4)}"
    cassandra.execute(f"CREATE TABLE {name} (k text PRIMARY KEY, v int, t text, b blob)")
    texts = [(name, pa.string()) for name in ("k", "op", "t")]
    fields = pa.schema([*texts[:2], ("v", pa.int32()), texts[2], ("b", pa.binary())])
    more = {"cassandra.nulls": nulls, "cassandra.writeMode": mode, "unavailableValue": "?"}
    target = target_of(cassandra, name, **more)
    columns = [
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
    arrays = zip(*columns, strict=True)
    batch = pa.record_batch(
        [pa.array(item, f.type) for item, f in zip(arrays, fields, strict=True)], fields
    )
    write(target, batch)
    result = {row.k: (row.v, row.t, row.b) for row in cassandra.execute(f"SELECT * FROM {name}")}
    assert result == {
        "a": (2, "t1", b"b1"),
        "b": (3, "t2", b"b1" if nulls == "unset" else None),
        "c": (2, None, b"b2"),
        "?": (1, "t1", b"b1"),
    }

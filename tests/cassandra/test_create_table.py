"""Option `createTable` on a real node: a start creates the table, and a check shows it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from tests.support.cassandra import target_of
from wal_sink.demo.cassandra import Node
from wal_sink.errors import SchemaMismatch, TargetUnavailable
from wal_sink.targets.base import RowSlice
from wal_sink.targets.cassandra import CassandraTarget, plan, table
from wal_sink.testing.contracts.ledger import create
from wal_sink.testing.contracts.rows import deliver
from wal_sink.units import now_us

pytestmark = pytest.mark.cassandra

SCHEMA = pa.schema(
    [
        ("shop", pa.int32()),
        ("Day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("price", pa.decimal128(10, 2)),
        ("tags", pa.list_(pa.string())),
        ("seconds", pa.int32()),
    ]
)
ROW = {"shop": [1], "Day": [0], "at": [0], "price": [None], "tags": [["x"]], "seconds": [60]}
GIVEN = {
    "createTable": "true",
    "keyColumns": "shop, Day, at",
    "partitionColumns": "shop, Day",
    "cassandra.ttlColumn": "seconds",
    "cassandra.columns": '{"at": "sold_at"}',
}

CREATED = (
    'CREATE TABLE "{}"."sales" (\n  "shop" int,\n  "Day" date,\n  "sold_at" timestamp,\n'
    '  "price" decimal,\n  "tags" frozen<list<text>>,\n'
    '  PRIMARY KEY (("shop", "Day"), "sold_at")\n);'
)


def target(node: Node, keyspace: str, **options: str) -> CassandraTarget:
    """Return a target whose table is missing."""
    return target_of(node, keyspace, "sales", **GIVEN | options)


def tables(node: Node, keyspace: str) -> set[str]:
    """List the tables of a keyspace."""
    query = "SELECT table_name FROM system_schema.tables WHERE keyspace_name = %s"
    return {row.table_name for row in node.execute(query, [keyspace])}


def test_check_shows_the_table_that_a_start_creates(cassandra: Node, keyspace: str) -> None:
    """The table has no column for the TTL of a row. A second start creates nothing."""
    made = target(cassandra, keyspace)
    shown = made.dry_plan(SCHEMA, "key").creates
    assert tables(cassandra, keyspace) == set()
    assert shown == CREATED.format(keyspace)
    plans = [made.plan(SCHEMA, "key") for _ in range(2)]
    assert plans[0].columns == plans[1].columns
    assert plans[0].creates == made.dry_plan(SCHEMA, "key").creates == ""
    assert tables(cassandra, keyspace) == {"sales", "wal_sink_ledger"}
    rows = made.check(pa.record_batch(ROW, schema=SCHEMA), plans[0])
    with made.connect("query") as session:
        create(session, "query")
        deliver(session, plans[0], RowSlice(0, rows, now_us()))
    result = cassandra.execute(f"SELECT shop, tags FROM {keyspace}.sales")
    assert [tuple(row) for row in result] == [(1, ["x"])]


def test_existing_table_with_another_key_is_refused(cassandra: Node, keyspace: str) -> None:
    """Otherwise rows would replace each other by another key than `keyColumns` says."""
    target(cassandra, keyspace).plan(SCHEMA, "key")
    target(cassandra, keyspace, keyColumns="at, shop, Day").plan(SCHEMA, "key")
    other = target(cassandra, keyspace, keyColumns="shop, Day, at, price")
    with pytest.raises(SchemaMismatch, match="exists with the key shop, Day, at"):
        other.plan(SCHEMA, "key")


@pytest.mark.parametrize(
    ("options", "schema", "text"),
    [
        ({"keyColumns": "shop, Day, nowhere"}, SCHEMA, "names nowhere"),
        ({"cassandra.ledgerTable": "nowhere.l"}, SCHEMA, "nowhere of cassandra.ledgerTable"),
        (
            {},
            SCHEMA.append(pa.field("m", pa.month_day_nano_interval())),
            "for which Cassandra has no type",
        ),
    ],
    ids=["key", "ledger", "interval"],
)
def test_refused_start_creates_no_table(
    cassandra: Node, keyspace: str, options: dict[str, str], schema: pa.Schema, text: str
) -> None:
    with pytest.raises(SchemaMismatch, match=text):
        target(cassandra, keyspace, **options).plan(schema, "key")
    assert "sales" not in tables(cassandra, keyspace)


@pytest.fixture
def other_schema(cassandra: Node, keyspace: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Let the node know a peer with another schema. Yield the name of the keyspace, which exists before."""
    monkeypatch.setattr(table, "AGREEMENT_S", 0.5)
    peer = "peer = '127.0.0.9' AND peer_port = 7000"
    # The driver counts only a peer at the address of a node that it knows.
    cassandra.execute(
        f"UPDATE system.peers_v2 SET native_address = '{cassandra.host}', native_port = {cassandra.port},"
        f" schema_version = uuid() WHERE {peer}"
    )
    yield keyspace
    cassandra.execute(f"DELETE FROM system.peers_v2 WHERE {peer}")


def test_nodes_without_agreement_create_no_table(cassandra: Node, other_schema: str) -> None:
    """If another node has the table, a second CREATE TABLE could replace it."""
    missing = target(cassandra, other_schema)
    for start in (missing.plan, missing.dry_plan):
        with pytest.raises(TargetUnavailable, match="do not agree on the schema"):
            start(SCHEMA, "key")
    assert tables(cassandra, other_schema) == set()


def test_table_that_only_the_first_node_lacks_is_used(
    cassandra: Node, keyspace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node receives the table while the start waits."""
    refuse = table.refuse_disagreement

    def receive_table(*args: Any) -> None:
        cassandra.execute(CREATED.format(keyspace).rstrip(";"))
        refuse(*args)

    monkeypatch.setattr(plan, "refuse_disagreement", receive_table)
    assert target(cassandra, keyspace).dry_plan(SCHEMA, "key").creates == ""

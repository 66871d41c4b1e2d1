"""TTLs and event times on a real node, beside the contract: defaults of the table, limits, other drivers."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest

from tests.support.cassandra import target_of
from tests.support.waiting import until
from wal_sink.clock import now_us
from wal_sink.demo.servers.cassandra import Node
from wal_sink.errors import OptionError
from wal_sink.targets.base import RowSlice
from wal_sink.targets.cassandra import CassandraTarget
from wal_sink.targets.cassandra.row_plan import CassandraPlan

pytestmark = pytest.mark.cassandra

S_US = 1_000_000
INSTANT = pa.timestamp("us", "UTC")
TABLE = "k text, n int, s text static, v set<int>, at timestamp, PRIMARY KEY (k, n)"
SCHEMA = pa.schema([("k", pa.string()), ("n", pa.int32()), ("s", pa.string())])


def write(target: CassandraTarget, us: int, batch: pa.RecordBatch) -> None:
    plan = target.plan(batch.schema, "key")
    with target.connect("query") as session:
        session.write(plan, RowSlice(0, target.check(batch, plan), us))
        session.drain()


def test_on_a_real_node(cassandra: Node, keyspace: str) -> None:
    """What the table says of TTLs counts from when a row was published, too; its times keep their digits."""
    table = f"{keyspace}.t"
    cassandra.execute(f"CREATE TABLE {table} ({TABLE}) WITH default_time_to_live = 1000")
    target, now = target_of(cassandra, keyspace), now_us()
    sets = SCHEMA.append(pa.field("v", pa.list_(pa.int32())))

    def row(key: str, *more: pa.Array, schema: pa.Schema = sets) -> pa.RecordBatch:
        arrays = [pa.array([key]), pa.array([1], pa.int32()), pa.array(["s"]), *more]
        return pa.record_batch(arrays, schema=schema)

    numbers = pa.array([[1, 2]], pa.list_(pa.int32()))
    write(target, now - 400 * S_US, row("a", numbers))
    (rows,) = cassandra.execute(f"SELECT TTL(s) AS s, v FROM {table} WHERE k = 'a'")
    assert 580 < rows.s <= 600
    assert set(rows.v) == {1, 2}

    # Altered while rows wait. What is over takes what an older row without end had written.
    cassandra.execute(f"ALTER TABLE {table} WITH default_time_to_live = 0")
    write(target, now - 9_000 * S_US, row("b", numbers))
    (rows,) = cassandra.execute(f"SELECT TTL(s) AS s FROM {table} WHERE k = 'b'")
    assert rows.s is None
    short = target_of(cassandra, keyspace, **{"cassandra.ttl": "100"})
    write(short, now - 200 * S_US, row("b", pa.array([[3]], pa.list_(pa.int32()))))
    read = f"SELECT k, s, v FROM {table} WHERE k = 'b'"
    until(lambda: cassandra.execute(read) == [], seconds=20)

    # The event time that the table has in milliseconds orders rows by microseconds.
    events = target_of(cassandra, keyspace, **{"cassandra.timestampColumn": "at"})
    fields = SCHEMA.append(pa.field("at", INSTANT))
    for us in (now + 7, now + 6):
        at = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=us)
        write(events, now, row("c", pa.array([at], INSTANT), schema=fields))
    (rows,) = cassandra.execute(f"SELECT at, WRITETIME(at) AS us FROM {table} WHERE k = 'c'")
    assert rows.us == now + 7

    # A static column is a cell of the partition, so rows of several keys and one time share it.
    names = events.plan(fields, "key").of_table().columns
    assert {column.name for column in names if column.role == "static"} == {"s"}
    both = [["d", "d"], pa.array([1, 2], pa.int32()), ["z", "a"], pa.array([at, at], INSTANT)]
    write(events, now, pa.record_batch(both, schema=fields))
    rows = cassandra.execute(f"SELECT n, s FROM {table} WHERE k = 'd'")
    assert [tuple(item) for item in rows] == [(1, "z"), (2, "z")]
    cassandra.execute(f"DELETE FROM {table} USING TIMESTAMP {now + 10} WHERE k = 'd'")

    plan = short.plan(sets, "key")
    ttl = CassandraPlan.of(plan).details.ttl
    assert ttl is not None
    assert ttl.last_expiry_s > now // S_US
    most_s = ttl.max_ttl_s
    if most_s < 630_720_000:
        with pytest.raises(OptionError, match="2038"):
            target_of(cassandra, keyspace, **{"cassandra.ttl": "630720000"}).plan(sets, "key")
    longest = target_of(cassandra, keyspace, **{"cassandra.ttl": str(most_s - 10)})
    write(longest, now_us(), row("d", numbers))
    (rows,) = cassandra.execute(f"SELECT TTL(s) AS s FROM {table} WHERE k = 'd'")
    assert most_s - 60 < rows.s <= most_s

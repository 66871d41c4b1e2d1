"""Rows on a real node: names, timestamps, batches, limits, and tables that change."""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Iterator
from typing import Any

import cassandra as driver
import pyarrow as pa
import pytest

from tests.support.cassandra import raw_options
from wal_sink.demo.servers.cassandra import Node
from wal_sink.errors import InvalidRow
from wal_sink.model.plan import Plan
from wal_sink.options import parse
from wal_sink.targets.base import IdempotentSession, RowSlice
from wal_sink.targets.cassandra import CassandraOptions, CassandraTarget

pytestmark = pytest.mark.cassandra

US = 1_700_000_000_000_000


class Table:
    """A table, the target that writes to it, and a session."""

    def __init__(self, node: Node, keyspace: str, name: str) -> None:
        self.node = node
        self.name = f'"{keyspace}"."{name}"'
        self.raw = raw_options(node, keyspace, name)
        self.session: IdempotentSession | None = None

    def write(self, batch: pa.RecordBatch, us: int = US, nulls: str = "unset") -> Plan:
        """Plan, check and write, as planner, task and flusher do it."""
        options = parse(self.raw | {"cassandra.nulls": nulls}, CassandraOptions)
        target = CassandraTarget(options)
        plan = target.plan(batch.schema, f"{nulls} {batch.schema}")
        checked = target.check(batch, plan)
        if self.session is None:
            self.session = target.connect(uuid.uuid4().hex)
        self.session.write(plan, RowSlice(0, checked, us))
        self.session.drain()
        return plan

    def select(self, what: str = "*") -> list[Any]:
        return self.node.execute(f"SELECT {what} FROM {self.name}")


@pytest.fixture
def table(cassandra: Node, shared: str) -> Iterator[Table]:
    """A table of the test's own, not created yet."""
    table = Table(cassandra, shared, f"t_{secrets.token_hex(4)}")
    yield table
    if table.session is not None:
        table.session.close()


def test_names_that_need_quotes(cassandra: Node, keyspace: str) -> None:
    """Reserved words, capitals, spaces, quotes, and two names that differ in case only."""
    table = Table(cassandra, keyspace, "Select")
    names = ["order", "From", "from", 'say "hi"', "größe 😀", "a-b", "?"]
    quoted = ['"' + name.replace('"', '""') + '"' for name in names]
    columns = ", ".join(f"{name} int" for name in quoted)
    cassandra.execute(f"CREATE TABLE {table.name} ({columns}, PRIMARY KEY ({quoted[0]}))")
    batch = pa.record_batch([pa.array([i], pa.int32()) for i in range(len(names))], names=names)
    table.write(batch)
    try:
        got = table.select(", ".join(f"{name} AS c{i}" for i, name in enumerate(quoted)))
        assert tuple(got[0]) == tuple(range(len(names)))
    finally:
        assert table.session is not None
        table.session.close()


# --- timestamps ------------------------------------------------------------------------------


def rows(*values: tuple[int, int, str | None]) -> pa.RecordBatch:
    """Rows of (k, n, v)."""
    k, n, v = zip(*values, strict=True)
    columns = {"k": pa.array(k, pa.int32()), "n": pa.array(n, pa.int32()), "v": pa.array(v)}
    return pa.record_batch({**columns, "v": pa.array(v, pa.string())})


@pytest.fixture
def knv(table: Table) -> Table:
    """A table of k, n (the key) and v."""
    table.node.execute(f"CREATE TABLE {table.name} (k int, n int, v text, PRIMARY KEY (k, n))")
    return table


# --- batches ---------------------------------------------------------------------------------


def test_large_rows_of_one_partition(knv: Table) -> None:
    """Far more than one batch may hold; each goes in a request that the server takes."""
    values = [(1, n, str(n) * 20_000) for n in range(60)]
    values[7] = (1, 7, "x" * 3_000_000)
    knv.write(rows(*values))
    assert {(row.k, row.n, row.v) for row in knv.select()} == set(values)


# --- limits and changes ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "sizes", "fits"),
    [
        ("(a)", (65_535,), True),
        ("(a)", (65_536,), False),
        ("(a)", (0,), False),
        ("(a, b)", (0, 0), True),
        ("(a, b)", (65_000, 529), True),
        ("(a, b)", (65_000, 530), False),
        ("(a), b", (1, 65_535), True),
        ("(a), b", (1, 65_536), False),
        ("(a), b, c", (1, 65_000, 535), True),
        ("(a), b, c", (1, 65_000, 536), False),
        ("(a), b, c", (1, 0, 0), True),
    ],
)
def test_task_refuses_what_the_server_refuses(
    table: Table, key: str, sizes: tuple[int, ...], fits: bool
) -> None:
    """The lengths of keys, to the byte: a flush must never stop on a row."""
    names = "abc"[: len(sizes)]
    columns = ", ".join(f"{name} text" for name in names)
    table.node.execute(f"CREATE TABLE {table.name} ({columns}, PRIMARY KEY ({key}))")
    values = ["x" * size for size in sizes]
    batch = pa.record_batch({name: [v] for name, v in zip(names, values, strict=True)})
    insert = f"INSERT INTO {table.name} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"
    prepared = table.node.session().prepare(insert)
    if fits:
        table.write(batch)
        assert [tuple(row) for row in table.select()] == [tuple(values)]
    else:
        with pytest.raises(InvalidRow):
            table.write(batch)
        with pytest.raises(driver.InvalidRequest):
            table.node.session().execute(prepared, values)


def test_largest_row_is_taken(table: Table) -> None:
    """8 MiB in one value."""
    table.node.execute(f"CREATE TABLE {table.name} (id int PRIMARY KEY, c blob)")
    blob = b"x" * (8 * 1024 * 1024 - 4)
    table.write(pa.record_batch({"id": pa.array([1], pa.int32()), "c": [blob]}))
    assert table.select()[0].c == blob

"""Rows on a real node: names that need quotes, and the server's limits of keys and rows."""

from __future__ import annotations

import cassandra as driver
import pyarrow as pa
import pytest

from tests.support.cassandra import NodeTable
from wal_sink.demo.cassandra import Node
from wal_sink.errors import InvalidRow
from wal_sink.targets.cassandra.check import MAX_ROW_BYTES

pytestmark = pytest.mark.cassandra

US = 1_700_000_000_000_000


def test_names_that_need_quotes_are_quoted(cassandra: Node, keyspace: str) -> None:
    names = ["order", "From", "from", 'say "hi"', "größe 😀", "a-b", "?"]
    quoted = ['"' + name.replace('"', '""') + '"' for name in names]
    columns = ", ".join(f"{name} int" for name in quoted)
    table = NodeTable(cassandra, keyspace, f"{columns}, PRIMARY KEY ({quoted[0]})", "Select")
    batch = pa.record_batch([pa.array([i], pa.int32()) for i in range(len(names))], names=names)
    table.write((US, batch))
    aliases = ", ".join(f"{name} AS c{i}" for i, name in enumerate(quoted))
    assert tuple(table.select(aliases)[0]) == tuple(range(len(names)))


def test_large_rows_of_one_partition_are_written(cassandra: Node, shared: str) -> None:
    """The rows are far more than one batch may hold, and one row is larger than a batch."""
    table = NodeTable(cassandra, shared, "k int, n int, v text, PRIMARY KEY (k, n)")
    texts = [str(n) * 20_000 for n in range(60)]
    texts[7] = "x" * 3_000_000
    keys = {"k": pa.array([1] * 60, pa.int32()), "n": pa.array(range(60), pa.int32())}
    table.write((US, pa.record_batch({**keys, "v": texts})))
    assert {(row.k, row.n, row.v) for row in table.select()} == {
        (1, n, text) for n, text in enumerate(texts)
    }


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
def test_task_refuses_keys_that_the_server_refuses(
    cassandra: Node, shared: str, key: str, sizes: tuple[int, ...], fits: bool
) -> None:
    names = "abc"[: len(sizes)]
    columns = ", ".join(f"{name} text" for name in names)
    table = NodeTable(cassandra, shared, f"{columns}, PRIMARY KEY ({key})")
    values = ["x" * size for size in sizes]
    batch = pa.record_batch({name: [v] for name, v in zip(names, values, strict=True)})
    if fits:
        table.write((US, batch))
        assert [tuple(row) for row in table.select()] == [tuple(values)]
        return
    with pytest.raises(InvalidRow):
        table.write((US, batch))
    marks = ", ".join("?" * len(names))
    insert = f"INSERT INTO {table.name} ({', '.join(names)}) VALUES ({marks})"
    with pytest.raises(driver.InvalidRequest):
        cassandra.session().execute(cassandra.session().prepare(insert), values)


def test_largest_row_is_accepted(cassandra: Node, shared: str) -> None:
    table = NodeTable(cassandra, shared, "id int PRIMARY KEY, c blob")
    blob = b"x" * (MAX_ROW_BYTES - 4)
    table.write((US, pa.record_batch({"id": pa.array([1], pa.int32()), "c": [blob]})))
    assert table.select()[0].c == blob

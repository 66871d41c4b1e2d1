"""The division of rows into requests, and the buffer of small slices before it."""

from __future__ import annotations

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.cql_driver import plan_of
from wal_sink.model.plan import Column
from wal_sink.targets.base import RowSlice
from wal_sink.targets.cassandra.batches import (
    BUFFER_BYTES,
    BUFFER_ROWS,
    BUFFER_S,
    Batches,
    Limits,
    SliceBuffer,
    divide,
    limits,
)
from wal_sink.targets.cassandra.row_plan import CassandraPlan

LIMITS = Limits(rows=4, bytes=40, shared_partitions=3, shared_bytes=24, row_weight=2)


def requests(
    keys: str, sizes: list[int] | int = 1, limit: Limits = LIMITS, nodes: str = ""
) -> list[str]:
    """Divide rows, and return the letters of each request. A letter is a row and names its partition."""
    batches = divided(keys, sizes, limit, nodes)
    order = range(len(keys)) if batches.order is None else batches.order
    letters = [keys[row] for row in order]
    return ["".join(letters[i:j]) for i, j in bounds(batches)]


def divided(keys: str, sizes: list[int] | int, limit: Limits, nodes: str = "") -> Batches:
    codes_by_key: dict[str, int] = {}
    codes = np.array([codes_by_key.setdefault(key, len(codes_by_key)) for key in keys], np.int32)
    sizes_by_row = np.array([sizes] * len(keys) if isinstance(sizes, int) else sizes, np.int64)
    return divide(
        codes, sizes_by_row, limit, np.array([int(node) for node in nodes]) if nodes else None
    )


def bounds(batches: Batches) -> list[tuple[int, int]]:
    return list(zip(batches.starts[:-1].tolist(), batches.starts[1:].tolist(), strict=True))


def test_rows_of_a_large_partition_share_requests() -> None:
    """Rows of a partition keep their order, also if other rows lie between them."""
    batches = divided("ababab", 10, LIMITS)
    assert batches.order is not None
    assert batches.order.tolist() == [0, 2, 4, 1, 3, 5]
    assert requests("ababab", 10) == ["aaa", "bbb"]
    assert batches.first_rows().tolist() == [0, 1]


def test_sorted_rows_are_not_reordered() -> None:
    assert divided("aaaabbbb", 10, LIMITS).order is None
    assert divided("abcdef", 1, LIMITS).order is None
    assert divided("a" * 600 + "b" + "c" * 600, 10, LIMITS).order is None


def test_large_partition_is_divided_into_requests() -> None:
    """A request ends at the limit of rows or of bytes. A row above a limit is alone."""
    assert requests("aaaaa", 10) == ["aaaa", "a"]
    assert requests("aaaa", 20) == ["aa", "aa"]
    assert requests("aaa", [10, 99, 10]) == ["a", "a", "a"]


def test_small_partitions_share_a_request() -> None:
    """The limits are partitions, rows and weight. A partition stays whole."""
    assert requests("abcdefg") == ["abc", "def", "g"]
    assert requests("abab", 3) == ["aabb"]
    assert requests("aabbcc", 2) == ["aabb", "cc"]
    assert requests("abc", 9) == ["ab", "c"]


def test_batch_has_partitions_of_one_coordinator() -> None:
    assert requests("abcd", nodes="0101") == ["ac", "bd"]
    assert requests("abbbbc", [1, 9, 9, 9, 9, 1], nodes="010") == ["bbbb", "ac"]


def test_weight_of_a_row_counts_its_cells() -> None:
    """The numbers are from warnings of Cassandra 5.0: 30 ints, and 50 tinyints in a set or list."""
    wide = [Column(name="k", source="int32", type="int", role="partition")]
    wide += [Column(name=f"c{i}", source="int32", type="int", role="regular") for i in range(30)]
    limit = limits(plan(*wide))
    assert 281 * limit.byte_weight + limit.row_weight >= 770
    of_set = Column(name="s", source="list<int8>", type="set<tinyint>", role="regular")
    limit = limits(plan(wide[0], of_set))
    assert 299 * limit.byte_weight + limit.row_weight >= 1112
    of_list = Column(name="l", source="list<int8>", type="list<tinyint>", role="regular")
    limit = limits(plan(wide[0], of_list))
    assert 299 * limit.byte_weight + limit.row_weight >= 1112 + 50 * 16


def plan(*columns: Column) -> CassandraPlan:
    return msgspec.structs.replace(plan_of(), columns=columns)


ROWS = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 30)), max_size=120)


@given(ROWS, st.integers(1, 6), st.integers(1, 60), st.integers(1, 5), st.integers(0, 3))
def test_each_row_is_in_exactly_one_request(
    rows: list[tuple[int, int]], most: int, of_bytes: int, shared: int, nodes: int
) -> None:
    """Each request is within the limits, and rows of a partition keep their order."""
    keys = "".join(chr(65 + key) for key, _ in rows)
    sizes = [size for _, size in rows]
    limit = Limits(most, of_bytes, shared, of_bytes // 2, row_weight=1)
    of_node = {
        key: number % nodes if nodes else 0 for number, key in enumerate(dict.fromkeys(keys))
    }
    batches = divided(keys, sizes, limit, "".join(map(str, of_node.values())) if nodes else "")
    order = list(range(len(rows))) if batches.order is None else batches.order.tolist()
    assert sorted(order) == list(range(len(rows)))
    assert batches.starts[0] == 0
    assert batches.starts[-1] == len(rows)
    for key in of_node:
        mine = [row for row in order if keys[row] == key]
        assert mine == sorted(mine)
    for begin, end in bounds(batches):
        request = order[begin:end]
        partitions = {keys[row] for row in request}
        assert 1 <= len(request) <= most
        assert len({of_node[key] for key in partitions}) == 1
        if len(partitions) > 1:
            assert len(partitions) <= shared
            assert sum(sizes[row] + 1 for row in request) <= of_bytes // 2
        elif len(request) > 1:
            assert sum(sizes[row] for row in request) <= of_bytes


SLICE_ROWS = 100


class Clock:
    """A clock that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def part(epoch: int, rows: int = SLICE_ROWS) -> RowSlice:
    """Return a slice whose values name epoch and row, and whose timestamps equal its values."""
    values = pa.array([epoch * 1_000_000 + row for row in range(rows)], pa.int64())
    return RowSlice(epoch, pa.record_batch({"v": values}), epoch * 1_000_000)


def test_buffered_row_keeps_its_timestamp() -> None:
    waiting = SliceBuffer()
    parts = [part(7), part(3, 1), part(5)]
    for rows in parts:
        waiting.add(rows)
    (joined,) = waiting.take()
    assert joined.batch.column("v").to_pylist() == [
        value for rows in parts for value in rows.batch.column("v").to_pylist()
    ]
    assert joined.timestamps_us.tolist() == joined.batch.column("v").to_pylist()
    assert waiting.take() == [], "a row is taken once"


@pytest.mark.parametrize("column", [pa.array([[1], []]), pa.array(["a", None]).dictionary_encode()])
def test_buffer_returns_rows_of_any_type_in_order(column: pa.Array) -> None:
    """Batches that Arrow cannot concatenate stay separate."""
    waiting = SliceBuffer()
    for epoch in (1, 2):
        waiting.add(RowSlice(epoch, pa.record_batch({"c": column}), epoch * 10))
    taken = waiting.take()
    values = [value for rows in taken for value in rows.batch.column("c").to_pylist()]
    assert values == column.to_pylist() * 2
    assert [us for rows in taken for us in rows.timestamps_us.tolist()] == [10, 11, 20, 21]


def test_buffer_must_be_emptied_when_full_or_old() -> None:
    clock = Clock()
    waiting = SliceBuffer(clock)
    assert not waiting.add(part(1))
    assert waiting.add(part(2, BUFFER_ROWS - SLICE_ROWS)), "rows"
    waiting.take()
    large = pa.record_batch({"v": ["x" * BUFFER_BYTES]})
    assert waiting.add(RowSlice(1, large, 1)), "bytes"
    waiting.take()
    waiting.add(part(1))
    clock.now += BUFFER_S / 2
    assert not waiting.add(part(2))
    clock.now += BUFFER_S / 2
    assert waiting.add(part(3)), "time"

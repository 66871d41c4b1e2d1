"""Which rows go into one request."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.cql_driver import plan_of
from wal_sink.model.plan import Column
from wal_sink.targets.cassandra.row_plan import CassandraPlan
from wal_sink.targets.cassandra.write.batches import Batches, Limits, divide, limits

LIMITS = Limits(rows=4, bytes=40, shared_partitions=3, shared_bytes=24, row_weight=2)


def requests(
    keys: str, sizes: list[int] | int = 1, limit: Limits = LIMITS, nodes: str = ""
) -> list[str]:
    """Divide rows, one a letter, which is its partition; return the letters of each request."""
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


def test_rows_of_a_large_partition_come_together() -> None:
    """Whatever lies between them, and in their order."""
    batches = divided("ababab", 10, LIMITS)
    assert batches.order is not None
    assert batches.order.tolist() == [0, 2, 4, 1, 3, 5]
    assert requests("ababab", 10) == ["aaa", "bbb"]
    assert batches.first_rows().tolist() == [0, 1]


def test_rows_that_are_sorted_already_are_not_moved() -> None:
    """Large partitions one after the other; small ones one after the other; a few small ones between."""
    assert divided("aaaabbbb", 10, LIMITS).order is None
    assert divided("abcdef", 1, LIMITS).order is None
    assert divided("a" * 600 + "b" + "c" * 600, 10, LIMITS).order is None


def test_large_partitions_are_cut() -> None:
    """By rows, by bytes, and a row above the limit alone."""
    assert requests("aaaaa", 10) == ["aaaa", "a"]
    assert requests("aaaa", 20) == ["aa", "aa"]
    assert requests("aaa", [10, 99, 10]) == ["a", "a", "a"]


def test_small_partitions_share_a_request() -> None:
    """By their number, by rows and by weight; a partition stays whole."""
    assert requests("abcdefg") == ["abc", "def", "g"]
    assert requests("abab", 3) == ["aabb"]
    assert requests("aabbcc", 2) == ["aabb", "cc"]
    assert requests("abc", 9) == ["ab", "c"]


def test_batch_has_partitions_of_one_coordinator() -> None:
    """The large ones are alone anyway."""
    assert requests("abcd", nodes="0101") == ["ac", "bd"]
    assert requests("abbbbc", [1, 9, 9, 9, 9, 1], nodes="010") == ["bbbb", "ac"]


def test_server_weighs_cells_not_bytes() -> None:
    """What Cassandra 5.0 said of rows with a key and 30 ints, and of sets of 50 tinyints."""
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


def test_limits_that_options_give() -> None:
    """Batches of many rows of one partition, and of several, are cut alike."""
    limit = limits(plan(), batch_bytes=2_048, batch_rows=30)
    assert (limit.bytes, limit.rows) == (2_048, 30)
    assert requests("aaaaabbbbb", limit=LIMITS._replace(rows=2)) == [
        *["aa", "aa", "a"],
        *["bb", "bb", "b"],
    ]


def plan(*columns: Column) -> CassandraPlan:
    return msgspec.structs.replace(plan_of(), columns=columns)


@pytest.mark.parametrize("keys", ["", "a"])
def test_no_rows_make_no_request(keys: str) -> None:
    """No row, no request."""
    assert requests(keys) == list(keys)


ROWS = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 30)), max_size=120)


@given(ROWS, st.integers(1, 6), st.integers(1, 60), st.integers(1, 5), st.integers(0, 3))
def test_every_row_is_in_one_request(
    rows: list[tuple[int, int]], most: int, of_bytes: int, shared: int, nodes: int
) -> None:
    """None lost, none twice, within the limits, rows of a partition in their order."""
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

"""Which rows go into one batch."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from wal_sink.targets.cassandra.group import group


def test_rows_of_a_partition_stay_together_and_in_order() -> None:
    """Whatever lies between them."""
    assert sorted(group("abab" + "c", [1] * 5)) == [[0, 2], [1, 3], [4]]


def test_limits() -> None:
    """By rows, by bytes, and a row above the limit alone."""
    assert list(group("aaaaa", [1] * 5, max_rows=2)) == [[0, 1], [2, 3], [4]]
    assert list(group("aaaa", [3, 3, 3, 3], max_bytes=6)) == [[0, 1], [2, 3]]
    assert list(group("aaa", [1, 99, 1], max_bytes=10)) == [[0], [1], [2]]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9))), st.integers(1, 4))
def test_every_row_is_in_one_group(rows: list[tuple[int, int]], max_rows: int) -> None:
    """None lost, none twice, one key in a group, ascending, within the limits."""
    keys = [key for key, _ in rows]
    sizes = [size for _, size in rows]
    groups = list(group(keys, sizes, max_rows, max_bytes=12))
    assert sorted(position for each in groups for position in each) == list(range(len(rows)))
    for each in groups:
        assert len({keys[position] for position in each}) == 1
        assert each == sorted(each)
        assert len(each) <= max_rows
        assert len(each) == 1 or sum(sizes[position] for position in each) <= 12

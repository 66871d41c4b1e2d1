"""Items that are read before they are wanted."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from wal_sink.flush.rows import ReadAhead


def numbers(*, then: Exception | None = None) -> Iterator[int]:
    yield from range(5)
    if then is not None:
        raise then


@pytest.mark.parametrize("ahead", range(8))
def test_each_item_comes_once_and_in_order(ahead: int) -> None:
    """However many were read ahead, before the first and between two."""
    items = ReadAhead(numbers())
    assert list(itertools.islice(items.ahead(), ahead)) == [*range(5)][:ahead]
    assert next(items) == 0
    list(itertools.islice(items.ahead(), ahead))
    assert list(items) == [1, 2, 3, 4]
    assert not items.is_broken


def test_an_error_comes_where_its_item_would_have_come() -> None:
    """Not to the reader ahead; and each time, so that no end is taken for the last item."""
    items = ReadAhead(numbers(then=OSError("gone")))
    assert list(items.ahead()) == [0, 1, 2, 3, 4]
    assert items.is_broken
    assert [next(items) for _ in range(5)] == [0, 1, 2, 3, 4]
    for _ in range(2):
        with pytest.raises(OSError, match="gone"):
            next(items)
    assert list(items.ahead()) == []

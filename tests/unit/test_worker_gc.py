"""What a worker holds for good is not looked through again."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from wal_sink.spark import worker_gc


class Cycle:
    """Garbage that only the collector finds."""

    def __init__(self) -> None:
        self.me = self


@pytest.fixture(autouse=True)
def thawed() -> Iterator[None]:
    """Begin without what `tests/conftest.py` has frozen, and leave this process as it was."""
    worker_gc.settle.cache_clear()
    gc.unfreeze()
    yield
    gc.freeze()


def test_what_is_alive_is_left_alone_from_then_on() -> None:
    """And only that: garbage of before is gone, and later garbage is collected."""
    before = weakref.ref(Cycle())
    worker_gc.settle()
    assert before() is None
    assert gc.get_freeze_count() > 10_000
    after = weakref.ref(Cycle())
    gc.collect()
    assert after() is None


def test_only_once() -> None:
    """Or garbage of each epoch would be kept."""
    worker_gc.settle()
    after = weakref.ref(Cycle())
    worker_gc.settle()
    gc.collect()
    assert after() is None

"""What a worker holds for good is not looked through again."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from wal_sink.spark import data_source


class Cycle:
    """Garbage that only the collector finds."""

    def __init__(self) -> None:
        self.me = self


@pytest.fixture(autouse=True)
def thawed() -> Iterator[None]:
    """Begin without what `tests/conftest.py` has frozen, and leave this process as it was."""
    data_source.freeze_objects.cache_clear()
    gc.unfreeze()
    yield
    gc.freeze()


def test_what_is_alive_is_left_alone_from_then_on() -> None:
    """And only that: garbage of before is gone, and later garbage is collected."""
    before = weakref.ref(Cycle())
    data_source.freeze_objects()
    assert before() is None
    assert gc.get_freeze_count() > 10_000
    after = weakref.ref(Cycle())
    gc.collect()
    assert after() is None


def test_only_once() -> None:
    """Or garbage of each epoch would be kept."""
    data_source.freeze_objects()
    after = weakref.ref(Cycle())
    data_source.freeze_objects()
    gc.collect()
    assert after() is None

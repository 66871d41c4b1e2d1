"""Spark's Python workers: which objects their garbage collector skips."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from wal_sink.spark.internals import python_worker


class Cycle:
    """An object that refers to itself, so that only the garbage collector frees it."""

    def __init__(self) -> None:
        self.me = self


@pytest.fixture(autouse=True)
def thawed() -> Iterator[None]:
    """Begin without frozen objects, and freeze this process again at the end."""
    python_worker.freeze_objects.cache_clear()
    gc.unfreeze()
    yield
    gc.freeze()


def test_objects_made_after_the_first_freeze_are_collected() -> None:
    """The first freeze frees earlier garbage. A second call freezes nothing."""
    reference = weakref.ref(Cycle())
    python_worker.freeze_objects()
    assert reference() is None
    assert gc.get_freeze_count() > 10_000
    later = weakref.ref(Cycle())
    python_worker.freeze_objects()
    gc.collect()
    assert later() is None

"""Reads many objects of the log: side by side where each read is a request over a network."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from wal_sink.wal.log import Log

T = TypeVar("T")
R = TypeVar("R")

_REQUESTS_AT_A_TIME = 16


def read_many(log: Log, read: Callable[[T], R], names: Iterable[T]) -> list[R]:
    """Read what each name stands for; return the results in the order of the names.

    :param read: reads one; what it raises is raised here.
    """
    if not log.backend.billed:
        return [read(name) for name in names]
    with ThreadPoolExecutor(_REQUESTS_AT_A_TIME) as pool:
        return list(pool.map(read, names))

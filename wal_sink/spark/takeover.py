"""Hands the flush of a query to another handle when a notebook starts it again in a new session.

A notebook stops its session without closing the handle, and runs its cells again. The old handle's flush
needs no Spark, so it goes on by itself, until its query starts under the new handle.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from wal_sink.spark.query_flush import QueryFlush

_offered: list[QueryFlush] = []
_lock = threading.Lock()


def offer(flushes: Iterable[QueryFlush]) -> None:
    """Let flushes of a stopped session be taken over; they go on until then."""
    with _lock:
        _offered[:] = [flush for flush in _offered if flush.loop.is_alive()]
        _offered.extend(flushes)


def take_over(query_id: str) -> bool:
    """Stop the flushes of a query that stopped sessions have left; whether there was one."""
    with _lock:
        found = [flush for flush in _offered if flush.query_id == query_id]
        _offered[:] = [flush for flush in _offered if flush.query_id != query_id]
    for flush in found:
        flush.taken_over = True
        flush.loop.stop()
    return bool(found)

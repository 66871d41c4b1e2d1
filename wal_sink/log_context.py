"""What the log lines of a flusher's thread begin with, and how often those of a long trouble come.

The messages begin with `query <id>, target <name>, epoch <n>:`, without what does not apply. The records have
the attributes `query_id`, `target` and `epoch`, for handlers that write structured logs.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator, MutableMapping
from contextvars import ContextVar
from typing import Any

_EVERY_S = 60.0

_QUERY: ContextVar[str] = ContextVar("wal_sink_query", default="")
_TARGET: ContextVar[str] = ContextVar("wal_sink_target", default="")
_EPOCH: ContextVar[int | None] = ContextVar("wal_sink_epoch", default=None)


def query_name(query_id: str, target: str) -> str:
    """Return what messages call a query, and its target where it has several."""
    return f"query {query_id}, target {target}" if target else f"query {query_id}"


@contextlib.contextmanager
def logging_query(query_id: str, target: str) -> Iterator[None]:
    """Within the block, let the log records of this thread be about a query and one of its targets.

    :param target: the name of one of several; empty for the only one.
    """
    query, name, epoch = _QUERY.set(query_id), _TARGET.set(target), _EPOCH.set(None)
    try:
        yield
    finally:
        _EPOCH.reset(epoch)
        _TARGET.reset(name)
        _QUERY.reset(query)


def log_epoch(epoch: int | None) -> None:
    """Let what follows in the block of `logging_query` be about this epoch; None: about none."""
    if _QUERY.get():
        _EPOCH.set(epoch)


class OncePerMinute:
    """Lets one message of each kind through a minute, while what it says lasts."""

    def __init__(self) -> None:
        self._said_s: dict[str, float] = {}

    def is_due(self, kind: str = "") -> bool:
        """Return True if the message is due; then it counts as logged."""
        now_s = time.monotonic()
        if now_s - self._said_s.get(kind, float("-inf")) < _EVERY_S:
            return False
        self._said_s[kind] = now_s
        return True


class _Placed(logging.LoggerAdapter[logging.Logger]):
    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        """Add what the record is about, where that is known."""
        query_id, target, epoch = _QUERY.get(), _TARGET.get(), _EPOCH.get()
        if not query_id:
            return msg, kwargs
        place = query_name(query_id, target) + ("" if epoch is None else f", epoch {epoch}")
        extra = {"query_id": query_id, "target": target, "epoch": epoch}
        return f"{place}: {msg}", {**kwargs, "extra": extra}


def line_logger(name: str) -> logging.LoggerAdapter[logging.Logger]:
    """Return the logger of a module that works for a flusher."""
    return _Placed(logging.getLogger(name))

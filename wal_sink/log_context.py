"""Adds query and epoch to every log record of a flusher's thread.

The messages begin with `query <id>, epoch <n>:`, and the records have the attributes `query_id` and `epoch`,
for handlers that write structured logs.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, MutableMapping
from contextvars import ContextVar
from typing import Any

_QUERY: ContextVar[str] = ContextVar("wal_sink_query", default="")
_EPOCH: ContextVar[int | None] = ContextVar("wal_sink_epoch", default=None)


@contextlib.contextmanager
def logging_query(query_id: str, epoch: int | None = None) -> Iterator[None]:
    """Within the block, let the log records of this thread be about a query and an epoch."""
    query, number = _QUERY.set(query_id), _EPOCH.set(epoch)
    try:
        yield
    finally:
        _EPOCH.reset(number)
        _QUERY.reset(query)


def log_epoch(epoch: int | None) -> None:
    """Let what follows in the block of `logging_query` be about this epoch; None: about none."""
    if _QUERY.get():
        _EPOCH.set(epoch)


class _Placed(logging.LoggerAdapter[logging.Logger]):
    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        """Say what the record is about, where that is known."""
        query_id, epoch = _QUERY.get(), _EPOCH.get()
        if not query_id:
            return msg, kwargs
        place = f"query {query_id}" if epoch is None else f"query {query_id}, epoch {epoch}"
        return f"{place}: {msg}", {**kwargs, "extra": {"query_id": query_id, "epoch": epoch}}


def line_logger(name: str) -> logging.LoggerAdapter[logging.Logger]:
    """Return the logger of a module that works for a flusher."""
    return _Placed(logging.getLogger(name))

"""Which query and epoch a line of the flusher's is about: said once, carried by every line of the thread.

The lines begin with `query <id>, epoch <n>:`, and their records have the attributes `query_id` and `epoch`
for handlers that write structured lines.
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
def about(query_id: str, epoch: int | None = None) -> Iterator[None]:
    """Let the lines of this thread, within the block, be about a query and an epoch."""
    query, number = _QUERY.set(query_id), _EPOCH.set(epoch)
    try:
        yield
    finally:
        _EPOCH.reset(number)
        _QUERY.reset(query)


def at(epoch: int | None) -> None:
    """Let what follows, up to the end of the block of `about`, be about this epoch, or about none."""
    if _QUERY.get():
        _EPOCH.set(epoch)


class _Placed(logging.LoggerAdapter[logging.Logger]):
    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        """Say what the line is about, where that is known."""
        query_id, epoch = _QUERY.get(), _EPOCH.get()
        if not query_id:
            return msg, kwargs
        place = f"query {query_id}" if epoch is None else f"query {query_id}, epoch {epoch}"
        return f"{place}: {msg}", {**kwargs, "extra": {"query_id": query_id, "epoch": epoch}}


def line_logger(name: str) -> logging.LoggerAdapter[logging.Logger]:
    """Return the logger of a module that works for a flusher."""
    return _Placed(logging.getLogger(name))

"""Stops queries as they start: for a mode that the sink refuses (`modes`), or to keep a proof (rule 12).

Spark drops what `onQueryStarted` raises, and the query runs on. So the sink stops the query, and raises the
error where the application meets the handle next: in `await_flushed`, `status` or `close`.
"""

from __future__ import annotations

import logging
import threading

from pyspark.sql.streaming.query import StreamingQuery

from wal_sink.errors import WalSinkError
from wal_sink.spark import internals

logger = logging.getLogger(__name__)


class Refusals:
    """The queries that one handle has refused. Used by several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._errors: dict[str, WalSinkError] = {}

    def refuse(self, query: StreamingQuery, error: WalSinkError) -> None:
        """Stop a query, and remember why; also inside `onQueryStarted`."""
        logger.error("query %s is refused: %s", query.id, error.one_line)
        self.remember(str(query.id), error)
        internals.stop(query)

    def remember(self, query_id: str, error: WalSinkError) -> None:
        """Remember why a query will be refused by its first commit: it may end without one."""
        with self._lock:
            self._errors[query_id] = error

    def find(self, query_id: str) -> WalSinkError | None:
        """Return why a query was refused; None when it was not."""
        with self._lock:
            return self._errors.get(query_id)

    def errors(self) -> list[WalSinkError]:
        """Return why each refused query was refused."""
        with self._lock:
            return list(self._errors.values())

    def forget(self, query_id: str) -> None:
        """Forget that a query was refused: it has started again as it should."""
        with self._lock:
            self._errors.pop(query_id, None)

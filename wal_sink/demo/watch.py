"""Watches the demo from outside: what is checkpointed, and what a reader of the tables sees."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from wal_sink.demo import flights
from wal_sink.demo.background import Background
from wal_sink.demo.queries import QUERIES, Query
from wal_sink.demo.stores import Stores
from wal_sink.errors import WalSinkError
from wal_sink.wal.location import locate
from wal_sink.wal.states import newest

_EVERY_S = 1.0
_COUNTABLE = 100_000
"""Counting the rows of a larger table would cost the demo more than the streaming."""


class Progress(NamedTuple):
    """How far a query is, in rows."""

    total: int
    visible: int
    """Rows that a reader of the table sees; of a large one, those that the log says are flushed."""
    checkpointed: int
    """Rows of the epochs that have a `commits/N`."""


class Sample(NamedTuple):
    """All queries at one moment."""

    seconds: float
    """Since the watch began."""
    progress: Mapping[str, Progress]
    """By table."""


class Watch(Background):
    """Takes samples until the `with` block is left.

    :param rows: of each source.
    :param epochs: in how many they are streamed.
    :param say: called with each sample, on this thread.
    """

    def __init__(
        self,
        folder: Path,
        stores: Stores,
        rows: Mapping[str, int],
        epochs: int,
        say: Callable[[Sample], None],
    ) -> None:
        super().__init__("wal_sink-demo-watch")
        self.samples: list[Sample] = []
        self._folder, self._stores, self._rows, self._say = folder, stores, rows, say
        self._epochs = epochs
        self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        """Since the watch began."""
        return time.monotonic() - self._began

    def work(self) -> None:
        """Take samples; the last one after the end."""
        while not self._left.wait(_EVERY_S):
            self._take()
        self._take()

    def _take(self) -> None:
        progress = {query.table: self._progress(query) for query in QUERIES}
        self.samples.append(Sample(self.seconds, progress))
        self._say(self.samples[-1])

    def _progress(self, query: Query) -> Progress:
        total = self._rows[query.source]
        size = flights.rows_per_file(total, self._epochs)  # of an epoch: one file each
        # In this order: whatever is visible now was checkpointed before.
        if total > _COUNTABLE:
            visible = min(total, (self._flushed(query) + 1) * size)
        else:
            visible = self._stores.count(query.table)
        return Progress(total, visible, min(total, (self._checkpointed(query) + 1) * size))

    def _checkpointed(self, query: Query) -> int:
        return locate(str(self._folder / query.checkpoint)).open_checkpoint().last_commit()

    def _flushed(self, query: Query) -> int:
        location = locate(str(self._folder / query.checkpoint))
        try:
            state = newest(location.open_log(location.open_checkpoint().query_id()))
        except WalSinkError:
            return -1  # the query has not begun
        return -1 if state is None else min(target.mark.epoch for target in state.targets)

"""Measures every second how many rows are checkpointed, and how many rows a reader of the tables sees."""

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
from wal_sink.wal.store import newest

_PERIOD_S = 1.0
_COUNTABLE = 100_000
"""The largest table whose rows are counted. To count more rows would be slower than to stream them."""


class Progress(NamedTuple):
    """The progress of a query, in rows."""

    total: int
    visible: int
    """Rows of the table. For a large table, rows that are flushed by the state of the log."""
    checkpointed: int
    """Rows of the epochs with a file `commits/N`."""


class Sample(NamedTuple):
    """The progress of all queries at one moment."""

    seconds: float
    """Seconds since the watch began."""
    progress: Mapping[str, Progress]
    """The progress by table."""


class Watch(Background):
    """Takes samples until the `with` block ends.

    :param rows: the number of rows of each source, by its name.
    :param epochs: the number of epochs of each query.
    :param on_sample: called with each sample, on this thread.
    """

    def __init__(
        self,
        folder: Path,
        stores: Stores,
        rows: Mapping[str, int],
        epochs: int,
        on_sample: Callable[[Sample], None],
    ) -> None:
        super().__init__("wal_sink-demo-watch")
        self.samples: list[Sample] = []
        self._folder, self._stores, self._rows = folder, stores, rows
        self._epochs, self._on_sample = epochs, on_sample
        self._began_s = time.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds since the watch began."""
        return time.monotonic() - self._began_s

    def work(self) -> None:
        """Take a sample every second, and one at the end."""
        while not self._left.wait(_PERIOD_S):
            self._take()
        self._take()

    def _take(self) -> None:
        progress = {query.table: self._progress(query) for query in QUERIES}
        self.samples.append(Sample(self.seconds, progress))
        self._on_sample(self.samples[-1])

    def _progress(self, query: Query) -> Progress:
        total = self._rows[query.source]
        size = flights.rows_per_file(total, self._epochs)  # each epoch is one file
        # `visible` is read before `checkpointed`, since a row of wal_sink is checkpointed before it is
        # visible.
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
            return -1  # the query has not started
        return -1 if state is None else min(target.mark.epoch for target in state.targets)

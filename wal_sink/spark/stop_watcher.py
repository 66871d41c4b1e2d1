"""Tells a `commit` that waits for room that its query is being stopped.

Spark's `stop()` waits for the micro-batch, and that for `commit`, in a Python worker that no interrupt and no
event reaches (measured with 4.3.0: it took as long as the commit did). What both can reach is the log. So
a run that is told to stop, and goes on all the same, loses its ticket: without one it may not publish
anything (rule 2), and a `commit` that waits sees that.
"""

from __future__ import annotations

import logging
import threading
from typing import NamedTuple

from pyspark.sql.streaming.query import StreamingQuery

from state_backends import StateBackendError
from wal_sink.model import paths
from wal_sink.spark import internals
from wal_sink.wal.log import Log

logger = logging.getLogger(__name__)

_LOOK_S = 1.0

_LOOKS = 2
"""How often in a row a run is found to be stopping before it loses its ticket: nearly every run ends in
less, whatever it was doing, and takes no notice."""


class _Run(NamedTuple):
    query: StreamingQuery
    log: Log
    looks: int


class StopWatcher(threading.Thread):
    """Watches the runs of one handle, from the first one on."""

    def __init__(self) -> None:
        super().__init__(name="wal_sink-stops", daemon=True)
        self._lock = threading.Lock()
        self._runs: dict[str, _Run] = {}
        self._ended = threading.Event()

    def watch(self, run_id: str, query: StreamingQuery, log: Log) -> None:
        """Watch a run until it ends."""
        with self._lock:
            self._runs[run_id] = _Run(query, log, 0)
            if self.ident is None and not self._ended.is_set():
                self.start()

    def forget(self, run_id: str) -> None:
        """Watch a run no longer: it has ended."""
        with self._lock:
            self._runs.pop(run_id, None)

    def end(self, join_s: float) -> None:
        """Watch nothing any more.

        :param join_s: seconds to wait for the thread.
        """
        self._ended.set()
        if self.ident is not None:
            self.join(join_s)

    def run(self) -> None:
        """Look now and then."""
        while not self._ended.wait(_LOOK_S):
            with self._lock:
                runs = dict(self._runs)
            for run_id, run in runs.items():
                self._look(run_id, run)

    def _look(self, run_id: str, run: _Run) -> None:
        active = internals.is_active(run.query)
        looks = 0 if active else run.looks + 1
        if active is None:
            self.forget(run_id)
            return
        if looks == _LOOKS:
            try:
                run.log.delete([paths.ticket(run_id)])
            except (OSError, StateBackendError) as error:
                logger.warning("a run that stops cannot be told so: %r", error)
                return
            self.forget(run_id)
            return
        with self._lock:
            if run_id in self._runs:
                self._runs[run_id] = run._replace(looks=looks)

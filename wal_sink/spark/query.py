"""One query in this process: its flush, its checkpoint and its log.

A notebook may stop its session without closing the handle. The flush needs no Spark, so it goes on until all
is flushed; a flusher of the same query under a new handle does it no harm.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pyspark.sql.streaming.query import StreamingQuery

from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.configuration import configure
from wal_sink.errors import OptionError, WalSinkError
from wal_sink.flush.loop import FlushLoop
from wal_sink.progress.backlog import pending_epochs
from wal_sink.spark.batch_writer import options_at
from wal_sink.spark.data_source import FORMAT
from wal_sink.spark.internals import streaming_query
from wal_sink.wal.store import LogStore


@dataclass
class QueryFlush:
    """A query, and the threads that flush it, one for each target; none where another process does."""

    query_id: str
    run_id: str
    """Of the run with which this flush began; an event of an earlier run does not concern it."""
    checkpoint: Checkpoint
    store: LogStore
    loops: Sequence[FlushLoop]
    terminated: bool = False
    """True if the run has ended."""

    def place(self) -> tuple[Checkpoint, LogStore]:
        """Return its checkpoint and log."""
        return self.checkpoint, self.store

    def for_each_loop(self, act: Callable[[FlushLoop], object]) -> None:
        """Call a method of every loop, such as `FlushLoop.wake`; none waits for another."""
        for loop in self.loops:
            act(loop)

    def has_tried(self, target: str) -> bool:
        """Return True if the thread for a target has done a pass since it was told to `hurry`."""
        return all(loop.has_tried() for loop in self.loops if loop.target_name == target)

    @property
    def is_alive(self) -> bool:
        """True if a thread runs."""
        return any(loop.is_alive() for loop in self.loops)

    def is_done(self) -> bool:
        """Return True if nothing more can come of it: run and flush have ended, and all is in the target.

        A loop that was told to end has flushed everything, unless it has ended by an error. Where another
        process flushes, log and checkpoint are read.
        """
        if not self.terminated or self.is_alive:
            return False
        if self.loops:
            return all(loop.error is None for loop in self.loops)
        try:
            return pending_epochs(self.checkpoint, self.store) == 0
        except (OSError, WalSinkError):
            return False  # nothing is known of it


def locate(query: StreamingQuery) -> tuple[Checkpoint, LogStore]:
    """Find checkpoint and log of a query of this process by what Spark knows of it.

    :raises OptionError: it is not of this sink, or was refused, or Spark does not answer.
    """
    try:
        started = streaming_query.started_query(query, FORMAT, options_at)
    except WalSinkError:
        raise
    except Exception as error:  # of py4j: the query failed before it had a plan, or Spark is gone
        raise OptionError(
            f"Spark does not tell where the checkpoint of query {query.id} is: {error!r}",
            "Pass the location of its checkpoint to wal_sink.status() or wal_sink.await_flushed().",
        ) from error
    if started is None:
        raise OptionError(
            f"Query {query.id} writes neither to format {FORMAT} nor by wal_sink.batch_writer.",
            "Pass a query of this sink, or the location of its checkpoint.",
        )
    location = configure(started.options, started.folder).location
    return location.open_checkpoint(), location.open_log(started.query_id)

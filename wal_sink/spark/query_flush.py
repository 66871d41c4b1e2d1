"""One query of a classic session: its flush, and where its checkpoint and log are.

A notebook may stop its session without closing the handle. A flush needs no Spark, so it continues until
everything is flushed. A second flusher of the query, under a new handle, does no harm.
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

Place = tuple[Checkpoint, LogStore]


@dataclass
class QueryFlush:
    """A query, and the threads that flush it: one for each target, none if another process flushes."""

    query_id: str
    run_id: str
    """The run with which this flush began. Events of an earlier run are ignored."""
    checkpoint: Checkpoint
    store: LogStore
    loops: Sequence[FlushLoop]
    terminated: bool = False
    """True if the run has ended."""

    @property
    def name(self) -> str:
        """What error texts call the query."""
        return f"query {self.query_id}"

    def place(self) -> Place:
        """Return the query's checkpoint and log."""
        return self.checkpoint, self.store

    def for_each_loop(self, act: Callable[[FlushLoop], object]) -> None:
        """Call a method of every loop, such as `FlushLoop.wake`."""
        for loop in self.loops:
            act(loop)

    def has_tried(self, target: str) -> bool:
        """Return True if the thread of a target has done a pass since the last `FlushLoop.hurry`."""
        return all(loop.has_tried() for loop in self.loops if loop.target_name == target)

    @property
    def is_alive(self) -> bool:
        """True if a thread is running."""
        return any(loop.is_alive() for loop in self.loops)

    def is_done(self) -> bool:
        """Return True if run and flush have ended, and everything is in the target.

        A loop that ended without an error has flushed everything. If another process flushes, log and
        checkpoint are read.
        """
        if not self.terminated or self.is_alive:
            return False
        if self.loops:
            return all(loop.error is None for loop in self.loops)
        try:
            return pending_epochs(self.checkpoint, self.store) == 0
        except (OSError, WalSinkError):
            return False  # unknown, so the query is kept


def locate(query: StreamingQuery) -> Place:
    """Find checkpoint and log of a query of this process by asking Spark.

    :raises OptionError: the query is not of this sink, or was refused, or Spark does not answer.
    """
    try:
        started = streaming_query.started_query(query, FORMAT, options_at)
    except WalSinkError:
        raise
    except Exception as error:  # py4j's: the query failed before it had a plan, or Spark is gone
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

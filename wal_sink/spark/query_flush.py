"""The flush of one query in this process: a thread for each target of the query."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from wal_sink.admin.flush import Watch, metrics_of
from wal_sink.admin.query import Query
from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.configuration import Configuration
from wal_sink.errors import WalSinkError
from wal_sink.flush.flusher import Flusher
from wal_sink.flush.loop import FlushLoop
from wal_sink.flush.reporter import Reporter
from wal_sink.progress.status import pending_epochs
from wal_sink.spark.flush_job import WriteByJob
from wal_sink.spark.internals import streaming_query
from wal_sink.wal.store import LogStore, newest

Place = tuple[Checkpoint, LogStore]


@dataclass
class QueryFlush:
    """Checkpoint and log of a query, and the threads that flush the query."""

    name: str
    """The id of the query. For a query of another client, it is the location of the checkpoint."""
    run_id: str
    """The run with which this flush began. Events of an earlier run are ignored."""
    place: Callable[[], Place]
    """Opens checkpoint and log."""
    loops: Sequence[FlushLoop] = ()
    """The thread of each target; empty if another process flushes."""
    run_has_ended: bool = False

    def for_each_loop(self, act: Callable[[FlushLoop], object]) -> None:
        """Call a method of the loop of every target, such as `FlushLoop.wake`."""
        for loop in self.loops:
            act(loop)

    def hurry(self) -> None:
        """Let every target's thread try at once, without the pause after an error."""
        self.for_each_loop(FlushLoop.hurry)

    def has_tried(self, target: str) -> bool:
        """Return True if the thread of a target has tried since `hurry`, or the target has no thread."""
        return all(loop.has_tried() for loop in self.loops if loop.target_name == target)

    def lacks_a_target(self) -> bool:
        """Return True if there are threads, but none for one of the log's targets.

        That is so if the query was started with other targets than before. What is pending for such a
        target stays pending.
        """
        _, store = self.place()
        state, names = newest(store), {loop.target_name for loop in self.loops}
        targets = {target.name for target in state.live} if state is not None else set()
        return bool(names) and not targets <= names

    def is_done(self) -> bool:
        """Return True if the run has ended, everything is flushed, and the threads have ended.

        Without threads, this method reads checkpoint and log.
        """
        if not self.run_has_ended or any(loop.is_alive() or loop.error for loop in self.loops):
            return False
        if self.loops:
            return True
        try:
            return pending_epochs(*self.place()) == 0
        except (OSError, WalSinkError):
            return False  # unknown, so the query is kept


def flush_loops(
    spark: SparkSession,
    query: StreamingQuery,
    logged: Query,
    configuration: Configuration,
    watch: Watch | None,
) -> list[FlushLoop]:
    """Return a thread for each target of a query. No thread runs yet.

    :param logged: checkpoint and log of the query.
    :param watch: makes the metrics; None: no metrics.
    """
    run_id = str(query.runId)

    def stopping() -> str:
        return run_id if streaming_query.is_active(query) is False else ""

    sink, loops = configuration.sink, []
    for destination in configuration.destinations:
        pipeline = logged.pipeline(configuration, destination)
        metrics = metrics_of(pipeline, watch)
        reporter = Reporter(logged.store, destination.name, metrics=metrics, stopping=stopping)
        by_job = WriteByJob(spark, sink.distributed_above_bytes, sink.max_rows_per_second)
        loops.append(FlushLoop(Flusher(pipeline, reporter, write_rows=by_job)))
    return loops

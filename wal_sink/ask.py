"""`await_flushed` and `status`, for whoever has a query or knows where its checkpoint is."""

from __future__ import annotations

from pyspark.sql.streaming.query import StreamingQuery

from state_backends import open_backend
from wal_sink import progress, spark_internals
from wal_sink.checkpoint import Checkpoint
from wal_sink.configuration import configure
from wal_sink.errors import OptionError
from wal_sink.location import Location, locate
from wal_sink.log import Log
from wal_sink.progress import Flushed, Status
from wal_sink.sessions import sink_of
from wal_sink.spark import FORMAT


def await_flushed(
    query_or_checkpoint: StreamingQuery | str,
    timeout: float | None = None,
    *,
    wal: str | None = None,
) -> Flushed:
    """Wait until every epoch that is checkpointed now is in the target and marked.

    Never connects to the target: it waits for whoever flushes, in this process or another.

    :param query_or_checkpoint: a query of this process, or the location of its checkpoint.
    :param timeout: seconds; None waits for as long as a flusher is alive.
    :param wal: the query's `wal.location`; needed only where the checkpoint does not name its log.
    :raises FlushTimeout: the time is over.
    :raises NoFlusher: nobody flushes.
    :raises WalSinkError: the error with which the flusher stopped the line.
    """
    if not isinstance(query_or_checkpoint, str):
        sink = sink_of(str(query_or_checkpoint.id))
        if sink is not None:
            return sink.await_flushed(query_or_checkpoint, timeout)
    checkpoint, log = _find(query_or_checkpoint, wal)
    return progress.await_flushed(checkpoint, log, timeout)


def status(query_or_checkpoint: StreamingQuery | str, *, wal: str | None = None) -> Status:
    """Read how far a query's flush is; never connects. Arguments as for `await_flushed`."""
    if not isinstance(query_or_checkpoint, str):
        sink = sink_of(str(query_or_checkpoint.id))
        if sink is not None:
            return sink.status(query_or_checkpoint)
    return progress.status(*_find(query_or_checkpoint, wal))


def _find(query_or_checkpoint: StreamingQuery | str, wal: str | None) -> tuple[Checkpoint, Log]:
    """Find checkpoint and log of a query."""
    if isinstance(query_or_checkpoint, str):
        location = locate(query_or_checkpoint, wal)
        checkpoint = location.open_checkpoint()
        return checkpoint, _existing_log(location, checkpoint, given=wal is not None)
    started = spark_internals.started_query(query_or_checkpoint, FORMAT)
    if started is None:
        raise OptionError(
            f"Query {query_or_checkpoint.id} does not write to format {FORMAT}.",
            "Pass a query of this sink, or the location of its checkpoint.",
        )
    location = configure(started.options, started.folder).location
    return location.open_checkpoint(), location.open_log(started.query_id)


def _existing_log(location: Location, checkpoint: Checkpoint, *, given: bool) -> Log:
    """Open the log that is given, or the one that the checkpoint names, or the default one."""
    noted = checkpoint.log_url()
    if noted is not None and not given:
        return Log(open_backend(noted))
    log = location.open_log(checkpoint.query_id())
    if not log.backend.list():
        raise OptionError(
            f"There is no log of query {checkpoint.query_id()} at {log.url}.",
            "If the query sets wal.location, pass the same location as wal=….",
        )
    return log

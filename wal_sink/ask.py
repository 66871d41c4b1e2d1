"""`await_flushed` and `status`, for whoever has a query or knows where its checkpoint is."""

from __future__ import annotations

from pyspark.sql.streaming.query import StreamingQuery

from wal_sink import progress, spark_internals
from wal_sink.checkpoint import Checkpoint
from wal_sink.configuration import configure
from wal_sink.errors import OptionError
from wal_sink.handle import location_of
from wal_sink.location import Location, locate
from wal_sink.log import Log
from wal_sink.progress import Flushed, Status
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
    :param wal: the query's `wal.location`, where a checkpoint is given and the option was set.
    :raises FlushTimeout: the time is over.
    :raises NoFlusher: nobody flushes.
    :raises WalSinkError: the error with which the flusher stopped the line.
    """
    checkpoint, log = _find(query_or_checkpoint, wal)
    return progress.await_flushed(checkpoint, log, timeout)


def status(query_or_checkpoint: StreamingQuery | str, *, wal: str | None = None) -> Status:
    """Read how far a query's flush is; never connects. Arguments as for `await_flushed`."""
    return progress.status(*_find(query_or_checkpoint, wal))


def _find(query_or_checkpoint: StreamingQuery | str, wal: str | None) -> tuple[Checkpoint, Log]:
    """Find checkpoint and log of a query."""
    if isinstance(query_or_checkpoint, str):
        location = locate(query_or_checkpoint, wal)
        checkpoint = location.open_checkpoint()
        return checkpoint, _existing_log(location, checkpoint.query_id())
    query_id = str(query_or_checkpoint.id)
    if (found := location_of(query_id)) is not None:
        return found
    started = spark_internals.started_query(query_or_checkpoint, FORMAT)
    if started is None:
        raise OptionError(
            f"Query {query_id} does not write to format {FORMAT}.",
            "Pass a query of this sink, or the location of its checkpoint.",
        )
    configuration = configure({**started.options, "checkpointLocation": started.checkpoint})
    return configuration.location.open_checkpoint(), configuration.location.open_log(query_id)


def _existing_log(location: Location, query_id: str) -> Log:
    log = location.open_log(query_id)
    if not log.backend.list():
        raise OptionError(
            f"There is no log of query {query_id} at {log.url}.",
            "If the query sets wal.location, pass the same location as wal=….",
        )
    return log

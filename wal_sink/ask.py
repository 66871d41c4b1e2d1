"""`await_flushed` and `status`, for whoever has a query or knows where its checkpoint is."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql.streaming.query import StreamingQuery

from state_backends import open_backend, url_scheme
from wal_sink import progress, spark_internals
from wal_sink.checkpoint import Checkpoint
from wal_sink.configuration import configure
from wal_sink.errors import OptionError
from wal_sink.location import Location, locate
from wal_sink.log import Log
from wal_sink.progress import Flushed, Status
from wal_sink.sessions import sink_of
from wal_sink.spark import FORMAT
from wal_sink.store_errors import store_errors


def await_flushed(
    query_or_checkpoint: StreamingQuery | str,
    timeout: float | None = None,
    *,
    wal: str | None = None,
    storage_options: Mapping[str, object] | None = None,
) -> Flushed:
    """Wait until every epoch that is checkpointed now is in the target and marked.

    Never connects to the target: it waits for whoever flushes, in this process or another.

    :param query_or_checkpoint: a query of this process, or the location of its checkpoint.
    :param timeout: seconds; None waits for as long as a flusher is alive.
    :param wal: the query's `wal.location`; needed only where the checkpoint does not name its log.
    :param storage_options: for the object store that holds log or checkpoint, when a location is
        given; a query brings its own.
    :raises FlushTimeout: the time is over.
    :raises NoFlusher: nobody flushes.
    :raises LogUnavailable: the store of log or checkpoint does not answer, or refuses.
    :raises WalSinkError: the error with which the flusher stopped the line.
    """
    if not isinstance(query_or_checkpoint, str):
        sink = sink_of(str(query_or_checkpoint.id))
        if sink is not None:
            return sink.await_flushed(query_or_checkpoint, timeout)
    checkpoint, log = _find(query_or_checkpoint, wal, storage_options)
    return progress.await_flushed(checkpoint, log, timeout)


def status(
    query_or_checkpoint: StreamingQuery | str,
    *,
    wal: str | None = None,
    storage_options: Mapping[str, object] | None = None,
) -> Status:
    """Read how far a query's flush is; never connects. Arguments as for `await_flushed`."""
    if not isinstance(query_or_checkpoint, str):
        sink = sink_of(str(query_or_checkpoint.id))
        if sink is not None:
            return sink.status(query_or_checkpoint)
    return progress.status(*_find(query_or_checkpoint, wal, storage_options))


@store_errors()
def _find(
    query_or_checkpoint: StreamingQuery | str,
    wal: str | None,
    storage_options: Mapping[str, object] | None,
) -> tuple[Checkpoint, Log]:
    """Find checkpoint and log of a query."""
    if isinstance(query_or_checkpoint, str):
        return _find_by_location(query_or_checkpoint, wal, storage_options or {})
    started = spark_internals.started_query(query_or_checkpoint, FORMAT)
    if started is None:
        raise OptionError(
            f"Query {query_or_checkpoint.id} does not write to format {FORMAT}.",
            "Pass a query of this sink, or the location of its checkpoint.",
        )
    location = configure(started.options, started.folder).location
    return location.open_checkpoint(), location.open_log(started.query_id)


def _find_by_location(
    url: str, wal: str | None, options: Mapping[str, object]
) -> tuple[Checkpoint, Log]:
    """Open the checkpoint, and the log that is given, or the one that it names, or the default one."""

    def for_log(log: str) -> Mapping[str, object]:
        # Options that neither place takes go to the log's, which refuses them by name.
        return {} if _is_folder(log) and not _is_folder(url) else options

    location = locate(
        url,
        wal,
        wal_options=for_log(wal or url),
        checkpoint_options={} if _is_folder(url) else options,
    )
    checkpoint = location.open_checkpoint()
    noted = checkpoint.log_url()
    if noted is not None and wal is None:
        return checkpoint, Log(open_backend(noted, for_log(noted)))
    return checkpoint, _existing_log(location, checkpoint)


def _is_folder(url: str) -> bool:
    return url_scheme(url) in {"", "file"}


def _existing_log(location: Location, checkpoint: Checkpoint) -> Log:
    log = location.open_log(checkpoint.query_id())
    if not log.backend.list():
        raise OptionError(
            f"There is no log of query {checkpoint.query_id()} at {log.url}.",
            "If the query sets wal.location, pass the same location as wal=….",
        )
    return log

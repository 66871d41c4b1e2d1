"""The public `check`, before a query starts; `await_flushed` and `status`, for a query or its checkpoint."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.errors import OptionError
from wal_sink.options import as_texts
from wal_sink.preflight import Checked, preflight
from wal_sink.progress.status import Status, read_status
from wal_sink.progress.wait import Flushed, wait_until_flushed
from wal_sink.spark import internals
from wal_sink.spark.query_flush import locate
from wal_sink.spark.register import sink_of
from wal_sink.wal.attached import view_of
from wal_sink.wal.location import Location, find_by_checkpoint, is_folder, refuse_unused
from wal_sink.wal.log import Log
from wal_sink.wal.store_errors import store_errors


def await_flushed(
    query_or_checkpoint: StreamingQuery | str,
    timeout: float | None = None,
    *,
    target: str = "",
    wal: str | None = None,
    storage_options: Mapping[str, object] | None = None,
) -> Flushed:
    """Wait until every epoch that is checkpointed now is in the target and marked.

    Never connects to the target: it waits for the flusher, in this process or another.

    :param query_or_checkpoint: a query of this process, or the location of its checkpoint.
    :param timeout: seconds; None waits for as long as a flusher is alive.
    :param target: the name of one of several targets; all of them without it.
    :param wal: the query's `wal.location`; needed only where the checkpoint does not name its log.
    :param storage_options: for the object store that holds log or checkpoint, when a location is
        given; a query brings its own.
    :raises FlushTimeout: the time is over.
    :raises NoFlusher: no process flushes.
    :raises OptionError: it is no query of this sink, or was refused as it started.
    :raises LogUnavailable: the store of log or checkpoint does not answer, or refuses.
    :raises WalSinkError: the error that stopped the flush.
    """
    if (query := _query(query_or_checkpoint)) and (sink := sink_of(str(query.id))):
        return sink.await_flushed(query, timeout, target=target)
    checkpoint, log = _find(query_or_checkpoint, wal, storage_options)
    return wait_until_flushed(checkpoint, view_of(log, target), timeout)


def status(
    query_or_checkpoint: StreamingQuery | str,
    *,
    target: str = "",
    wal: str | None = None,
    storage_options: Mapping[str, object] | None = None,
) -> Status:
    """Read how far a query's flush is; never connects. Arguments as for `await_flushed`."""
    if (query := _query(query_or_checkpoint)) and (sink := sink_of(str(query.id))):
        return sink.status(query, target=target)
    checkpoint, log = _find(query_or_checkpoint, wal, storage_options)
    return read_status(checkpoint, view_of(log, target))


def check(df_or_schema: DataFrame | StructType, **options: object) -> Checked:
    """Say what the first micro-batch of a query would say, before it starts; creates nothing.

    Connects to the target and compares the table with the DataFrame. Options whose names have a dot are given
    as `**{"cassandra.contactPoints": "127.0.0.1"}`.

    :param df_or_schema: the DataFrame that would be written, or its schema.
    :param options: those of `writeStream`, by their names.
    :return: what is in force, and what each column is written to; prints as text.
    :raises OptionError: an option is missing, unknown, or does not fit.
    :raises SchemaMismatch: the DataFrame does not fit the table, or the table cannot be written exactly once.
    :raises TargetUnavailable, TargetRefused: the target does not answer, or refuses.
    """
    schema = df_or_schema if isinstance(df_or_schema, StructType) else df_or_schema.schema
    return preflight(as_texts(options), internals.arrow_schema(schema))


def _query(given: object) -> StreamingQuery | None:
    """Return a query; None for a location.

    :raises OptionError: it is neither.
    """
    if isinstance(given, str):
        return None
    if isinstance(given, StreamingQuery):
        return given
    raise OptionError(
        f"{type(given).__name__} is neither a query nor the location of a checkpoint.",
        "Pass what start() has returned, or the query's checkpointLocation as a string.",
    )


@store_errors()
def _find(
    query_or_checkpoint: StreamingQuery | str,
    wal: str | None,
    storage_options: Mapping[str, object] | None,
) -> tuple[Checkpoint, Log]:
    """Find checkpoint and log of a query."""
    if not isinstance(query_or_checkpoint, str):
        return locate(query_or_checkpoint)
    query_id, location = _find_by_location(query_or_checkpoint, wal, storage_options or {})
    return location.open_checkpoint(), location.open_log(query_id)


def _find_by_location(
    url: str, wal: str | None, options: Mapping[str, object]
) -> tuple[str, Location]:
    """Find a query by its checkpoint. A folder takes no options, unless neither place can take any."""
    log_takes_none = wal and is_folder(wal) and not is_folder(url)
    query_id, location = find_by_checkpoint(
        url,
        wal,
        "wal=…",
        None if log_takes_none else options,
        None if is_folder(url) else options,
    )
    refuse_unused(location, options, "storage_options")
    return query_id, location

"""The public functions: `register`, and `check`, `await_flushed` and `status` of a query or its checkpoint.

A Spark session has one handle, until it is stopped.
"""

from __future__ import annotations

import logging
import shutil
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.configuration import FILE_MANAGER
from wal_sink.errors import OptionError
from wal_sink.metrics.server import LOOPBACK, expose
from wal_sink.options import as_texts
from wal_sink.progress.status import Status, read_status
from wal_sink.progress.wait import Flushed, wait_until_flushed
from wal_sink.publish.preflight import Checked, preflight
from wal_sink.spark.connect import ConnectSink, unknown_place
from wal_sink.spark.data_source import ConnectDataSource, WalSinkDataSource, add_format
from wal_sink.spark.internals import connect_session, dataframe, spark_session
from wal_sink.spark.query import locate
from wal_sink.spark.sink import ClassicSink, Sink
from wal_sink.wal.location import (
    find_by_checkpoint,
    refuse_unused,
    store_errors,
)
from wal_sink.wal.store import LogStore

logger = logging.getLogger(__name__)

WORKER_PATH = Path(__file__).parent / "worker_path"
"""Has what Python runs first in a worker, see `sitecustomize` there."""


_registered: dict[str, tuple[Sink, Mapping[str, object]]] = {}
"""By the session's id: its handle, and the arguments that this was made with, but for the port."""
_lock = threading.RLock()


def register(
    spark: SparkSession,
    *,
    flush: bool = True,
    metrics_port: int | None = None,
    metrics_host: str = LOOPBACK,
    drain_timeout: float = 60,
    with_format: bool = True,
) -> Sink:
    """Add format `wal_sink` to a session and flush its queries, from this process by default.

    In a Spark Connect session, and in a pipeline, it adds the format and flushes nothing: one line says with
    which command another process does; or see `Sink.follow`.

    Call it before the first query starts. A session has one handle: a second call returns the same one.
    Use it as a context manager; leaving the block waits until everything checkpointed is in the target.

    :param flush: False leaves the flush to another process, such as `wal-sink flush --follow`. Leaving the
        block then waits for nothing, and says in one line what is left to that process; `await_flushed`
        waits for it.
    :param metrics_port: where Prometheus can ask this process how the flush goes; 0 for a port that is
        free, which the handle's `metrics_port` tells. None: no metrics.
    :param metrics_host: the address of this host that the port listens on; 0.0.0.0 lets other hosts ask,
        without a login.
    :param drain_timeout: seconds that `close` waits for the flush at most, for all queries together; then it
        waits up to 5 s for requests under way.
    :param with_format: False leaves the format out, for an application that uses `batch_writer` alone: Spark
        starts one kind of Python worker less, the one that looks for formats.
    :raises UnsupportedSpark: the session lacks something that the sink relies on.
    :raises OptionError: there is no Python for Spark's workers on this host, or, in local mode, it cannot
        import wal_sink; the session is registered already with other arguments; the port is taken, or is
        given with `flush=False`; or `metrics_host` is given without a port.
    """
    _check(drain_timeout, metrics_port, metrics_host, flush=flush)
    arguments = {
        "drain_timeout": drain_timeout,
        "flush": flush,
        "with_format": with_format,
        "metrics_host": None if metrics_port is None else metrics_host,
    }
    remote = connect_session.is_connect(spark)
    if not remote:
        spark_session.check_session(spark)
    with _lock:
        for key in [key for key, (sink, _) in _registered.items() if sink.is_finished()]:
            _registered.pop(key)[0].retire()
        key = (connect_session if remote else spark_session).session_id(spark)
        sink, made_with = _registered.get(key, (None, {}))
        if sink is None:
            if not remote:
                _check_worker_python(spark)
                spark_session.put_on_workers_path(spark, WORKER_PATH)
            exposition = None if metrics_port is None else expose(metrics_port, metrics_host)
            try:
                if with_format:
                    add_format(spark, ConnectDataSource if remote else WalSinkDataSource)
                sink = (
                    ConnectSink(spark, drain_timeout, exposition)
                    if remote
                    else ClassicSink(spark, drain_timeout, exposition, flushes_here=flush)
                )
            except BaseException:
                if exposition is not None:
                    exposition.close()
                raise
            _registered[key] = sink, arguments
            sink.adopt_running()
        # A port of 0 means any.
        elif arguments != made_with or metrics_port not in (
            sink.metrics_port,
            sink.metrics_port and 0,
        ):
            former = {**made_with, "metrics_port": sink.metrics_port}
            raise OptionError(
                f"This session is registered with {', '.join(f'{k}={v}' for k, v in former.items())}.",
                "Pass the same arguments, which return its handle; or close() that before.",
            )
        return sink


def sink_of(query_id: str) -> Sink | None:
    """Return the handle of this process that has seen a query; None when none has."""
    with _lock:
        return next((sink for sink, _ in _registered.values() if sink.has_seen(query_id)), None)


def _check(
    drain_timeout: float, metrics_port: int | None, metrics_host: str, *, flush: bool
) -> None:
    """Refuse arguments that do not go together.

    :raises OptionError: naming them.
    """
    seconds: object = drain_timeout
    if not isinstance(seconds, int | float) or not seconds >= 0:
        raise OptionError(
            f"Argument drain_timeout is {drain_timeout!r}.", "Give seconds, 0 or more."
        )
    port: object = metrics_port
    if port is not None and not isinstance(port, int):
        raise OptionError(
            f"Argument metrics_port is {port!r}.", "Give a number, such as int(os.environ[…])."
        )
    if metrics_port is not None and not flush:
        raise OptionError(
            "Argument metrics_port has no effect with flush=False: the process that flushes has the metrics.",
            "Start the other process with `wal-sink flush CHECKPOINT --follow --metrics-port PORT`.",
        )
    if metrics_port is None and metrics_host != LOOPBACK:
        raise OptionError(
            f"Argument metrics_host is {metrics_host}, and there is no metrics_port.",
            "Give both, or none of them.",
        )


def _check_worker_python(spark: SparkSession) -> None:
    """Refuse a Python of Spark's workers that is not on this host, or, in local mode, has no wal_sink.

    :raises OptionError: with the line to add, or what to set.
    """
    named, folder = spark_session.worker_python(spark), spark_session.folder(spark)
    worker = shutil.which(str(Path(folder, named)) if "/" in named else named)
    if worker is None:
        raise OptionError(
            f"Spark starts its Python workers with {named!r}, also some on the driver's host, where there is"
            f" no such program (the folder is {folder}).",
            "Set PYSPARK_PYTHON, or spark.pyspark.python, to a Python that is at the same path on every host,"
            " the driver's too, and has wal_sink. Spark unpacks --archives on executors only: start the"
            " application in a folder that has the same path.",
        )
    context = spark.sparkContext
    if not (context.master or "").startswith("local") or _is_this_python(worker):
        return
    if context.getConf().get("spark.submit.pyFiles") or _has_this_package(worker):
        return
    raise OptionError(
        f"Spark starts its Python workers with {worker}, which cannot import this wal_sink. This process"
        f" runs {sys.executable}.",
        'Before the session is made, add:\nos.environ["PYSPARK_PYTHON"] = sys.executable',
    )


def _has_this_package(python: str) -> bool:
    """Return True if another Python imports wal_sink, such as from a path that both have."""
    done = subprocess.run(  # noqa: S603 -- what Spark starts anyway
        [python, "-c", "import wal_sink"], capture_output=True, check=False
    )
    return done.returncode == 0


def _is_this_python(worker: str) -> bool:
    """Return True if it is this one, perhaps by another name in its folder, such as `python3`."""
    one, other = Path(worker), Path(sys.executable)
    return one.parent == other.parent and one.samefile(other)


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
    :raises OptionError: it is not a query of this sink, or was refused as it started.
    :raises LogUnavailable: the store of log or checkpoint does not answer, or refuses.
    :raises WalSinkError: the error that stopped the flush, also if nothing waits for it.
    """
    if (query := _query(query_or_checkpoint)) and (sink := sink_of(str(query.id))):
        return sink.await_flushed(query, timeout, target=target)
    checkpoint, store = _find(query_or_checkpoint, wal, storage_options)
    return wait_until_flushed(checkpoint, store, timeout, target=target)


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
    checkpoint, store = _find(query_or_checkpoint, wal, storage_options)
    return read_status(checkpoint, store, target)


def check(df_or_schema: DataFrame | StructType, **options: object) -> Checked:
    """Check what the first micro-batch of a query would check, before it starts; creates nothing.

    Connects to the target and compares the table with the DataFrame. Options whose names have a dot are given
    as `**{"cassandra.contactPoints": "127.0.0.1"}`.

    :param df_or_schema: the DataFrame that would be written, or its schema.
    :param options: those of `writeStream`, by their names.
    :return: what is in force, and what each column is written to; prints as text.
    :raises OptionError: an option is missing, unknown, or does not fit.
    :raises SchemaMismatch: the DataFrame does not fit the table, or the table cannot be written exactly once.
    :raises TargetUnavailable: the target does not answer.
    :raises TargetRefused: it refuses a request.
    """
    if isinstance(df_or_schema, StructType):
        schema, spark = df_or_schema, SparkSession.getActiveSession()
    else:
        schema, spark = df_or_schema.schema, df_or_schema.sparkSession
    file_manager = spark.conf.get(FILE_MANAGER, None) if spark is not None else None
    return preflight(as_texts(options), dataframe.arrow_schema(schema), file_manager)


def _query(query: object) -> StreamingQuery | None:
    """Return a query; None for a location.

    :raises OptionError: it is neither.
    """
    if isinstance(query, str):
        return None
    if isinstance(query, StreamingQuery) or connect_session.is_query(query):
        return cast("StreamingQuery", query)
    raise OptionError(
        f"{type(query).__name__} is neither a query nor the location of a checkpoint.",
        "Pass what start() has returned, or the query's checkpointLocation as a string.",
    )


@store_errors()
def _find(
    query_or_checkpoint: StreamingQuery | str,
    wal: str | None,
    storage_options: Mapping[str, object] | None,
) -> tuple[Checkpoint, LogStore]:
    """Find checkpoint and log of a query. A folder takes no options, unless neither place can take any."""
    if connect_session.is_query(query_or_checkpoint):
        raise unknown_place(str(cast("StreamingQuery", query_or_checkpoint).id))
    if not isinstance(query_or_checkpoint, str):
        return locate(query_or_checkpoint)
    url, options = query_or_checkpoint, storage_options or {}
    query_id, location = find_by_checkpoint(url, wal, "wal=…", options, options)
    refuse_unused(location, options, "storage_options")
    return location.open_checkpoint(), location.open_log(query_id)

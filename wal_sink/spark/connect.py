"""The sink in a Spark Connect session, or in a pipeline: the format, and a handle that reads and follows.

A Connect client has no JVM, and may run on another network than checkpoint, log and target. The query goes on
without it. So nothing is flushed here unless `follow` is called: `wal-sink flush --follow` does it on a host
that reaches all three. The rows are as safe as ever: a run publishes by its commits alone.

The server tells a client a query's id, and not its checkpoint. So the handle notes which checkpoint the
client has sent with the query, and refuses here what the sink cannot serve, before it is sent.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import re
import threading
import time
from collections.abc import Mapping
from types import TracebackType
from typing import NamedTuple

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from wal_sink.admin.follow import Follower, at_checkpoint
from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.configuration import storage_options, target_names
from wal_sink.errors import CheckpointNotVisible, NotDrained, OptionError, WalSinkError
from wal_sink.metrics.server import Exposition
from wal_sink.options import SinkOptions, as_texts, fields, lowered, options_of, parse, qualified
from wal_sink.progress.backlog import pending_epochs
from wal_sink.progress.status import Status, read_status
from wal_sink.progress.wait import Flushed, wait_until_flushed
from wal_sink.spark.data_source import FORMAT
from wal_sink.spark.errors import failure_in
from wal_sink.spark.internals import connect_session
from wal_sink.spark.internals.connect_session import StreamStart
from wal_sink.spark.modes import ASYNCHRONOUS, append_only, refuse_layout, refuse_mode
from wal_sink.spark.sink import Sink
from wal_sink.targets.registry import is_installed, target_type
from wal_sink.text import counted
from wal_sink.wal.location import locate, store_errors
from wal_sink.wal.store import LogStore

logger = logging.getLogger(__name__)

_TRIGGERS = {
    "continuous_checkpoint_interval": "ContinuousTrigger",
    "real_time_batch_duration": "RealTimeTrigger",
}
"""Fields of a client's message, and the classes that the server makes of them."""

_JOIN_S = 5.0
"""How long `close` waits for the threads: they have nothing left to do, or are in a request."""

_PASSWORD_IN_URL = re.compile(r"://[^/@:]*:[^/@]+@")

_STORE_OPTIONS = ("wal.storageoptions", "checkpoint.storageoptions")


class ConnectSink(Sink):
    """The handle of a Connect session; made by `wal_sink.register`.

    :param exposition: shows metrics of what is followed here; None: no metrics.
    """

    def __init__(
        self, spark: SparkSession, drain_timeout: float, exposition: Exposition | None = None
    ) -> None:
        # Not those of a classic handle: its parts listen to a JVM.
        self.drain_timeout = drain_timeout
        self.metrics_port = exposition.port if exposition else None
        self.metrics_host = exposition.host if exposition else None
        self.flush = False
        self._spark = spark
        self._exposition = exposition
        self._lock = threading.Lock()
        self._options: dict[str, Mapping[str, str]] = {}
        """Of each query that this client has started, by its id; names in lower case."""
        self._followed: dict[str, _Followed] = {}
        """By checkpoint."""
        self._closed = False
        self._unwatch = connect_session.watch_starts(spark, _check, self._started)
        atexit.register(self._at_exit)
        logger.warning(
            "Nothing is flushed from this Spark Connect session. On a host that reaches checkpoint, log and"
            " target, run: wal-sink flush --follow CHECKPOINT (or, for all queries below a folder:"
            " wal-sink flush --follow --under FOLDER). If this process reaches them: sink.follow(CHECKPOINT)"
        )

    def follow(
        self,
        checkpoint: str,
        wal: str | None = None,
        *,
        options: Mapping[str, object] | None = None,
    ) -> None:
        """See `Sink.follow`. A second call for the same checkpoint changes nothing."""
        with self._lock:
            if self._closed:
                raise OptionError(
                    "This handle is closed.", "Call wal_sink.register(spark) for another one."
                )
            if checkpoint in self._followed:
                return
            texts = as_texts(options or {})
            follower = Follower(
                at_checkpoint(checkpoint, wal, texts),
                logger.info,
                self._exposition.watch if self._exposition else None,
            )
            thread = threading.Thread(
                target=follower.run, name=f"wal_sink-follow-{checkpoint}", daemon=True
            )
            places = {"checkpointlocation": checkpoint, "wal.location": wal or ""}
            self._followed[checkpoint] = _Followed(follower, thread, lowered(texts) | places)
            thread.start()

    def await_flushed(
        self, query: StreamingQuery, timeout: float | None = None, *, target: str = ""
    ) -> Flushed:
        """See `Sink.await_flushed`; this process has to reach checkpoint and log."""
        return wait_until_flushed(*self._place_of(query), timeout, target=target)

    def status(self, query: StreamingQuery, *, target: str = "") -> Status:
        """See `Sink.status`; this process has to reach checkpoint and log."""
        return read_status(*self._place_of(query), target)

    def close(self) -> None:
        """Wait until what is followed here is flushed, then end; log what is left to other processes.

        :raises NotDrained: naming each checkpoint that could not be flushed within `drain_timeout`.
        """
        failures: list[str] = []
        try:
            if not self._close():
                return
            failures = self._drain_followed()
        finally:
            self._stop_followed(_JOIN_S)
        self._report_pending()
        if failures:
            raise NotDrained(
                "The flush did not finish:\n" + "\n".join(failures),
                "The log keeps what it has. Fix each cause, then run:\nwal-sink flush CHECKPOINT",
            )

    def has_seen(self, query_id: str) -> bool:
        """Return True if this client has started a query."""
        return query_id in self._options

    def is_finished(self) -> bool:
        """Return True if the session may get a new handle."""
        return self._closed or connect_session.is_stopped(self._spark)

    def adopt_running(self) -> None:
        """Do nothing: the server does not tell where the checkpoint of a running query is."""

    def retire(self) -> None:
        """Give way to the handle of a new session; what is followed here goes on until the process ends."""
        self._unwatch()

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except NotDrained as error:
            if exc is None:
                raise
            logger.error("the block failed, and then its end failed, too: %s", error.one_line)  # noqa: TRY400
        if isinstance(exc, PySparkException) and (failure := failure_in(str(exc))) is not None:
            raise failure from None

    def _started(self, start: StreamStart, query_id: str) -> None:
        """Note where the checkpoint of a query is."""
        if start.format.lower() != FORMAT:
            return
        self._options[query_id] = lowered(start.options)
        if secrets := _secrets(start.options):
            logger.warning(
                "query %s: Spark writes what a Connect client sends in plain text into its event log and its"
                " UI, here %s. Give secrets to the server as environment variables, and change these",
                query_id,
                " and ".join(secrets),
            )
        if start.path:
            logger.warning(
                "query %s: no row goes to %s, which start() was given. Call start() without a path",
                query_id,
                start.path,
            )

    def _place_of(self, query: StreamingQuery) -> tuple[Checkpoint, LogStore]:
        """Open checkpoint and log of a query that this client has started.

        :raises OptionError: it is another client's, or not of this sink.
        :raises CheckpointNotVisible: this process does not reach the checkpoint.
        """
        query_id = str(query.id)
        options = self._options.get(query_id)
        if options is None:
            raise unknown_place(query_id)
        checkpoint, store = _opened(options)
        if checkpoint.query_id() != query_id:
            raise OptionError(
                f"{checkpoint.url} is the checkpoint of query {checkpoint.query_id()}, not of {query_id}.",
                "Pass the newest query, or the location of its checkpoint.",
            )
        return checkpoint, store

    def _close(self) -> bool:
        """Start nothing any more; return False if that was so already."""
        with self._lock:
            was_open, self._closed = not self._closed, True
        self._unwatch()
        atexit.unregister(self._at_exit)
        return was_open

    def _drain_followed(self) -> list[str]:
        """Wait for every query that is followed; return a line for each that failed."""
        deadline_s = time.monotonic() + self.drain_timeout
        failures = []
        for place, followed in self._followed.items():
            remaining_s = max(0.0, deadline_s - time.monotonic())
            try:
                wait_until_flushed(*_opened(followed.options), remaining_s)
            except (OSError, WalSinkError) as error:
                failures.append(f"- {place}: {type(error).__name__}: {error}")
        return failures

    def _stop_followed(self, join_s: float) -> None:
        """End the threads; wait a limited time."""
        for followed in self._followed.values():
            followed.follower.stop()
        deadline_s = time.monotonic() + join_s
        for followed in self._followed.values():
            followed.thread.join(max(0.0, deadline_s - time.monotonic()))
        if self._exposition is not None:
            self._exposition.close()

    def _report_pending(self) -> None:
        """Log how many epochs of this client's queries are pending, where that can be read."""
        for query_id, options in self._options.items():
            with contextlib.suppress(OSError, WalSinkError):
                checkpoint, store = _opened(options)
                if (pending := pending_epochs(checkpoint, store)) > 0:
                    logger.warning(
                        "%s of query %s %s pending. Flush what is checkpointed: wal-sink flush %s",
                        counted(pending, "epoch"),
                        query_id,
                        "is" if pending == 1 else "are",
                        checkpoint.url,
                    )

    def _at_exit(self) -> None:
        """At interpreter exit start no work, and report pending epochs."""
        if self._close():
            self._stop_followed(_JOIN_S)
            self._report_pending()


def unknown_place(query_id: str) -> OptionError:
    """Return the error for a query whose checkpoint this client does not know."""
    return OptionError(
        f"Query {query_id} was not started by this Connect client after wal_sink.register(spark), and the"
        " server does not tell where its checkpoint is.",
        "Pass the location of its checkpoint: wal_sink.status(CHECKPOINT) or"
        " wal_sink.await_flushed(CHECKPOINT). If this process does not reach that, run on a host that does:"
        "\nwal-sink status CHECKPOINT",
    )


def _check(start: StreamStart) -> None:
    """Refuse what the sink cannot serve, before it is sent.

    :raises OptionError: a mode, a trigger, a layout or a table of Spark's.
    """
    if start.format.lower() != FORMAT:
        return
    name, options = start.name or "without a name", lowered(start.options)
    if start.output_mode not in {"", "append"}:
        raise append_only()
    runs_as = "MicroBatchExecution"
    if options.get("asyncprogresstrackingenabled", "").lower() == "true":
        runs_as = ASYNCHRONOUS
    refuse_mode(name, runs_as, _TRIGGERS.get(start.trigger, start.trigger))
    layouts = {"partitionBy": start.partition_by, "clusterBy": start.cluster_by}
    refuse_layout(name, {method: ", ".join(names) for method, names in layouts.items() if names})
    if start.table:
        raise OptionError(
            f"The call toTable({start.table!r}) makes a table in Spark's catalog, and no row goes there.",
            "Call start(); the sink's own options name the table that it writes to.",
        )


def _secrets(options: Mapping[str, str]) -> list[str]:
    """Return the names of options that are a secret, or have a password in a URL."""
    marked = {option.name.lower() for option in fields(SinkOptions) if "secret" in option.extra}
    for prefix in target_names(options) or ("",):
        kind = lowered(options_of(prefix, options)).get("target", "cassandra")
        if is_installed(kind):
            declared = fields(target_type(kind).options_type)
            marked |= {
                qualified(prefix, option.name).lower()
                for option in declared
                if "secret" in option.extra
            }
    return sorted(
        name
        for name, value in options.items()
        if value and (name.lower() in marked or _PASSWORD_IN_URL.search(value))
    )


def _opened(options: Mapping[str, str]) -> tuple[Checkpoint, LogStore]:
    """Open a query's checkpoint and log, as this process reaches them; the log need not be there yet.

    :param options: as the query was given them, names in lower case.
    :raises CheckpointNotVisible: this process does not reach the checkpoint.
    :raises LogUnavailable: the store does not answer, or refuses.
    """
    place, wal = options.get("checkpointlocation", ""), options.get("wal.location", "")
    sink = {name: options[name] for name in _STORE_OPTIONS if name in options}
    stores = storage_options(parse({**sink, "checkpointLocation": place}, SinkOptions))
    is_absolute = (
        wal.startswith("/") or ":" in wal
    )  # a relative one counts from the server's folder
    location = locate(place, wal if is_absolute else None, None, *stores)
    checkpoint = location.open_checkpoint()
    try:
        with store_errors():
            query_id, log = checkpoint.query_id(), checkpoint.log_url()
    except CheckpointNotVisible as error:
        raise CheckpointNotVisible(
            f"{error.what} The server has it, and this Connect client reads its own file systems.",
            f"On a host that reaches it, run:\nwal-sink status {place}",
        ) from error
    if log is not None and wal and not is_absolute:
        location = locate(place, log.rpartition("/")[0], None, *stores)
    return checkpoint, location.open_log(query_id)


class _Followed(NamedTuple):
    """A query that this process flushes."""

    follower: Follower
    thread: threading.Thread
    options: Mapping[str, str]
    """Where its checkpoint and log are; names in lower case."""

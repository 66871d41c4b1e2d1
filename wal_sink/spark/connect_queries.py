"""The queries that a Spark Connect client or a pipeline has started, and the queries that are followed here.

A Connect client may not reach checkpoint, log and target. So this process flushes only the queries that the
application passes to `follow`. `wal-sink flush --follow` flushes other queries, on a host that reaches all
three. Until then their rows are in the log, since a query publishes its epochs without a flusher.

The server returns the id of a query, and not its checkpoint. So this module keeps the checkpoint that the
client sends. Before the client sends a query, this module refuses what the sink does not support.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from wal_sink.admin.flush import Candidate, Follower, at_checkpoint
from wal_sink.configuration import options_by_target, storage_options
from wal_sink.errors import CheckpointNotVisible, OptionError, WalSinkError
from wal_sink.metrics.server import Exposition
from wal_sink.options import SinkOptions, as_texts, fields, lowered, parse, qualified
from wal_sink.spark.data_source import FORMAT
from wal_sink.spark.internals import connect_client
from wal_sink.spark.internals.connect_client import StreamStart
from wal_sink.spark.log_messages import another_process, log_pending
from wal_sink.spark.query_errors import ASYNCHRONOUS, append_only, refuse_layout, refuse_mode
from wal_sink.spark.query_flush import Place, QueryFlush
from wal_sink.targets.registry import is_installed, target_type
from wal_sink.wal.location import locate, store_errors

logger = logging.getLogger(__name__)

_TRIGGERS = {
    "continuous_checkpoint_interval": "ContinuousTrigger",
    "real_time_batch_duration": "RealTimeTrigger",
}
"""The class of the trigger in the server, by the field of a client's message."""

_PASSWORD_IN_URL = re.compile(r"://[^/@:]*:[^/@]+@")

_STORE_OPTIONS = ("wal.storageoptions", "checkpoint.storageoptions")


class ConnectQueries:
    """The queries of a Connect client.

    :param at_exit: called at interpreter exit.
    :param exposition: shows metrics of the followed queries; None: no metrics.
    """

    flushes_here = False

    def __init__(
        self, spark: SparkSession, at_exit: Callable[[], None], exposition: Exposition | None
    ) -> None:
        self.refused: dict[str, WalSinkError] = {}
        """Stays empty: `start()` raises the error of a query that is refused."""
        self.closed = False
        """True if no further query is followed."""
        self._spark = spark
        self._at_exit = at_exit
        self._lock = threading.Lock()
        self._options: dict[str, Mapping[str, str]] = {}
        """The options of each query that this client started, by query id; names in lower case."""
        self._followed: dict[str, tuple[Candidate, QueryFlush]] = {}
        """The followed queries by checkpoint. The threads of the `Follower` flush them."""
        self._unwatch = connect_client.watch_starts(spark, _check, self._keep_options)
        self._ending = threading.Event()
        watch = exposition.watch if exposition else None

        self._follower = Follower(self._candidates, logger.info, watch)
        self._thread = threading.Thread(
            target=self._follower.run,
            args=(self._ending.wait,),
            name="wal_sink-follow",
            daemon=True,
        )
        atexit.register(at_exit)
        logger.warning(
            "Nothing is flushed from this Spark Connect session. On a host that reaches checkpoint, log and"
            " target, run: wal-sink flush --follow CHECKPOINT (or, for all queries below a folder:"
            " wal-sink flush --follow --under FOLDER). If this process reaches them: sink.follow(CHECKPOINT)"
        )

    def follow(self, checkpoint: str, wal: str | None, options: Mapping[str, object]) -> None:
        """Flush a query from now until `close`; see `Sink.follow`."""
        texts = as_texts(options)
        places = {"checkpointlocation": checkpoint, "wal.location": wal or ""}
        candidate = at_checkpoint(checkpoint, wal, texts)
        with self._lock:
            if self.closed:
                raise OptionError(
                    "This handle is closed.", "Call wal_sink.register(spark) for another one."
                )
            flush = QueryFlush(checkpoint, "", partial(_opened, lowered(texts) | places))
            self._followed.setdefault(checkpoint, (candidate, flush))
            if not self._thread.is_alive():
                self._thread.start()

    def has_seen(self, query_id: str) -> bool:
        """Return True if this client has started the query."""
        return query_id in self._options

    def is_finished(self) -> bool:
        """Return True if the handle is closed, or its session stopped."""
        return self.closed or connect_client.is_stopped(self._spark)

    def stop_listening(self) -> None:
        """Leave the next queries to a new handle. The followed queries are flushed until the process ends."""
        self._unwatch()

    def flush_of(self, query: StreamingQuery) -> QueryFlush:
        """Return checkpoint and log of a query that this client started, without threads that flush.

        :raises OptionError: this client did not start the query with this sink, or the checkpoint now belongs
            to another query.
        :raises CheckpointNotVisible: this process does not reach the checkpoint.
        """
        query_id = str(query.id)
        options = self._options.get(query_id)
        if options is None:
            raise unknown_place(query_id)
        place = _opened(options)
        checkpoint, _ = place
        if checkpoint.query_id() != query_id:
            raise OptionError(
                f"{checkpoint.url} is the checkpoint of query {checkpoint.query_id()}, not of {query_id}.",
                "Pass the newest query, or the location of its checkpoint.",
            )
        return QueryFlush(query_id, str(query.runId), lambda: place)

    def flushes(self) -> Sequence[QueryFlush]:
        """Return the followed queries, which `close` waits for."""
        with self._lock:
            return [flush for _, flush in self._followed.values()]

    def accept_no_more(self) -> bool:
        """Follow no query from now on; return False if this method was called before."""
        with self._lock:
            was_open, self.closed = not self.closed, True
        self._unwatch()
        atexit.unregister(self._at_exit)
        return was_open

    def stop_flushes(self, join_s: float, *, exiting: bool = False) -> None:  # noqa: ARG002 - of a classic session
        """End the thread that flushes the followed queries; wait for its end `join_s` seconds at most."""
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join(join_s)

    def log_pending(self) -> None:
        """Log why a followed query was not flushed, and how many epochs of each query are pending.

        A log that this process does not reach is skipped.
        """
        for place, reason in self._follower.complaints.items():
            logger.warning("%s was not flushed: %s", place, reason)
        for query_id, options in self._options.items():
            with contextlib.suppress(OSError, WalSinkError):
                log_pending(query_id, *_opened(options), another_process)

    def _candidates(self) -> list[Candidate]:
        with self._lock:
            return [candidate for candidate, _ in self._followed.values()]

    def _keep_options(self, start: StreamStart, query_id: str) -> None:
        """Keep the options of a query that has started. Warn of secrets among them, and of a path."""
        if start.format.lower() != FORMAT:
            return
        self._options[query_id] = lowered(start.options)
        if secrets := _secrets(start.options):
            logger.warning(
                "query %s: Spark writes all that a Connect client sends in plain text into its event log and"
                " UI. This client has sent %s. Change these secrets, and give secrets to the server as"
                " environment variables",
                query_id,
                " and ".join(secrets),
            )
        if start.path:
            logger.warning(
                "query %s: no row goes to %s, which start() was given. Call start() without a path",
                query_id,
                start.path,
            )


def unknown_place(query_id: str) -> OptionError:
    """Return the error for a query of another client."""
    return OptionError(
        f"Query {query_id} was not started by this Connect client after wal_sink.register(spark), and the"
        " server does not report where its checkpoint is.",
        "Pass the location of its checkpoint: wal_sink.status(CHECKPOINT) or"
        " wal_sink.await_flushed(CHECKPOINT). If this process does not reach it, run on a host that does:"
        "\nwal-sink status CHECKPOINT",
    )


def _check(start: StreamStart) -> None:
    """Refuse a query with an output mode, trigger, layout or catalog table that the sink does not support."""
    if start.format.lower() != FORMAT:
        return
    name, options = start.name or "without a name", lowered(start.options)
    if start.output_mode not in {"", "append"}:
        raise append_only(start.output_mode)
    runs_as = "MicroBatchExecution"
    if options.get("asyncprogresstrackingenabled", "").lower() == "true":
        runs_as = ASYNCHRONOUS
    refuse_mode(name, runs_as, _TRIGGERS.get(start.trigger, start.trigger))
    refuse_layout(
        {"partitionBy": ", ".join(start.partition_by), "clusterBy": ", ".join(start.cluster_by)}
    )
    if start.table:
        raise OptionError(
            f"The call toTable({start.table!r}) makes a table in Spark's catalog, and no row goes there.",
            "Call start(); the sink's own options name the table that it writes to.",
        )


def _secrets(options: Mapping[str, str]) -> list[str]:
    """Return the names of the options that are secret, or have a password in a URL."""
    secret = {option.name.lower() for option in fields(SinkOptions) if "secret" in option.extra}
    for prefix, kind, _ in options_by_target(options):
        declared = fields(target_type(kind).options_type) if is_installed(kind) else ()
        secret |= {
            qualified(prefix, option.name).lower()
            for option in declared
            if "secret" in option.extra
        }
    return sorted(
        name
        for name, value in options.items()
        if value and (name.lower() in secret or _PASSWORD_IN_URL.search(value))
    )


def _opened(options: Mapping[str, str]) -> Place:
    """Open a query's checkpoint and log. The log need not exist.

    :param options: options of the query; names in lower case.
    :raises CheckpointNotVisible: this process does not reach the checkpoint.
    :raises LogUnavailable: the store does not answer, or refuses the access.
    """
    place, wal = options.get("checkpointlocation", ""), options.get("wal.location", "")
    sink = {name: options[name] for name in _STORE_OPTIONS if name in options}
    stores = storage_options(parse({**sink, "checkpointLocation": place}, SinkOptions))
    is_absolute = (
        wal.startswith("/") or ":" in wal
    )  # a relative location is relative to the server's folder
    location = locate(place, wal if is_absolute else None, None, *stores)
    checkpoint = location.open_checkpoint()
    try:
        with store_errors():
            query_id, log = checkpoint.query_id(), checkpoint.log_url()
    except CheckpointNotVisible as error:
        raise CheckpointNotVisible(
            f"{error.what} The server reaches it, but this Connect client reads its own file systems.",
            f"On a host that reaches it, run:\nwal-sink status {place}",
        ) from error
    if log is not None and wal and not is_absolute:
        location = locate(place, log.rpartition("/")[0], None, *stores)
    return checkpoint, location.open_log(query_id)

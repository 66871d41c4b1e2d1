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
from collections.abc import Iterator, Mapping
from functools import partial
from typing import NamedTuple

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from wal_sink.admin.follow import Candidate, Follower, at_checkpoint
from wal_sink.configuration import options_by_target, storage_options
from wal_sink.errors import CheckpointNotVisible, OptionError, WalSinkError
from wal_sink.metrics.server import Exposition
from wal_sink.options import SinkOptions, as_texts, fields, lowered, parse, qualified
from wal_sink.spark.data_source import FORMAT
from wal_sink.spark.internals import connect_session
from wal_sink.spark.internals.connect_session import StreamStart
from wal_sink.spark.messages import log_pending
from wal_sink.spark.modes import ASYNCHRONOUS, append_only, refuse_layout, refuse_mode
from wal_sink.spark.sink import Flushing, Place, Sink
from wal_sink.targets.registry import is_installed, target_type
from wal_sink.wal.location import locate, store_errors

logger = logging.getLogger(__name__)

_TRIGGERS = {
    "continuous_checkpoint_interval": "ContinuousTrigger",
    "real_time_batch_duration": "RealTimeTrigger",
}
"""Fields of a client's message, and the classes that the server makes of them."""

_PASSWORD_IN_URL = re.compile(r"://[^/@:]*:[^/@]+@")

_STORE_OPTIONS = ("wal.storageoptions", "checkpoint.storageoptions")


class ConnectSink(Sink):
    """The handle of a Connect session; made by `wal_sink.register`. A client may follow queries by it.

    :param exposition: shows metrics of what is followed here; None: no metrics.
    """

    def __init__(
        self, spark: SparkSession, drain_timeout: float, exposition: Exposition | None = None
    ) -> None:
        super().__init__(spark, drain_timeout, exposition, flushes_here=False)
        self._lock = threading.Lock()
        self._options: dict[str, Mapping[str, str]] = {}
        """Of each query that this client has started, by its id; names in lower case."""
        self._followed: dict[str, _Followed] = {}
        """By checkpoint."""
        self._closed = False
        self._ending = threading.Event()
        """Ends the thread that follows."""
        self._unwatch = connect_session.watch_starts(spark, _check, self._started)
        watch = exposition.watch if exposition else None
        self._follower = Follower(self._candidates, logger.info, watch)
        self._thread = threading.Thread(
            target=self._follower.run,
            args=(self._ending.wait,),
            name="wal_sink-follow",
            daemon=True,
        )
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
        texts = as_texts(options or {})
        places = {"checkpointlocation": checkpoint, "wal.location": wal or ""}
        followed = _Followed(at_checkpoint(checkpoint, wal, texts), lowered(texts) | places)
        with self._lock:
            if self._closed:
                raise OptionError(
                    "This handle is closed.", "Call wal_sink.register(spark) for another one."
                )
            self._followed.setdefault(checkpoint, followed)
            if not self._thread.is_alive():
                self._thread.start()

    def has_seen(self, query_id: str) -> bool:
        """Return True if this client has started a query."""
        return query_id in self._options

    def is_finished(self) -> bool:
        """See `Sink.is_finished`."""
        return self._closed or connect_session.is_stopped(self._spark)

    def retire(self) -> None:
        """See `Sink.retire`; what is followed here goes on until the process ends."""
        self._unwatch()

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

    def _candidates(self) -> list[Candidate]:
        """Return what is followed here."""
        with self._lock:
            return [followed.candidate for followed in self._followed.values()]

    def _place_of(self, query: StreamingQuery) -> Place:
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

    def _flushing(self) -> Iterator[Flushing]:
        for checkpoint, followed in self._followed.items():
            yield Flushing(checkpoint, partial(_opened, followed.options))

    def _is_closed(self) -> bool:
        return self._closed

    def _begin_close(self) -> bool:
        with self._lock:
            was_open, self._closed = not self._closed, True
        self._unwatch()
        atexit.unregister(self._at_exit)
        return was_open

    def _end(self, join_s: float, *, say: bool = True) -> None:  # noqa: ARG002 - of a classic session
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join(join_s)
        if self._exposition is not None:
            self._exposition.close()

    def _log_pending(self) -> None:
        for query_id, options in self._options.items():
            with contextlib.suppress(OSError, WalSinkError):  # this process may reach none of it
                log_pending(query_id, *_opened(options), flushes_here=False)


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
        raise append_only(start.output_mode)
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
    for prefix, kind, _ in options_by_target(options):
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


def _opened(options: Mapping[str, str]) -> Place:
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

    candidate: Candidate
    options: Mapping[str, str]
    """Where its checkpoint and log are; names in lower case."""

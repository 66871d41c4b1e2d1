"""The log messages of a query's start and end: the settings in force, warnings, and pending epochs.

The messages about pending epochs are warnings, since Python shows no lower level if the application has not
configured logging.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence

from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.configuration import Configuration, Destination
from wal_sink.errors import WalSinkError
from wal_sink.progress.flusher_report import age_s, is_alive, read_report, this_process
from wal_sink.progress.status import pending_epochs
from wal_sink.units import counted, now_us
from wal_sink.wal.store import LogStore, newest

logger = logging.getLogger(__name__)

_KILL_IDLE, _IDLE_TIMEOUT = (
    (f"spark.sql.execution.pyspark.udf.{name}", f"spark.python.worker.{name}")
    for name in ("killOnIdleTimeout", "idleTimeoutSeconds")
)
"""The settings by which Spark ends idle Python workers. Each has a name for a session, and a name for an
application, which has effect if the first is not set."""


def log_start(
    query_id: str,
    configuration: Configuration,
    store: LogStore,
    lost: Sequence[str],
    session_setting: Callable[[str], str | None],
    *,
    flushes_here: bool,
) -> None:
    """Log the settings in force and the warnings of a start. An error of this function stops no query.

    :param lost: descriptions of the sources that cannot return a row a second time.
    :param session_setting: returns a setting of the session by its name; None if the setting is not set.
    :param flushes_here: False if another process flushes.
    """
    try:
        _log_visibly(block(query_id, configuration, store.url, lost, flushes_here=flushes_here))
        for warning in _warnings(configuration, store, lost, session_setting):
            logger.warning("query %s: %s", query_id, warning)
    except Exception:
        logger.warning("query %s: its settings could not be shown", query_id, exc_info=True)


def block(
    query_id: str,
    configuration: Configuration,
    log: str,
    lost: Sequence[str],
    *,
    flushes_here: bool,
) -> str:
    """Return the settings in force as lines of text, without secrets."""
    once = "exactly-once: only checkpointed rows become visible, each of them once"
    by_hand = f"another process: `wal-sink flush {configuration.location.checkpoint} --follow`"
    settings = {
        "guarantee": f"at-most-once from {', '.join(lost)}, which cannot replay" if lost else once,
        **configuration.in_force(log),
        "flushed by": f"this process, {this_process()}" if flushes_here else by_hand,
    }
    width = max(map(len, settings))
    lines = [f"  {heading:<{width}}  {text}" for heading, text in settings.items()]
    return "\n".join([f"wal_sink: query {query_id} starts", *lines])


def _warnings(
    configuration: Configuration,
    store: LogStore,
    lost: Sequence[str],
    session_setting: Callable[[str], str | None],
) -> Iterator[str]:
    if lost:
        yield (
            f"it reads from {', '.join(lost)}, which cannot give out a row again. If the query dies before a"
            " micro-batch is checkpointed, its rows are lost: this is at-most-once. Put a source that can be"
            " replayed in between, such as Kafka or files."
        )
    if configuration.path:
        where = ", ".join(map(_named, configuration.destinations))
        yield (
            f"nothing is written to the path {configuration.path}: its rows go to {where}, as its options"
            " say. Call start() without a path, and not toTable(…), which makes a table in Spark's catalog."
        )
    (kill, kills), (timeout, idle_s) = (
        next(((name, text) for name in names if (text := session_setting(name))), ("", ""))
        for names in (_KILL_IDLE, _IDLE_TIMEOUT)
    )
    if kills.lower() == "true" and idle_s.rstrip("s") not in {"", "0"}:
        yield (
            f"{kill} is true, and {timeout} is {idle_s}. A worker whose commit waits for space in the log"
            " looks idle, and so does a flush job that waits for the target. Spark then ends the worker,"
            f" and the query with it. Set {kill} to false"
        )
    state, names = newest(store), {destination.name for destination in configuration.destinations}
    for target in state.targets if state is not None else ():
        if target.given_up and target.name in names:
            yield (
                f"target {target.name} was given up, so it gets no rows. To give it rows again, start the"
                " query once without it, and then with it."
            )


def _named(destination: Destination) -> str:
    tables = sorted(destination.target.writes_to.split(", "))
    return f"{destination.kind} {', '.join(tables)}".rstrip()


def _log_visibly(text: str) -> None:
    """Log at INFO; if the application has not set up logging, print the text as Python prints warnings."""
    if logger.isEnabledFor(logging.INFO):
        logger.info("%s", text)
    elif not logger.hasHandlers() and (last := logging.lastResort) is not None:
        last.handle(logger.makeRecord(logger.name, logging.INFO, __file__, 0, text, (), None))


def log_flushing(
    places: Iterable[Callable[[], tuple[Checkpoint, LogStore]]], timeout_s: float
) -> None:
    """Log at an interrupt how many epochs are flushed before the application ends.

    :param places: functions that return checkpoint and log of a query.
    """
    pending = 0
    for place in places:
        with contextlib.suppress(OSError, WalSinkError):  # `close` raises this error later
            pending += pending_epochs(*place())
    if pending:
        logger.warning(
            "flushing %s before the end, for %g s at most. Another Ctrl-C leaves the rest in the"
            " log for the next start",
            counted(pending, "epoch"),
            timeout_s,
        )


def log_pending(
    query_id: str,
    checkpoint: Checkpoint,
    store: LogStore,
    who_flushes: Callable[[Checkpoint, LogStore], str],
) -> None:
    """Log how many epochs of a query are pending, if there are any.

    :param who_flushes: returns the end of the message: `this_run`, `nobody` or `another_process`.
    """
    try:
        pending = pending_epochs(checkpoint, store)
        how = who_flushes(checkpoint, store) if pending else ""
    except (OSError, WalSinkError) as error:
        logger.warning("the pending epochs of %s cannot be read: %s", store.url, error)
        return
    if pending:
        epochs = (f"epoch of query {query_id} is", f"epochs of query {query_id} are")
        logger.warning("%s pending in %s%s", counted(pending, *epochs), store.url, how)


def this_run(_checkpoint: Checkpoint, _store: LogStore) -> str:
    """End the message of a start, whose flush continues with the epochs of an earlier run."""
    return ", from an earlier run. The flush continues now"


def nobody(checkpoint: Checkpoint, _store: LogStore) -> str:
    """End the message with how to flush the epochs, since this process no longer does."""
    return (
        ". To flush them, start the query again under `with wal_sink.register(spark):`, which waits for"
        f" the flush, or run `wal-sink flush {checkpoint.url}`."
    )


def another_process(checkpoint: Checkpoint, store: LogStore) -> str:
    """End the message with the process that has to flush the epochs, or with its command."""
    state = newest(store)
    report = read_report(store, state.targets[0].name) if state is not None else None
    if report is not None and is_alive(report, now_us()):
        ago_s = max(0.0, age_s(report, now_us()))
        return f" for the process that flushes: {report.flusher}, which reported {ago_s:.0f} s ago"
    return (
        " for a process that flushes: there is none now;"
        f" run `wal-sink flush {checkpoint.url} --follow`"
    )

"""Send idempotent requests, a fixed number in flight, until all of them are acknowledged."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import tenacity

from wal_sink.errors import TargetUnavailable
from wal_sink.targets.cassandra.classify import classify
from wal_sink.targets.cassandra.connection import ROWS

log = logging.getLogger(__name__)

IN_FLIGHT = 64
PATIENCE = 10.0
"""Seconds for which the same requests are tried again before the caller hears of it.

Short: whoever flushes goes on trying for as long as it takes, and can say so meanwhile.
"""


class Failure(NamedTuple):
    """A request that was not acknowledged."""

    statement: Any
    error: Exception


def send_all(session: Any, statements: Iterable[Any], patience: float = PATIENCE) -> None:
    """Send every statement and wait for every acknowledgement.

    The first failure stops the feed. What was in flight is awaited, what failed is sent again with
    growing pauses, and then the feed goes on: a cluster that struggles is not buried in requests.

    :param session: the driver's session.
    :param statements: idempotent, each sent at least once; made while others are in flight.
    :param patience: seconds to go on trying what failed.
    :raises TargetUnavailable: that long without success.
    :raises Exception: of the driver, at once, when trying again cannot help.
    """
    feed = iter(statements)
    while failures := _send(session, feed):
        _send_again(session, failures, patience)


def _send_again(session: Any, failures: list[Failure], patience: float) -> None:
    count = len(failures)
    try:
        for attempt in retrying(patience):
            with attempt:
                # The first attempt is the one that failed already.
                if attempt.retry_state.attempt_number > 1:
                    failures = _retry(session, failures)
                if failures:
                    raise _worst(failures)
    except Exception as error:
        if classify(error) == "fatal":
            raise
        raise TargetUnavailable(
            f"Cassandra did not acknowledge {len(failures)} requests for {patience:.0f} s: {error}",
            "See to the cluster; the rows are safe in the log and will be written again.",
        ) from error
    log.warning("%d failed requests are acknowledged after trying again", count)


def retrying(patience: float) -> tenacity.Retrying:
    """Try again what may pass, with growing, random pauses, for `patience` seconds."""
    return tenacity.Retrying(
        retry=tenacity.retry_if_exception(_may_pass),
        wait=tenacity.wait_random_exponential(multiplier=0.2, max=3.0),
        stop=tenacity.stop_after_delay(patience),
        reraise=True,
    )


def _may_pass(error: BaseException) -> bool:
    return isinstance(error, Exception) and classify(error) != "fatal"


def _retry(session: Any, failures: list[Failure]) -> list[Failure]:
    """Send what failed; return what still failed, and what was not sent because of that."""
    waiting = iter([failure.statement for failure in failures])
    again = _send(session, waiting)
    return again + [Failure(statement, again[0].error) for statement in waiting]


def _worst(failures: list[Failure]) -> Exception:
    kinds = {classify(failure.error): failure.error for failure in failures}
    worst = kinds.get("fatal") or kinds.get("throttle") or failures[0].error
    log.warning(
        "%d requests failed (%s), the first with %s: %s",
        len(failures),
        ", ".join(sorted(kinds)),
        type(failures[0].error).__name__,
        failures[0].error,
    )
    return worst


def _send(session: Any, feed: Iterator[Any]) -> list[Failure]:
    """Send from `feed` until it ends or a request fails; return when all that was sent has ended."""
    free = threading.Semaphore(IN_FLIGHT)
    failures: list[Failure] = []

    def acknowledged(_: Any) -> None:
        free.release()

    def failed(error: Exception, statement: Any) -> None:
        failures.append(Failure(statement, error))
        free.release()

    mine = 0  # permits that no callback will release
    try:
        while True:
            free.acquire()
            mine += 1
            statement = None if failures else next(feed, None)
            if statement is None:
                break
            future = session.execute_async(statement, execution_profile=ROWS)
            mine -= 1
            future.add_callbacks(acknowledged, failed, errback_args=(statement,))
    finally:
        for _ in range(IN_FLIGHT - mine):
            free.acquire()
    return failures

"""Sends single requests with a deadline, and repeats requests."""

from __future__ import annotations

import threading
from typing import Any

import tenacity
from cassandra import OperationTimedOut

from wal_sink.errors import WalSinkError
from wal_sink.targets.cassandra.driver.errors import classify, is_invalid

_TIMER_MAY_LAG_S = 10.0
"""Seconds by which a busy process may end a request later than the request's timeout."""


def execute(
    session: Any,
    statement: Any,
    values: Any,
    *,
    profile: str,
    timeout_s: float,
) -> Any:
    """Send a request, and return its result as `session.execute` does.

    One thread of the driver handles answers and timeouts. If that thread stalls or dies, no request ends
    (3.30.1), and `session.execute` would wait forever.

    :param timeout_s: seconds after which the driver ends a request without an answer.
    :raises OperationTimedOut: the request has no answer. It may have an effect, now or later.
    """
    future = session.execute_async(statement, values, execution_profile=profile)
    ended = threading.Event()
    future.add_callbacks(lambda _rows: ended.set(), lambda _error: ended.set())
    deadline_s = timeout_s + _TIMER_MAY_LAG_S
    if not ended.wait(deadline_s):
        raise OperationTimedOut(f"the driver did not end a request within {deadline_s:.0f} s")
    return future.result()


PATIENCE_S = 10.0
"""Seconds for which a request is repeated. Then its error is raised.

The time can be short, because the flusher reports the error and tries again forever."""


def retrying(patience_s: float = PATIENCE_S) -> tenacity.Retrying:
    """Return an object that repeats a call, with growing and random pauses.

    The object raises the call's error after `patience_s`, or at once if the error is not worth repeating.
    """
    return tenacity.Retrying(
        retry=tenacity.retry_if_exception(is_worth_repeating),
        wait=tenacity.wait_random_exponential(multiplier=0.2, max=3.0),
        stop=tenacity.stop_after_delay(patience_s),
        reraise=True,
    )


def is_worth_repeating(error: BaseException) -> bool:
    """Return True if the same request may succeed within seconds.

    An invalid request is not repeated, even if only one node refuses it, because the session first checks
    whether the table has changed.
    """
    if isinstance(error, WalSinkError) or not isinstance(error, Exception):
        return False  # the sink raises its own errors only after it has repeated the request
    return not is_invalid(error) and classify(error) != "fatal"

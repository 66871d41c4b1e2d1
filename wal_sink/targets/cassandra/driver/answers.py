"""Waits for answers, and not for ever.

The driver ends each request: by an answer, or by its own timer. Answers and timers come from one thread of
the driver, though. When that stands still or has died, no request ends (3.30.1), and a flusher that waits for
one would never report, never try again, and never connect anew.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from cassandra import OperationTimedOut

_LOST_S = 10.0
"""How much later than its timeout a request may end; a busy process is late by less."""


def longest_s(request_timeout: float) -> float:
    """Return after how many seconds a request that has not ended counts as lost."""
    return request_timeout + _LOST_S


def execute(
    session: Any,
    statement: Any,
    values: Any,
    *,
    profile: str,
    timeout_s: float,
    meanwhile: Callable[[], None] = lambda: None,
) -> Any:
    """Send a request and return its result, as `session.execute` does.

    :param timeout_s: after which it counts as lost, see `longest_s`.
    :param meanwhile: called while it is on its way; raises nothing.
    :raises OperationTimedOut: the driver has not ended it; it may have had its effect, or have it later.
    """
    future = session.execute_async(statement, values, execution_profile=profile)
    meanwhile()
    return result(future, timeout_s)


def result(future: Any, timeout_s: float) -> Any:
    """Wait for the result of a request that was sent.

    :param timeout_s: after which it counts as lost, see `longest_s`.
    :raises OperationTimedOut: the driver has not ended it.
    """
    ended = threading.Event()
    future.add_callbacks(lambda _rows: ended.set(), lambda _error: ended.set())
    if not ended.wait(timeout_s):
        raise OperationTimedOut(f"the driver did not end a request within {timeout_s:.0f} s")
    return future.result()

"""Repeats a request for as long as its error may pass."""

from __future__ import annotations

import tenacity

from wal_sink.errors import WalSinkError
from wal_sink.targets.cassandra.driver.classify import classify

PATIENCE_S = 10.0
"""Seconds without any acknowledgement after which a request's error is raised.

Short, because the flusher goes on trying for as long as it takes, and can report meanwhile why. But a cluster
that still acknowledges a request now and then is slow and not away: giving up on it would write again all
that it has taken, and make it slower.
"""


def retrying(patience_s: float = PATIENCE_S) -> tenacity.Retrying:
    """Repeat a call with growing, random pauses, until it succeeds, its error is fatal or time is up."""
    return tenacity.Retrying(
        retry=tenacity.retry_if_exception(_may_pass),
        wait=tenacity.wait_random_exponential(multiplier=0.2, max=3.0),
        stop=tenacity.stop_after_delay(patience_s),
        reraise=True,
    )


def _may_pass(error: BaseException) -> bool:
    if isinstance(error, WalSinkError):
        return False  # it was judged already
    return isinstance(error, Exception) and classify(error) != "fatal"

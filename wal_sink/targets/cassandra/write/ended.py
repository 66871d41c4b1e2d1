"""How requests have ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from wal_sink.targets.cassandra.driver.classify import classify
from wal_sink.targets.cassandra.driver.internals import PreparedQueryNotFound
from wal_sink.targets.cassandra.driver.light import Sent


class Failure(NamedTuple):
    """A request that has ended by an error."""

    statement: Any
    sent: float
    ended: float
    error: Exception
    is_light: bool = False
    """Whether it went with others by one push, and not by a future of the driver."""


class Ended(NamedTuple):
    """Requests that have ended together: one, or those that went by one push."""

    sent: float
    ended: float
    parts: int
    """Of places, see `Concurrency`."""
    acknowledged: int
    last: Callable[[], Any] | None
    """Returns one of those that are acknowledged; it is seldom wanted, and takes a copy of its bytes."""
    failures: Sequence[Failure]
    present: int = 0
    """How many of those that are acknowledged have a condition, and found that there is a row."""

    @property
    def number(self) -> int:
        """How many requests."""
        return self.acknowledged + len(self.failures)


def answered(statement: Any, sent: float, ended: float, parts: int, rows: Any) -> Ended:
    """Return the end of one request that is acknowledged.

    :param rows: of the answer: one where the request has a condition, which says first whether it was met.
    """
    present = int(bool(rows) and not rows[0][0])
    return Ended(sent, ended, parts, 1, lambda: statement, (), present)


def refused(statement: Any, sent: float, ended: float, parts: int, error: Exception) -> Ended:
    """Return the end of one request by an error."""
    return Ended(sent, ended, parts, 0, None, [Failure(statement, sent, ended, error)])


def all_of(these: Sent, parts: int) -> Ended:
    """Return the end of requests that went by one push."""
    failures = [
        Failure(request, these.sent, these.ended, error, is_light=True)
        for request, error in these.failed
    ]
    return Ended(these.sent, these.ended, parts, these.acknowledged, these.last, failures)


def is_unprepared(failure: Failure) -> bool:
    """Whether a node has forgotten the statement of a light request, as after a restart.

    The driver prepares it again for a future, and only for that.
    """
    return failure.is_light and isinstance(failure.error, PreparedQueryNotFound)


def worst(failures: Sequence[Failure]) -> Exception:
    """Return the error that decides what follows."""
    errors = [failure.error for failure in failures]
    kinds = {classify(error): error for error in errors}
    return kinds.get("fatal") or kinds.get("throttle") or errors[0]

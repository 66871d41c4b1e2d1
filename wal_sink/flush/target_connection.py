"""Gives a target's own exceptions a kind: worth another try, or the end of the line (rule 21)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from wal_sink.errors import TargetRefused, TargetUnavailable, WalSinkError
from wal_sink.targets.base import Target


@contextlib.contextmanager
def target_errors(target: Target) -> Iterator[None]:
    """Surround a call of `target`.

    :raises TargetRefused: it would refuse again.
    :raises TargetUnavailable: it does not answer.
    """
    try:
        yield
    except WalSinkError:
        raise
    except Exception as error:
        if target.classify(error) == "fatal":
            raise TargetRefused(
                f"The target refused for good: {type(error).__name__}: {error}",
                "Repair the target; the flush goes on by itself.",
            ) from error
        raise TargetUnavailable(
            f"The target does not answer: {type(error).__name__}: {error}",
            "Nothing, if this is an outage: the flush goes on by itself when it is over.",
        ) from error

"""Turns what the stores of log and checkpoint raise into errors of wal_sink."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator

from state_backends import StateBackendError
from wal_sink.errors import LogFull, LogUnavailable


@contextlib.contextmanager
def store_errors(what: str = "The log or the checkpoint") -> Iterator[None]:
    """Turn errors of code that reads or writes log or checkpoint; also a decorator.

    :param what: what is read or written, as the subject of the error's sentence.
    :raises LogUnavailable: the store does not answer, or refuses.
    """
    try:
        yield
    except (OSError, StateBackendError) as error:
        remedy = "See to the store that holds it, and to its options; then try again."
        raise _unavailable(what, error, remedy) from error


@contextlib.contextmanager
def log_errors(url: str) -> Iterator[None]:
    """Turn errors of a query's code, which writes to the log: what Spark shows has to say what to do.

    :param url: of the log.
    :raises LogFull: there is no space, or the quota is used up.
    :raises LogUnavailable: the store does not answer, or refuses.
    """
    try:
        yield
    except (OSError, StateBackendError) as error:
        if not isinstance(error, OSError) or error.errno not in {errno.ENOSPC, errno.EDQUOT}:
            remedy = (
                "Nothing is lost. See to the store that holds it, and to its options, then start the query"
                " again: Spark computes the epoch anew."
            )
            raise _unavailable(f"The log {url}", error, remedy) from error
        raise LogFull(
            f"The disk of {url} is full: {error}",
            "Nothing is lost, and what was half written is deleted. Free space there, then start the query"
            " again: Spark computes the epoch anew. A wal.maxBytes below the size of the disk stops the"
            " query before it is full.",
        ) from error


def _unavailable(what: str, error: Exception, remedy: str) -> LogUnavailable:
    text = str(error) if isinstance(error, StateBackendError) else repr(error)
    return LogUnavailable(f"{what} cannot be used: {text}", remedy)

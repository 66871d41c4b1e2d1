"""What the stores of log and checkpoint raise, as an error of wal_sink."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from state_backends import StateBackendError
from wal_sink.errors import LogUnavailable


@contextlib.contextmanager
def store_errors(what: str = "The log or the checkpoint") -> Iterator[None]:
    """Surround what reads or writes log or checkpoint; decorates a function as well.

    :param what: what is read or written, as the subject of the error's sentence.
    :raises LogUnavailable: the store does not answer, or refuses.
    """
    try:
        yield
    except (OSError, StateBackendError) as error:
        text = str(error) if isinstance(error, StateBackendError) else repr(error)
        raise LogUnavailable(
            f"{what} cannot be used: {text}",
            "See to the store that holds it, and to its options; then try again.",
        ) from error

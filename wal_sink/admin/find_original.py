"""Looks for the original of what is adopted, where the old names lead.

Only a place that answers and does not have it counts as gone. One that cannot be read (no permission, no
answer, no credentials) may have it; then the operator's word is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Literal, NamedTuple

from state_backends import StateBackend, StateBackendError
from wal_sink.admin.query import Query
from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.errors import CheckpointNotVisible, CorruptLog, LogUnavailable, WrongOwner
from wal_sink.wal.log import Log


class Sight(Enum):
    """What can be seen at an old place, as the end of a sentence."""

    GONE = "nothing is there, as seen from this host"
    ANOTHER = "another query has its own there"
    THERE = "it is still there"
    UNKNOWN = "it cannot be read from here"


class Original(NamedTuple):
    """An old place of a checkpoint, or of a log, and what was seen there."""

    kind: Literal["checkpoint", "log"]
    url: str
    sight: Sight
    why: str = ""
    """The store's error, when it cannot be read."""

    def __str__(self) -> str:
        why = f" ({self.why})" if self.why else ""
        return f"{self.kind} {self.url}: {self.sight.value}{why}"


def look_for_checkpoint(url: str, query: Query) -> Original:
    """Look whether the query's checkpoint is still there."""

    def look(backend: StateBackend) -> Sight:
        backend.read("metadata")  # FileNotFoundError: the only sign that it is gone
        try:
            found = Checkpoint(backend).query_id()
        except CheckpointNotVisible:
            return Sight.THERE  # whatever it is, it is there
        return Sight.THERE if found == query.query_id else Sight.ANOTHER

    return Original("checkpoint", url, *_sight(url, query, look))


def look_for_log(url: str, query: Query, log_id: str) -> Original:
    """Look whether the log is still there, or as much of it as could hold epochs."""

    def look(backend: StateBackend) -> Sight:
        log = Log(backend)
        try:
            identity = log.identity()
        except CorruptLog:
            return Sight.THERE  # whatever it is, it is there
        if identity is None:
            left = log.attempts() or log.flushed_epochs()
            return Sight.THERE if left else Sight.GONE
        return Sight.THERE if identity.log_id == log_id else Sight.ANOTHER

    return Original("log", url, *_sight(url, query, look))


def _sight(url: str, query: Query, look: Callable[[StateBackend], Sight]) -> tuple[Sight, str]:
    try:
        return look(query.open(url)), ""
    except FileNotFoundError:
        return Sight.GONE, ""
    except StateBackendError as error:
        return Sight.UNKNOWN, str(error)
    except OSError as error:
        return Sight.UNKNOWN, repr(error)


def refuse_copy(original: Original, query: Query, *, is_gone: bool) -> None:
    """Refuse to adopt a copy while its original is, or may be, still there.

    :param is_gone: the operator knows that what cannot be read is gone.
    :raises WrongOwner: the original is there, whatever the operator knows.
    :raises LogUnavailable: it cannot be told, and the operator did not say.
    """
    if original.sight is Sight.THERE and original.kind == "checkpoint":
        raise WrongOwner(
            f"The checkpoint of query {query.query_id} is still at {original.url}:"
            f" {query.checkpoint.url} is a copy",
            "Two owners would flush into one table. Start the copy with a new checkpoint; or, if it is"
            " to take over, stop the original and move it away first. Renaming it is enough.",
        )
    if original.sight is Sight.THERE:
        raise WrongOwner(
            f"The log is still at {original.url}: {query.log.url} is a copy",
            "Epochs may have been published there since. Use that one, or move it away first.",
        )
    if original.sight is Sight.UNKNOWN and not is_gone:
        raise LogUnavailable(
            f"The {original.kind} of query {query.query_id} was at {original.url}, and it cannot be"
            f" seen from here whether it still is: {original.why}",
            "Make that place readable from here, and run the command again: the original may live on"
            " there. If you know that it is gone for good, pass --original-is-gone.",
        )

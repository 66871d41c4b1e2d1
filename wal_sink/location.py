"""Where a query's checkpoint and log are; made absolute once, then passed on as plain URLs (rule 0)."""

from __future__ import annotations

from typing import NamedTuple

from state_backends import StateBackend, StateBackendError, child_url, open_backend
from wal_sink.checkpoint import Checkpoint
from wal_sink.errors import OptionError
from wal_sink.log import Log

LOG_FOLDER = "wal_sink"
"""Folder of the logs inside the checkpoint, when `wal.location` does not say otherwise."""


class Location(NamedTuple):
    """Absolute URLs."""

    checkpoint: str
    logs: str
    """The folder in which each query's log has a folder named by its query id (rule 1)."""

    def open_checkpoint(self) -> Checkpoint:
        """Open the checkpoint; no I/O."""
        return Checkpoint(open_backend(self.checkpoint))

    def open_log(self, query_id: str) -> Log:
        """Open the log of a query; no I/O."""
        return Log(open_backend(child_url(self.logs, query_id)))


def locate(checkpoint: str, wal_location: str | None = None, folder: str | None = None) -> Location:
    """Make both URLs absolute.

    :param folder: against which a relative `wal_location` counts; None for the current one.
    :raises OptionError: a URL that cannot be the place of a checkpoint or a log.
    """
    url = _shared("checkpointLocation", checkpoint).url
    if not wal_location:
        return Location(url, child_url(url, LOG_FOLDER))
    relative = folder is not None and not wal_location.startswith("/") and ":" not in wal_location
    logs = _shared("wal.location", f"{folder}/{wal_location}" if relative else wal_location).url
    return Location(url, logs)


def _shared(option: str, url: str) -> StateBackend:
    try:
        backend = open_backend(url)
    except StateBackendError as error:
        raise OptionError(
            f"Option {option} cannot be used: {error}.",
            "Use a folder that the driver and all executors share, as file:///… or a plain path.",
        ) from error
    if backend.process_local:
        raise OptionError(
            f"Option {option} is {url}, which only one process sees.",
            "Use a folder that the driver and all executors share, as file:///… or a plain path.",
        )
    return backend

"""Where a query's checkpoint and log are; made absolute once, then passed on as plain URLs (rule 0)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from state_backends import (
    StateBackend,
    StateBackendError,
    StorageOptions,
    child_url,
    open_backend,
    url_scheme,
)
from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.errors import OptionError
from wal_sink.wal.log import Log

LOG_FOLDER = "wal_sink"
"""Folder of the logs inside the checkpoint, when `wal.location` does not say otherwise."""

_USE = (
    "Use a place that the driver and all executors share: a folder, as file:///… or a plain path, or"
    " s3://bucket/prefix."
)


class Location(NamedTuple):
    """Absolute URLs, and what opens them."""

    checkpoint: str
    logs: str
    """The folder in which each query's log has a folder named by its query id (rule 1)."""
    checkpoint_options: StorageOptions = StorageOptions()
    log_options: StorageOptions = StorageOptions()

    def open_checkpoint(self) -> Checkpoint:
        """Open the checkpoint; no I/O."""
        return Checkpoint(open_backend(self.checkpoint, self.checkpoint_options))

    def open_log(self, query_id: str) -> Log:
        """Open the log of a query; no I/O."""
        return Log(open_backend(child_url(self.logs, query_id), self.log_options))


def locate(
    checkpoint: str,
    wal_location: str | None = None,
    folder: str | None = None,
    *,
    wal_options: Mapping[str, object] | None = None,
    checkpoint_options: Mapping[str, object] | None = None,
) -> Location:
    """Make both URLs absolute.

    :param folder: against which a relative `wal_location` counts; None for the current one.
    :param wal_options: for the log's store. None: those of the checkpoint, if the log is inside it.
    :param checkpoint_options: for the checkpoint's store. None: `wal_options`, if both URLs are of
        one kind of store.
    :raises OptionError: a URL that cannot be the place of a checkpoint or a log.
    """
    same_kind = not wal_location or url_scheme(wal_location) == url_scheme(checkpoint)
    if checkpoint_options is None and same_kind:
        checkpoint_options = wal_options
    if wal_options is None and not wal_location:
        wal_options = checkpoint_options
    options = StorageOptions(checkpoint_options), StorageOptions(wal_options)
    url = _shared("checkpointLocation", checkpoint, options[0]).url
    if not wal_location:
        return Location(url, child_url(url, LOG_FOLDER), *options)
    relative = folder is not None and not wal_location.startswith("/") and ":" not in wal_location
    wal_location = f"{folder}/{wal_location}" if relative else wal_location
    return Location(url, _shared("wal.location", wal_location, options[1]).url, *options)


def _shared(option: str, url: str, options: StorageOptions) -> StateBackend:
    try:
        backend = open_backend(url, options)
    except StateBackendError as error:
        raise OptionError(f"Option {option} cannot be used: {error}.", _USE) from error
    if backend.process_local:
        raise OptionError(f"Option {option} is {url}, which only one process sees.", _USE)
    return backend

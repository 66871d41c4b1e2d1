"""Locates checkpoints and logs, opens their stores, and checks that they match (rule `identity`).

A query is located by its options or by its checkpoint. `logs_below` finds every log below a folder.

The state of a log names its checkpoint. So a copied checkpoint cannot use the log of the original. The
checkpoint names its log in `wal_sink/location.json`. So a query whose `wal.location` was changed cannot start
a second log. Otherwise the epochs that are pending in the first log would never be flushed.

Errors of the stores become errors of wal_sink.
"""

from __future__ import annotations

import contextlib
import errno
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from state_backends import (
    StateBackend,
    StateBackendError,
    StorageOptions,
    child_url,
    open_backend,
    url_scheme,
)
from wal_sink import errors
from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.errors import CorruptLog, LogFull, LogUnavailable, OptionError, WrongOwner
from wal_sink.model import paths
from wal_sink.model.state import State
from wal_sink.protocol.state import refuse_other_place
from wal_sink.wal.store import LogStore, newest

LOG_FOLDER = "wal_sink"
"""Folder of the logs inside the checkpoint, if `wal.location` is not set."""

_USE = (
    "Use a place that the driver and all executors share: a folder, as file:///… or a plain path, or"
    " s3://bucket/prefix, gs://bucket/prefix or abfss://container@account.dfs.core.windows.net/prefix."
)


class Location(NamedTuple):
    """Absolute URLs of a query's checkpoint and of its log's folder, with the options of their stores."""

    checkpoint: str
    logs: str
    """URL of the folder that contains the logs. The log of a query is in the folder with its query id."""
    checkpoint_options: StorageOptions
    log_options: StorageOptions

    def open_checkpoint(self) -> Checkpoint:
        """Open the checkpoint. No I/O."""
        return Checkpoint(open_backend(self.checkpoint, self.checkpoint_options))

    def open_log(self, query_id: str) -> LogStore:
        """Open the log of a query. No I/O."""
        return open_backend(child_url(self.logs, query_id), self.log_options)


def locate(
    checkpoint: str,
    wal_location: str | None = None,
    folder: str | None = None,
    wal_options: Mapping[str, object] | None = None,
    checkpoint_options: Mapping[str, object] | None = None,
) -> Location:
    """Make the URLs of checkpoint and log absolute, and assign the options of their stores.

    :param folder: where a relative `wal_location` is resolved; None for the current folder.
    :param wal_options: for the log's store. None for the options of the checkpoint, if the log is inside the
        checkpoint.
    :param checkpoint_options: for the checkpoint's store. None for `wal_options`, if both stores are of the
        same kind.
    :raises OptionError: a URL cannot be the place of a checkpoint or a log.
    """
    same_kind = not wal_location or url_scheme(wal_location) == url_scheme(checkpoint)
    if checkpoint_options is None and same_kind:
        checkpoint_options = wal_options
    if wal_options is None and not wal_location:
        wal_options = checkpoint_options
    of_checkpoint, of_log = StorageOptions(checkpoint_options), StorageOptions(wal_options)
    url = _shared("checkpointLocation", checkpoint, of_checkpoint).url
    if wal_location:
        relative = (
            folder is not None and not wal_location.startswith("/") and ":" not in wal_location
        )
        wal_location = f"{folder}/{wal_location}" if relative else wal_location
        logs = _shared("wal.location", wal_location, of_log).url
    else:
        logs = child_url(url, LOG_FOLDER)
    return Location(url, logs, of_checkpoint, of_log)


def find_by_checkpoint(
    checkpoint: str,
    wal: str | None,
    argument: str,
    wal_options: Mapping[str, object] | None = None,
    checkpoint_options: Mapping[str, object] | None = None,
) -> tuple[str, Location]:
    """Find a query by its checkpoint; return the query id, and the location of checkpoint and log.

    If `wal` is given, the log is below `wal`. Otherwise the log is at the URL that the checkpoint names. If
    no log is at that URL, the log is in the folder of the checkpoint, since both may have been moved
    together.

    :param argument: name of the caller's argument for `wal`, for errors.
    :param wal_options, checkpoint_options: as for `locate`; folders ignore options. Without `wal`,
        `wal_options` are for both stores, since the log may be in another kind of store than the checkpoint.
    :raises CheckpointNotVisible: the checkpoint of a query is not at this place.
    :raises WrongOwner: the checkpoint names a log that cannot be the query's log.
    :raises CorruptLog: the log that the checkpoint names is gone.
    :raises OptionError: there is no log, or an option does not fit.
    """
    if checkpoint_options is None and not wal:
        checkpoint_options = wal_options

    def below(logs: str | None) -> Location:
        of_log = None if is_folder(logs or checkpoint) else wal_options
        of_checkpoint = None if is_folder(checkpoint) else checkpoint_options
        return locate(checkpoint, logs, None, of_log, of_checkpoint)

    places = [below(wal)]
    opened = places[0].open_checkpoint()
    query_id = opened.query_id()
    named = None if wal else opened.log_url()
    if named is not None:
        places.insert(0, below(_folder_of(named, query_id, opened.url, argument)))
    for place in places:
        store = place.open_log(query_id)
        # `state/` has about 100 names. If it is empty, any other object is the rest of a log.
        if store.list(paths.STATE.folder) or store.list():
            return query_id, place
    if named is not None:
        refuse_vanished(places[0].open_log(query_id), opened)
    raise OptionError(
        f"There is no log of query {query_id} at"
        f" {' or '.join(place.open_log(query_id).url for place in places)}.",
        f"If the query sets wal.location, pass the same location as {argument}.",
    )


def refuse_unused(location: Location, options: Mapping[str, object] | None, argument: str) -> None:
    """Refuse storage options if checkpoint and log are folders, which ignore such options.

    :param argument: name of the caller's argument for the options, for errors.
    :raises OptionError: there are options, and neither store uses them.
    """
    if options and is_folder(location.checkpoint) and is_folder(location.logs):
        raise OptionError(
            f"{argument}: {sorted(options)} have no effect, since checkpoint and log are folders.",
            "Leave the storage options out.",
        )


def is_folder(url: str) -> bool:
    """Return True if a URL names a folder, which has no storage options."""
    return url_scheme(url) in {"", "file"}


def _shared(option: str, url: str, options: StorageOptions) -> StateBackend:
    """Open a store, which other processes must reach, too.

    :param option: name of the option that has the URL, for errors.
    :raises OptionError: the URL cannot be used, or names memory of this process.
    """
    try:
        backend = open_backend(url, options)
    except StateBackendError as error:
        raise OptionError(f"Option {option} cannot be used: {error}.", _USE) from error
    if backend.process_local:
        raise OptionError(f"Option {option} is {url}, which only one process can read.", _USE)
    return backend


def _folder_of(log: str, query_id: str, checkpoint: str, argument: str) -> str:
    """Return the folder that contains the log which the checkpoint names.

    :raises WrongOwner: the log's folder does not have the query id as its name.
    """
    logs, _, name = log.rpartition("/")
    if name != query_id:
        raise WrongOwner(
            f"{checkpoint}/{Checkpoint.LOG_URL} names {log}, which cannot be the log of query {query_id}.",
            f"The file was edited. Pass the location of the log as {argument}.",
        )
    return logs


def refuse_other_log(store: LogStore, checkpoint: Checkpoint) -> None:
    """Refuse a log if the checkpoint names another log.

    :raises WrongOwner: the checkpoint names another log, in which epochs may be pending.
    """
    named = checkpoint.log_url()
    if named is not None and named != store.url:
        new_query = named.rpartition("/")[2] != store.url.rpartition("/")[2]
        raise WrongOwner(
            f"The log of {checkpoint.url} is {named}, not {store.url}.",
            "Set wal.location back: epochs may be pending in that log. Start a copy of a query with a new"
            f" checkpoint. If checkpoint or log were moved: {errors.ADOPT}. If nothing was published in that"
            f" log yet, delete the log, and {checkpoint.url}/{checkpoint.LOG_URL}."
            + (
                f" If Spark's files were deleted to start a new query, delete {checkpoint.LOG_URL}, too."
                if new_query
                else ""
            ),
        )


def refuse_vanished(store: LogStore, checkpoint: Checkpoint) -> None:
    """Refuse to create a log that the checkpoint already names, since the new log would skip pending epochs.

    The caller has not found a state. The state is read again, since the first run may have created it
    meanwhile.

    :raises CorruptLog: the first run has created the log, and the log is gone.
    """
    if checkpoint.log_url() is None or newest(store) is not None:
        return
    raise CorruptLog(
        f"{checkpoint.url} names the log {store.url}, and there is none. The log was deleted or moved, or its"
        " file system is not mounted.",
        "Mount the file system, or restore the log from a copy. If the log was moved: `wal-sink adopt"
        " CHECKPOINT --wal URL`. If the log is lost, its pending epochs are lost, too. Then delete"
        f" {checkpoint.url}/{checkpoint.LOG_URL} and start the query again; it continues after these epochs."
        f" Then {errors.ADOPT}.",
    )


def owned_state(store: LogStore, checkpoint: Checkpoint, query_id: str) -> State | None:
    """Read the state of a query's log; None if no run has published yet.

    :raises WrongOwner: the log belongs to another checkpoint.
    :raises CorruptLog: the log was deleted or moved.
    """
    state = newest(store)
    if state is None:
        refuse_vanished(store, checkpoint)
    else:
        refuse_other_place(state, query_id, checkpoint.url)
    return state


@contextlib.contextmanager
def store_errors(what: str = "The log or the checkpoint") -> Iterator[None]:
    """Convert the errors of a block that uses log or checkpoint. Also a decorator.

    :param what: the log, the checkpoint or a part of them; the subject of the error's first sentence.
    :raises LogUnavailable: the store does not answer, or refuses.
    """
    try:
        yield
    except OSError as error:
        remedy = "Repair the store, or correct the storage options; then try again."
        raise _unavailable(what, error, remedy) from error


@contextlib.contextmanager
def log_errors(url: str) -> Iterator[None]:
    """Convert the errors of a block that writes to the log. The remedies are for a running query.

    :param url: URL of the log.
    :raises LogFull: the disk is full, or a quota is used up.
    :raises LogUnavailable: the store does not answer, or refuses.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in {errno.ENOSPC, errno.EDQUOT}:
            remedy = (
                "Nothing is lost. Repair the store, or correct the storage options, then start the query"
                " again: Spark computes the epoch again."
            )
            raise _unavailable(f"The log {url}", error, remedy) from error
        raise LogFull(
            f"The disk of {url} is full: {error}",
            "Nothing is lost, and half-written files are deleted. Free space there, for example by"
            " `wal-sink flush CHECKPOINT --option wal.retention=0`, which deletes flushed epochs. Then start"
            " the query again: Spark computes the epoch again. A wal.maxBytes below the size of the disk"
            " stops the query before the disk is full.",
        ) from error


def _unavailable(what: str, error: Exception, remedy: str) -> LogUnavailable:
    text = str(error) if isinstance(error, StateBackendError) else repr(error)
    return LogUnavailable(f"{what} cannot be used: {text}", remedy)


SPARKS_OWN = frozenset({"commits", "offsets", "sources", "state"})
"""Spark's folders in a checkpoint. Every checkpoint has the first two."""

DEPTH = 8
"""How many levels of folders `logs_below` searches. A log of a declarative pipeline is at the seventh level:
`<pipeline>/_checkpoints/<sink>/<flow>/0/wal_sink/<query>`."""

_QUERY_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class LogPlace(NamedTuple):
    """A log that `logs_below` has found."""

    query_id: str
    logs: str
    """URL of the folder that contains the log's folder."""

    @property
    def url(self) -> str:
        """Return the absolute URL of the log."""
        return child_url(self.logs, self.query_id)


def open_root(url: str, options: Mapping[str, object] | None) -> StateBackend:
    """Open a folder or a bucket's prefix. No I/O.

    :param options: options of an object store; ignored for a folder.
    :raises StateBackendError: no store can be opened at the URL.
    """
    return open_backend(url, StorageOptions(None if is_folder(url) else options))


def logs_below(root: StateBackend) -> Iterator[LogPlace]:
    """Yield the place of each log below a folder or a bucket's prefix, level by level.

    The folder of a log has the query id as its name, and contains `state/`. Spark's own folders of a
    checkpoint are skipped, since they may contain millions of files. Objects are listed in a log's folder
    only.

    :raises OSError: the store does not answer, or refuses.
    """
    pending: list[tuple[str, ...]] = [()]
    while pending:
        parts = pending.pop()
        names = root.folders("/".join(parts))
        if {"commits", "offsets"}.intersection(names):
            names = [name for name in names if name not in SPARKS_OWN]
        elif parts and _QUERY_ID.fullmatch(parts[-1]) and paths.STATE.folder.rstrip("/") in names:
            yield LogPlace(parts[-1], child_url(root.url, *parts[:-1]))
            continue
        if len(parts) < DEPTH:
            pending += [(*parts, name) for name in reversed(names)]


def named_checkpoint(place: LogPlace, options: Mapping[str, object] | None) -> str | None:
    """Return the URL of the checkpoint that a log names; None if the log has lost its state.

    :param options: as for `open_root`.
    :raises CorruptLog: the newest state cannot be read.
    :raises OSError: the store does not answer, or refuses.
    """
    state = newest(open_root(place.url, options))
    return state.checkpoint if state is not None else None

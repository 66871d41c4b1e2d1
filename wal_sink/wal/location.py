"""Finds a query's checkpoint and log, opens their stores, and checks that they belong together (`identity`).

Both URLs are made absolute once, then passed on as they are, each with the options of its store.

The state names its checkpoint, so that a copied checkpoint cannot use the log of the first one. The
checkpoint names its log, in `wal_sink/location.json`, so that a query whose `wal.location` was
changed cannot start a second log while epochs are pending in the first: they would never be
flushed.

Errors of the stores become errors of wal_sink.
"""

from __future__ import annotations

import contextlib
import errno
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
from wal_sink.wal.states import newest
from wal_sink.wal.store import LogStore

LOG_FOLDER = "wal_sink"
"""Folder of the logs inside the checkpoint, when `wal.location` does not say otherwise."""

_USE = (
    "Use a place that the driver and all executors share: a folder, as file:///… or a plain path, or"
    " s3://bucket/prefix, gs://bucket/prefix or abfss://container@account.dfs.core.windows.net/prefix."
)


class Location(NamedTuple):
    """Where a query's checkpoint and log are, as absolute URLs, and the options of their stores."""

    checkpoint: str
    logs: str
    """The folder in which each query's log has a folder named by its query id."""
    checkpoint_options: StorageOptions
    log_options: StorageOptions

    def open_checkpoint(self) -> Checkpoint:
        """Open the checkpoint; no I/O."""
        return Checkpoint(open_backend(self.checkpoint, self.checkpoint_options))

    def open_log(self, query_id: str) -> LogStore:
        """Open the log of a query; no I/O."""
        return LogStore(open_backend(child_url(self.logs, query_id), self.log_options))


def locate(
    checkpoint: str,
    wal_location: str | None = None,
    folder: str | None = None,
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
    """Find a query by its checkpoint; return its id, and where its checkpoint and log are.

    Its log is the one below `wal`, if that is given; else the one that the checkpoint names; else,
    where that is gone, the one in the checkpoint's own folder: they may have been moved together.

    :param argument: how the caller calls `wal`, for the error.
    :param wal_options, checkpoint_options: as for `locate`; a folder takes none. Without `wal` the first are
        for both: the log may turn out to be in another kind of store than the checkpoint.
    :raises CheckpointNotVisible: no query's checkpoint is there.
    :raises WrongOwner: the checkpoint names a log that cannot be the query's.
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
        backend = place.open_log(query_id).backend
        # The state has 100 names or a few more; of what was left of a log, any name counts.
        if backend.list(paths.STATE.folder) or backend.list():
            return query_id, place
    if named is not None:
        refuse_vanished(places[0].open_log(query_id), opened)
    raise OptionError(
        f"There is no log of query {query_id} at"
        f" {' or '.join(place.open_log(query_id).url for place in places)}.",
        f"If the query sets wal.location, pass the same location as {argument}.",
    )


def refuse_unused(location: Location, options: Mapping[str, object] | None, argument: str) -> None:
    """Refuse storage options where neither place takes any: a caller who gives them expects them to count.

    :param argument: how the caller calls the options, for the error.
    :raises OptionError: checkpoint and log are folders, and there are options.
    """
    if options and is_folder(location.checkpoint) and is_folder(location.logs):
        raise OptionError(
            f"{argument}: {sorted(options)} have no effect, since checkpoint and log are folders.",
            "Leave the storage options out.",
        )


def is_folder(url: str) -> bool:
    """Return True if a URL names a folder, which takes no storage options."""
    return url_scheme(url) in {"", "file"}


def _shared(option: str, url: str, options: StorageOptions) -> StateBackend:
    """Open a store that other processes see as well, for the error that names the option."""
    try:
        backend = open_backend(url, options)
    except StateBackendError as error:
        raise OptionError(f"Option {option} cannot be used: {error}.", _USE) from error
    if backend.process_local:
        raise OptionError(f"Option {option} is {url}, which exists in one process only.", _USE)
    return backend


def _folder_of(log: str, query_id: str, checkpoint: str, argument: str) -> str:
    """Return the folder of logs that holds the log which the checkpoint names (rule `identity`).

    :raises WrongOwner: the log's folder does not have the query's id as its name.
    """
    logs, _, name = log.rpartition("/")
    if name != query_id:
        raise WrongOwner(
            f"{checkpoint}/{Checkpoint.LOG_URL} names {log}, which cannot be the log of query {query_id}.",
            f"The file was edited. Pass the location of the log as {argument}.",
        )
    return logs


def refuse_other_log(store: LogStore, checkpoint: Checkpoint) -> None:
    """Refuse a log that is not the one which the checkpoint names.

    :raises WrongOwner: epochs may be pending in the other one.
    """
    named = checkpoint.log_url()
    if named is not None and named != store.url:
        new_query = named.rpartition("/")[2] != store.url.rpartition("/")[2]
        raise WrongOwner(
            f"The log of {checkpoint.url} is {named}, not {store.url}.",
            "Set wal.location back: epochs may be pending in that log. Start a copy of a"
            " checkpoint with a new"
            f" checkpoint. If checkpoint or log were moved: {errors.ADOPT}. If nothing was published in that"
            f" log yet, delete it, and {checkpoint.url}/{checkpoint.LOG_URL}."
            + (
                f" If Spark's files were deleted to begin with a new query, delete {checkpoint.LOG_URL}, too."
                if new_query
                else ""
            ),
        )


def refuse_vanished(store: LogStore, checkpoint: Checkpoint) -> None:
    """Refuse a log without a state that the checkpoint names: a new one would begin after what was pending.

    The caller has found no state. It is read again: the first run may have made the log since.

    :raises CorruptLog: the first run has made the log, and it is gone.
    """
    if checkpoint.log_url() is None or newest(store) is not None:
        return
    raise CorruptLog(
        f"{checkpoint.url} has the log {store.url}, and there is none: it was deleted or moved, or its file"
        " system is not mounted.",
        "Mount it, or restore it from a copy. If it was moved: `wal-sink adopt CHECKPOINT --wal URL`. If it"
        f" is lost, its pending epochs are lost, too: delete {checkpoint.url}/{checkpoint.LOG_URL} and start"
        f" the query again; it continues after them. Then {errors.ADOPT}.",
    )


def owned_state(store: LogStore, checkpoint: Checkpoint, query_id: str) -> State | None:
    """Read the state of a query's log; None before its first run has published.

    :raises WrongOwner: the log belongs to another checkpoint.
    :raises CorruptLog: the log has vanished.
    """
    state = newest(store)
    if state is None:
        refuse_vanished(store, checkpoint)
    else:
        refuse_other_place(state, query_id, checkpoint.url)
    return state


@contextlib.contextmanager
def store_errors(what: str = "The log or the checkpoint") -> Iterator[None]:
    """Turn errors of code that reads or writes log or checkpoint; also a decorator.

    :param what: what is read or written, as the subject of the error's sentence.
    :raises LogUnavailable: the store does not answer, or refuses.
    """
    try:
        yield
    except OSError as error:
        remedy = "Repair the store that holds it, or its options; then try again."
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
    except OSError as error:
        if error.errno not in {errno.ENOSPC, errno.EDQUOT}:
            remedy = (
                "Nothing is lost. Repair the store that holds it, or its options, then start the query"
                " again: Spark computes the epoch again."
            )
            raise _unavailable(f"The log {url}", error, remedy) from error
        raise LogFull(
            f"The disk of {url} is full: {error}",
            "Nothing is lost, and what was half written is deleted. Free space there, then start the query"
            " again: Spark computes the epoch again. A wal.maxBytes below the size of the disk stops the"
            " query before it is full.",
        ) from error


def _unavailable(what: str, error: Exception, remedy: str) -> LogUnavailable:
    text = str(error) if isinstance(error, StateBackendError) else repr(error)
    return LogUnavailable(f"{what} cannot be used: {text}", remedy)

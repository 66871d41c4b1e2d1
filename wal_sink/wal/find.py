"""Finds a query's log by the location of its checkpoint, for operators' commands and for `ask`."""

from __future__ import annotations

from typing import NamedTuple

from state_backends import url_scheme
from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.configuration import StorageOptionsGiven
from wal_sink.errors import OptionError, WrongOwner
from wal_sink.wal.location import Location, locate
from wal_sink.wal.log import Log


class Found(NamedTuple):
    """A query's checkpoint and log, and where they are."""

    query_id: str
    checkpoint: Checkpoint
    log: Log
    location: Location


def find_by_checkpoint(
    checkpoint: str, wal: str | None, given: StorageOptionsGiven, argument: str
) -> Found:
    """Find a query by the location of its checkpoint.

    Its log is the one below `wal`, if that is given; else the one that the checkpoint names; else,
    where that is gone, the one in the checkpoint's own folder: they may have been moved together.

    :param given: how to open the stores; a folder that the checkpoint names takes none of it.
    :param argument: how the caller calls `wal`, for the error.
    :raises CheckpointNotVisible: no query's checkpoint is there.
    :raises WrongOwner: the checkpoint names a log that cannot be the query's.
    :raises OptionError: there is no log, or an option does not fit.
    """
    # Without `wal` the log may be in another kind of store than the checkpoint, which will say so.
    apart = wal is None and is_folder(checkpoint)
    location = locate(
        checkpoint, wal, **(given._replace(wal_options=None) if apart else given)._asdict()
    )
    opened = location.open_checkpoint()
    query_id = opened.query_id()
    noted = None if wal else opened.log_url()
    places = [location]
    if noted is not None:
        logs = _folder_of(noted, query_id, location, argument)
        fitting = given._replace(wal_options=None) if is_folder(logs) else given
        places.insert(0, locate(checkpoint, logs, **fitting._asdict()))
    for place in places:
        log = place.open_log(query_id)
        if log.backend.list():
            return Found(query_id, opened, log, place)
    raise OptionError(
        f"There is no log of query {query_id} at"
        f" {' or '.join(place.open_log(query_id).url for place in places)}.",
        f"If the query sets wal.location, pass the same location as {argument}.",
    )


def is_folder(url: str) -> bool:
    """Whether a URL names a folder, which takes no storage options."""
    return url_scheme(url) in {"", "file"}


def _folder_of(noted: str, query_id: str, location: Location, argument: str) -> str:
    """Return the folder of logs in which the one is that the checkpoint names (rule 1).

    :raises WrongOwner: it is not named by the query's id.
    """
    logs, _, name = noted.rpartition("/")
    if name != query_id:
        raise WrongOwner(
            f"{location.checkpoint}/{Checkpoint.LOG_URL} names {noted}, which cannot be the log of query"
            f" {query_id}",
            f"Somebody has edited it. Pass the location of the log as {argument}.",
        )
    return logs

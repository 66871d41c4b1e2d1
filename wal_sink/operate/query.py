"""Finds what a command is about: a query's checkpoint, its log, and the target as its runs knew it."""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from state_backends import StateBackend, StorageOptions, open_backend, url_scheme
from wal_sink.checkpoint import Checkpoint
from wal_sink.configuration import StorageOptionsGiven, configure, storage_options
from wal_sink.errors import OptionError, WrongOwner
from wal_sink.location import Location, locate
from wal_sink.log import Log
from wal_sink.options import SinkOptions, parse
from wal_sink.ownership import owned
from wal_sink.records import LogIdentity
from wal_sink.targets.base import Owner, Target

_OURS = ("checkpointlocation", "wal.location", "wal.storageoptions", "checkpoint.storageoptions")

_FOLDERS = ("", "file")

NO_OPTIONS: Mapping[str, str] = MappingProxyType({})


class Query(NamedTuple):
    """One query, as an operator sees it."""

    query_id: str
    checkpoint: Checkpoint
    log: Log
    stores: Mapping[str, StorageOptions] = {}
    """How to open what is in an object store, by the scheme of its URL."""

    def open(self, url: str) -> StateBackend:
        """Open another place, with the options of its kind of store."""
        return open_backend(url, self.stores.get(url_scheme(url)))

    def identity(self) -> LogIdentity:
        """Read whose the log is.

        :raises WrongOwner: log and checkpoint do not belong together.
        :raises OptionError: nothing was ever published to it.
        """
        identity = owned(self.log, self.checkpoint)
        if identity is None:
            raise OptionError(
                f"{self.log.url} has no log.json: nothing is published there, or it is lost",
                "See with `wal-sink verify CHECKPOINT`; if the log is elsewhere, pass --wal.",
            )
        return identity

    def owner(self, identity: LogIdentity) -> Owner:
        """Return whom the ledger row has to belong to."""
        return Owner(self.query_id, identity.log_id, identity.checkpoint)


def find_query(
    checkpoint: str, wal: str | None = None, options: Mapping[str, str] = NO_OPTIONS
) -> Query:
    """Find a query by the location of its checkpoint.

    Its log is the one below `wal`, if that is given; else the one that the checkpoint names; else,
    where that is gone, the one in the checkpoint's own folder: they may have been moved together.

    :param options: those about storage count here.
    :raises CheckpointNotVisible: no query's checkpoint is there.
    :raises OptionError: there is no log, or an option does not fit.
    """
    given = storage_options(parse({**options, "checkpointLocation": checkpoint}, SinkOptions))
    # Without --wal the log may be in another kind of store than the checkpoint, which will say so.
    apart = wal is None and url_scheme(checkpoint) in _FOLDERS
    location = locate(
        checkpoint, wal, **(given._replace(wal_options=None) if apart else given)._asdict()
    )
    opened = location.open_checkpoint()
    query_id = opened.query_id()
    noted = None if wal else opened.log_url()
    places = [location]
    if noted is not None:
        logs = _folder_of(noted, query_id, location)
        places.insert(0, locate(checkpoint, logs, **_fitting(given, logs)._asdict()))
    for place in places:
        log = place.open_log(query_id)
        if log.backend.list():
            stores = {
                url_scheme(place.logs): place.log_options,
                url_scheme(place.checkpoint): place.checkpoint_options,
            }
            return Query(query_id, opened, log, stores)
    raise OptionError(
        f"There is no log of query {query_id} at"
        f" {' or '.join(place.open_log(query_id).url for place in places)}.",
        "If the query sets wal.location, pass the same location as --wal.",
    )


def _fitting(given: StorageOptionsGiven, logs: str) -> StorageOptionsGiven:
    """Keep the log's options from a folder, which takes none."""
    return given._replace(wal_options=None) if url_scheme(logs) in _FOLDERS else given


def _folder_of(noted: str, query_id: str, location: Location) -> str:
    """Return the folder of logs in which the one is that the checkpoint names (rule 1).

    :raises WrongOwner: it is not named by the query's id.
    """
    logs, _, name = noted.rpartition("/")
    if name != query_id:
        raise WrongOwner(
            f"{location.checkpoint}/{Checkpoint.LOG_URL} names {noted}, which cannot be the log of query"
            f" {query_id}",
            "Somebody has edited it. Pass the location of the log as --wal.",
        )
    return logs


def target_of(query: Query, options: Mapping[str, str]) -> Target:
    """Make the target from the options of the newest run, which the log holds without secrets.

    :param options: what the log does not hold, or what has changed; names are case-insensitive.
    :raises OptionError: an option is missing, unknown, or does not fit.
    """
    claim = query.log.newest_claim()
    known = {} if claim is None else claim.options
    raw = {name.lower(): value for name, value in known.items()}
    raw |= {name.lower(): value for name, value in options.items()}
    raw = {name: value for name, value in raw.items() if name not in _OURS}
    return configure({**raw, "checkpointLocation": query.checkpoint.url}).target


def who() -> str:
    """Return who gives the command, as `<user>@<host>`."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container without a name for its user
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"

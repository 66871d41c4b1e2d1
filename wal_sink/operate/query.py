"""Finds what a command is about: a query's checkpoint, its log, and the target as its runs knew it."""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Mapping
from typing import NamedTuple

from wal_sink.checkpoint import Checkpoint
from wal_sink.configuration import configure
from wal_sink.errors import OptionError, WrongOwner
from wal_sink.location import Location, locate
from wal_sink.log import Log
from wal_sink.ownership import owned
from wal_sink.records import LogIdentity
from wal_sink.targets.base import Owner, Target

_OURS = ("checkpointlocation", "wal.location")


class Query(NamedTuple):
    """One query, as an operator sees it."""

    query_id: str
    checkpoint: Checkpoint
    log: Log

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


def find_query(checkpoint: str, wal: str | None = None) -> Query:
    """Find a query by the location of its checkpoint.

    Its log is the one below `wal`, if that is given; else the one that the checkpoint names; else,
    where that is gone, the one in the checkpoint's own folder: they may have been moved together.

    :raises CheckpointNotVisible: no query's checkpoint is there.
    :raises OptionError: there is no log.
    """
    location = locate(checkpoint, wal)
    opened = location.open_checkpoint()
    query_id = opened.query_id()
    noted = None if wal else opened.log_url()
    here = location.open_log(query_id)
    places = [_at(location, noted, query_id), here] if noted else [here]
    for log in places:
        if log.backend.list():
            return Query(query_id, opened, log)
    raise OptionError(
        f"There is no log of query {query_id} at {' or '.join(log.url for log in places)}.",
        "If the query sets wal.location, pass the same location as --wal.",
    )


def _at(location: Location, noted: str, query_id: str) -> Log:
    """Open the log at the URL that the checkpoint names: a folder named by the query's id (rule 1).

    :raises WrongOwner: it is not.
    """
    logs, _, name = noted.rpartition("/")
    if name != query_id:
        raise WrongOwner(
            f"{location.checkpoint}/{Checkpoint.LOG_URL} names {noted}, which cannot be the log of query"
            f" {query_id}",
            "Somebody has edited it. Pass the location of the log as --wal.",
        )
    return location._replace(logs=logs).open_log(query_id)


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

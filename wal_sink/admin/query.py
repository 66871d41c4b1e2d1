"""Finds a query by its checkpoint: its log, its ledger row, and its target as its runs were configured.

*Secrets.* A command reads in the log how the query's newest run connected. All who may write to the log may
write that, too. So a password of the operator's, from the environment or an option, goes only to the place
that the operator has named; and a class that no installed package has registered as a target is imported
only at the operator's word. Where no secret is at hand, the log's word is enough.
"""

from __future__ import annotations

import getpass
import logging
import os
import shlex
import socket
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from state_backends import StateBackend, StorageOptions
from wal_sink.admin.flusher_at_work import PATIENCE, Patience
from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.configuration import configure, storage_options
from wal_sink.errors import OptionError
from wal_sink.flush.window import WindowChooser
from wal_sink.model import paths
from wal_sink.model.ledger import Owner, ledger_key
from wal_sink.model.records import LogIdentity
from wal_sink.options import Options, SinkOptions, fields, lowered, options_of, parse
from wal_sink.removed import refuse_removed
from wal_sink.targets.base import Target
from wal_sink.targets.registry import is_installed, target_type
from wal_sink.text import printable
from wal_sink.wal.location import (
    find_by_checkpoint,
    open_place,
    owned,
    refuse_other_targets,
    refuse_unused,
)
from wal_sink.wal.log import Log
from wal_sink.wal.targets import options_of_newest_run, view_of, views

OPTIONS_VARIABLE = "WAL_SINK_OPTIONS"
"""The variable that holds options of the operator for every command."""


def refuse_unconfirmed(
    kind: type[Options],
    logged: Mapping[str, str],
    given: Mapping[str, str],
    environment: Mapping[str, str],
    first: str = "",
) -> None:
    """Refuse options of the log that say where to connect, if a secret would go there.

    :param kind: what the target declares.
    :param logged: options by lower-case name, as the log has them.
    :param given: those of the operator, which win.
    :param environment: the variables of this process.
    :param first: with what the user begins the target's options, where there are several targets.
    :raises OptionError: an option of the log is to be confirmed; the remedy has the words to type.
    """
    secrets = list(_secrets(kind, given, environment))
    unconfirmed = [
        f"{first}{name}={printable(logged[name.lower()])}"
        for name in _decided_by(kind, logged)
        if name.lower() not in given
    ]
    if secrets and unconfirmed:
        words = " ".join(f"--option {shlex.quote(pair)}" for pair in unconfirmed)
        raise OptionError(
            f"{' and '.join(secrets)} would be sent there: only the log says where to connect"
            f" ({', '.join(unconfirmed)}), and anyone who can write to the log can change that",
            f"If it is right, add: {words}. If not, add what is right; NAME= leaves an option out. The"
            f" variable {OPTIONS_VARIABLE} has such NAME=VALUE pairs for every command.",
        )


def refuse_unregistered(logged: str, given: str | None, first: str = "") -> None:
    """Refuse to import what only the log names, and no installed package has registered as a target.

    :param logged: option `target`, as the log has it.
    :param given: the operator's, None without one.
    :param first: with what the user begins the target's options, where there are several targets.
    :raises OptionError: the operator has to say it.
    """
    if given is None and not is_installed(logged):
        pair = shlex.quote(f"{first}target={printable(logged)}")
        raise OptionError(
            f"Only the log says that option {first}target is {printable(logged)}, which no package installed"
            " here registers. Anyone who can write to the log can change that",
            f"If it is right, add: --option {pair}. Else correct it, or install the package that has it.",
        )


def _decided_by(kind: type[Options], logged: Mapping[str, str]) -> Iterator[str]:
    """Yield the options that decide about connections and that the log has other than by default."""
    for option in fields(kind):
        found = logged.get(option.name.lower(), "")
        default = "" if option.required else str(option.default)
        if "connects" in option.extra and found.lower() not in {"", default.lower()}:
            yield option.name


def _secrets(
    kind: type[Options], given: Mapping[str, str], environment: Mapping[str, str]
) -> Iterator[str]:
    """Name the secrets that a connection would get: options of the operator, and variables."""
    for option in fields(kind):
        variable = str(option.extra.get("environment", ""))
        if "secret" not in option.extra:
            continue
        if given.get(option.name.lower()):
            yield option.name
        elif environment.get(variable):
            yield variable


logger = logging.getLogger(__name__)

_PLACES = ("checkpointlocation", "wal.location", "wal.storageoptions", "checkpoint.storageoptions")
"""Options that say where log and checkpoint are, in lower case: a command has found both already."""

NO_OPTIONS: Mapping[str, str] = MappingProxyType({})

Progress = Callable[[int, int], None]
"""Called with how far a command is: (done, total)."""


def no_progress(_done: int, _total: int) -> None:
    """Report nothing."""


def summing_progress(progress: Progress, total: int) -> Callable[[int], None]:
    """Return a function that takes the size of each part that is done, and reports their sum."""
    done = 0

    def add(part: int) -> None:
        nonlocal done
        done += part
        progress(done, total)

    return add


class Query(NamedTuple):
    """One query, as an operator sees it."""

    query_id: str
    checkpoint: Checkpoint
    log: Log
    stores: Mapping[str, StorageOptions] = {}
    """Storage options, as `open_place` takes them."""
    patience: Patience = PATIENCE
    """How a command waits for a flusher's sign of life."""

    def open(self, url: str) -> StateBackend:
        """Open another place, with the options of its kind of store."""
        return open_place(url, self.stores)

    def of(self, target: str) -> Query:
        """Return the query as one of its targets sees it; as it is, where it has one without a name.

        :param target: as an operator names it; empty: not at all.
        :raises OptionError: it has no such target, or several of which one has to be named.
        """
        if target or not self.log.targets:
            return self._replace(log=view_of(self.log, target))
        raise OptionError(
            f"The query has the targets {', '.join(self.log.targets)}.",
            f"Say which one this is about, such as --target {self.log.targets[0]}.",
        )

    def each(self, target: str) -> list[Query]:
        """Return the query as each of its targets sees it, or as one of them.

        :param target: as an operator names it; empty: all.
        :raises OptionError: it has no such target.
        """
        return [self._replace(log=view) for view in views(view_of(self.log, target))]

    def list_afresh(self) -> None:
        """Ask for what this host may have listed long ago (rule 9), before a command decides from it.

        :raises StateBackendError: it answers with an old listing still.
        """
        self.checkpoint.next_epoch()
        shown = views(self.log.of(""))
        for folder in paths.FOLDERS:
            for own in dict.fromkeys(view.stored_path(folder) for view in shown):
                self.log.backend.list_fresh(own)

    def identity(self) -> LogIdentity:
        """Read to which checkpoint the log belongs.

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

    def chooser(self) -> WindowChooser:
        """Return what chooses as a flusher that has seen no event of Spark (rule 11)."""
        return WindowChooser(self.log, self.checkpoint, self.query_id)

    def owner(self, identity: LogIdentity) -> Owner:
        """Return the owner that the ledger row has to name."""
        key = ledger_key(self.query_id, self.log.target)
        return Owner(key, identity.log_id, identity.checkpoint)


def find_query(
    checkpoint: str,
    wal: str | None = None,
    options: Mapping[str, str] = NO_OPTIONS,
) -> Query:
    """Find a query by the location of its checkpoint.

    :param options: those about storage count here.
    :raises CheckpointNotVisible, WrongOwner, OptionError: see `find_by_checkpoint`.
    :raises OptionError: an option no longer exists.
    """
    # A name without a dot may be an option of somebody's own target: `configure` knows which.
    refuse_removed(options, [name for name in options if "." not in name])
    given = storage_options(parse({**options, "checkpointLocation": checkpoint}, SinkOptions))
    query_id, location = find_by_checkpoint(checkpoint, wal, "--wal", *given)
    try:
        refuse_unused(location, given[0], "Option wal.storageOptions")
    except OptionError as error:  # the environment may give it, to every command
        logger.warning("%s", error.summary)
    return Query(query_id, location.open_checkpoint(), location.open_log(query_id), location.stores)


def target_of(query: Query, options: Mapping[str, str]) -> Target:
    """Make the target from the options of the newest run, which the log holds without secrets.

    :param options: what the log does not hold, or what has changed; names are case-insensitive.
    :raises OptionError: an option is missing, unknown, or does not fit; or no option names this target of
        the log; or the operator has to confirm what only the log says, see `refuse_unconfirmed`.
    """
    every, mine = _logged(query), query.log.target
    if is_unused(query, options):
        raise OptionError(
            f"Query {query.query_id} has published nothing yet: its log has nothing to flush, and no options"
            " of a run.",
            "Wait for its first micro-batch: `wal-sink status CHECKPOINT` shows it. If it does not come, the"
            " query's own error says why.",
        )
    logged, given = options_of(mine, every), options_of(mine, lowered(options))
    name = logged.get("target")
    first = f"{mine}." if mine else ""
    if name is not None:
        refuse_unregistered(name, given.get("target"), first)
    kind = target_type(given.get("target", name or "cassandra")).options_type
    refuse_unconfirmed(kind, logged, given, os.environ, first)
    found = configure(_merged(query, every, lowered(options)))  # the log is not read again
    refuse_other_targets(query.log, query.log.targets, found.names)
    return next(each.target for each in found.destinations if each.name == mine)


def sink_options(query: Query, options: Mapping[str, str]) -> SinkOptions:
    """Return the sink's own options of the newest run, those of the target aside.

    :param options: as for `target_of`.

    :raises OptionError: one does not fit.
    """
    return parse(_merged(query, _logged(query), lowered(options)), SinkOptions)


def _logged(query: Query) -> dict[str, str]:
    """Return the options of the newest run, see `options_of_newest_run`."""
    return lowered(options_of_newest_run(query.log))


def is_unused(query: Query, options: Mapping[str, str]) -> bool:
    """Whether nothing was published yet, and neither the log nor `options` say what the target is."""
    log = query.log
    said = _logged(query) or set(lowered(options)) - set(_PLACES)
    return not (said or log.attempts() or log.mark() >= 0)


def _merged(query: Query, logged: dict[str, str], given: dict[str, str]) -> dict[str, str]:
    """Return what a run would be given; the places of log and checkpoint are known already."""
    options = {name: value for name, value in (logged | given).items() if name not in _PLACES}
    return {**options, "checkpointLocation": query.checkpoint.url}


def user_and_host() -> str:
    """Return who gives the command, as `<user>@<host>`."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container without a name for its user
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"

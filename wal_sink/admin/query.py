"""Finds a query by its checkpoint: its log, and its targets as its newest run was configured.

*Secrets.* A command reads in the log how the query's newest run connected. All who may write to the log may
write that, too. So a password of the operator's, from the environment or an option, goes only to the place
that the operator has named; and a class that no installed package has registered as a target is imported
only at the operator's word. Where no secret is at hand, the log's word is enough.
"""

from __future__ import annotations

import contextlib
import getpass
import logging
import os
import shlex
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.clock import now_us
from wal_sink.configuration import (
    Configuration,
    Destination,
    configure,
    storage_options,
    target_names,
)
from wal_sink.errors import FlusherAtWork, OptionError
from wal_sink.flush.connection import TargetConnection
from wal_sink.flush.pipeline import Pipeline
from wal_sink.flush.report import Reporter
from wal_sink.model.ledger import LedgerRow
from wal_sink.model.state import State, TargetState
from wal_sink.options import Options, SinkOptions, fields, lowered, options_of, parse
from wal_sink.progress.report import this_process
from wal_sink.protocol import state as protocol
from wal_sink.removed import refuse_removed
from wal_sink.targets.registry import is_installed, target_type
from wal_sink.text import printable
from wal_sink.wal.location import find_by_checkpoint, refuse_unused
from wal_sink.wal.states import advance, newest
from wal_sink.wal.store import LogStore

OPTIONS_VARIABLE = "WAL_SINK_OPTIONS"
"""The variable that holds options of the operator for every command."""


def refuse_unconfirmed(
    kind: type[Options],
    logged: Mapping[str, str],
    confirmed: Mapping[str, str],
    environment: Mapping[str, str],
    first: str = "",
) -> None:
    """Refuse options of the log that say where to connect, if a secret would go there.

    :param kind: what the target declares.
    :param logged: options by lower-case name, as the log has them.
    :param confirmed: those of the operator, which win.
    :param environment: the variables of this process.
    :param first: with what the user begins the target's options, where there are several targets.
    :raises OptionError: an option of the log is to be confirmed; the remedy has the words to type.
    """
    secrets = list(_secrets(kind, confirmed, environment))
    unconfirmed = [
        f"{first}{name}={printable(logged[name.lower()])}"
        for name in _decided_by(kind, logged)
        if name.lower() not in confirmed
    ]
    if secrets and unconfirmed:
        words = " ".join(f"--option {shlex.quote(pair)}" for pair in unconfirmed)
        raise OptionError(
            f"{' and '.join(secrets)} would be sent there: only the log says where to connect"
            f" ({', '.join(unconfirmed)}), and anyone who can write to the log can change that.",
            f"If it is right, add: {words}. If not, add what is right; NAME= leaves an option out. The"
            f" variable {OPTIONS_VARIABLE} has such NAME=VALUE pairs for every command.",
        )


def refuse_unregistered(logged: str, confirmed: str | None, first: str = "") -> None:
    """Refuse to import what only the log names, and no installed package has registered as a target.

    :param logged: option `target`, as the log has it.
    :param confirmed: the operator's, None without one.
    :param first: with what the user begins the target's options, where there are several targets.
    :raises OptionError: the operator has to say it.
    """
    if confirmed is None and not is_installed(logged):
        pair = shlex.quote(f"{first}target={printable(logged)}")
        raise OptionError(
            f"Only the log says that option {first}target is {printable(logged)}, which no package installed"
            " here registers. Anyone who can write to the log can change that.",
            f"If it is right, add: --option {pair}. Else correct it, or install the package that has it.",
        )


def _decided_by(kind: type[Options], logged: Mapping[str, str]) -> Iterator[str]:
    """Yield the options that decide about connections and that the log has other than by default."""
    for option in fields(kind):
        value = logged.get(option.name.lower(), "")
        default = "" if option.required else str(option.default)
        if "connects" in option.extra and value.lower() not in {"", default.lower()}:
            yield option.name


def _secrets(
    kind: type[Options], confirmed: Mapping[str, str], environment: Mapping[str, str]
) -> Iterator[str]:
    """Name the secrets that a connection would get: options of the operator, and variables."""
    for option in fields(kind):
        variable = str(option.extra.get("environment", ""))
        if "secret" not in option.extra:
            continue
        if confirmed.get(option.name.lower()):
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


class Query(NamedTuple):
    """One query, as an operator finds it."""

    query_id: str
    checkpoint: Checkpoint
    store: LogStore
    options: Mapping[str, str] = NO_OPTIONS
    """What the operator gives: what the log does not hold, or what has changed."""

    def state(self) -> State:
        """Read the state of the log.

        :raises OptionError: no run of the query has published.
        """
        state = newest(self.store)
        if state is None:
            raise OptionError(
                f"Query {self.query_id} has published nothing yet: its log has nothing to flush, and no"
                " options of a run.",
                "Wait for its first micro-batch: `wal-sink status CHECKPOINT` shows it. If it does not come,"
                " the query's own error says why.",
            )
        return state

    def settled(self) -> tuple[State, int]:
        """Settle what Spark has completed, as a flusher does; return the state and the last completed epoch.

        :raises WrongOwner: the log is another checkpoint's.
        :raises OptionError: no run of the query has published.
        """
        while True:
            state = self.state()
            protocol.refuse_other_place(state, self.query_id, self.checkpoint.url)
            committed = self.checkpoint.last_commit()
            settled = protocol.settle(state, committed, actor())
            if settled is None or advance(self.store, state, settled):
                return settled or state, committed

    def configured(self, state: State) -> Configuration:
        """Return what the newest run was configured with, and what the operator adds.

        The target's options are taken at the operator's word, or the log's: see `refuse_unconfirmed`.

        :raises OptionError: an option is missing, unknown, or does not fit; or the operator has to confirm
            what only the log says.
        """
        logged, confirmed = _logged(state), lowered(self.options)
        for name in target_names(logged | confirmed) or ("",):
            _refuse_unsaid(name, options_of(name, logged), options_of(name, confirmed))
        return configure(_merged(self, state))

    def pipelines(self, state: State, name: str = "") -> list[Pipeline]:
        """Return what flushers to the targets that get epochs work on, or to one of them.

        :param name: of the only one that is asked for; empty: all.
        :raises OptionError: see `configured`; or the log has no such target, or the options do not name it.
        """
        wanted = [protocol.named_target(state, name)] if name else state.live or state.targets
        configured = self.configured(state)
        named = {destination.name: destination for destination in configured.destinations}
        for target in wanted:
            if target.name not in named:
                raise OptionError(
                    f"The log has the target {target.name}, and the options name {', '.join(named)}.",
                    "Give the options of the query's newest run.",
                )
        return [self.pipeline(configured, named[target.name]) for target in wanted]

    def pipeline(self, configuration: Configuration, destination: Destination) -> Pipeline:
        """Return what a flusher to one of the targets works on."""
        return Pipeline(
            query_id=self.query_id,
            store=self.store,
            checkpoint=self.checkpoint,
            target=destination.target,
            target_name=destination.name,
            several=configuration.several,
            retention=configuration.retention,
            quarantine=configuration.sink.on_invalid_row == "quarantine",
        )


@contextlib.contextmanager
def connected(pipeline: Pipeline) -> Iterator[TargetConnection]:
    """Provide a connection to the target, and to its ledger row; nothing is reported about it."""
    connection = TargetConnection(pipeline, Reporter(None, pipeline.target_name))
    with contextlib.closing(connection):
        yield connection


def move_row(pipeline: Pipeline, expected: LedgerRow | None, new: LedgerRow) -> None:
    """Replace the ledger row of a target by compare-and-set, over a connection of its own.

    :raises FlusherAtWork: the row is no longer the one that was seen.
    """
    with connected(pipeline) as connection:
        row = connection.row()
        if row == expected and (row == new or connection.finish(expected, new)):
            return
        row = connection.row()
    now = "it is gone" if row is None else f"it has epoch {row.epoch}"
    raise FlusherAtWork(
        f"The ledger row of target {pipeline.target_name} was moved meanwhile: {now}.",
        "Stop the query and every `wal-sink flush`, and run this again.",
    )


def one_target(state: State, name: str) -> TargetState:
    """Return the target that a command is about.

    :param name: as the operator names it; empty: the only one that was not given up.
    :raises OptionError: there are several, and none is named; or there is none of this name.
    """
    if name:
        return protocol.named_target(state, name)
    if len(state.live) != 1:
        names = ", ".join(target.name for target in state.targets)
        raise OptionError(
            f"The query has the targets {names}.", "Name the one that this is about: --target NAME."
        )
    return state.live[0]


def find_query(
    checkpoint: str,
    wal: str | None = None,
    options: Mapping[str, str] = NO_OPTIONS,
) -> Query:
    """Find a query by the location of its checkpoint.

    :raises CheckpointNotVisible, WrongOwner, OptionError: see `find_by_checkpoint`.
    :raises OptionError: an option no longer exists.
    """
    # A name without a dot may be an option of somebody's own target: `configure` knows which.
    refuse_removed(options, [name for name in options if "." not in name])
    store_options = storage_options(
        parse({**options, "checkpointLocation": checkpoint}, SinkOptions)
    )
    query_id, location = find_by_checkpoint(checkpoint, wal, "--wal", *store_options)
    try:
        refuse_unused(location, store_options[0], "Option wal.storageOptions")
    except OptionError as error:  # the environment may give it, to every command
        logger.warning("%s", error.summary)
    return Query(query_id, location.open_checkpoint(), location.open_log(query_id), options)


def sink_options(query: Query, state: State) -> SinkOptions:
    """Return the sink's own options of the newest run; no target is asked for.

    :raises OptionError: one does not fit.
    """
    return parse(_merged(query, state), SinkOptions)


def actor() -> protocol.Actor:
    """Return who gives the command, as the state names who changed it."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container without a name for its user
        user = str(os.getuid())
    return protocol.Actor(by=f"{user}@{this_process()}", now_us=now_us())


def _refuse_unsaid(target: str, logged: Mapping[str, str], confirmed: Mapping[str, str]) -> None:
    """Refuse what only the log says of a target, where the operator has to say it."""
    name, prefix = logged.get("target"), f"{target}." if target else ""
    if name is not None:
        refuse_unregistered(name, confirmed.get("target"), prefix)
    kind = target_type(confirmed.get("target", name or "cassandra")).options_type
    refuse_unconfirmed(kind, logged, confirmed, os.environ, prefix)


def _logged(state: State) -> dict[str, str]:
    """Return the options of the newest run, without secrets."""
    return lowered(dict(state.run.options)) if state.run is not None else {}


def _merged(query: Query, state: State) -> dict[str, str]:
    """Return what a run would be given; the places of log and checkpoint are known already."""
    merged = _logged(state) | lowered(query.options)
    options = {name: value for name, value in merged.items() if name not in _PLACES}
    return {**options, "checkpointLocation": query.checkpoint.url}

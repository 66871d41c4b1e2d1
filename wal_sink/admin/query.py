"""Finds a query by its checkpoint: its log, and its targets as its newest run was configured."""

from __future__ import annotations

import contextlib
import getpass
import logging
import os
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from wal_sink.admin.confirm import refuse_unsaid
from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.clock import now_us
from wal_sink.configuration import Configuration, Destination, configure, storage_options
from wal_sink.errors import FlusherAtWork, OptionError
from wal_sink.flush.connection import TargetConnection
from wal_sink.flush.pipeline import Pipeline
from wal_sink.flush.report import Reporter
from wal_sink.model.ledger import LedgerRow
from wal_sink.model.state import State, TargetState
from wal_sink.options import SinkOptions, lowered, names, parse
from wal_sink.progress.report import this_process
from wal_sink.protocol import state as protocol
from wal_sink.removed import refuse_removed
from wal_sink.wal.location import find_by_checkpoint, refuse_other_log, refuse_unused
from wal_sink.wal.states import advance, newest
from wal_sink.wal.store import LogStore

logger = logging.getLogger(__name__)

_PLACES = ("checkpointlocation", "wal.location", "wal.storageoptions", "checkpoint.storageoptions")
"""Options that say where log and checkpoint are, in lower case: a command has found both already."""

NO_OPTIONS: Mapping[str, str] = MappingProxyType({})


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

    def own_state(self) -> State:
        """Read the state of a log that belongs to the checkpoint: a copy must write nothing to it.

        :raises WrongOwner: checkpoint and log do not belong together.
        :raises OptionError: no run of the query has published.
        """
        refuse_other_log(self.store, self.checkpoint)
        state = self.state()
        protocol.refuse_other_place(state, self.query_id, self.checkpoint.url)
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

    def merged(self, state: State) -> dict[str, str]:
        """Return what a run would be given: the options of the newest one, and what the operator adds."""
        merged = logged_options(state) | lowered(self.options)
        options = {name: value for name, value in merged.items() if name not in _PLACES}
        return {**options, "checkpointLocation": self.checkpoint.url}

    def sink_options(self, state: State) -> SinkOptions:
        """Return the sink's own options of the newest run; no target is asked for.

        :raises OptionError: one does not fit.
        """
        return parse(self.merged(state), SinkOptions)

    def configured(self, state: State) -> Configuration:
        """Return what the newest run was configured with, and what the operator adds.

        :raises OptionError: an option is missing, unknown, or does not fit; or the operator has to confirm
            what only the log says, see `admin.confirm`.
        """
        refuse_unsaid(logged_options(state), lowered(self.options))
        return configure(self.merged(state))

    def pipelines(self, state: State, name: str = "") -> list[Pipeline]:
        """Return what flushers to the targets that get epochs work on, or to one of them.

        :param name: of the only one that is asked for; empty: all.
        :raises OptionError: see `configured`; or the log has no such target, or the options do not name it.
        """
        configured = self.configured(state)
        named = {destination.name: destination for destination in configured.destinations}
        wanted = wanted_targets(state, name)
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


def find_query(
    checkpoint: str, wal: str | None = None, options: Mapping[str, str] = NO_OPTIONS
) -> Query:
    """Find a query by the location of its checkpoint.

    :raises CheckpointNotVisible, WrongOwner, OptionError: see `find_by_checkpoint`.
    :raises OptionError: an option no longer exists.
    """
    # An option without a dot may be one of a target of the user's own: `configure` checks it.
    of_sink = {name.lower() for name in names(SinkOptions)}
    refuse_removed([name for name in options if "." in name and name.lower() not in of_sink])
    store_options = storage_options(
        parse({**options, "checkpointLocation": checkpoint}, SinkOptions)
    )
    query_id, location = find_by_checkpoint(checkpoint, wal, "--wal", *store_options)
    try:
        refuse_unused(location, store_options[0], "Option wal.storageOptions")
    except OptionError as error:  # the environment may give it, to every command
        logger.warning("%s", error.summary)
    return Query(query_id, location.open_checkpoint(), location.open_log(query_id), options)


def logged_options(state: State) -> dict[str, str]:
    """Return the options of the newest run, without secrets, by names in lower case."""
    return lowered(dict(state.run.options)) if state.run is not None else {}


def wanted_targets(state: State, name: str) -> list[TargetState]:
    """Return the targets that a command is about: one, or all that were not given up.

    :raises OptionError: the log has no target of this name.
    """
    return [protocol.named_target(state, name)] if name else list(state.live or state.targets)


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


@contextlib.contextmanager
def connected(pipeline: Pipeline) -> Iterator[TargetConnection]:
    """Provide a connection to the target, and to its ledger row; nothing is reported about it."""
    connection = TargetConnection(pipeline, Reporter(None, pipeline.target_name))
    with contextlib.closing(connection):
        yield connection


def move_row(pipeline: Pipeline, expected: LedgerRow | None, new: LedgerRow) -> None:
    """Replace the ledger row of a target by compare-and-set, over a connection of its own.

    :raises FlusherAtWork: the row is no longer the one that was read.
    """
    with connected(pipeline) as connection:
        row = connection.row()
        if row == expected and (row == new or connection.finish(expected, new)):
            return
        row = connection.row()
    now = "it is gone" if row is None else f"it has epoch {row.epoch}"
    raise at_work(f"The ledger row of target {pipeline.target_name} was moved meanwhile: {now}.")


def at_work(what: str, more: str = "") -> FlusherAtWork:
    """Return the error of a command beside which another process works on the query."""
    return FlusherAtWork(
        what, f"Stop the query and every `wal-sink flush`, and run this again.{more}"
    )


def actor() -> protocol.Actor:
    """Return who gives the command, as the state names who changed it."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container without a name for its user
        user = str(os.getuid())
    return protocol.Actor(by=f"{user}@{this_process()}", now_us=now_us())

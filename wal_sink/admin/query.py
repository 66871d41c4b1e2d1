"""Finds a query by its checkpoint, and opens its log and the targets of its newest run.

A command uses the options of the newest run, which are in the log. `confirmation` says which of these options
the operator has to confirm.
"""

from __future__ import annotations

import contextlib
import getpass
import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from wal_sink.admin.confirmation import refuse_unconfirmed
from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.configuration import (
    Configuration,
    Destination,
    configure,
    retention_of,
    storage_options,
)
from wal_sink.errors import OptionError
from wal_sink.flush.pipeline import Pipeline
from wal_sink.flush.reporter import Reporter
from wal_sink.flush.target_connection import TargetConnection
from wal_sink.model.state import State, TargetState
from wal_sink.options import (
    SinkOptions,
    lowered,
    names,
    parse,
)
from wal_sink.progress.flusher_report import this_process
from wal_sink.protocol import state as protocol
from wal_sink.units import now_us
from wal_sink.unknown_names import refuse_removed
from wal_sink.wal.location import find_by_checkpoint, refuse_other_log
from wal_sink.wal.store import LogStore, advance, newest

_PLACES = ("checkpointlocation", "wal.location", "wal.storageoptions", "checkpoint.storageoptions")
"""Options for the places of log and checkpoint, which a command has already opened; in lower case."""

NO_OPTIONS: Mapping[str, str] = MappingProxyType({})


class Query(NamedTuple):
    """A query that an operator works on."""

    query_id: str
    checkpoint: Checkpoint
    store: LogStore
    options: Mapping[str, str] = NO_OPTIONS
    """The operator's options. They override the options in the log, which has no secrets."""

    def state(self) -> State:
        """Read the state of the log.

        :raises OptionError: the query has published nothing yet.
        """
        state = newest(self.store)
        if state is None:
            raise OptionError(
                f"Query {self.query_id} has published nothing yet. So its log has no epochs to flush, and no"
                " options of a run.",
                "Wait for the first micro-batch, which `wal-sink status CHECKPOINT` shows. If it does not"
                " arrive, read the error of the query.",
            )
        return state

    def own_state(self) -> State:
        """Read the state of the log, and refuse the log of another checkpoint.

        :raises WrongOwner: the log belongs to another checkpoint. A copy of a query must not flush.
        :raises OptionError: the query has published nothing yet.
        """
        refuse_other_log(self.store, self.checkpoint)
        state = self.state()
        protocol.refuse_other_place(state, self.query_id, self.checkpoint.url)
        return state

    def settled(self) -> tuple[State, int]:
        """Make final the attempts at all epochs that Spark has completed (rule `settle`).

        :return: the new state, and the last completed epoch.
        :raises WrongOwner: the log belongs to another checkpoint.
        :raises OptionError: the query has published nothing yet.
        """
        while True:
            state = self.state()
            protocol.refuse_other_place(state, self.query_id, self.checkpoint.url)
            committed = self.checkpoint.last_commit()
            settled = protocol.settle(state, committed, actor())
            if settled is None or advance(self.store, state, settled):
                return settled or state, committed

    def merged_options(self, state: State) -> dict[str, str]:
        """Return the options of the newest run. An option of the operator replaces one of the same name."""
        merged = logged_options(state) | lowered(self.options)
        options = {name: value for name, value in merged.items() if name not in _PLACES}
        return {**options, "checkpointLocation": self.checkpoint.url}

    def sink_options(self, state: State) -> SinkOptions:
        """Return the options of the sink itself among `merged_options`."""
        return parse(self.merged_options(state), SinkOptions)

    def pipelines(self, state: State, name: str = "") -> list[Pipeline]:
        """Return a pipeline for each target that `wanted_targets` returns.

        :raises OptionError: an option is not valid, the operator has to confirm an option of the log, or log
            and options have different targets.
        """
        refuse_unconfirmed(logged_options(state), lowered(self.options))
        configured = configure(self.merged_options(state))
        named = {destination.name: destination for destination in configured.destinations}
        wanted = wanted_targets(state, name)
        for target in wanted:
            if target.name not in named:
                raise OptionError(
                    f"The log has the target {target.name}, and the options name {', '.join(named)}.",
                    "Remove the option `targets`, or give it as the newest run of the query has it.",
                )
        return [self.pipeline(configured, named[target.name]) for target in wanted]

    def pipeline(self, configuration: Configuration, destination: Destination) -> Pipeline:
        """Return the pipeline of one target."""
        return Pipeline(
            query_id=self.query_id,
            store=self.store,
            checkpoint=self.checkpoint,
            target=destination.target,
            target_name=destination.name,
            several=configuration.several,
            retention=retention_of(configuration.sink),
            quarantine=configuration.sink.on_invalid_row == "quarantine",
        )


def find_query(
    checkpoint: str, wal: str | None = None, options: Mapping[str, str] = NO_OPTIONS
) -> Query:
    """Find a query by the location of its checkpoint.

    :param wal: option `wal.location`; None if the checkpoint names the log.
    :param options: the operator's options.
    :raises CheckpointNotVisible: the place has no checkpoint.
    :raises WrongOwner: the log belongs to another checkpoint.
    :raises OptionError: an option no longer exists, or is not valid.
    """
    # `configure` checks names without a dot, since a target outside this package may have such an option.
    of_sink = {name.lower() for name in names(SinkOptions)}
    refuse_removed([name for name in options if "." in name and name.lower() not in of_sink])
    store_options = storage_options(
        parse({**options, "checkpointLocation": checkpoint}, SinkOptions)
    )
    query_id, location = find_by_checkpoint(checkpoint, wal, "--wal", *store_options)
    return Query(query_id, location.open_checkpoint(), location.open_log(query_id), options)


def logged_options(state: State) -> dict[str, str]:
    """Return the options of the newest run by lower-case name, without secrets."""
    return lowered(dict(state.run.options)) if state.run is not None else {}


def wanted_targets(state: State, name: str) -> list[TargetState]:
    """Return the targets that a command works on.

    :param name: the only target; empty for all targets that were not given up. If all targets were given up,
        an empty name stands for all of them.
    :raises OptionError: the log has no target of this name.
    """
    return [protocol.named_target(state, name)] if name else list(state.live or state.targets)


def one_target(state: State, name: str) -> TargetState:
    """Return the named target; for an empty name the only target that was not given up.

    :raises OptionError: the log has no target of this name, or several targets and no name is given.
    """
    if name:
        return protocol.named_target(state, name)
    if len(state.live) != 1:
        names = ", ".join(target.name for target in state.targets)
        raise OptionError(
            f"The query has the targets {names}. This command changes one of them.",
            "Name the target: --target NAME.",
        )
    return state.live[0]


def connected(pipeline: Pipeline) -> contextlib.closing[TargetConnection]:
    """Provide a connection to a target. Unlike a flusher's connection, it writes no report into the log."""
    return contextlib.closing(TargetConnection(pipeline, Reporter(None, pipeline.target_name)))


def actor() -> protocol.Actor:
    """Return user, process and time, which a command writes into each new state."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # the user of a container may have no name
        user = str(os.getuid())
    return protocol.Actor(by=f"{user}@{this_process()}", now_us=now_us())

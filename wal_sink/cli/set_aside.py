"""`wal-sink set-aside`: take an epoch that cannot be flushed out of the line."""

from __future__ import annotations

from typing import Annotated

import typer

from state_backends import StateBackend, StateBackendError, child_url
from wal_sink.admin import set_aside as verb
from wal_sink.admin.decide import GivenUp
from wal_sink.admin.query import Query
from wal_sink.cli.arguments import (
    Begun,
    CheckpointArgument,
    EpochArgument,
    OptionPairs,
    Wal,
    Why,
    Yes,
)
from wal_sink.cli.output import AsJson
from wal_sink.cli.way_out import Asked, take_way_out
from wal_sink.clock import now_us
from wal_sink.errors import OptionError


def set_aside(
    checkpoint: CheckpointArgument,
    epoch: EpochArgument,
    *,
    to: Annotated[str, typer.Option("--to", metavar="URL", help="Folder that gets its files.")],
    begun: Begun = False,
    why: Why = "",
    wal: Wal = None,
    option: OptionPairs = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Give up the epoch at which the flush stands, and keep its files elsewhere.

    Its manifests and segments move to URL/<query id>/, under the paths that they have in the log. The
    decision is recorded in the log, and the flusher goes on with the next epoch. The rows are not in
    the table, unless the epoch was begun: then some of them may be.
    """
    take_way_out(
        Asked(checkpoint, wal, option, why, yes, as_json),
        lambda query, target: verb.plan_set_aside(
            query, target, epoch, _place(to, query), now_us(), begun=begun
        ),
        verb.set_aside,
        _told,
    )


def _told(done: GivenUp) -> str:
    decision = done.decision
    text = (
        f"Epoch {decision.epoch} is given up; {len(decision.files)} files are in {decision.where}."
        f" Recorded in {done.record}."
    )
    if done.rows_possibly_in_target:
        text += "\nIt was begun: rows of it are possibly in the table."
    return text


def _place(url: str, query: Query) -> StateBackend:
    """Open the place, a folder for each query.

    :raises OptionError: it cannot be one.
    """
    try:
        backend = query.open(child_url(query.open(url).url, query.query_id))
    except StateBackendError as error:
        raise OptionError(f"--to {url} cannot be used: {error}.", "Name another place.") from error
    if backend.process_local:
        raise OptionError(f"--to {url} ends with this process.", "Name a folder.")
    return backend

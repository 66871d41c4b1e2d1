"""`wal-sink skip`: give up the epoch at which the flush has stopped."""

from __future__ import annotations

from typing import Annotated

import typer

from state_backends import StateBackend, StateBackendError, child_url
from wal_sink.admin.query import Query
from wal_sink.admin.skip import Skipped, plan_skip
from wal_sink.cli.change import ChangeArguments, command, make_change
from wal_sink.clock import now_us
from wal_sink.counted import counted
from wal_sink.errors import OptionError


@command
def skip(
    given: ChangeArguments,
    epoch: Annotated[
        int, typer.Argument(metavar="EPOCH", min=0, help="Number of the micro-batch.")
    ],
    *,
    to: Annotated[
        str | None, typer.Option("--to", metavar="URL", help="Folder that gets its files.")
    ] = None,
    begun: Annotated[
        bool, typer.Option("--begun", help="Also if rows of it are possibly in the table already.")
    ] = False,
) -> None:
    """Give up the epoch at which the flush has stopped, and go on with the next one.

    With --to, its manifests and segments move to URL/QUERY_ID/, under the paths that they have in the
    log. Without, only an epoch can be skipped whose manifest is lost. The decision is recorded in the
    log. The epoch's rows are not in the table, unless it was begun: then some of them may be.
    """
    make_change(
        given,
        lambda query, database, patience: plan_skip(
            query, database, epoch, _place(to, query), now_us(), begun=begun, patience=patience
        ),
        _summary,
    )


def _summary(done: Skipped) -> str:
    decision = done.decision
    text = f"Epoch {decision.epoch} is given up. Recorded in {done.record}."
    if decision.where:
        text += f" {counted(len(decision.files), 'file is', 'files are')} in {decision.where}."
    if done.rows_possibly_in_target:
        text += "\nIt was begun: rows of it are possibly in the table."
    return text


def _place(url: str | None, query: Query) -> StateBackend | None:
    """Open the place for the files, a folder for each query.

    :raises OptionError: it cannot be one.
    """
    if url is None:
        return None
    try:
        backend = query.open(child_url(query.open(url).url, query.query_id))
    except StateBackendError as error:
        raise OptionError(f"--to {url} cannot be used: {error}.", "Name another place.") from error
    if backend.process_local:
        raise OptionError(f"--to {url} ends with this process.", "Name a folder.")
    return backend

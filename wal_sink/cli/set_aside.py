"""`wal-sink set-aside`: take an epoch that cannot be flushed out of the line."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.markup import escape

from state_backends import StateBackend, StateBackendError, child_url
from wal_sink.cli.arguments import (
    Begun,
    CheckpointArgument,
    EpochArgument,
    OptionPairs,
    Wal,
    Why,
    Yes,
    now_us,
    option_values,
)
from wal_sink.cli.confirm import confirm
from wal_sink.cli.output import AsJson, document, output
from wal_sink.errors import OptionError
from wal_sink.operate import set_aside as verb
from wal_sink.operate.query import Query, find_query, target_of


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
    with output(as_json=as_json) as console:
        given = option_values(option)
        query = find_query(checkpoint, wal, given)
        place = _place(to, query)
        plan = verb.plan_set_aside(
            query, target_of(query, given), epoch, place, now_us(), begun=begun
        )
        confirm(plan.consequences, yes=yes)
        done = verb.set_aside(plan, now_us(), why)
        if as_json:
            document(done)
        else:
            console.print(
                f"Epoch {epoch} is given up; {len(done.decision.files)} files are in"
                f" {escape(done.decision.where)}. Recorded in {escape(done.record)}.",
                soft_wrap=True,
            )
            if done.rows_possibly_in_target:
                console.print("It was begun: rows of it are possibly in the table.")


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

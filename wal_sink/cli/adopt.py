"""`wal-sink adopt`: checkpoint, log and ledger row belong together, after one of them was moved."""

from __future__ import annotations

from typing import Annotated

import typer

from wal_sink.admin.adopt import plan_adopt
from wal_sink.cli.change import ChangeArguments, command, make_change
from wal_sink.clock import now_us


@command
def adopt(
    given: ChangeArguments,
    *,
    original_is_gone: Annotated[
        bool,
        typer.Option(
            "--original-is-gone", help="Also if it cannot be seen from here whether it is gone."
        ),
    ] = False,
) -> None:
    """Take over log and ledger row for a checkpoint that was moved, or whose log was.

    If the log was moved, pass where its folder, named by the query id, is now: --wal. Refused while
    the original is still where it was, or where that cannot be read: a copy must not flush into the
    same table.
    """
    make_change(
        given,
        lambda query, database, patience: plan_adopt(
            query, database, now_us(), original_is_gone=original_is_gone, patience=patience
        ),
        lambda done: f"Adopted. Recorded in {done.record}.",
    )

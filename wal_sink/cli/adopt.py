"""`wal-sink adopt`: checkpoint, log and ledger row belong together, after one of them was moved."""

from __future__ import annotations

from typing import Annotated

import typer

from wal_sink.admin.adopt import plan_adopt
from wal_sink.cli.arguments import CheckpointArgument, OptionPairs, TargetName, Wal, Why, Yes
from wal_sink.cli.change import ChangeArguments, make_change
from wal_sink.cli.output import AsJson
from wal_sink.clock import now_us


def adopt(
    checkpoint: CheckpointArgument,
    *,
    original_is_gone: Annotated[
        bool,
        typer.Option(
            "--original-is-gone", help="Also if it cannot be seen from here whether it is gone."
        ),
    ] = False,
    target: TargetName = "",
    why: Why = "",
    wal: Wal = None,
    option: OptionPairs = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Take over log and ledger row for a checkpoint that was moved, or whose log was.

    If the log was moved, pass where its folder, named by the query id, is now: --wal. Refused while
    the original is still where it was, or where that cannot be read: a copy must not flush into the
    same table.
    """
    make_change(
        ChangeArguments(checkpoint, wal, option, why, yes, as_json, target),
        lambda query, database, patience: plan_adopt(
            query, database, now_us(), original_is_gone=original_is_gone, patience=patience
        ),
        lambda done: f"Adopted. Recorded in {done.record}.",
    )

"""`wal-sink adopt`: checkpoint, log and ledger row belong together, after one of them was moved."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.markup import escape

from wal_sink.cli.arguments import (
    CheckpointArgument,
    OptionPairs,
    Wal,
    Why,
    Yes,
    now_us,
    option_values,
)
from wal_sink.cli.confirm import confirm
from wal_sink.cli.output import AsJson, document, output
from wal_sink.operate import adopt as verb
from wal_sink.operate.query import find_query, target_of


def adopt(
    checkpoint: CheckpointArgument,
    *,
    original_is_gone: Annotated[
        bool,
        typer.Option(
            "--original-is-gone", help="Also if nobody can see from here whether it is gone."
        ),
    ] = False,
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
    with output(as_json=as_json) as console:
        given = option_values(option)
        query = find_query(checkpoint, wal, given)
        plan = verb.plan_adopt(
            query, target_of(query, given), now_us(), original_is_gone=original_is_gone
        )
        confirm(plan.consequences, yes=yes)
        done = verb.adopt(plan, now_us(), why)
        if as_json:
            document(done)
        else:
            console.print(f"Adopted. Recorded in {escape(done.record)}.", soft_wrap=True)

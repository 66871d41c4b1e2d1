"""`wal-sink rewind`: flush again what came after an epoch, or make a lost ledger row anew."""

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
from wal_sink.operate import rewind as verb
from wal_sink.operate.query import find_query, target_of


def rewind(
    checkpoint: CheckpointArgument,
    *,
    to: Annotated[
        int,
        typer.Option(
            "--to", metavar="EPOCH", min=-1, help="The last epoch that counts as flushed."
        ),
    ],
    why: Why = "",
    wal: Wal = None,
    option: OptionPairs = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Set ledger and log to an epoch, so that what came after it is flushed again.

    For a target that was restored from a backup, or lost rows; possible as far as the log still holds
    the epochs, or a copy of it was put back. With --to the last flushed epoch: make a ledger row anew
    that was lost, or lies behind, although the table holds everything.
    """
    with output(as_json=as_json) as console:
        given = option_values(option)
        query = find_query(checkpoint, wal, given)
        plan = verb.plan_rewind(query, target_of(query, given), to, now_us())
        confirm(plan.consequences, yes=yes)
        done = verb.rewind(plan, now_us(), why)
        if as_json:
            document(done)
        else:
            console.print(
                f"Epoch {to} is the last one that counts as flushed; {done.again} are flushed again."
                f" Recorded in {escape(done.record)}.",
                soft_wrap=True,
            )

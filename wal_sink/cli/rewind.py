"""`wal-sink rewind`: flush again what came after an epoch, or make a lost ledger row anew."""

from __future__ import annotations

from typing import Annotated

import typer

from wal_sink.admin.rewind import plan_rewind
from wal_sink.cli.change import ChangeArguments, command, make_change
from wal_sink.clock import now_us
from wal_sink.counted import counted


@command
def rewind(
    given: ChangeArguments,
    *,
    to: Annotated[
        int,
        typer.Option(
            "--to", metavar="EPOCH", min=-1, help="The last epoch that counts as flushed."
        ),
    ],
    restored: Annotated[
        bool,
        typer.Option(
            "--restored",
            help="Checkpoint and log were restored from a backup: what the ledger says is begun was begun"
            " from the log that is lost.",
        ),
    ] = False,
    reset_timestamps: Annotated[
        bool,
        typer.Option(
            "--reset-timestamps",
            help="Rows were written as of the future, by a clock that was wrong: go back to the present.",
        ),
    ] = False,
) -> None:
    """Set ledger and log to an epoch, so that what came after it is flushed again.

    For a target that was restored from a backup, or lost rows; possible as far as the log still holds
    the epochs, or a copy of it was put back. With --to the last flushed epoch: make a ledger row anew
    that was lost, or lies behind, although the table holds everything. Of a log that was restored from a
    backup, what the ledger does not know is flushed for the first time. After a clock was in the future,
    --reset-timestamps lets what is flushed next be written as of the present again.
    """
    make_change(
        given,
        lambda query, database, patience: plan_rewind(
            *(query, database, to, now_us()),
            restored=restored,
            reset_timestamps=reset_timestamps,
            patience=patience,
        ),
        lambda done: (
            f"Epoch {to} is the last one that counts as flushed;"
            f" {counted(done.again, 'epoch is', 'epochs are')} flushed again."
            + (f" Until then {done.aside} has second names of their objects." if done.aside else "")
            + f" Recorded in {done.record}."
        ),
    )

"""The commands that change the state of a query: `give-up`, `set-mark` and `adopt`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from wal_sink.admin import repair
from wal_sink.admin.query import find_query
from wal_sink.admin.repair import Confirm
from wal_sink.cli.arguments import (
    AsJson,
    CheckpointPlace,
    OptionPairs,
    TargetName,
    WalUrl,
    Yes,
    option_values,
)
from wal_sink.cli.terminal import SafeConsole, output
from wal_sink.errors import OptionError


def _asking(*, yes: bool) -> Confirm:
    """Return a function that prints the consequences of a change, and asks for confirmation.

    The function prints on standard error, since standard output has the document of the command.

    :param yes: True to confirm without a question.
    """

    def confirm(consequences: str) -> None:
        console = SafeConsole(stderr=True, soft_wrap=True)
        console.print(consequences)
        if yes:
            return
        console.print("Continue? [y/N] ", end="")
        try:
            answer = sys.stdin.readline() if sys.stdin is not None else ""
        except (OSError, ValueError):  # there is no answer, since standard input is closed
            answer = ""
        if not answer.endswith("\n"):
            console.print()  # the error starts on a new line
        if answer.strip().lower() not in {"y", "yes"}:
            raise OptionError(
                "The answer was not yes, so the command changed nothing.",
                "Run the command again, and answer y or pass --yes.",
            )

    return confirm


def give_up(
    checkpoint: CheckpointPlace,
    *,
    epoch: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, help="The epoch to skip, at which the flush has stopped."),
    ] = None,
    target: TargetName = "",
    wal: WalUrl = None,
    option: OptionPairs = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Skip an epoch for a target, or give up a target.

    With --epoch, the flush skips this epoch for every target that lacks it, or only for --target. The
    log keeps the files of the epoch. With --target alone, the target gets no more rows. Budget and trim
    of the log ignore it, and the query may start without it.
    """
    with output(as_json=as_json) as console:
        query = find_query(checkpoint, wal, option_values(option))
        done = repair.give_up(query, epoch, target, _asking(yes=yes))
        names = ", ".join(done.targets)
        console.show(
            done,
            f"Target {names} is given up."
            if epoch is None
            else f"Epoch {epoch} is given up for {names}. The flush continues with the next epoch.",
        )


def set_mark(
    checkpoint: CheckpointPlace,
    *,
    to: Annotated[
        int,
        typer.Option(
            metavar="N", min=-1, help="The last epoch whose rows the target has; -1 for none."
        ),
    ],
    target: TargetName = "",
    wal: WalUrl = None,
    option: OptionPairs = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Set the last epoch that a target has, if its ledger row is lost or wrong.

    The flush continues with the next epoch, which the log must still have. Before the command, stop the
    query and every `wal-sink flush`.
    """
    with output(as_json=as_json) as console:
        query = find_query(checkpoint, wal, option_values(option))
        done = repair.set_mark(query, to, target, _asking(yes=yes))
        console.show(
            done,
            f"Target {done.target} has epoch {to} now. Start the query again, or run `wal-sink flush`.",
        )


def adopt(
    checkpoint: CheckpointPlace,
    *,
    wal: WalUrl = None,
    option: OptionPairs = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Bind checkpoint, log and ledger rows to each other, after one of them was moved or made again.

    If the log was moved, give its new wal.location by --wal. It is the folder above the folder with the
    query's id. Other copies of the query can no longer publish or flush.
    """
    with output(as_json=as_json) as console:
        query = find_query(checkpoint, wal, option_values(option))
        done = repair.adopt(query, _asking(yes=yes))
        console.show(done, f"Adopted {done.names['log']}.")

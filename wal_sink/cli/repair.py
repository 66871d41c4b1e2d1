"""The commands that change a query's state: `give-up`, `set-mark` and `adopt`."""

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
    Pairs,
    TargetName,
    Wal,
    Yes,
    option_values,
)
from wal_sink.cli.terminal import SafeConsole, output
from wal_sink.errors import OptionError


def _asking(*, yes: bool) -> Confirm:
    """Return what prints the consequences of a change, and asks, on standard error.

    :param yes: the answer is given already.
    """

    def confirm(consequences: str) -> None:
        console = SafeConsole(stderr=True, soft_wrap=True)
        console.print(consequences)
        if yes:
            return
        console.print("Go on? [y/N] ", end="")
        try:
            answer = sys.stdin.readline() if sys.stdin is not None else ""
        except (OSError, ValueError):  # closed
            answer = ""
        if not answer.endswith("\n"):
            console.print()  # the error is on a line of its own
        if answer.strip().lower() not in {"y", "yes"}:
            raise OptionError(
                "The answer was not yes. Nothing was changed.", "Answer y, or pass --yes."
            )

    return confirm


def give_up(
    checkpoint: CheckpointPlace,
    *,
    epoch: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Skip this epoch, the next one.")
    ] = None,
    target: TargetName = "",
    wal: Wal = None,
    option: Pairs = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Skip an epoch for a target, or give up a target.

    With --epoch, the flush skips the epoch at which it has stopped, for every target that lacks it
    or for --target. Its files stay in the log. With --target alone, the target gets nothing more,
    and nothing waits for it: the budget and the trim ignore it, and the set of targets may change.
    """
    with output(as_json=as_json) as console:
        query = find_query(checkpoint, wal, option_values(option))
        done = repair.give_up(query, epoch, target, _asking(yes=yes))
        names = ", ".join(done.targets)
        console.show(
            done,
            f"Target {names} is given up."
            if epoch is None
            else f"Epoch {epoch} is given up for {names}. The flush goes on after it.",
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
    wal: Wal = None,
    option: Pairs = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Set which epoch a target has, where its ledger row is lost or wrong.

    The flush goes on with the next epoch, which the log must still have. Stop the query and every
    `wal-sink flush` before.
    """
    with output(as_json=as_json) as console:
        query = find_query(checkpoint, wal, option_values(option))
        done = repair.set_mark(query, to, target, _asking(yes=yes))
        console.show(
            done,
            f"Target {done.target} has epoch {to}. Start the query again, or run `wal-sink flush`.",
        )


def adopt(
    checkpoint: CheckpointPlace,
    *,
    wal: Wal = None,
    option: Pairs = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Bind checkpoint, log and ledger rows to each other, after one was moved or made again.

    If the log was moved, --wal is its new wal.location: the folder that contains the folder named
    by the query's id. Another copy of the query can no longer flush or publish.
    """
    with output(as_json=as_json) as console:
        query = find_query(checkpoint, wal, option_values(option))
        done = repair.adopt(query, _asking(yes=yes))
        console.show(done, f"Adopted {done.names['log']}.")

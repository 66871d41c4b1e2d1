"""The commands that change a query's state: `give-up`, `set-mark` and `adopt`.

Each plans the change, says its consequences, asks, and carries it out.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated, Protocol, TypeVar

import msgspec
import typer

from wal_sink.admin.adopt import plan_adopt
from wal_sink.admin.query import Query
from wal_sink.admin.repair import GaveUp, plan_give_up, plan_set_mark
from wal_sink.cli.arguments import CommonArguments, command, whole_number
from wal_sink.cli.terminal import SafeConsole, output
from wal_sink.errors import OptionError

Done_co = TypeVar("Done_co", bound=msgspec.Struct, covariant=True)


class Change(Protocol[Done_co]):
    """A change that could be made when it was planned; nothing is changed yet."""

    @property
    def consequences(self) -> str:
        """What the operator agrees to, as sentences."""

    def carry_out(self) -> Done_co:
        """Make the change, and return the command's JSON document."""


def _make_change(
    arguments: CommonArguments,
    plan: Callable[[Query], Change[Done_co]],
    summary: Callable[[Done_co], str],
) -> None:
    """Plan a change, ask the operator, and carry it out.

    :param plan: checks that the change can be made, and returns it; raises the error that forbids it.
    :param summary: returns the text for people about the outcome.
    :raises typer.Exit: the change was refused, or the answer was no.
    """
    with output(as_json=arguments.as_json) as console:
        change = plan(arguments.find())
        _confirm(change.consequences, yes=arguments.yes)
        done = change.carry_out()
        console.show(done, summary(done))


def _confirm(consequences: str, *, yes: bool) -> None:
    """Print what is about to happen, and ask, on standard error.

    :param yes: the answer is given already.
    :raises OptionError: the answer was not yes. Nothing was changed.
    """
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


@command()
def give_up(
    arguments: CommonArguments,
    *,
    epoch: Annotated[
        int | None,
        typer.Option(
            "--epoch", metavar="N", parser=whole_number(0), help="Skip this epoch, the next one."
        ),
    ] = None,
) -> None:
    """Let a target do without an epoch, or let it get nothing more.

    With --epoch, the flush skips the epoch at which it has stopped, for every target that lacks it
    or for --target. Its files stay in the log. With --target alone, nothing waits for that target
    any longer: no budget, no trim, no other set of targets.
    """
    _make_change(arguments, lambda query: plan_give_up(query, epoch, arguments.target), _gave_up)


def _gave_up(done: GaveUp) -> str:
    names = ", ".join(done.targets)
    if done.epoch is None:
        return f"Target {names} is given up."
    return f"Epoch {done.epoch} is given up for {names}. The flush goes on after it."


@command()
def set_mark(
    arguments: CommonArguments,
    *,
    to: Annotated[
        int,
        typer.Option(
            "--to",
            metavar="N",
            parser=whole_number(-1),
            help="The last epoch whose rows the target has; -1 for none.",
        ),
    ],
) -> None:
    """Set which epoch a target has, where its ledger row is lost or wrong.

    The flush goes on with the next epoch, which the log must still have. Stop the query and every
    `wal-sink flush` before.
    """
    _make_change(
        arguments,
        lambda query: plan_set_mark(query, to, arguments.target),
        lambda done: (
            f"Target {done.target} has epoch {done.epoch}. Start the query again, or run `wal-sink flush`."
        ),
    )


@command("target")
def adopt(arguments: CommonArguments) -> None:
    """Let checkpoint, log and ledger rows belong together, after one was moved or made again.

    If the log was moved, give by --wal its new wal.location, the folder above that of the query's
    id. Another copy of the query can no longer flush or publish.
    """
    _make_change(arguments, plan_adopt, lambda done: f"Adopted {done.names['log']}.")

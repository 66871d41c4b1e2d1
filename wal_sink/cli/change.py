"""Runs the commands that change a query's state: plan, say the consequences, ask, carry out."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeVar, get_type_hints

import msgspec
from rich.console import Console
from rich.markup import escape

from wal_sink.admin.query import Query, find_query, target_of
from wal_sink.admin.refuse_flusher import Patience
from wal_sink.cli.arguments import (
    CheckpointArgument,
    OptionPairs,
    TargetName,
    Wal,
    Why,
    Yes,
    option_values,
)
from wal_sink.cli.output import AsJson, SafeConsole, document, output
from wal_sink.clock import now_us
from wal_sink.errors import OptionError
from wal_sink.targets.base import Target

Done_co = TypeVar("Done_co", bound=msgspec.Struct, covariant=True)


class Change(Protocol[Done_co]):
    """A change that could be made when it was planned; nothing is changed yet."""

    @property
    def consequences(self) -> str:
        """What the operator agrees to, as sentences."""

    def carry_out(self, now_us: int, why: str = "") -> Done_co:
        """Make the change, and return the command's JSON document.

        :param now_us: microseconds since 1970.
        """


class ChangeArguments(NamedTuple):
    """The parameters that all of these commands have.

    The checkpoint comes before a command's own parameters, and the others come after them.
    """

    checkpoint: CheckpointArgument
    target: TargetName = ""
    why: Why = ""
    wal: Wal = None
    option: OptionPairs = None
    yes: Yes = False
    as_json: AsJson = False


def command(run: Callable[..., None]) -> Callable[..., None]:
    """Give a command the parameters of `ChangeArguments`, in the place of its first one.

    :param run: takes a `ChangeArguments`, then what this command alone has.
    """
    shared = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=ChangeArguments._field_defaults.get(name, inspect.Parameter.empty),
            annotation=annotation,
        )
        for name, annotation in get_type_hints(ChangeArguments, include_extras=True).items()
    ]
    hints = get_type_hints(run, include_extras=True)
    own = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[parameter.name])
        for parameter in list(inspect.signature(run).parameters.values())[1:]
    ]

    @functools.wraps(run)
    def take(**given: Any) -> None:
        mine = {name: given.pop(name) for name in ChangeArguments._fields}
        run(ChangeArguments(**mine), **given)

    every = [shared[0], *own, *shared[1:]]
    take.__signature__ = inspect.Signature(every)  # type: ignore[attr-defined]
    take.__annotations__ = {parameter.name: parameter.annotation for parameter in every}
    del take.__dict__["__wrapped__"]  # else typer would look at that one's parameters
    return take


def make_change(
    given: ChangeArguments,
    plan: Callable[[Query, Target, Patience], Change[Done_co]],
    summary: Callable[[Done_co], str],
) -> None:
    """Plan a change, ask the operator, and carry it out.

    :param plan: checks that the change can be made, and returns it; raises the error that forbids it.
    :param summary: returns the text for people about the outcome.
    :raises typer.Exit: the change was refused, or the answer was no.
    """
    with output(as_json=given.as_json) as console:
        options = option_values(given.option)
        query = find_query(given.checkpoint, given.wal, options).of(given.target)
        change = plan(query, target_of(query, options), Patience(say=_say))
        _confirm(change.consequences, yes=given.yes)
        done = change.carry_out(now_us(), given.why)
        if given.as_json:
            document(done)
        else:
            console.print(escape(summary(done)), soft_wrap=True)


def _errors() -> Console:
    return SafeConsole(stderr=True, highlight=False, soft_wrap=True)


def _say(text: str) -> None:
    """Tell the operator something on standard error."""
    _errors().print(escape(text))


def _confirm(consequences: str, *, yes: bool) -> None:
    """Say what is about to happen, and ask, on standard error.

    :param yes: the answer is given already.
    :raises OptionError: the answer is no, or there is none. Nothing was changed.
    """
    _say(consequences)
    if yes:
        return
    console = _errors()
    console.print("Go on? \\[y/N] ", end="")
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

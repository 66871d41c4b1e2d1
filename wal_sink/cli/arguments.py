"""The parameters of the commands: those that all commands about a query share, and how they are read."""

from __future__ import annotations

import functools
import inspect
import os
import shlex
from collections.abc import Callable, Sequence
from typing import Annotated, Any, NamedTuple, get_type_hints

import typer

from wal_sink.admin.query import OPTIONS_VARIABLE, Query, find_query
from wal_sink.errors import OptionError

CheckpointArgument = Annotated[
    str, typer.Argument(metavar="CHECKPOINT", help="The query's checkpointLocation.")
]
Wal = Annotated[
    str | None,
    typer.Option(
        "--wal", metavar="URL", help="The query's wal.location, if the checkpoint does not name it."
    ),
]


def _pairs(what: str) -> Any:
    more = "Repeatable; the variable WAL_SINK_OPTIONS holds further pairs, separated by spaces."
    return typer.Option("--option", metavar="NAME=VALUE", help=f"{what} {more}")


OptionPairs = Annotated[
    list[str] | None,
    _pairs(
        "An option of the query that the log does not hold: a secret, such as a password or"
        " wal.storageOptions, or one that an error tells you to confirm."
    ),
]
SinkOptionPairs = Annotated[
    list[str] | None, _pairs("An option of the sink, as the query has it, such as target=kafka.")
]
Yes = Annotated[bool, typer.Option("--yes", help="Do it without asking.")]
TargetName = Annotated[
    str,
    typer.Option(
        "--target",
        metavar="NAME",
        help="One of the query's targets.",
    ),
]


def whole_number(least: int, most: int | None = None) -> Callable[[Any], int]:
    """Return a parser for a parameter of a command: typer's own speaks of validation, not of the number.

    :param most: None for no bound.
    """
    bounds = f"of {least:,} or more" if most is None else f"from {least:,} to {most:,}"

    def parse(text: Any) -> int:
        try:
            number = int(text)
            if least <= number <= (number if most is None else most):
                return number
        except ValueError:
            pass
        raise typer.BadParameter(f"{text!r} is not a whole number {bounds}.")

    return parse


def option_values(pairs: Sequence[str] | None) -> dict[str, str]:
    """Parse the pairs of `--option` and those of `WAL_SINK_OPTIONS`; return the values by option.

    Of two values of one option that of `--option` counts, then the later one; case does not matter.

    :param pairs: texts of the form NAME=VALUE.
    :raises OptionError: one has another form. Its text is not shown: it may be a secret.
    """
    values = {}
    for where, texts in ((OPTIONS_VARIABLE, _of_environment()), ("--option", pairs or ())):
        for pair in texts:
            name, equals, value = pair.partition("=")
            if not equals or not name.strip():
                raise OptionError(
                    f"A pair of {where} is not of the form NAME=VALUE.", "Write NAME=VALUE."
                )
            values[name.strip().lower()] = (name.strip(), value)
    return dict(values.values())


def _of_environment() -> list[str]:
    try:
        return shlex.split(os.environ.get(OPTIONS_VARIABLE, ""))
    except ValueError as error:
        raise OptionError(
            f"{OPTIONS_VARIABLE} cannot be split into pairs: {error}.",
            "Quote it as for a shell: NAME=VALUE 'NAME=VALUE WITH SPACES'.",
        ) from error


AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output.")]
"""Type of every command's parameter `as_json`."""


class CommonArguments(NamedTuple):
    """The parameters that the commands about a query share.

    The checkpoint comes before a command's own parameters, and the others come after them.
    """

    checkpoint: CheckpointArgument
    target: TargetName = ""
    wal: Wal = None
    option: OptionPairs = None
    yes: Yes = False
    as_json: AsJson = False

    @property
    def options(self) -> dict[str, str]:
        """The values of `--option`, by option."""
        return option_values(self.option)

    def find(self) -> Query:
        """Find the query; see `find_query`."""
        return find_query(self.checkpoint, self.wal, self.options)


Run = Callable[..., None]


def command(*left_out: str, needs_checkpoint: bool = True) -> Callable[[Run], Run]:
    """Give a command the parameters of `CommonArguments`, in the place of its first one.

    :param left_out: those that it does not have, or declares itself.
    :param needs_checkpoint: False lets the checkpoint be left out; it is empty then.
    """
    defaults = dict(CommonArguments._field_defaults)
    if not needs_checkpoint:
        defaults["checkpoint"] = ""
    shared = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=defaults.get(name, inspect.Parameter.empty),
            annotation=annotation,
        )
        for name, annotation in get_type_hints(CommonArguments, include_extras=True).items()
        if name not in left_out
    ]

    def decorate(run: Run) -> Run:
        hints = get_type_hints(run, include_extras=True)
        own = [
            parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[parameter.name])
            for parameter in list(inspect.signature(run).parameters.values())[1:]
        ]

        @functools.wraps(run)
        def take(**arguments: Any) -> None:
            mine = {parameter.name: arguments.pop(parameter.name) for parameter in shared}
            run(CommonArguments(**mine), **arguments)

        every = [shared[0], *own, *shared[1:]]
        take.__signature__ = inspect.Signature(every)  # type: ignore[attr-defined]
        take.__annotations__ = {parameter.name: parameter.annotation for parameter in every}
        del take.__dict__["__wrapped__"]  # else typer would look at that one's parameters
        return take

    return decorate

"""The parameters that several commands have, and how the pairs of `--option` are read."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from typing import Annotated

import typer

from wal_sink.admin.confirm import OPTIONS_VARIABLE
from wal_sink.errors import OptionError

CheckpointPlace = Annotated[
    str, typer.Argument(metavar="CHECKPOINT", help="The query's checkpointLocation.")
]
Wal = Annotated[
    str | None,
    typer.Option(
        metavar="URL", help="The query's wal.location, if the checkpoint does not name it."
    ),
]
TargetName = Annotated[str, typer.Option(metavar="NAME", help="One of the query's targets.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do it without asking.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output.")]

_REPEATABLE = "Repeatable; the variable WAL_SINK_OPTIONS holds further pairs, separated by spaces."
Pairs = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE",
        help="An option of the query that the log does not hold: a secret, such as a password or"
        f" wal.storageOptions, or one that an error tells you to confirm. {_REPEATABLE}",
    ),
]
SinkPairs = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE",
        help=f"An option of the sink, as the query has it, such as target=kafka. {_REPEATABLE}",
    ),
]


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


def refuse(*rules: tuple[object, str, str]) -> None:
    """Refuse arguments that have no meaning together.

    :param rules: whether they are given so, what is wrong then, and what to do.
    :raises OptionError: of the first rule that they break.
    """
    for is_broken, what, remedy in rules:
        if is_broken:
            raise OptionError(what, remedy)

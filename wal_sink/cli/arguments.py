"""The parameters of several commands, the parser of `--option`, and the check of arguments that conflict."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from typing import Annotated

import typer

from wal_sink.admin.confirmation import OPTIONS_VARIABLE
from wal_sink.errors import OptionError

CheckpointPlace = Annotated[
    str, typer.Argument(metavar="CHECKPOINT", help="The query's checkpointLocation.")
]
WalUrl = Annotated[
    str | None,
    typer.Option(
        metavar="URL", help="The query's wal.location. Only needed if the checkpoint lacks it."
    ),
]
TargetName = Annotated[str, typer.Option(metavar="NAME", help="One of the query's targets.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output.")]

_REPEATABLE = "Repeatable. The variable WAL_SINK_OPTIONS can have more pairs, separated by spaces."
OptionPairs = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE",
        help="An option of the query: a secret, which the log does not have, such as a password or"
        f" wal.storageOptions; or an option that an error asks you to confirm. {_REPEATABLE}",
    ),
]
SinkOptionPairs = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE",
        help=f"An option of writeStream, such as target=kafka. {_REPEATABLE}",
    ),
]


def option_values(pairs: Sequence[str] | None) -> dict[str, str]:
    """Return the values of `--option` and of the variable `WAL_SINK_OPTIONS`, by option.

    `--option` overrides the variable, and a later pair overrides an earlier one.

    :param pairs: the texts of `--option`, such as `table=orders`.
    :raises OptionError: a text is not a pair. The error does not show the text, which may be a secret.
    """
    values = {}
    for origin, texts in ((OPTIONS_VARIABLE, _of_environment()), ("--option", pairs or ())):
        for pair in texts:
            name, equals, value = pair.partition("=")
            if not equals or not name.strip():
                raise OptionError(
                    f"A text of {origin} is not of the form NAME=VALUE.",
                    "Write the name of the option, an equals sign and the value.",
                )
            values[name.strip().lower()] = (name.strip(), value)
    return dict(values.values())


def _of_environment() -> list[str]:
    try:
        return shlex.split(os.environ.get(OPTIONS_VARIABLE, ""))
    except ValueError as error:
        raise OptionError(
            f"The variable {OPTIONS_VARIABLE} cannot be split into pairs: {error}.",
            "Quote the pairs as for a shell: NAME=VALUE 'NAME=VALUE WITH SPACES'.",
        ) from error


def refuse_combinations(*rules: tuple[object, str, str]) -> None:
    """Refuse arguments that do not go together.

    :param rules: for each rule, a value that is true if the arguments break the rule, then the problem, then
        the remedy.
    :raises OptionError: the arguments break a rule. The error describes the first broken rule.
    """
    for is_broken, what, remedy in rules:
        if is_broken:
            raise OptionError(what, remedy)

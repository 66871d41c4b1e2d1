"""The parameters that the commands about a query share, and what they mean."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from typing import Annotated

import typer

from wal_sink.admin.refuse_unconfirmed import OPTIONS_VARIABLE
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
OptionPairs = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        metavar="NAME=VALUE",
        help="An option of the query that the log does not hold, such as a password or"
        " wal.storageOptions, or that you confirm, since only the log has it. Repeatable; the variable"
        " WAL_SINK_OPTIONS holds further pairs, separated by spaces.",
    ),
]
Yes = Annotated[bool, typer.Option("--yes", help="Do it without asking.")]
TargetName = Annotated[
    str,
    typer.Option(
        "--target",
        metavar="NAME",
        help="One of the query's targets, if option targets names several.",
    ),
]
Why = Annotated[
    str, typer.Option("--why", metavar="TEXT", help="Kept with the record of the decision.")
]


def option_values(pairs: Sequence[str] | None) -> dict[str, str]:
    """Parse the pairs of `--option` and those of `WAL_SINK_OPTIONS`; return the values by option.

    Of two values of one option that of `--option` counts, then the later one; case does not matter.

    :param pairs: texts of the form NAME=VALUE.
    :raises OptionError: one has another form. Its text is not shown: it may be a secret.
    """
    values = {}
    for where, given in ((OPTIONS_VARIABLE, _of_environment()), ("--option", pairs or ())):
        for pair in given:
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

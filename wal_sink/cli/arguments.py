"""The parameters that the commands about a query share, and what they mean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

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
        help="An option of the query that the log does not hold, such as cassandra.password or"
        " wal.storageOptions. Repeatable.",
    ),
]
Yes = Annotated[bool, typer.Option("--yes", help="Do it without asking.")]
Why = Annotated[
    str, typer.Option("--why", metavar="TEXT", help="Kept with the record of the decision.")
]


def option_values(pairs: Sequence[str] | None) -> dict[str, str]:
    """Parse `NAME=VALUE` pairs.

    :raises OptionError: one is no pair. Its text is not shown: it may be a secret.
    """
    values = {}
    for pair in pairs or ():
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            raise OptionError("An --option is not of the form NAME=VALUE.", "Write NAME=VALUE.")
        values[name.strip()] = value
    return values

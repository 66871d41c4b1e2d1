"""What changes state asks first."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.markup import escape

from wal_sink.errors import OptionError


def confirm(what: str, *, yes: bool) -> None:
    """Say what is about to happen, and ask, on standard error.

    :param what: consequences, as sentences.
    :param yes: the answer is given already.
    :raises OptionError: no, or nobody there to answer. Nothing was changed.
    """
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    console.print(escape(what))
    if yes:
        return
    console.print("Go on? \\[y/N] ", end="")
    try:
        answer = sys.stdin.readline() if sys.stdin is not None else ""
    except (OSError, ValueError):  # closed
        answer = ""
    if answer.strip().lower() not in {"y", "yes"}:
        raise OptionError(
            "The answer was not yes. Nothing was changed.", "Answer y, or pass --yes."
        )

"""A number with its noun; and text from a log or a table, made safe for a terminal. No I/O."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def counted(number: int, one: str, many: str = "") -> str:
    """Return `1 epoch`, `1,200 epochs`.

    :param one: what follows the number 1: a noun, or with its verb: `epoch was`.
    :param many: what follows every other number; by default `one` with an s.
    """
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"


def printable(text: str) -> str:
    r"""Return text without characters that steer a terminal: `\x1b` instead of an escape."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a sentence that suggests the known name nearest to `name`; empty when none is near."""
    known = sorted(known)
    for other in known:
        if other.lower() == name.lower():
            return f"There is {other}, which differs in upper and lower case only: names are exact."
    by_lower = {other.lower(): other for other in known}
    nearest = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
    return f"Did you mean {by_lower[nearest[0]]}?" if nearest else ""

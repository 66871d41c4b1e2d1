"""Texts for people: a number with its noun, a suggested name, and unknown text made safe for a terminal."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def counted(number: int, one: str, many: str = "") -> str:
    """Return `1 epoch`, `1,200 epochs`.

    :param one: text after the number 1: a noun, perhaps with its verb, such as `epoch was`.
    :param many: text after every other number; by default `one` with an s.
    """
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"


def printable(text: str) -> str:
    r"""Return text with control characters escaped: `\x1b` in place of an escape character."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a sentence that suggests the known name nearest to `name`. Empty if no name is near."""
    known = sorted(known)
    for other in known:
        if other.lower() == name.lower():
            return f"There is {other}, which differs in upper and lower case only: names are exact."
    by_lower = {other.lower(): other for other in known}
    nearest = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
    return f"Did you mean {by_lower[nearest[0]]}?" if nearest else ""

"""A number with its noun; and text from a log or a table, made safe for a terminal. No I/O."""

from __future__ import annotations


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

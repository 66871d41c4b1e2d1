"""Text that comes from a log or a table, made safe for a terminal. No I/O."""

from __future__ import annotations


def printable(text: str) -> str:
    r"""Return text without characters that steer a terminal: `\x1b` instead of an escape."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )

"""Lays out names with their values, in lines that break no word."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

_GAP = 2
"""Columns between a name and its value."""


class Named(NamedTuple):
    """A name, and its value as text of one line or several."""

    name: str
    value: str
    style: str = ""


class Lines:
    """One block of names and values, the values below each other.

    A line breaks at a space, and a path that is longer than a line behind a slash.
    """

    def __init__(self, lines: Sequence[Named]) -> None:
        self._lines = lines

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render it."""
        indent = max((len(line.name) for line in self._lines), default=0) + _GAP
        width = max(options.max_width - indent, 20)
        for name, value, style in self._lines:
            text = Text(no_wrap=True, overflow="ignore", end="\n")
            text.append(name.ljust(indent), "bold")
            broken = [part for line in value.splitlines() or [""] for part in fold(line, width)]
            text.append(("\n" + " " * indent).join(broken), style)
            yield text


def fold(text: str, width: int) -> Iterator[str]:
    """Break a line at spaces, and what is longer than a line behind slashes."""
    if len(text) <= width:
        yield text
        return
    line = ""
    for word in re.findall(r"\S+ *", text):
        for part in [word] if len(word.rstrip()) <= width else re.findall(r"[^/]*/+|[^/]+$", word):
            if line and len((line + part).rstrip()) > width:
                yield line.rstrip()
                line = ""
            line += part
    yield line.rstrip()

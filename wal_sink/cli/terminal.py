"""What the commands share of the terminal: how an outcome is printed, a progress bar.

People read text, in lines that break no word; programs read one JSON document on standard output. What
takes longer than two seconds has a progress bar on standard error; none beside JSON.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import msgspec
import typer
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.logging import RichHandler
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn
from rich.text import Text

from wal_sink.errors import WalSinkError
from wal_sink.progress.status import Level, Line
from wal_sink.text import printable
from wal_sink.wal.location import store_errors

_UNBOUNDED = 100_000
"""Columns of a file or a pipe."""


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """The document of a command that failed."""

    error: str
    what: str
    remedy: str


class OfTargets(msgspec.Struct, frozen=True, kw_only=True):
    """The document of a command that was about each of several targets."""

    targets: tuple[msgspec.Struct, ...]
    """In the order of their names."""


Found = TypeVar("Found", bound=msgspec.Struct)


class SafeConsole(Console):
    """Prints texts as they are, without characters that steer a terminal: much was read in a log or a table.

    Brackets are text, no markup.

    :param as_json: whether programs read what a command has found: see `show`.
    """

    def __init__(self, *, as_json: bool = False, **how: Any) -> None:
        super().__init__(highlight=False, markup=False, **how)
        self._as_json = as_json

    def show(self, value: msgspec.Struct, *lines: RenderableType) -> None:
        """Print what a command has found: as its document, or by these lines for people."""
        if self._as_json:
            document(value)
            return
        for line in lines:
            self.print(line, soft_wrap=isinstance(line, str))

    def show_each(self, values: Sequence[Found], show: Callable[[Console, Found], None]) -> None:
        """Print what a command has found of each target: as one document, or each for people."""
        if self._as_json:
            document(values[0] if len(values) == 1 else OfTargets(targets=tuple(values)))
            return
        for of_target in values:
            show(self, of_target)

    def render_str(self, text: str, **how: Any) -> Text:
        """Render a text."""
        return super().render_str(_lines(text), **how)


class SafeFormatter(logging.Formatter):
    """Does the same for what is logged."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a record."""
        return _lines(super().format(record))


def _lines(text: str) -> str:
    return "\n".join(printable(line.expandtabs(4)) for line in text.split("\n"))


@contextlib.contextmanager
def output(*, as_json: bool) -> Iterator[SafeConsole]:
    """Give the block a console for what people read; turn an error of the sink into the command's end.

    :param as_json: what people read goes to standard error; a failure is a JSON document on standard output.
    :raises typer.Exit: the block raised a `WalSinkError`; with its exit code, see `wal_sink.errors`.
    """
    console = SafeConsole(as_json=as_json, stderr=as_json)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = _UNBOUNDED  # a file or a pipe has no width: no line is broken or cut
    handler = RichHandler(console=console, show_path=False, show_time=False)
    handler.setFormatter(SafeFormatter("%(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    # What matters of a driver's own warnings comes as an error of ours, with what to do about it.
    logging.getLogger("cassandra").setLevel(logging.CRITICAL)
    try:
        with store_errors("A store or a file"):
            yield console
    except WalSinkError as error:
        SafeConsole(stderr=True, soft_wrap=True).print(reddened(type(error).__name__, f": {error}"))
        if as_json:
            document(Failure(error=type(error).__name__, what=error.what, remedy=error.remedy))
        raise typer.Exit(error.exit_code) from error


def reddened(red: str, text: str = "") -> Text:
    """Return a text whose first part is red."""
    return Text.assemble((_lines(red), "red"), _lines(text))


def document(value: msgspec.Struct) -> None:
    """Print a value as the command's JSON document."""
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(value)).decode() + "\n")


def document_line(value: msgspec.Struct) -> None:
    """Print a value as one line of JSON, for a program that reads as it goes.

    :raises typer.Exit: the reader has closed the pipe.
    """
    try:
        sys.stdout.write(msgspec.json.encode(value).decode() + "\n")
        sys.stdout.flush()
    except BrokenPipeError as gone:
        # Else the interpreter would try once more at exit, and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(0) from gone


_GAP = 2
"""Columns between a name and its value."""


_STYLES: dict[Level, str] = {"plain": "", "good": "green", "waiting": "yellow", "bad": "red"}


class Lines:
    """One block of names and values, the values below each other.

    A line breaks at a space, and a path that is longer than a line after a slash.
    """

    def __init__(self, lines: Sequence[Line]) -> None:
        self._lines = lines

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render it."""
        indent = max((len(line.name) for line in self._lines), default=0) + _GAP
        width = max(options.max_width - indent, 20)
        for name, value, level in self._lines:
            text = Text(no_wrap=True, overflow="ignore", end="\n")
            text.append(name.ljust(indent), "bold")
            broken = [part for line in value.splitlines() or [""] for part in fold(line, width)]
            text.append(("\n" + " " * indent).join(broken), _STYLES[level])
            yield text


def fold(text: str, width: int) -> Iterator[str]:
    """Break a line at spaces, and what is longer than a line after slashes."""
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


_QUIET_S = 2.0
"""Time before a bar appears."""


class LateBar(Progress):
    """Shows one bar, once the work has taken two seconds.

    :param doing: names the work, in front of the bar.
    :param columns: stand after the bar.
    :param as_json: whether nothing is shown.
    """

    def __init__(self, doing: str, *columns: ProgressColumn, as_json: bool) -> None:
        super().__init__(
            TextColumn("{task.description}"),
            BarColumn(),
            *columns,
            console=Console(stderr=True, highlight=False),
            transient=True,
            disable=as_json,
        )
        self._task = self.add_task(doing, total=None)
        self._since = time.monotonic()

    def start(self) -> None:
        """Show nothing yet."""

    def stop(self) -> None:
        """End it, if it was shown."""
        if self.live.is_started:
            super().stop()

    def update(self, done: int, total: int) -> None:  # type: ignore[override]
        """Take how much of the work is done, in any unit, and draw the bar if it is time."""
        super().update(self._task, completed=done, total=total)
        if not self.live.is_started and time.monotonic() - self._since > _QUIET_S:
            super().start()

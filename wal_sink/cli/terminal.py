"""How commands print: text for people, one JSON document for programs; an error ends a command.

With `--json`, people's text goes to standard error, and there is no progress bar.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import msgspec
import typer
from rich.console import Console, RenderableType
from rich.logging import RichHandler
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn
from rich.table import Table
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


Document = TypeVar("Document", bound=msgspec.Struct)


class SafeConsole(Console):
    """Prints texts as they are, without characters that steer a terminal: much was read in a log or a table.

    Brackets are text, no markup.

    :param as_json: True if programs read the documents of `show`.
    """

    def __init__(self, *, as_json: bool = False, **how: Any) -> None:
        super().__init__(highlight=False, markup=False, **how)
        self.as_json = as_json

    def say(self, line: str) -> None:
        """Print a line about what goes on; the terminal folds it."""
        self.print(line, soft_wrap=True)

    def show(self, value: msgspec.Struct, *lines: RenderableType) -> None:
        """Print the outcome of a command: as its document, or by these lines for people."""
        if self.as_json:
            document(value)
            return
        for line in lines:
            self.print(line, soft_wrap=isinstance(line, str))

    def show_each(
        self, values: Sequence[Document], show: Callable[[Console, Document], None]
    ) -> None:
        """Print the outcome of a command for each target: as one document, or each for people."""
        if self.as_json:
            document(values[0] if len(values) == 1 else OfTargets(targets=tuple(values)))
            return
        for value in values:
            show(self, value)

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
            document(failure(error))
        raise typer.Exit(error.exit_code) from error


def failure(error: WalSinkError) -> Failure:
    """Return an error as a document."""
    return Failure(error=type(error).__name__, what=error.what, remedy=error.remedy)


def reddened(red: str, text: str = "") -> Text:
    """Return a text whose first part is red."""
    return Text.assemble((_lines(red), "red"), _lines(text))


def document(value: msgspec.Struct, indent: int = 2) -> None:
    """Print a value as JSON on standard output.

    :param indent: -1 for one line.
    :raises typer.Exit: the reader has closed the pipe.
    """
    try:
        text = msgspec.json.format(msgspec.json.encode(value), indent=indent)
        sys.stdout.write(text.decode() + "\n")
        sys.stdout.flush()
    except BrokenPipeError as error:
        # Else the interpreter would try once more at exit, and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(0) from error


_STYLES: dict[Level, str] = {"plain": "", "good": "green", "waiting": "yellow", "bad": "red"}


def facts(*lines: Line | tuple[str, str]) -> Table:
    """Lay names and values out, the values below each other."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value, level in (Line(*line) for line in lines):
        table.add_row(Text(name), Text(_lines(value), _STYLES[level]))
    return table


@contextlib.contextmanager
def bar(
    doing: str, *columns: ProgressColumn, as_json: bool
) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar on standard error, which goes when the work is done.

    :param doing: names the work.
    :returns: what to call with how much is done, and of how much.
    """
    texts = TextColumn("{task.description}"), BarColumn()
    console = Console(stderr=True)
    hidden = as_json or not console.is_terminal
    with Progress(*texts, *columns, console=console, transient=True, disable=hidden) as progress:
        task = progress.add_task(doing, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)

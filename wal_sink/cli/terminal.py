"""Prints the outcome of a command as text or as one JSON document, and ends a command at an error.

With `--json`, standard output has only the JSON document, and other text goes to standard error.
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
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn
from rich.table import Table
from rich.text import Text

from wal_sink.errors import WalSinkError, printable
from wal_sink.progress.status import Level, Line
from wal_sink.wal.location import store_errors

_UNBOUNDED = 100_000
"""Width of a file or a pipe, in characters, so that no line is broken."""


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """The error of a command, as `--json` prints it."""

    error: str
    what: str
    remedy: str


class TargetDocuments(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a command for several targets, as `--json` prints it."""

    targets: tuple[msgspec.Struct, ...]
    """The outcome for each target, in the order of the names."""


Document = TypeVar("Document", bound=msgspec.Struct)


class SafeConsole(Console):
    """A console that escapes control characters, which texts of a log or a table may contain.

    :param as_json: True to print the documents of commands.
    """

    def __init__(self, *, as_json: bool = False, **settings: Any) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, **settings)
        self.as_json = as_json

    def print_line(self, line: str) -> None:
        """Print a line without line breaks."""
        self.print(line, soft_wrap=True)

    def show(self, document: msgspec.Struct, *lines: RenderableType) -> None:
        """Print the outcome of a command: with `--json` the document, otherwise the lines."""
        if self.as_json:
            print_document(document)
            return
        for line in lines:
            self.print(line, soft_wrap=isinstance(line, str))

    def show_each(self, documents: Sequence[Document], text: Callable[[Document], str]) -> None:
        """Print the outcome of a command for each target.

        :param text: returns an outcome as text.
        """
        if self.as_json:
            several = TargetDocuments(targets=tuple(documents))
            print_document(documents[0] if len(documents) == 1 else several)
            return
        for document in documents:
            self.print(text(document))

    def render_str(self, text: str, **settings: Any) -> Text:
        """Return a text with escaped control characters."""
        return super().render_str(_escaped(text), **settings)


class ConsoleHandler(logging.Handler):
    """Prints log records on a console, each in one line."""

    def __init__(self, console: SafeConsole) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter("%(levelname)-8s %(message)s"))
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record."""
        self._console.print_line(self.format(record))


def _escaped(text: str) -> str:
    """Escape control characters except newlines; expand tabs."""
    return "\n".join(printable(line.expandtabs(4)) for line in text.split("\n"))


@contextlib.contextmanager
def output(*, as_json: bool) -> Iterator[SafeConsole]:
    """Provide the console of a command. Print an error that the block raises, and end the command.

    :raises typer.Exit: with the exit code of the error.
    """
    console = SafeConsole(as_json=as_json, stderr=as_json)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = _UNBOUNDED
    logging.basicConfig(level=logging.WARNING, handlers=[ConsoleHandler(console)])
    # The errors of wal_sink repeat the driver's warnings that matter.
    logging.getLogger("cassandra").setLevel(logging.CRITICAL)
    try:
        with store_errors("A store or a file"):
            yield console
    except WalSinkError as error:
        SafeConsole(stderr=True, soft_wrap=True).print(in_red(type(error).__name__, f": {error}"))
        if as_json:
            kind = type(error).__name__
            print_document(Failure(error=kind, what=error.what, remedy=error.remedy))
        raise typer.Exit(error.exit_code) from error


def in_red(red: str, text: str = "") -> Text:
    """Return a text in red, followed by a plain text."""
    return Text.assemble((_escaped(red), "red"), _escaped(text))


def print_document(document: msgspec.Struct, indent: int = 2) -> None:
    """Print a document as JSON on standard output.

    :param indent: how many spaces to indent; -1 for a single line.
    :raises typer.Exit: the reader has closed the pipe.
    """
    try:
        text = msgspec.json.format(msgspec.json.encode(document), indent=indent)
        sys.stdout.write(text.decode() + "\n")
        sys.stdout.flush()
    except BrokenPipeError as error:
        # Otherwise the interpreter would flush standard output again at exit, and print an error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(0) from error


_STYLES: dict[Level, str] = {"plain": "", "good": "green", "waiting": "yellow", "bad": "red"}


def fact_table(*lines: Line | tuple[str, str]) -> Table:
    """Return a table of names and values."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value, level in (Line(*line) for line in lines):
        table.add_row(Text(name), Text(_escaped(value), _STYLES[level]))
    return table


@contextlib.contextmanager
def progress_bar(
    description: str, *columns: ProgressColumn, as_json: bool
) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar on standard error during the block, unless standard error is a file or a pipe.

    :param description: the text before the bar.
    :param as_json: True for no bar.
    :return: a function that sets the progress. Its arguments are the amount that is done, and the total.
    """
    texts = TextColumn("{task.description}"), BarColumn()
    console = Console(stderr=True)
    hidden = as_json or not console.is_terminal
    with Progress(*texts, *columns, console=console, transient=True, disable=hidden) as progress:
        task = progress.add_task(description, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)

"""Prints the outcome of every command: people read text, programs one JSON document on standard output."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.logging import RichHandler
from rich.markup import escape
from rich.text import Text

from wal_sink.errors import WalSinkError
from wal_sink.progress.printable import printable
from wal_sink.wal.store_errors import store_errors

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output.")]
"""Type of every command's parameter `as_json`."""


_UNBOUNDED = 100_000
"""Columns of what is no terminal."""


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """The document of a command that failed."""

    error: str
    what: str
    remedy: str


class OfTargets(msgspec.Struct, frozen=True, kw_only=True):
    """The document of a command that was about each of several targets."""

    targets: tuple[msgspec.Struct, ...]
    """In the order of their names."""


class SafeConsole(Console):
    """Prints texts without characters that steer a terminal: much of them was read in a log or a table."""

    def render_str(self, text: str, **how: Any) -> Text:
        """Render a text."""
        return super().render_str(_lines(text), **how)


class SafeFormatter(logging.Formatter):
    """Does the same for what is logged."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a record."""
        return _lines(super().format(record))


def _lines(text: str) -> str:
    return "\n".join(map(printable, text.split("\n")))


@contextlib.contextmanager
def output(*, as_json: bool) -> Iterator[Console]:
    """Give the block a console for what people read; turn an error of the sink into the command's end.

    :param as_json: what people read goes to standard error; a failure is a JSON document on standard output.
    :raises typer.Exit: the block raised a `WalSinkError`; with its exit code, see `wal_sink.errors`.
    """
    console = SafeConsole(stderr=as_json, highlight=False)
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
        SafeConsole(stderr=True, highlight=False, soft_wrap=True).print(
            f"[red]{type(error).__name__}[/red]: {escape(str(error))}"
        )
        if as_json:
            document(Failure(error=type(error).__name__, what=error.what, remedy=error.remedy))
        raise typer.Exit(error.exit_code) from error


def document(value: msgspec.Struct) -> None:
    """Print a value as the command's JSON document."""
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(value)).decode() + "\n")


def documents(values: Sequence[msgspec.Struct], *, several: bool) -> None:
    """Print what a command says of each target: one document, that of the only one or all together.

    :param several: whether each of several targets was asked for.
    """
    document(OfTargets(targets=tuple(values)) if several else values[0])


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

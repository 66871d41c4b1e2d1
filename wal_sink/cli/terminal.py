"""What the commands share: the parameters about a query, how an outcome is printed, a progress bar.

People read text, in lines that break no word; programs read one JSON document on standard output. What
takes longer than two seconds has a progress bar on standard error; none beside JSON.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console, ConsoleOptions, RenderResult
from rich.logging import RichHandler
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn
from rich.text import Text

from wal_sink.admin.query import OPTIONS_VARIABLE
from wal_sink.errors import OptionError, WalSinkError
from wal_sink.progress.status import Line, Mood
from wal_sink.text import printable
from wal_sink.wal.location import store_errors

CheckpointArgument = Annotated[
    str, typer.Argument(metavar="CHECKPOINT", help="The query's checkpointLocation.")
]
Wal = Annotated[
    str | None,
    typer.Option(
        "--wal", metavar="URL", help="The query's wal.location, if the checkpoint does not name it."
    ),
]


def _pairs(what: str) -> Any:
    more = "Repeatable; the variable WAL_SINK_OPTIONS holds further pairs, separated by spaces."
    return typer.Option("--option", metavar="NAME=VALUE", help=f"{what} {more}")


OptionPairs = Annotated[
    list[str] | None,
    _pairs(
        "An option of the query that the log does not hold: a secret, such as a password or"
        " wal.storageOptions, or one that an error tells you to confirm."
    ),
]
SinkOptionPairs = Annotated[
    list[str] | None, _pairs("An option of the sink, as the query has it, such as target=kafka.")
]
Yes = Annotated[bool, typer.Option("--yes", help="Do it without asking.")]
TargetName = Annotated[
    str,
    typer.Option(
        "--target",
        metavar="NAME",
        help="One of the query's targets, if option targets names several.",
    ),
]
Why = Annotated[
    str, typer.Option("--why", metavar="TEXT", help="Kept with the record of the decision.")
]


def whole_number(least: int, most: int | None = None) -> Callable[[Any], int]:
    """Return a parser for a parameter of a command: typer's own speaks of validation, not of the number.

    :param most: None for no bound.
    """
    bounds = f"of {least:,} or more" if most is None else f"from {least:,} to {most:,}"

    def parse(text: Any) -> int:
        try:
            number = int(text)
            if least <= number <= (number if most is None else most):
                return number
        except ValueError:
            pass
        raise typer.BadParameter(f"{text!r} is no whole number {bounds}.")

    return parse


def option_values(pairs: Sequence[str] | None) -> dict[str, str]:
    """Parse the pairs of `--option` and those of `WAL_SINK_OPTIONS`; return the values by option.

    Of two values of one option that of `--option` counts, then the later one; case does not matter.

    :param pairs: texts of the form NAME=VALUE.
    :raises OptionError: one has another form. Its text is not shown: it may be a secret.
    """
    values = {}
    for where, given in ((OPTIONS_VARIABLE, _of_environment()), ("--option", pairs or ())):
        for pair in given:
            name, equals, value = pair.partition("=")
            if not equals or not name.strip():
                raise OptionError(
                    f"A pair of {where} is not of the form NAME=VALUE.", "Write NAME=VALUE."
                )
            values[name.strip().lower()] = (name.strip(), value)
    return dict(values.values())


def _of_environment() -> list[str]:
    try:
        return shlex.split(os.environ.get(OPTIONS_VARIABLE, ""))
    except ValueError as error:
        raise OptionError(
            f"{OPTIONS_VARIABLE} cannot be split into pairs: {error}.",
            "Quote it as for a shell: NAME=VALUE 'NAME=VALUE WITH SPACES'.",
        ) from error


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
    """Prints texts as they are, without characters that steer a terminal: much was read in a log or a table.

    Brackets are text, no markup.
    """

    def __init__(self, **how: Any) -> None:
        super().__init__(highlight=False, markup=False, **how)

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
def output(*, as_json: bool) -> Iterator[Console]:
    """Give the block a console for what people read; turn an error of the sink into the command's end.

    :param as_json: what people read goes to standard error; a failure is a JSON document on standard output.
    :raises typer.Exit: the block raised a `WalSinkError`; with its exit code, see `wal_sink.errors`.
    """
    console = SafeConsole(stderr=as_json)
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


_GAP = 2
"""Columns between a name and its value."""


_STYLES: dict[Mood, str] = {"plain": "", "good": "green", "waiting": "yellow", "bad": "red"}


class Lines:
    """One block of names and values, the values below each other.

    A line breaks at a space, and a path that is longer than a line behind a slash.
    """

    def __init__(self, lines: Sequence[Line]) -> None:
        self._lines = lines

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render it."""
        indent = max((len(line.name) for line in self._lines), default=0) + _GAP
        width = max(options.max_width - indent, 20)
        for name, value, mood in self._lines:
            text = Text(no_wrap=True, overflow="ignore", end="\n")
            text.append(name.ljust(indent), "bold")
            broken = [part for line in value.splitlines() or [""] for part in fold(line, width)]
            text.append(("\n" + " " * indent).join(broken), _STYLES[mood])
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


_QUIET_S = 2.0
"""Time before a bar appears."""


class LateBar(Progress):
    """Shows one bar, once the work has taken two seconds.

    :param doing: names the work, in front of the bar.
    :param columns: stand behind the bar.
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

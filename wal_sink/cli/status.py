"""`wal-sink status`: how far the flush is, once or as it goes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Annotated

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from wal_sink.admin.query import Query, find_query
from wal_sink.cli.arguments import CheckpointArgument, OptionPairs, TargetName, Wal, option_values
from wal_sink.cli.lines import Lines, Named
from wal_sink.cli.output import AsJson, Failure, document, document_line, output
from wal_sink.errors import WalSinkError
from wal_sink.progress.heartbeat import FlusherWatch
from wal_sink.progress.printable import printable
from wal_sink.progress.status import Status, read_status
from wal_sink.progress.status_value import Mood, status_lines
from wal_sink.wal.attached import view_of

_EVERY_S = 1.0
"""How often `--watch` looks."""

_STYLES: dict[Mood, str] = {"plain": "", "good": "green", "waiting": "yellow", "bad": "red"}


def status(
    checkpoint: CheckpointArgument,
    *,
    watch: Annotated[
        bool, typer.Option("--watch", help="Look again every second, until Ctrl-C.")
    ] = False,
    target: TargetName = "",
    wal: Wal = None,
    option: OptionPairs = None,
    as_json: AsJson = False,
) -> None:
    """Say how far the flush is, what the flusher does, and its last error.

    Reads checkpoint and log only: it works with the target down, and disturbs no other process. With
    --watch and --json, one document a line; with --watch into a file or a pipe, a line at each change.
    """
    with output(as_json=as_json) as console:
        query = find_query(checkpoint, wal, option_values(option))
        query = query._replace(log=view_of(query.log, target))
        if not watch:
            found = _look(query)
            if as_json:
                document(found)
            else:
                console.print(screen(found))
            return
        try:
            if as_json:
                _stream(query)
            elif console.is_terminal:
                _watch(query, console)
            else:
                _print_changes(query, console)
        except KeyboardInterrupt:
            return  # how it ends


def screen(found: Status) -> Lines:
    """Lay a status out for people."""
    return Lines([Named(line.name, line.value, _STYLES[line.mood]) for line in status_lines(found)])


class BacklogBar:
    """Shows how much of the backlog is flushed: of the most rows that have waited since the watch began."""

    def __init__(self) -> None:
        self._most = 0

    def of(self, found: Status) -> RenderableType:
        """Return the bar, full when no row waits; an empty text as long as none has waited."""
        self._most = max(self._most, found.pending_rows)
        if not self._most:
            return ""
        done = self._most - found.pending_rows
        table = Table.grid(padding=(0, 2))
        bar = ProgressBar(self._most, done, width=40)
        table.add_row(
            Text("backlog", "bold"), bar, f"{found.pending_rows:,} of {self._most:,} rows"
        )
        return table


def _look(query: Query, watches: dict[str, FlusherWatch] | None = None) -> Status:
    return read_status(query.checkpoint, query.log, watches)


def _looks(query: Query) -> Iterator[Status | WalSinkError]:
    """Look each second; an error that may pass is yielded, and the next look follows all the same."""
    watches: dict[str, FlusherWatch] = {}
    while True:
        try:
            found: Status | WalSinkError = _look(query, watches)
        except WalSinkError as error:
            if not error.transient:
                raise
            found = error
        yield found
        time.sleep(_EVERY_S)


def _first(looks: Iterator[Status | WalSinkError]) -> Status:
    found = next(looks)
    if isinstance(found, WalSinkError):
        raise found
    return found


def _watch(query: Query, console: Console) -> None:
    """Show the screen until Ctrl-C; a store that does not answer is shown, and asked again."""
    backlog = BacklogBar()

    def shown(found: Status) -> Group:
        return Group(screen(found), backlog.of(found))

    looks = _looks(query)
    with Live(shown(_first(looks)), console=console, auto_refresh=False) as live:
        for found in looks:
            if isinstance(found, WalSinkError):
                live.update(Text(_said(found), "red"), refresh=True)
            else:
                live.update(shown(found), refresh=True)


def _print_changes(query: Query, console: Console) -> None:
    """Print the screen once, then a line at each change, until Ctrl-C: a file or a pipe has no screen."""
    looks = _looks(query)
    first = _first(looks)
    console.print(screen(first))
    said = _said(first)
    for found in looks:
        if (line := _said(found)) != said:
            console.print(Text(printable(" ".join(line.split()))))
            said = line


def _said(found: Status | WalSinkError) -> str:
    return f"{type(found).__name__}: {found}" if isinstance(found, WalSinkError) else found.headline


def _stream(query: Query) -> None:
    """Print a document each second until Ctrl-C; an error that may pass is a document, too."""
    for found in _looks(query):
        if isinstance(found, WalSinkError):
            failure = Failure(error=type(found).__name__, what=found.what, remedy=found.remedy)
            document_line(failure)
        else:
            document_line(found)

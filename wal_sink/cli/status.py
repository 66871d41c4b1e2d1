"""`wal-sink status`: how far the flush is, once or as it goes."""

from __future__ import annotations

import time
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


def _watch(query: Query, console: Console) -> None:
    """Show the screen until Ctrl-C; a store that does not answer is shown, and asked again."""
    watches: dict[str, FlusherWatch] = {}
    backlog = BacklogBar()

    def shown() -> Group:
        found = _look(query, watches)
        return Group(screen(found), backlog.of(found))

    with Live(shown(), console=console, auto_refresh=False) as live:
        while True:
            time.sleep(_EVERY_S)
            try:
                live.update(shown(), refresh=True)
            except WalSinkError as error:
                if not error.transient:
                    raise
                live.update(Text(f"{type(error).__name__}: {error}", "red"), refresh=True)


def _print_changes(query: Query, console: Console) -> None:
    """Print the screen once, then a line at each change, until Ctrl-C: a file or a pipe has no screen."""
    watches: dict[str, FlusherWatch] = {}
    found = _look(query, watches)
    console.print(screen(found))
    said = found.headline
    while True:
        time.sleep(_EVERY_S)
        try:
            line = _look(query, watches).headline
        except WalSinkError as error:
            if not error.transient:
                raise
            line = f"{type(error).__name__}: {error}"
        if line != said:
            console.print(Text(printable(" ".join(line.split()))))
            said = line


def _stream(query: Query) -> None:
    """Print a document each second until Ctrl-C; an error that may pass is a document, too."""
    watches: dict[str, FlusherWatch] = {}
    while True:
        try:
            document_line(_look(query, watches))
        except WalSinkError as error:
            if not error.transient:
                raise
            document_line(Failure(error=type(error).__name__, what=error.what, remedy=error.remedy))
        time.sleep(_EVERY_S)

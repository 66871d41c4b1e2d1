"""The commands that only read: `status`, `show`, `check` and `quarantine`."""

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

from wal_sink.admin.deep import DeepStatus, deep_status
from wal_sink.admin.quarantine import Quarantined, export, list_quarantine
from wal_sink.admin.query import Query
from wal_sink.admin.show import list_epochs, show_epoch
from wal_sink.cli.arguments import (
    CommonArguments,
    SinkOptionPairs,
    command,
    option_values,
    whole_number,
)
from wal_sink.cli.screens import epoch_screen, log_screen
from wal_sink.cli.terminal import Failure, LateBar, Lines, document_line, output
from wal_sink.clock import now_us
from wal_sink.errors import OptionError, WalSinkError
from wal_sink.progress.status import Line, Status, byte_count, read_status, status_lines
from wal_sink.publish.preflight import preflight_options
from wal_sink.text import counted, printable

_EVERY_S = 1.0
"""How often `--watch` reads."""


@command("yes")
def status(
    arguments: CommonArguments,
    *,
    watch: Annotated[
        bool, typer.Option("--watch", help="Read again every second, until Ctrl-C.")
    ] = False,
    deep: Annotated[
        bool,
        typer.Option("--deep", help="Read all that is pending, and ask the target: what stops it?"),
    ] = False,
    offline: Annotated[
        bool, typer.Option("--offline", help="With --deep: do not ask the target.")
    ] = False,
) -> None:
    """Show how far the flush is, what the flusher does, and its last error.

    The command reads checkpoint and log only. So it works while the target is down, and disturbs no
    other process. With --watch and --json it prints one document a line. With --watch into a file
    or a pipe it prints a line at each change.

    With --deep it reads every pending manifest and segment, the ledger row and the table, and lists
    what would stop the flush. The exit code is that of the first finding, or 0.
    """
    with output(as_json=arguments.as_json) as console:
        if (watch and deep) or (offline and not deep):
            raise OptionError(
                "--deep does not go with --watch, and --offline goes with --deep.",
                "Leave one of them out.",
            )
        query = arguments.find()
        if deep:
            with LateBar("reading segments", as_json=arguments.as_json) as bar:
                size = max(1, read_status(query.checkpoint, query.store).pending_bytes)
                inspected = deep_status(
                    query,
                    arguments.target,
                    offline=offline,
                    progress=lambda done: bar.update(done, max(done, size)),
                )
            console.show(inspected, status_screen(inspected), _findings(inspected))
            if inspected.findings:
                raise typer.Exit(inspected.findings[0].exit_code)
            return
        if not watch:
            shown = read_status(query.checkpoint, query.store, arguments.target)
            console.show(shown, status_screen(shown))
            return
        try:
            if arguments.as_json:
                _stream(query, arguments.target)
            elif console.is_terminal:
                _watch(query, arguments.target, console)
            else:
                _print_changes(query, arguments.target, console)
        except KeyboardInterrupt:
            return  # how it ends


def _findings(status: DeepStatus) -> Lines:
    """Lay out what would stop the flush."""
    lines = [
        Line("read", f"{counted(status.read_epochs, 'epoch')}, {byte_count(status.read_bytes)}")
    ]
    lines += [
        Line(f"ledger of {name}", "no row" if epoch is None else f"epoch {epoch}")
        for name, epoch in status.ledger.items()
    ]
    lines += [Line("note", printable(note)) for note in status.notes]
    for finding in status.findings:
        where = "" if finding.epoch is None else f" at epoch {finding.epoch}"
        scope = f" of target {finding.target}" if finding.target else ""
        lines += [
            Line("finding", printable(f"{finding.kind}{where}{scope}: {finding.what}"), "bad"),
            Line("what to do", printable(finding.remedy)),
        ]
    if not status.findings:
        lines.append(Line("finding", "none: nothing would stop the flush", "good"))
    return Lines(lines)


def status_screen(status: Status) -> Lines:
    """Lay a status out for people."""
    return Lines(status_lines(status))


class BacklogBar:
    """Shows how much of the backlog is flushed: of the most rows that have waited since the watch began."""

    def __init__(self) -> None:
        self._most = 0

    def of(self, status: Status) -> RenderableType:
        """Return the bar, full when no row waits; an empty text as long as none has waited."""
        self._most = max(self._most, status.pending_rows)
        if not self._most:
            return ""
        done = self._most - status.pending_rows
        table = Table.grid(padding=(0, 2))
        bar = ProgressBar(self._most, done, width=40)
        table.add_row(
            Text("backlog", "bold"), bar, f"{status.pending_rows:,} of {self._most:,} rows"
        )
        return table


def _each_second(query: Query, target: str) -> Iterator[Status | WalSinkError]:
    """Read each second; an error that may pass is yielded, and the next status follows all the same."""
    while True:
        try:
            reading: Status | WalSinkError = read_status(query.checkpoint, query.store, target)
        except WalSinkError as error:
            if not error.transient:
                raise
            reading = error
        yield reading
        time.sleep(_EVERY_S)


def _first(statuses: Iterator[Status | WalSinkError]) -> Status:
    first = next(statuses)
    if isinstance(first, WalSinkError):
        raise first
    return first


def _watch(query: Query, target: str, console: Console) -> None:
    """Show the screen until Ctrl-C; a store that does not answer is shown, and asked again."""
    backlog = BacklogBar()

    def shown(status: Status) -> Group:
        return Group(status_screen(status), backlog.of(status))

    statuses = _each_second(query, target)
    with Live(shown(_first(statuses)), console=console, auto_refresh=False) as live:
        for reading in statuses:
            if isinstance(reading, WalSinkError):
                live.update(Text(_said(reading), "red"), refresh=True)
            else:
                live.update(shown(reading), refresh=True)


def _print_changes(query: Query, target: str, console: Console) -> None:
    """Print the screen once, then a line at each change, until Ctrl-C: a file or a pipe has no screen."""
    statuses = _each_second(query, target)
    first = _first(statuses)
    console.print(status_screen(first))
    last_line = _said(first)
    for reading in statuses:
        if (line := _said(reading)) != last_line:
            console.print(Text(printable(" ".join(line.split()))))
            last_line = line


def _said(reading: Status | WalSinkError) -> str:
    return (
        f"{type(reading).__name__}: {reading}"
        if isinstance(reading, WalSinkError)
        else reading.headline
    )


def _stream(query: Query, target: str) -> None:
    """Print a document each second until Ctrl-C; an error that may pass is a document, too."""
    for reading in _each_second(query, target):
        if isinstance(reading, WalSinkError):
            failure = Failure(
                error=type(reading).__name__, what=reading.what, remedy=reading.remedy
            )
            document_line(failure)
        else:
            document_line(reading)


@command("yes")
def show(
    arguments: CommonArguments,
    epoch: Annotated[
        int | None,
        typer.Argument(metavar="EPOCH", parser=whole_number(0), help="Show this micro-batch."),
    ] = None,
    *,
    rows: Annotated[
        int,
        typer.Option(
            "--rows",
            metavar="N",
            parser=whole_number(0, 1_000),
            help="Rows to show of an epoch, 1,000 at most.",
        ),
    ] = 5,
    most: Annotated[
        int,
        typer.Option("--most", metavar="N", parser=whole_number(1), help="Epochs to list."),
    ] = 40,
) -> None:
    """List the epochs in the log; or show one, with its segments, schema, offsets and some rows.

    The command changes nothing, and asks no target; the query may run. The rows come from the log:
    once an epoch is flushed, they are in the table, and later the log deletes them.
    """
    with output(as_json=arguments.as_json) as console:
        query = arguments.find()
        if epoch is None:
            listed = list_epochs(query, arguments.target, most)
            console.show(listed, log_screen(listed, now_us()))
            return
        shown = show_epoch(query, epoch, arguments.target, rows)
        console.show(shown, epoch_screen(shown))


@command("target", "wal", "option", "yes")
def check(arguments: CommonArguments, *, option: SinkOptionPairs = None) -> None:
    """Check the options of a query before it starts, and say what they mean.

    Give each option of `writeStream` by --option. The command connects nowhere and creates nothing.
    `wal_sink.check(df, **options)` in Python also compares the columns with the table. For example:

    wal-sink check CHECKPOINT --option target=delta --option delta.path=/data/orders
    """
    with output(as_json=arguments.as_json) as console:
        raw = {"checkpointLocation": arguments.checkpoint, **option_values(option)}
        checked = preflight_options(raw)
        console.show(
            checked, Lines([Line(heading, text) for heading, text in checked.in_force.items()])
        )


@command("target", "yes")
def quarantine(
    arguments: CommonArguments,
    *,
    file: Annotated[
        str,
        typer.Option(
            "--export",
            metavar="FILE",
            help="Write the rows to a file that is not there yet: .parquet, or .jsonl.",
        ),
    ] = "",
) -> None:
    """List the rows that were refused and onInvalidRow=quarantine kept, by their reasons.

    The command reads the log alone. --export writes the rows to a file, with epoch and reason.
    Nothing sends them again: repair them, and write them by a query of your own.
    """
    with output(as_json=arguments.as_json) as console:
        query = arguments.find()
        if file:
            written = export(query, file)
            summary = f"{counted(written.rows, 'row is', 'rows are')} in {written.file}."
            console.show(written, summary)
            return
        quarantined = list_quarantine(query)
        console.show(quarantined, *_quarantined(quarantined))


def _quarantined(quarantined: Quarantined) -> Iterator[RenderableType]:
    rows = counted(quarantined.rows, "row is", "rows are") if quarantined.rows else "No rows are"
    yield f"{rows} in quarantine."
    if not quarantined.rows:
        return
    table = Table()
    for name in ("epoch", "rows"):
        table.add_column(name, justify="right")
    for name in ("column", "reason", "what to do"):
        table.add_column(name, overflow="fold")
    for group in quarantined.groups:
        texts = (group.column, group.reason, group.remedy)
        table.add_row(str(group.epoch), f"{group.rows:,}", *(Text(printable(t)) for t in texts))
    yield table

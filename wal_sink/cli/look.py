"""The commands that only read: `status`, `inspect`, `check`, `verify` and `quarantine`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from typing import Annotated

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import DownloadColumn, TimeRemainingColumn
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from wal_sink.admin import inspect as listing
from wal_sink.admin.inspect import inspect_epoch
from wal_sink.admin.quarantine import Quarantined, export, list_quarantine
from wal_sink.admin.query import Query, is_unused, target_of
from wal_sink.admin.verify import Verified
from wal_sink.admin.verify import verify as look
from wal_sink.cli.arguments import Given, SinkOptionPairs, command, option_values, whole_number
from wal_sink.cli.screens import epoch_screen, log_screen
from wal_sink.cli.terminal import (
    Failure,
    LateBar,
    Lines,
    document_line,
    output,
    reddened,
)
from wal_sink.clock import now_us
from wal_sink.errors import WalSinkError
from wal_sink.progress.heartbeat import FlusherWatch
from wal_sink.progress.status import Line, Status, byte_count, epoch_id, read_status, status_lines
from wal_sink.publish.preflight import preflight_options
from wal_sink.text import counted, printable
from wal_sink.wal.targets import slowest_view, view_of

_EVERY_S = 1.0
"""How often `--watch` looks."""


@command("why", "yes")
def status(
    given: Given,
    *,
    watch: Annotated[
        bool, typer.Option("--watch", help="Look again every second, until Ctrl-C.")
    ] = False,
) -> None:
    """Show how far the flush is, what the flusher does, and its last error.

    The command reads checkpoint and log only. So it works while the target is down, and disturbs no
    other process. With --watch and --json it prints one document a line. With --watch into a file
    or a pipe it prints a line at each change.
    """
    with output(as_json=given.as_json) as console:
        query = given.find()
        query = query._replace(log=view_of(query.log, given.target))
        if not watch:
            found = _look(query)
            console.show(found, status_screen(found))
            return
        try:
            if given.as_json:
                _stream(query)
            elif console.is_terminal:
                _watch(query, console)
            else:
                _print_changes(query, console)
        except KeyboardInterrupt:
            return  # how it ends


def status_screen(found: Status) -> Lines:
    """Lay a status out for people."""
    return Lines(status_lines(found))


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
        return Group(status_screen(found), backlog.of(found))

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
    console.print(status_screen(first))
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


@command("why", "yes")
def inspect(
    given: Given,
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
        typer.Option(
            "--most",
            metavar="N",
            parser=whole_number(1),
            help="Epochs to list: the newest flushed, and the oldest others.",
        ),
    ] = 20,
    ask_ledger: Annotated[
        bool, typer.Option("--ledger", help="Ask the target which epochs are begun.")
    ] = False,
) -> None:
    """List the epochs in the log; or show one, with its segments, schema, offsets and some rows.

    The command changes nothing; the query may run. Without --ledger it does not ask the target, and
    lists a begun epoch as waiting. The rows come from the log: once an epoch is flushed, they are
    in the table.
    """
    with output(as_json=given.as_json) as console:
        query = given.find()
        view = view_of(query.log, given.target) if given.target else slowest_view(query.log)
        query = query._replace(log=view)
        begun = None
        if ask_ledger:
            begun = listing.begun_window(query, target_of(query, given.options))
        if epoch is None:
            found = listing.inspect(query, begun, most, asked=ask_ledger)
            console.show(found, log_screen(found, now_us()))
            return
        with _segment_bar(given) as bar:
            shown = inspect_epoch(query, epoch, begun, rows, bar.update)
        console.show(shown, epoch_screen(shown))


def _segment_bar(given: Given) -> LateBar:
    columns = (DownloadColumn(), TimeRemainingColumn())
    return LateBar("reading segments", *columns, as_json=given.as_json)


@command("target", "why", "wal", "option", "yes")
def check(given: Given, *, option: SinkOptionPairs = None) -> None:
    """Check the options of a query before it starts, and say what they mean.

    Give each option of `writeStream` by --option. The command connects nowhere and creates nothing.
    `wal_sink.check(df, **options)` in Python also compares the columns with the table. For example:

    wal-sink check CHECKPOINT --option target=delta --option delta.path=/data/orders
    """
    with output(as_json=given.as_json) as console:
        raw = {"checkpointLocation": given.checkpoint, **option_values(option)}
        found = preflight_options(raw)
        console.show(
            found, Lines([Line(heading, text) for heading, text in found.in_force.items()])
        )


@command("why", "yes")
def verify(
    given: Given,
    *,
    offline: Annotated[bool, typer.Option("--offline", help="Do not ask the target.")] = False,
) -> None:
    """Look for everything at which the flush would stop. Changes nothing; the query may run.

    The command reads the checkpoint, the ledger, and every manifest and segment that is not
    flushed. The exit code is that of the first finding, or 0. A checkpoint that was set back is
    reported, and is no finding.
    """
    with output(as_json=given.as_json) as console:
        query, options = given.find(), given.options
        offline = offline or is_unused(query, options)
        with _segment_bar(given) as bar:
            each = [
                look(
                    one, None if offline else partial(target_of, one, options), now_us(), bar.update
                )
                for one in query.each(given.target)
            ]
        console.show_each(each, _print, several=bool(query.log.targets) and not given.target)
        codes = [finding.exit_code for found in each for finding in found.findings]
        if codes:
            raise typer.Exit(codes[0])


def _print(console: Console, found: Verified) -> None:
    if found.target:
        console.print(f"Target {found.target}:")
    for finding in found.findings:
        where = "" if finding.epoch is None else f" at epoch {finding.epoch}"
        console.print(reddened(finding.kind, f"{where}: {finding.what}"), soft_wrap=True)
        if finding.file:
            console.print(f"  File: {finding.file}", soft_wrap=True)
        console.print(f"  What to do: {finding.remedy}", soft_wrap=True)
    for note in found.notes:
        console.print(f"Note: {note}", soft_wrap=True)
    ledger = "not read" if found.ledger is None else epoch_id(found.ledger)
    early = ""
    if found.published > max(found.checkpointed, found.flushed):
        early = f" (epoch {found.published} is published, and not checkpointed yet)"
    console.print(
        f"Checkpointed: {epoch_id(found.checkpointed)}. Published: {epoch_id(found.published)}. Flushed:"
        f" {epoch_id(found.flushed)} (ledger: {ledger}). {counted(found.epochs, 'epoch')} not flushed{early},"
        f" in {counted(found.segments, 'segment')} of {byte_count(found.bytes)}.",
    )
    if found.findings:
        return
    if found.set_back:
        said = (
            "Nothing is damaged, but the checkpoint was set back: nothing is flushed until the query has"
            " caught up."
        )
    elif found.flusher_error:
        said = (
            f"Nothing is wrong that shows before rows are written. The flusher's {found.flusher_error} is"
            " repaired, or shows only then: see what wal-sink status says."
        )
    else:
        said = "Nothing is wrong."
    console.print(said, soft_wrap=True)


@command("why", "yes")
def quarantine(
    given: Given,
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
    with output(as_json=given.as_json) as console:
        query = given.find()
        each = query.each(given.target, detached=True)
        if file:
            written = export(each, file)
            said = f"{counted(written.rows, 'row is', 'rows are')} in {written.file}."
            console.show(written, said)
            return
        listed = [list_quarantine(one) for one in each]
        console.show_each(listed, _quarantined, several=query.log.several and not given.target)


def _quarantined(console: Console, quarantined: Quarantined) -> None:
    of = f" of target {quarantined.target}" if quarantined.target else ""
    rows = counted(quarantined.rows, "row") if quarantined.rows else "No rows"
    console.print(f"{rows}{of} {'is' if quarantined.rows == 1 else 'are'} in quarantine.")
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
    console.print(table)

"""The commands that only read: `status`, `show`, `check` and `quarantine`."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from wal_sink.admin.deep import DeepStatus, deep_status
from wal_sink.admin.quarantine import Quarantined, export, list_quarantine
from wal_sink.admin.query import Query, find_query
from wal_sink.admin.show import show_epochs
from wal_sink.cli.arguments import (
    AsJson,
    CheckpointPlace,
    Pairs,
    SinkPairs,
    TargetName,
    Wal,
    option_values,
    refuse,
)
from wal_sink.cli.screens import log_screen
from wal_sink.cli.terminal import SafeConsole, bar, document, facts, failure, output, reddened
from wal_sink.clock import now_us
from wal_sink.errors import WalSinkError
from wal_sink.progress.status import Line, Status, byte_count, read_status, status_lines
from wal_sink.publish.preflight import preflight_options
from wal_sink.text import counted, printable

_EVERY_S = 1.0
"""How often `--watch` reads."""


def status(
    checkpoint: CheckpointPlace,
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
    target: TargetName = "",
    wal: Wal = None,
    option: Pairs = None,
    as_json: AsJson = False,
) -> None:
    """Show how far the flush is, what the flusher does, and its last error.

    The command reads checkpoint and log only. So it works while the target is down, and disturbs no
    other process. With --watch and --json it prints one document a line. With --watch into a file
    or a pipe it prints a line at each change.

    With --deep it reads every pending manifest and segment, the ledger row and the table, and lists
    what would stop the flush. The exit code is that of the first finding, or 0.
    """
    with output(as_json=as_json) as console:
        refuse(
            (deep and watch, "--deep does not go with --watch.", "Leave one of them out."),
            (offline and not deep, "--offline goes with --deep.", "Add --deep."),
        )
        query = find_query(checkpoint, wal, option_values(option))
        if deep:
            size = max(1, read_status(query.checkpoint, query.store).pending_bytes)
            with bar("reading segments", as_json=as_json) as progress:
                inspected = deep_status(
                    query, target, offline=offline, progress=lambda done: progress(done, size)
                )
            console.show(inspected, facts(*status_lines(inspected), *_findings(inspected)))
            if inspected.findings:
                raise typer.Exit(inspected.findings[0].exit_code)
        elif watch:
            _watch(query, target, console)
        else:
            shown = read_status(query.checkpoint, query.store, target)
            console.show(shown, facts(*status_lines(shown)))


def _findings(status: DeepStatus) -> Iterator[Line]:
    """Yield what would stop the flush."""
    yield Line("read", f"{counted(status.read_epochs, 'epoch')}, {byte_count(status.read_bytes)}")
    for name, epoch in status.ledger.items():
        yield Line(f"ledger of {name}", "no row" if epoch is None else f"epoch {epoch}")
    for note in status.notes:
        yield Line("note", note)
    for finding in status.findings:
        where = "" if finding.epoch is None else f" at epoch {finding.epoch}"
        scope = f" of target {finding.target}" if finding.target else ""
        yield Line("finding", f"{finding.kind}{where}{scope}: {finding.what}", "bad")
        yield Line("what to do", finding.remedy)
    if not status.findings:
        yield Line("finding", "none: nothing would stop the flush", "good")


def _watch(query: Query, target: str, console: SafeConsole) -> None:
    """Show the status each second until Ctrl-C.

    A program gets a document a line; a terminal the screen, with a bar of the backlog; a file or a pipe the
    screen once, then a line at each change.
    """
    readings = _each_second(query, target)
    with contextlib.suppress(KeyboardInterrupt):
        if console.as_json:
            for reading in readings:
                document(failure(reading) if isinstance(reading, WalSinkError) else reading, -1)
        if console.is_terminal:
            most = 0
            with Live(console=console, auto_refresh=False) as live:
                for reading in readings:
                    if isinstance(reading, WalSinkError):
                        live.update(reddened(_headline(reading)), refresh=True)
                        continue
                    most = max(most, reading.pending_rows)
                    backlog = ProgressBar(
                        max(most, 1), most - reading.pending_rows or int(not most), 40
                    )
                    live.update(Group(facts(*status_lines(reading)), backlog), refresh=True)
        headline = ""
        for reading in readings:
            if not headline and isinstance(reading, Status):
                console.print(facts(*status_lines(reading)))
            elif _headline(reading) != headline:
                console.say(_headline(reading))
            headline = _headline(reading)


def _each_second(query: Query, target: str) -> Iterator[Status | WalSinkError]:
    """Read the status each second; an error that may pass is yielded, unless it is the first reading."""
    reading: Status | WalSinkError = read_status(query.checkpoint, query.store, target)
    while True:
        yield reading
        time.sleep(_EVERY_S)
        try:
            reading = read_status(query.checkpoint, query.store, target)
        except WalSinkError as error:
            if not error.transient:
                raise
            reading = error


def _headline(reading: Status | WalSinkError) -> str:
    if isinstance(reading, WalSinkError):
        return f"{type(reading).__name__}: {reading.one_line}"
    return reading.headline


def show(
    checkpoint: CheckpointPlace,
    epoch: Annotated[
        int | None, typer.Argument(metavar="EPOCH", min=0, help="Show this micro-batch.")
    ] = None,
    *,
    rows: Annotated[
        int,
        typer.Option(
            metavar="N", min=0, max=1_000, help="Rows to show of an epoch, 1,000 at most."
        ),
    ] = 5,
    most: Annotated[int, typer.Option(metavar="N", min=1, help="Epochs to list.")] = 40,
    target: TargetName = "",
    wal: Wal = None,
    option: Pairs = None,
    as_json: AsJson = False,
) -> None:
    """List the epochs in the log; or show one, with its segments, schema, offsets and some rows.

    The command changes nothing, and asks no target; the query may run. The rows come from the log:
    once an epoch is flushed, they are in the table, and later the log deletes them.
    """
    with output(as_json=as_json) as console:
        query = find_query(checkpoint, wal, option_values(option))
        shown = show_epochs(query, target, epoch, most=most, rows=rows)
        console.show(shown, log_screen(shown, now_us()))


def check(
    checkpoint: CheckpointPlace, *, option: SinkPairs = None, as_json: AsJson = False
) -> None:
    """Check the options of a query before it starts, and say what they mean.

    Give each option of `writeStream` by --option. The command connects nowhere and creates nothing.
    `wal_sink.check(df, **options)` in Python also compares the columns with the table. For example:

    wal-sink check CHECKPOINT --option target=delta --option delta.path=/data/orders
    """
    with output(as_json=as_json) as console:
        checked = preflight_options({"checkpointLocation": checkpoint, **option_values(option)})
        console.show(checked, facts(*checked.in_force.items()))


def quarantine(
    checkpoint: CheckpointPlace,
    *,
    file: Annotated[
        str,
        typer.Option(
            "--export",
            metavar="FILE",
            help="Write the rows to a file that is not there yet: .parquet, or .jsonl.",
        ),
    ] = "",
    wal: Wal = None,
    option: Pairs = None,
    as_json: AsJson = False,
) -> None:
    """List the rows that were refused and onInvalidRow=quarantine kept, by their reasons.

    The command reads the log alone. --export writes the rows to a file, with epoch and reason.
    Nothing sends them again: repair them, and write them by a query of your own.
    """
    with output(as_json=as_json) as console:
        query = find_query(checkpoint, wal, option_values(option))
        if file:
            written = export(query, file)
            rows = counted(written.rows, "row is", "rows are")
            console.show(written, f"{rows} in {written.file}.")
        else:
            quarantined = list_quarantine(query)
            console.show(quarantined, *_quarantined(quarantined))


def _quarantined(quarantined: Quarantined) -> Iterator[RenderableType]:
    if not quarantined.rows:
        yield "No rows are in quarantine."
        return
    yield f"{counted(quarantined.rows, 'row is', 'rows are')} in quarantine."
    table = Table()
    for name in ("epoch", "rows"):
        table.add_column(name, justify="right")
    for name in ("column", "reason", "what to do"):
        table.add_column(name, overflow="fold")
    for group in quarantined.groups:
        texts = (group.column, group.reason, group.remedy)
        table.add_row(str(group.epoch), f"{group.rows:,}", *(Text(printable(t)) for t in texts))
    yield table

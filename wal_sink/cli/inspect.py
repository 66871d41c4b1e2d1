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

from wal_sink.admin.deep_status import DeepStatus, deep_status
from wal_sink.admin.quarantine import QuarantineList, export, list_quarantine
from wal_sink.admin.query import Query, find_query
from wal_sink.admin.show import show_epochs
from wal_sink.cli.arguments import (
    AsJson,
    CheckpointPlace,
    OptionPairs,
    SinkOptionPairs,
    TargetName,
    WalUrl,
    option_values,
    refuse_combinations,
)
from wal_sink.cli.screens import log_screen
from wal_sink.cli.terminal import (
    SafeConsole,
    fact_table,
    failure,
    in_red,
    output,
    print_document,
    progress_bar,
)
from wal_sink.errors import WalSinkError, printable
from wal_sink.progress.status import Line, Status, byte_count, read_status, status_lines
from wal_sink.publish.preflight import preflight_options
from wal_sink.units import counted, now_us

_WATCH_S = 1.0
"""Seconds between two reads of `--watch`."""


def status(
    checkpoint: CheckpointPlace,
    *,
    watch: Annotated[
        bool, typer.Option("--watch", help="Refresh the status every second, until Ctrl-C.")
    ] = False,
    deep: Annotated[
        bool,
        typer.Option(
            "--deep", help="Read all pending epochs and the target, to find what stops the flush."
        ),
    ] = False,
    offline: Annotated[
        bool, typer.Option("--offline", help="With --deep: do not connect to the target.")
    ] = False,
    target: TargetName = "",
    wal: WalUrl = None,
    option: OptionPairs = None,
    as_json: AsJson = False,
) -> None:
    """Show how far the flush is, what the flusher does, and its last error.

    The command reads only checkpoint and log. So it works while the target is down, and disturbs no
    other process. With --watch and --json it prints a document in a line every second. With --watch
    into a file or a pipe it prints a line at each change.

    With --deep it also reads every pending manifest and segment, the ledger row and the table. It
    lists the errors at which the flush would stop. The exit code is that of the first error, or 0.
    """
    with output(as_json=as_json) as console:
        refuse_combinations(
            (deep and watch, "--deep does not go with --watch.", "Leave one of them out."),
            (offline and not deep, "--offline goes with --deep.", "Add --deep."),
        )
        query = find_query(checkpoint, wal, option_values(option))
        if deep:
            size = max(1, read_status(query.checkpoint, query.store).pending_bytes)
            with progress_bar("reading segments", as_json=as_json) as progress:
                inspected = deep_status(
                    query, target, offline=offline, progress=lambda done: progress(done, size)
                )
            console.show(inspected, fact_table(*status_lines(inspected), *_findings(inspected)))
            if inspected.findings:
                raise typer.Exit(inspected.findings[0].exit_code)
        elif watch:
            _watch(query, target, console)
        else:
            reading = read_status(query.checkpoint, query.store, target)
            console.show(reading, fact_table(*status_lines(reading)))


def _findings(status: DeepStatus) -> Iterator[Line]:
    """Yield the lines of `--deep` after those of the status."""
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


Reading = Status | WalSinkError
"""The status of a query, or the transient error at which it could not be read."""


def _watch(query: Query, target: str, console: SafeConsole) -> None:
    """Show the status every second until Ctrl-C."""
    readings = _readings(query, target)
    with contextlib.suppress(KeyboardInterrupt):
        if console.as_json:
            for reading in readings:
                print_document(
                    failure(reading) if isinstance(reading, WalSinkError) else reading, -1
                )
        elif console.is_terminal:
            _show_live(readings, console)
        else:
            _print_changes(readings, console)


def _show_live(readings: Iterator[Reading], console: SafeConsole) -> None:
    """Show the newest status on a terminal, with a bar that fills as the backlog shrinks."""
    most = 0
    with Live(console=console, auto_refresh=False) as live:
        for reading in readings:
            if isinstance(reading, WalSinkError):
                live.update(in_red(_headline(reading)), refresh=True)
                continue
            most = max(most, reading.pending_rows)
            backlog = ProgressBar(max(most, 1), most - reading.pending_rows or int(not most), 40)
            live.update(Group(fact_table(*status_lines(reading)), backlog), refresh=True)


def _print_changes(readings: Iterator[Reading], console: SafeConsole) -> None:
    """Print the first status as a whole, then a line at each change."""
    headline = ""
    for reading in readings:
        if not headline and isinstance(reading, Status):
            console.print(fact_table(*status_lines(reading)))
        elif _headline(reading) != headline:
            console.print_line(_headline(reading))
        headline = _headline(reading)


def _readings(query: Query, target: str) -> Iterator[Reading]:
    """Read the status every second. The first read raises every error, later reads yield transient ones."""
    reading: Reading = read_status(query.checkpoint, query.store, target)
    while True:
        yield reading
        time.sleep(_WATCH_S)
        try:
            reading = read_status(query.checkpoint, query.store, target)
        except WalSinkError as error:
            if not error.transient:
                raise
            reading = error


def _headline(reading: Reading) -> str:
    if isinstance(reading, WalSinkError):
        return f"{type(reading).__name__}: {reading.one_line}"
    return reading.headline


def show(
    checkpoint: CheckpointPlace,
    epoch: Annotated[
        int | None, typer.Argument(metavar="EPOCH", min=0, help="The only epoch to show.")
    ] = None,
    *,
    rows: Annotated[
        int,
        typer.Option(
            metavar="N", min=0, max=1_000, help="With EPOCH: how many rows to show, 1,000 at most."
        ),
    ] = 5,
    most: Annotated[
        int, typer.Option(metavar="N", min=1, help="How many epochs to list at most.")
    ] = 40,
    target: TargetName = "",
    wal: WalUrl = None,
    option: OptionPairs = None,
    as_json: AsJson = False,
) -> None:
    """List the epochs in the log, or show one epoch with its segments, schema, offsets and some rows.

    The command changes nothing and connects to no target, and the query may run. It reads the rows in
    the log. Some time after the flush of an epoch, the log deletes its rows.
    """
    with output(as_json=as_json) as console:
        query = find_query(checkpoint, wal, option_values(option))
        shown = show_epochs(query, target, epoch, most=most, rows=rows)
        console.show(shown, log_screen(shown, now_us()))


def check(
    checkpoint: CheckpointPlace, *, option: SinkOptionPairs = None, as_json: AsJson = False
) -> None:
    """Check the options of a query before it starts, and show their effect.

    Give each option of `writeStream` by --option. The command connects to no target and creates
    nothing. In Python, `wal_sink.check(df, **options)` also compares the columns with the table. For
    example:

    wal-sink check CHECKPOINT --option target=delta --option delta.path=/data/orders
    """
    with output(as_json=as_json) as console:
        checked = preflight_options({"checkpointLocation": checkpoint, **option_values(option)})
        console.show(checked, fact_table(*checked.in_force.items()))


def quarantine(
    checkpoint: CheckpointPlace,
    *,
    file: Annotated[
        str,
        typer.Option(
            "--export",
            metavar="FILE",
            help="Write the rows to this new file, whose name ends with .parquet or .jsonl.",
        ),
    ] = "",
    wal: WalUrl = None,
    option: OptionPairs = None,
    as_json: AsJson = False,
) -> None:
    """List the refused rows that onInvalidRow=quarantine keeps in the log, by epoch and reason.

    The command reads only the log. --export also writes the rows to a file, with epoch and reason.
    wal_sink does not write them again: repair the rows, and write them by another query.
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


def _quarantined(quarantined: QuarantineList) -> Iterator[RenderableType]:
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

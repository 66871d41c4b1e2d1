"""`wal-sink inspect`: what is in the log."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.progress import DownloadColumn, TimeRemainingColumn

from wal_sink.admin import inspect as listing
from wal_sink.admin.inspect_epoch import inspect_epoch
from wal_sink.admin.query import find_query, target_of
from wal_sink.cli.arguments import CheckpointArgument, OptionPairs, TargetName, Wal, option_values
from wal_sink.cli.inspect_screen import epoch_screen, log_screen
from wal_sink.cli.output import AsJson, document, output
from wal_sink.cli.progress_bar import LateBar
from wal_sink.clock import now_us
from wal_sink.wal.attached import slowest_view, view_of


def inspect(
    checkpoint: CheckpointArgument,
    epoch: Annotated[
        int | None, typer.Argument(metavar="EPOCH", min=0, help="Show this micro-batch.")
    ] = None,
    *,
    rows: Annotated[
        int, typer.Option("--rows", min=0, max=1_000, help="Rows to show of an epoch.")
    ] = 5,
    most: Annotated[
        int,
        typer.Option(
            "--most", min=1, help="Epochs to list: the newest flushed, and the oldest others."
        ),
    ] = 20,
    ask_ledger: Annotated[
        bool, typer.Option("--ledger", help="Ask the target which epochs are begun.")
    ] = False,
    target: TargetName = "",
    wal: Wal = None,
    option: OptionPairs = None,
    as_json: AsJson = False,
) -> None:
    """List the epochs in the log; or show one, with its segments, schema, source offsets and some rows.

    Changes nothing; the query may run. Without --ledger the target is not asked, and what is begun is
    listed as waiting. Rows are those of the log: once an epoch is flushed, they are in the table.
    """
    with output(as_json=as_json) as console:
        given = option_values(option)
        query = find_query(checkpoint, wal, given)
        view = view_of(query.log, target) if target else slowest_view(query.log)
        query = query._replace(log=view)
        begun = listing.begun_window(query, target_of(query, given)) if ask_ledger else None
        if epoch is None:
            found = listing.inspect(query, begun, most, asked=ask_ledger)
            if as_json:
                document(found)
            else:
                console.print(log_screen(found, now_us()))
            return
        bar = LateBar("reading segments", DownloadColumn(), TimeRemainingColumn(), as_json=as_json)
        with bar:
            shown = inspect_epoch(query, epoch, begun, rows, bar.update)
        if as_json:
            document(shown)
        else:
            console.print(epoch_screen(shown))

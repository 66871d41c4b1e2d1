"""`wal-sink trim`: delete what is flushed and still in the log."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.progress import MofNCompleteColumn
from rich.table import Table

from wal_sink.admin import trim as verb
from wal_sink.admin.query import find_query, sink_options, target_of
from wal_sink.cli.arguments import CheckpointArgument, OptionPairs, Wal, Yes, option_values
from wal_sink.cli.bar import LateBar
from wal_sink.cli.change import _confirm as confirm
from wal_sink.cli.output import AsJson, document, output
from wal_sink.cli.quantities import byte_count


def trim(
    checkpoint: CheckpointArgument,
    *,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List what would go, and ask no target.")
    ] = False,
    wal: Wal = None,
    option: OptionPairs = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Delete what is flushed and still in the log.

    A flusher does that by itself, after each flush and when it starts; this is for a query that has
    none. The ledger is asked first whether it agrees. What is not flushed stays, and so does what was
    flushed less than the query's trim.delay ago: --option trim.delay=0 deletes that, too.
    """
    with output(as_json=as_json) as console:
        given = option_values(option)
        query = find_query(checkpoint, wal, given)
        with LateBar("looking at sizes", MofNCompleteColumn(), as_json=as_json) as bar:
            delay_s = sink_options(query, given).trim_delay
            planned = verb.plan_trim(query, delay_s, bar.update)
        if dry_run:
            done = planned.outcome(None)
        else:
            target = target_of(query, given)
            confirm(planned.consequences, yes=yes)
            done = verb.trim(planned, target)
        if as_json:
            document(done)
        else:
            _print(console, done)


def _print(console: Console, done: verb.Trimmed) -> None:
    if not done.files:
        console.print("Nothing that is flushed is left in the log.")
    elif done.dry_run:
        table = Table("object", "bytes")
        table.columns[0].overflow = "fold"
        table.columns[1].justify = "right"
        for file in done.files:
            table.add_row(file.path, f"{file.bytes:,}")
        console.print(table)
        console.print(f"{len(done.files):,} objects of {byte_count(done.bytes)} would go.")
    else:
        console.print(f"{len(done.files):,} objects of {byte_count(done.bytes)} are deleted.")
    if done.half_written:
        console.print(
            f"{done.half_written:,} files that writers had left half written are deleted."
        )

"""`wal-sink verify`: name what would stop the flush, before it does."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import DownloadColumn, TimeRemainingColumn

from wal_sink.admin.findings import Verified
from wal_sink.admin.query import find_query, target_of
from wal_sink.admin.verify import verify as look
from wal_sink.cli.arguments import CheckpointArgument, OptionPairs, TargetName, Wal, option_values
from wal_sink.cli.output import AsJson, documents, output
from wal_sink.cli.progress_bar import LateBar
from wal_sink.clock import now_us
from wal_sink.counted import counted
from wal_sink.progress.quantities import byte_count, epoch_id


def verify(
    checkpoint: CheckpointArgument,
    *,
    target: TargetName = "",
    wal: Wal = None,
    option: OptionPairs = None,
    offline: Annotated[bool, typer.Option("--offline", help="Do not ask the target.")] = False,
    as_json: AsJson = False,
) -> None:
    """Look for everything at which the flush would stop. Changes nothing; the query may run.

    Reads the checkpoint, every manifest and segment that is not flushed yet, and the ledger. The exit
    code is that of the first finding, 0 for none. A checkpoint that was set back is said, and no finding.
    """
    with output(as_json=as_json) as console:
        given = option_values(option)
        query = find_query(checkpoint, wal, given)
        bar = LateBar("reading segments", DownloadColumn(), TimeRemainingColumn(), as_json=as_json)
        with bar:
            each = [
                look(one, None if offline else partial(target_of, one, given), now_us(), bar.update)
                for one in query.each(target)
            ]
        if as_json:
            documents(each, several=query.log.several and not target)
        else:
            for found in each:
                _print(console, found)
        codes = [finding.exit_code for found in each for finding in found.findings]
        if codes:
            raise typer.Exit(codes[0])


def _print(console: Console, found: Verified) -> None:
    if found.target:
        console.print(f"Target {found.target}:")
    for finding in found.findings:
        where = "" if finding.epoch is None else f" at epoch {finding.epoch}"
        console.print(f"[red]{finding.kind}[/red]{where}: {escape(finding.what)}", soft_wrap=True)
        if finding.file:
            console.print(f"  File: {escape(finding.file)}", soft_wrap=True)
        console.print(f"  What to do: {escape(finding.remedy)}", soft_wrap=True)
    for note in found.notes:
        console.print(f"Note: {escape(note)}", soft_wrap=True)
    ledger = "not read" if found.ledger is None else epoch_id(found.ledger)
    console.print(
        f"Checkpointed: {epoch_id(found.checkpointed)}. Published: {epoch_id(found.published)}. Flushed:"
        f" {epoch_id(found.flushed)} (ledger: {ledger}). {counted(found.epochs, 'epoch')} not flushed, in"
        f" {counted(found.segments, 'segment')} of {byte_count(found.bytes)}.",
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

"""`wal-sink quarantine`: the rows that the target refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from wal_sink.admin.quarantine import Quarantined, export, list_quarantine
from wal_sink.admin.query import find_query
from wal_sink.admin.retry import Retried, plan_retry
from wal_sink.cli.arguments import (
    CheckpointArgument,
    OptionPairs,
    TargetName,
    Wal,
    Yes,
    option_values,
)
from wal_sink.cli.change import ChangeArguments, make_change
from wal_sink.cli.output import AsJson, document, documents, output
from wal_sink.counted import counted
from wal_sink.errors import OptionError
from wal_sink.progress.printable import printable

_REASONS = 3
"""How many reasons are shown for which rows are refused again."""


def quarantine(
    checkpoint: CheckpointArgument,
    *,
    file: Annotated[
        str,
        typer.Option(
            "--export",
            metavar="FILE",
            help="Write the rows to a file that is not there yet: .parquet, or .jsonl.",
        ),
    ] = "",
    retry: Annotated[
        bool,
        typer.Option("--retry", help="Send the rows again, after what refused them was repaired."),
    ] = False,
    target: TargetName = "",
    wal: Wal = None,
    option: OptionPairs = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """List the rows that the target refused and onInvalidRow=quarantine passed over, by their reasons.

    Reads the log alone. With --export, writes the rows themselves, with epoch, write timestamp and
    reason: JSON lines or Parquet. They stay in quarantine. With --retry, sends them to the target as of
    their epochs, so that they hide nothing newer; those that it takes leave the quarantine.
    """
    if retry:
        with output(as_json=as_json):
            if file:
                raise OptionError("--retry does not go with --export.", "Export first, then retry.")
        make_change(
            ChangeArguments(checkpoint, target, "", wal, option, yes, as_json),
            lambda query, database, _patience: plan_retry(query, database),
            _summary,
        )
        return
    with output(as_json=as_json) as console:
        query = find_query(checkpoint, wal, option_values(option))
        each = query.each(target)
        if file:
            written = export(each, file)
            if as_json:
                document(written)
            else:
                console.print(
                    f"{counted(written.rows, 'row is', 'rows are')} in {escape(written.file)}."
                )
            return
        found = [list_quarantine(one) for one in each]
        if as_json:
            documents(found, several=query.log.several and not target)
        else:
            _print(console, found)


def _summary(done: Retried) -> str:
    text = f"{counted(done.sent, 'row was', 'rows were')} sent, and left the quarantine."
    if done.left:
        text += f" {counted(done.left, 'is', 'are')} refused still: " + " ".join(
            done.refused[:_REASONS]
        )
    if (more := len(done.refused) - _REASONS) > 0:
        text += f" And {counted(more, 'more reason')}: --json has them all."
    return text


def _print(console: Console, found: Sequence[Quarantined]) -> None:
    for each in found:
        of = f" of target {each.target}" if each.target else ""
        rows = counted(each.rows, "row") if each.rows else "No rows"
        console.print(f"{rows}{of} {'is' if each.rows == 1 else 'are'} in quarantine.")
        if not each.rows:
            continue
        table = Table()
        for name in ("epoch", "rows"):
            table.add_column(name, justify="right")
        for name in ("column", "reason", "what to do"):
            table.add_column(name, overflow="fold")
        for group in each.groups:
            texts = (group.column, group.reason, group.remedy)
            table.add_row(str(group.epoch), f"{group.rows:,}", *(Text(printable(t)) for t in texts))
        console.print(table)

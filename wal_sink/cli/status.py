"""`wal-sink status`: how far the flush is, once or as it goes."""

from __future__ import annotations

import time
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from wal_sink.admin.query import Query, find_query
from wal_sink.admin.value_text import printable
from wal_sink.cli.arguments import CheckpointArgument, OptionPairs, Wal, option_values
from wal_sink.cli.output import AsJson, Failure, document, document_line, output
from wal_sink.cli.quantities import byte_count, duration, epoch_id
from wal_sink.errors import WalSinkError
from wal_sink.progress.heartbeat import ENDED, FlusherWatch
from wal_sink.progress.status import Status, read_status

_EVERY_S = 1.0
"""How often `--watch` looks."""


def status(
    checkpoint: CheckpointArgument,
    *,
    watch: Annotated[
        bool, typer.Option("--watch", help="Look again every second, until Ctrl-C.")
    ] = False,
    wal: Wal = None,
    option: OptionPairs = None,
    as_json: AsJson = False,
) -> None:
    """Say how far the flush is, what the flusher does, and its last error.

    Reads checkpoint and log only: it works with the target down, and disturbs no other process. With
    --watch and --json, one document a line.
    """
    with output(as_json=as_json) as console:
        query = find_query(checkpoint, wal, option_values(option))
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
            else:
                _watch(query, console)
        except KeyboardInterrupt:
            return  # how it ends


def screen(found: Status) -> Table:
    """Lay a status out for people."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")

    def line(name: str, value: str, style: str = "") -> None:
        lines = "\n".join(map(printable, value.splitlines()))
        table.add_row(Text(name, "bold"), Text(lines, style))

    line("query", found.query_id)
    line("checkpoint", found.checkpoint)
    line("log", found.log)
    line("checkpointed", epoch_id(found.checkpointed))
    line("published", epoch_id(found.published))
    since = f", as of {found.flushed_as_of}" if found.flushed_as_of else ""
    line("flushed", epoch_id(found.flushed) + since)
    line("lag", _lag(found), "yellow" if found.pending_epochs else "green")
    line("oldest waits", duration(found.oldest_pending_seconds) if found.pending_epochs else "-")
    if found.orphan_segments:
        line("orphans", f"{found.orphan_segments:,} segments that no manifest names")
    if found.outdated_decisions:
        listed = ", ".join(map(str, found.outdated_decisions))
        line("computed again", f"{listed}: given up before, and flushed all the same", "yellow")
    line("flusher", _flusher(found), "" if found.flusher_alive else "yellow")
    line("last error", found.last_error or "none", "red" if found.last_error else "green")
    if found.remedy:
        line("what to do", found.remedy)
    line(
        "delete it?",
        f"no: {found.unsafe_because}"
        if found.unsafe_because
        else "safe, once the query is stopped",
    )
    return table


def _lag(found: Status) -> str:
    if found.flushed > found.checkpointed:
        return "none: the checkpoint lies behind what is flushed (if it stays so, it was set back)"
    if not found.pending_epochs:
        return "none: everything checkpointed is flushed"
    return (
        f"{found.pending_epochs:,} epochs, {found.pending_rows:,} rows,"
        f" {byte_count(found.pending_bytes)}, {duration(found.oldest_pending_seconds)}"
    )


def _flusher(found: Status) -> str:
    if found.flusher is None or found.heartbeat_seconds is None:
        return "none has ever reported"
    ago = f"{duration(max(0.0, found.heartbeat_seconds))} ago by that host's clock"
    if found.heartbeat_seconds < -1:
        ago = f"from the future: that host's clock is {duration(-found.heartbeat_seconds)} ahead"
    if found.flusher_alive:
        return f"{found.flusher}, alive: {found.doing} (last heartbeat {ago})"
    if found.doing == ENDED:
        return f"{found.flusher} has ended in order, {ago}"
    return f"{found.flusher} is gone, as it seems; last heartbeat {ago}: {found.doing}"


def _look(query: Query, watch: FlusherWatch | None = None) -> Status:
    return read_status(query.checkpoint, query.log, watch)


def _watch(query: Query, console: Console) -> None:
    """Show the screen until Ctrl-C; a store that does not answer is shown, and asked again."""
    watch = FlusherWatch()
    with Live(screen(_look(query, watch)), console=console, auto_refresh=False) as live:
        while True:
            time.sleep(_EVERY_S)
            try:
                live.update(screen(_look(query, watch)), refresh=True)
            except WalSinkError as error:
                if not error.transient:
                    raise
                live.update(Text(f"{type(error).__name__}: {error}", "red"), refresh=True)


def _stream(query: Query) -> None:
    """Print a document each second, in the same way."""
    watch = FlusherWatch()
    while True:
        try:
            document_line(_look(query, watch))
        except WalSinkError as error:
            if not error.transient:
                raise
            document_line(Failure(error=type(error).__name__, what=error.what, remedy=error.remedy))
        time.sleep(_EVERY_S)

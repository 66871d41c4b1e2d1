"""`wal-sink`: the commands, and nothing else."""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated

import typer

from wal_sink.cli.demo import demo
from wal_sink.cli.flush import flush
from wal_sink.cli.look import check, inspect, status, verify
from wal_sink.cli.repair import adopt, attach, detach, quarantine, rewind, skip

app = typer.Typer(
    name="wal-sink",
    help="A write-ahead-log sink for Spark Structured Streaming: exactly once into a database.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _say_version(*, asked: bool) -> None:
    if asked:
        typer.echo(f"wal-sink {version('wal_sink')}")
        raise typer.Exit


@app.callback()
def main(
    *,
    _version: Annotated[
        bool,
        typer.Option("--version", help="Say the version.", callback=_say_version, is_eager=True),
    ] = False,
) -> None:
    """Take the options that belong to no command."""


app.command()(demo)
app.command()(check)
app.command()(status)
app.command()(inspect)
app.command()(verify)
app.command()(flush)
app.command()(skip)
app.command()(adopt)
app.command()(detach)
app.command()(attach)
app.command()(rewind)
app.command()(quarantine)

"""The list of the commands of `wal-sink`."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from wal_sink.cli.demo import demo
from wal_sink.cli.flush import flush
from wal_sink.cli.inspect import check, options, quarantine, show, status
from wal_sink.cli.repair import adopt, give_up, set_mark
from wal_sink.cli.terminal import output
from wal_sink.unknown_names import removed_command


class Group(TyperGroup):
    """The command `wal-sink`. It refuses removed commands and flags, and names what to use instead."""

    def resolve_command(self, context: Any, arguments: list[str]) -> Any:
        """Return the command that the arguments name; end with an error if the command was removed."""
        if (error := removed_command(arguments[0], arguments[1:])) is not None:
            with output(as_json="--json" in arguments):
                raise error
        return super().resolve_command(context, arguments)


app = typer.Typer(
    cls=Group,
    name="wal-sink",
    help="A write-ahead-log sink for Spark Structured Streaming: exactly once into Cassandra,"
    " PostgreSQL, Kafka, Delta Lake, Apache Iceberg and SQL databases."
    " CHECKPOINT is the checkpointLocation of a query. In an outage begin with `wal-sink status CHECKPOINT`.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(*, asked: bool) -> None:
    if asked:
        typer.echo(f"wal-sink {version('wal_sink')}")
        raise typer.Exit


@app.callback()
def main(
    *,
    _version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Declare the options of `wal-sink` itself."""


_PANELS: dict[str, tuple[Callable[..., None], ...]] = {
    "Start": (demo, check, options),
    "Inspect": (status, show, quarantine),
    "Repair": (flush, give_up, set_mark, adopt),
}
"""The commands by their heading in `--help`."""

for _panel, _commands in _PANELS.items():
    for _command in _commands:
        app.command(rich_help_panel=_panel)(_command)

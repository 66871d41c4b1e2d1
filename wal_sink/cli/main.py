"""`wal-sink`: the commands, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from wal_sink.cli.demo import demo
from wal_sink.cli.flush import flush
from wal_sink.cli.look import check, quarantine, show, status
from wal_sink.cli.options import options
from wal_sink.cli.repair import adopt, give_up, set_mark
from wal_sink.cli.terminal import output
from wal_sink.removed import removed_command


class _Flags:
    """Shows a flag without a value in `--help`: `--watch`, not `--watch <bool>`."""

    def get_params(self, context: Any) -> list[Any]:
        """Return the parameters of a command."""
        parameters: list[Any] = super().get_params(context)  # type: ignore[misc]
        for parameter in parameters:
            if getattr(parameter, "is_flag", False):
                parameter.metavar = ""
        return parameters


class Command(_Flags, TyperCommand):
    """A command of `wal-sink`."""


class Group(_Flags, TyperGroup):
    """`wal-sink` itself."""

    def resolve_command(self, context: Any, arguments: list[str]) -> Any:
        """Find the command, unless it or a flag of it no longer exists."""
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


START, LOOK, REPAIR = "Start", "Look", "Repair"
_PANELS: dict[str, tuple[Callable[..., None], ...]] = {
    START: (demo, check, options),
    LOOK: (status, show, quarantine),
    REPAIR: (flush, give_up, set_mark, adopt),
}
"""The commands, as `--help` groups them."""

for _panel, _commands in _PANELS.items():
    for _command in _commands:
        app.command(cls=Command, rich_help_panel=_panel)(_command)

"""`wal-sink`: the commands, and nothing else."""

from __future__ import annotations

import typer

from wal_sink.cli.adopt import adopt
from wal_sink.cli.demo import demo
from wal_sink.cli.flush import flush
from wal_sink.cli.inspect import inspect
from wal_sink.cli.rewind import rewind
from wal_sink.cli.skip import skip
from wal_sink.cli.status import status
from wal_sink.cli.verify import verify

app = typer.Typer(
    name="wal-sink",
    help="A write-ahead-log sink for Spark Structured Streaming: exactly once into Cassandra.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
app.command()(demo)
app.command()(status)
app.command()(inspect)
app.command()(verify)
app.command()(flush)
app.command()(skip)
app.command()(adopt)
app.command()(rewind)

"""`wal-sink`: the commands, and nothing else."""

from __future__ import annotations

import typer

from wal_sink.cli.demo import demo
from wal_sink.cli.verify import verify

app = typer.Typer(
    name="wal-sink",
    help="A write-ahead-log sink for Spark Structured Streaming: exactly once into Cassandra.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(demo)
app.command()(verify)

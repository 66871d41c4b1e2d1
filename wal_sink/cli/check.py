"""`wal-sink check`: what the first micro-batch of a query would say, without Spark and without writing."""

from __future__ import annotations

from typing import Annotated

import typer

from wal_sink.cli.arguments import CheckpointArgument, OptionPairs, option_values
from wal_sink.cli.lines import Lines, Named
from wal_sink.cli.output import AsJson, document, output
from wal_sink.errors import OptionError
from wal_sink.preflight import Checked, preflight


def check(
    checkpoint: CheckpointArgument,
    *,
    schema: Annotated[
        str | None,
        typer.Option(
            "--schema", metavar="DDL", help="The DataFrame's columns: `id BIGINT, name STRING`."
        ),
    ] = None,
    parquet: Annotated[
        str | None,
        typer.Option("--parquet", metavar="FILE", help="A file that has these columns."),
    ] = None,
    option: OptionPairs = None,
    as_json: AsJson = False,
) -> None:
    """Compare a query's options and columns with the table, before it starts.

    Give each option of `writeStream` by --option. Connects to the target and creates nothing there, neither
    log nor ledger; starts no Spark. What does not fit is said as the first micro-batch would say it.
    """
    from wal_sink.admin.spark_schema import (  # noqa: PLC0415 -- sqlglot, a fifth of a start
        ddl_schema,
        parquet_schema,
    )

    with output(as_json=as_json) as console:
        if (schema is None) == (parquet is None):
            raise OptionError(
                "The columns of the DataFrame are missing, or there are two sources of them.",
                "Give one of --schema and --parquet.",
            )
        columns = parquet_schema(parquet) if parquet is not None else ddl_schema(schema or "")
        found = preflight({"checkpointLocation": checkpoint, **option_values(option)}, columns)
        if as_json:
            document(found)
        else:
            console.print(screen(found))


def screen(found: Checked) -> Lines:
    """Lay it out for people: what is in force, then each column."""
    return Lines(
        [
            *(Named(heading, text) for heading, text in found.in_force.items()),
            *(Named(column.heading, column.fits) for column in found.columns),
            Named("fits", "the query can start", "green"),
        ]
    )

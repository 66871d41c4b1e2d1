"""`make demo`: the README's quick start on real flights, then the table compared with the source."""

from __future__ import annotations

import os
import runpy
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet
from rich.console import Console
from rich.table import Table

from tests.quickstart import quick_start
from wal_sink.testing.embedded_cassandra import EmbeddedCassandra
from wal_sink.testing.oracle import judge


def main() -> int:
    """Run the demo in an empty folder; return the exit code."""
    console = Console()
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="wal_sink-demo-") as folder:
        os.chdir(folder)
        Path("quickstart.py").write_text(quick_start())
        console.print("Running the README's quick start …")
        scope = runpy.run_path("quickstart.py", run_name="__main__")
        cassandra: EmbeddedCassandra = scope["cassandra"]
        try:
            console.print("Comparing the table with the source …")
            verdict = judge(in_source("flights"), in_table(cassandra))
        finally:
            cassandra.close()
        os.chdir("/")
    table = Table("expected", "found", "missing", "extra", "seconds")
    table.add_row(*(f"{count:,}" for count in verdict[:4]), f"{time.monotonic() - started:.0f}")
    console.print(table)
    if verdict.exact and verdict.expected:
        console.print("The table holds exactly the flights of the source.")
        return 0
    console.print("The table differs from the source, for example:", *verdict.examples, sep="\n  ")
    return 1


def in_source(folder: str) -> Iterator[tuple[Any, ...]]:
    """Yield the flights in the source files, whole rows."""
    for batch in pyarrow.parquet.read_table(folder).to_batches():
        columns = {name: batch.column(name).to_pylist() for name in batch.schema.names}
        columns["day"] = [str(day) for day in columns["day"]]
        columns["scheduled"] = [at.replace(tzinfo=None) for at in columns["scheduled"]]
        yield from zip(*(columns[name] for name in sorted(columns)), strict=True)


def in_table(cassandra: EmbeddedCassandra) -> Iterator[tuple[Any, ...]]:
    """Yield the flights in the table, whole rows, a page at a time."""
    rows = cassandra.session().execute("SELECT * FROM travel.flights_by_origin_day", timeout=60)
    for row in rows:
        columns = row._asdict()
        columns["day"] = str(columns["day"])
        yield tuple(columns[name] for name in sorted(columns))


if __name__ == "__main__":
    sys.exit(main())

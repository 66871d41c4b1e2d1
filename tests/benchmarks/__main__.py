"""`make bench`: measures wal_sink and other sinks, and compares each figure with its target."""

from __future__ import annotations

import logging
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from tests.benchmarks import report
from tests.benchmarks.bench import Bench
from tests.benchmarks.figure import Figure
from tests.benchmarks.figures import (
    epochs,
    flush,
    jdbc,
    long,
    memory,
    shapes,
    short,
    spark_sinks,
)
from tests.benchmarks.server import Server
from tests.benchmarks.sizes import DEFAULT, QUICK

_WIDTH = 140
"""The width of the tables if the output is not a terminal."""

logger = logging.getLogger(__name__)

PARTS: dict[str, Callable[[Bench], list[Figure]]] = {
    "grouped": shapes.grouped,
    "scattered": shapes.scattered,
    "flush": flush.alone,
    "pending": flush.pending,
    "jdbc": jdbc.postgresql,
    "mariadb": jdbc.mariadb,
    "kafka": spark_sinks.kafka,
    "lakes": spark_sinks.lakes,
    "short": short.short,
    "latency": epochs.latency,
    "overhead": epochs.overhead,
    "outage": epochs.outage,
    "memory": memory.memory,
}


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    *,
    quick: Annotated[
        bool, typer.Option("--quick", help="Few rows: proves that everything works.")
    ] = False,
    only: Annotated[
        list[str] | None, typer.Option(help=f"A part: {', '.join(PARTS)}. Can be repeated.")
    ] = None,
    long_run: Annotated[
        bool, typer.Option("--long", help="One query for an hour, with its curves; no other part.")
    ] = False,
    minutes: Annotated[float, typer.Option(help="The time limit of --long.")] = 75,
    rounds: Annotated[
        int | None, typer.Option(min=1, help="How often contenders take turns.")
    ] = None,
    json: Annotated[Path | None, typer.Option(help="File that gets everything as JSON.")] = None,
) -> None:
    """Measure wal_sink and other sinks on the same rows and the same Cassandra node.

    The exit code is 1 if rows are missing or wrong, or if a part failed; missed targets do not change it.
    """
    sizes = QUICK if quick else DEFAULT
    if rounds is not None:
        sizes = msgspec.structs.replace(sizes, rounds=rounds, side_rounds=rounds)
    known = PARTS | {"long": partial(long.long, minutes=minutes)} if long_run else PARTS
    parts = only or (["long"] if long_run else [*PARTS])
    if unknown := set(parts) - {*known}:
        raise typer.BadParameter(f"{', '.join(unknown)}: there is {', '.join(PARTS)}")
    logging.getLogger("cassandra").setLevel(logging.ERROR)
    console = Console(highlight=False, width=max(_WIDTH, Console().width))
    machine = report.machine()
    seconds: dict[str, float] = {}
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(prefix="wal_sink-bench-") as folder, Server() as server:
        say = partial(console.print, soft_wrap=True)
        bench = Bench(sizes, server, Path(folder), say, parts)
        try:
            for name in parts:
                began = time.monotonic()
                try:
                    figures += known[name](bench)
                except Exception:
                    logger.exception("part %s failed; the others go on", name)
                    bench.wrong.append(f"part {name} failed")
                seconds[name] = time.monotonic() - began
        finally:
            bench.close()
    measured = msgspec.convert(
        {
            **machine,
            "version": server.version,
            "sizes": msgspec.to_builtins(sizes),
            "seconds": seconds,
            "runs": msgspec.to_builtins(bench.runs),
            "figures": msgspec.to_builtins(figures),
            "wrong": bench.wrong,
        },
        report.Report,
    )
    report.show(measured, console)
    if json is not None:
        json.write_bytes(msgspec.json.format(msgspec.json.encode(measured)))
    if measured.wrong:
        sys.exit(1)


if __name__ == "__main__":
    app()

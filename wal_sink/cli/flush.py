"""`wal-sink flush`: writes checkpointed epochs to the target from this process, and trims the log."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator
from types import FrameType
from typing import Annotated

import typer
from rich.progress import MofNCompleteColumn, TimeRemainingColumn

from wal_sink.admin.flush import FlushDone, Follower, Wait, Watch, at_checkpoint, drain, preview
from wal_sink.admin.query import find_query
from wal_sink.admin.under import LogsUnder
from wal_sink.cli.arguments import (
    AsJson,
    CheckpointPlace,
    OptionPairs,
    TargetName,
    WalUrl,
    option_values,
    refuse_combinations,
)
from wal_sink.cli.terminal import SafeConsole, output, progress_bar
from wal_sink.metrics.server import LOOPBACK, Exposition
from wal_sink.progress.status import epoch_id
from wal_sink.units import byte_count, counted

_SIGNAL_S = 0.1
"""Most seconds between a signal and the end of a wait."""


def flush(
    checkpoint: CheckpointPlace = "",
    *,
    follow: Annotated[
        bool,
        typer.Option("--follow", help="Flush, also later epochs, until Ctrl-C or SIGTERM."),
    ] = False,
    under: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URL",
            help="With --follow and without CHECKPOINT: flush every query whose log is below this folder or"
            " prefix of a bucket, also queries that start later. Repeatable.",
        ),
    ] = None,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            metavar="PORT",
            min=0,
            max=65_535,
            help="With --follow: the port of the metrics for Prometheus; 0 for a free port.",
        ),
    ] = None,
    metrics_host: Annotated[
        str,
        typer.Option(
            metavar="HOST",
            help="The address on which the port listens. With 0.0.0.0 other hosts can read the metrics"
            " without a login.",
        ),
    ] = LOOPBACK,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Show what the command would flush and delete. Connect to no target.",
        ),
    ] = False,
    target: TargetName = "",
    wal: WalUrl = None,
    option: OptionPairs = None,
    as_json: AsJson = False,
) -> None:
    """Flush the epochs that are checkpointed now, without Spark, and trim the log.

    With --follow --under URL instead of CHECKPOINT, the command flushes all queries below a folder. It
    searches the folder every few seconds, so it also flushes queries that start later. Several such
    processes may run.

    The command reads the options of the query's newest run from the log. The log has no secrets: add
    them by --option. The command may run beside the query's own flusher. If an error ends the command,
    the exit code is that of the error. With --follow a later error is logged, and the flush is tried
    again.

    Flushed epochs are deleted from the log, unless the query's wal.retention still keeps them.
    --option wal.retention=0 deletes them at once.
    """
    with output(as_json=as_json) as console:
        refuse_combinations(
            (dry_run and follow, "--dry-run does not go with --follow.", "Leave one of them out."),
            (
                metrics_port is not None and not follow,
                "--metrics-port goes with --follow.",
                "Add --follow, or leave --metrics-port out.",
            ),
            (
                metrics_port is None and metrics_host != LOOPBACK,
                "--metrics-host goes with --metrics-port.",
                "Give both, or neither.",
            ),
            (
                under and checkpoint,
                "CHECKPOINT does not go with --under.",
                "Leave one of them out.",
            ),
            (
                not under and not checkpoint,
                "The command names no query.",
                "Give CHECKPOINT for one query, or --follow --under URL for all queries below a folder.",
            ),
            (
                under and not follow,
                "--under goes with --follow.",
                "Add --follow. The command then runs until Ctrl-C or SIGTERM.",
            ),
            (
                under and wal is not None,
                "--wal does not go with --under.",
                "Leave --wal out. If the log is in another folder, name that by a further --under.",
            ),
        )
        options = option_values(option)
        if follow:
            with _signals() as wait, _exposed(metrics_port, metrics_host, console) as watch:
                say = console.print_line
                if under:
                    say(f"Flushing every log below {' '.join(under)} until Ctrl-C or SIGTERM")
                    logs = LogsUnder(under, options)
                    follower = Follower(logs, say, watch, target=target, billed=logs.billed)
                else:
                    say("Flushing, until Ctrl-C or SIGTERM")
                    candidate = at_checkpoint(checkpoint, wal, options)
                    follower = Follower(lambda: [candidate], say, watch, target=target)
                    follower.follow(candidate)  # an error at the start ends the command
                done = follower.run(wait)
        else:
            query = find_query(checkpoint, wal, options)
            if dry_run:
                console.show_each(preview(query, target), _text)
                return
            state = query.own_state()
            rate, pipelines = query.sink_options(state), query.pipelines(state, target)
            bar = progress_bar(
                "flushing epochs", MofNCompleteColumn(), TimeRemainingColumn(), as_json=as_json
            )
            with _signals() as wait, bar as progress:
                done = drain(pipelines, rate.max_rows_per_second, wait=wait, progress=progress)
        console.show_each(done, _text)


@contextlib.contextmanager
def _exposed(port: int | None, host: str, console: SafeConsole) -> Iterator[Watch | None]:
    """Open the port of the metrics, and provide the function that makes a flusher's metrics."""
    if port is None:
        yield None
        return
    with contextlib.closing(Exposition(port, host)) as exposition:
        console.print_line(
            f"Metrics are on port {exposition.port}, at /metrics; it listens on {exposition.host}"
        )
        yield exposition.watch


@contextlib.contextmanager
def _signals() -> Iterator[Wait]:
    """Provide a wait that ends at the first Ctrl-C or SIGTERM. A second signal ends the command at once."""
    # No Event: the handler may interrupt the thread that holds the lock of the Event.
    signalled = False

    def handle(_number: int, _frame: FrameType | None) -> None:
        nonlocal signalled
        if signalled:
            raise KeyboardInterrupt
        signalled = True

    def wait(seconds: float) -> bool:
        until_s = time.monotonic() + seconds
        while not signalled and (remaining_s := until_s - time.monotonic()) > 0:
            time.sleep(min(remaining_s, _SIGNAL_S))
        return signalled

    handlers = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield wait
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _text(done: FlushDone) -> str:
    flushed = f"The last flushed epoch: {epoch_id(done.flushed)}"
    size = f"{counted(done.rows, 'row')}, {byte_count(done.bytes)}"
    if done.dry_run:
        return (
            f"Target {done.target}: {counted(done.epochs, 'epoch')} would be flushed, {size}. {flushed}. The"
            f" last epoch whose files would be deleted: {epoch_id(done.trimmed)}."
        )
    return (
        f"Query {done.query_id}, target {done.target}:"
        f" {counted(done.epochs, 'epoch was', 'epochs were')} flushed, {size}, in {done.seconds:.1f} s."
        f" {flushed}; {counted(done.pending_epochs, 'epoch is', 'epochs are')} pending. The flush ended:"
        f" {done.reason}."
    )

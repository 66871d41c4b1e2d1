"""The part `long`: one query for an hour. The costs at its end are compared with those at its beginning."""

from __future__ import annotations

import itertools
import os
import re
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from matplotlib.figure import Figure as Drawing
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import wal_sink
from state_backends import open_backend
from tests.benchmarks import cpu, session, small_epochs
from tests.benchmarks.bench import Bench
from tests.benchmarks.contenders import ours
from tests.benchmarks.figure import Figure, at_most, figure, p99
from tests.benchmarks.process import ROOT
from tests.benchmarks.rows import Totals
from tests.benchmarks.sizes import PARTITIONS
from tests.benchmarks.table import Table
from wal_sink.wal.store import newest

KEYS = 1_000_000
"""The rows of the table. When all keys exist, each row replaces an older row, so the table does not grow."""

PICTURE = ROOT / "build" / "long.svg"
_SAMPLE_S = 1.0
"""The time between two samples."""
_TENTH = 10
_WARM_UP = 10
"""The number of epochs without samples, in which worker processes start."""

_SELECT = (
    f"concat('device-', value % {KEYS} div {KEYS // PARTITIONS}) AS device",
    f"value % {KEYS} AS id",
    "timestamp AS at",
    "value * 7 AS amount",
    "repeat('x', 100) AS note",
)


class Sample(NamedTuple):
    """The state of the run at one time. CPU, memory, threads and handles are those of the driver."""

    seconds: float
    """The time since the start of the run."""
    epochs: int
    """The number of flushed epochs."""
    cpu_s: float
    """The CPU time of Python, JVM and workers since the start of the run."""
    python_mb: float
    workers_mb: float
    """The resident memory of all Python workers."""
    threads: int
    handles: int
    """The open files, sockets and pipes."""
    files: int
    """The files in the log: the newest 100 states, and the epochs that `wal.retention` keeps."""
    visible_ms: float
    """The time from `commits/N` to the mark of N, at least 1, for the newest epoch N with a mark."""


CURVES = {
    "client CPU of an epoch, ms": "cpu_s",
    "time of an epoch, ms": "seconds",
    "commits/N until N is flushed, ms": "visible_ms",
    "memory of the driver's Python, MB": "python_mb",
    "memory of the Python workers, MB": "workers_mb",
    "threads": "threads",
    "open files, sockets, pipes": "handles",
    "files in the log": "files",
}


def long(bench: Bench, minutes: float) -> list[Figure]:
    """Run one query, draw its curves, and compare the last tenth of the run with the second.

    The first tenth is not used, since Java's compiler still works then.

    :param minutes: the time limit.
    """
    epochs, rows = bench.sizes.long
    bench.say(f"long, {epochs:,} epochs of {rows:,} rows, {minutes:g} minutes at most")
    table, checkpoint = Table(bench.server), bench.new_folder()
    spark = session.open_session()
    try:
        writer = ours.writer(stream(spark, rows), table)
        writer = writer.option("checkpointLocation", str(checkpoint))
        with wal_sink.register(spark, drain_timeout=ours.DRAIN_S):
            query = writer.start()  # without a trigger: an epoch begins when the previous one ends
            small_epochs.await_epoch(query, min(_WARM_UP, epochs // _TENTH))
            samples = _samples(query, checkpoint, bench.server.pid, epochs, minutes)
            query.stop()
        flushed = wal_sink.status(str(checkpoint)).flushed + 1
    finally:
        spark.stop()
    bench.complete("wal_sink", lambda: table.check_totals(totals(flushed * rows)))
    table.drop()
    draw(PICTURE, samples)
    bench.say(f"  {flushed:,} epochs; curves: {PICTURE}")
    return compared(samples)


def stream(spark: SparkSession, rows: int) -> DataFrame:
    """Return a stream with that number of rows in each micro-batch, numbered from 0."""
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", rows)
    return source.option("numPartitions", 2).load().selectExpr(*_SELECT)


def totals(streamed: int) -> Totals:
    """Return the totals of the table after that number of rows. The table has the newest row of each key."""
    kept = min(streamed, KEYS)
    sum_of_values = (2 * streamed - kept - 1) * kept // 2
    return Totals(kept, kept * (kept - 1) // 2, 7 * sum_of_values)


def compared(samples: Sequence[Sample]) -> list[Figure]:
    """Compare the last tenth of the samples with the second tenth."""
    size = max(2, len(samples) // _TENTH)
    if len(samples) < 2 * size + 2:
        return [figure("long", [], "x", at_most(1.1), f"{len(samples)} samples are too few")]
    early, late = samples[size : 2 * size], samples[-size:]

    def grown(
        name: str, field: str, middle: Callable[[Sequence[float]], float], most: float
    ) -> Figure:
        first, last = middle(_values(early, field)), middle(_values(late, field))
        note = (
            f"{first:,.4g} until epoch {early[-1].epochs:,}, {last:,.4g} until {late[-1].epochs:,}"
        )
        name = f"long: {name}, last tenth over the second"
        return figure(name, [last / first] if first else [], "x", at_most(most), note)

    medians = [grown(name, field, statistics.median, 1.1) for name, field in CURVES.items()]
    return [*medians, grown("commits/N until N is flushed, 99 %", "visible_ms", p99, 1.25)]


def draw(path: Path, samples: Sequence[Sample]) -> None:
    """Draw the curves into an SVG file."""
    drawing = Drawing(figsize=(12, 6.5), layout="constrained")
    panels = drawing.subplots(2, 4, sharex=True).flat
    for panel, (name, field) in zip(panels, CURVES.items(), strict=True):
        values = _values(samples, field)
        panel.plot([sample.epochs for sample in samples][-len(values) :], values, linewidth=1)
        panel.set_title(name, fontsize=9)
        panel.set_ylim(bottom=0)
    path.parent.mkdir(parents=True, exist_ok=True)
    drawing.savefig(path)


def _values(samples: Sequence[Sample], field: str) -> list[float]:
    """Return a field of each sample; for CPU and time the milliseconds of an epoch between two samples."""
    values = [float(getattr(sample, field)) for sample in samples]
    if field not in {"cpu_s", "seconds"}:
        return values
    epochs = [sample.epochs for sample in samples]
    steps = zip(itertools.pairwise(values), itertools.pairwise(epochs), strict=True)
    return [1_000 * (b - a) / max(1, end - begin) for (a, b), (begin, end) in steps]


def _samples(
    query: StreamingQuery, checkpoint: Path, server: int, epochs: int, minutes: float
) -> list[Sample]:
    """Return a sample for each second, until all epochs are flushed or the time is over.

    :param server: the process id of the Cassandra node, which is a child of this process but not a client.
    """
    folder = checkpoint / "wal_sink" / str(query.id)
    log, began_s, samples = open_backend(str(folder)), time.monotonic(), list[Sample]()
    before_s = cpu.of_tree(os.getpid()) - cpu.of_tree(server)
    servers = {server, *cpu.descendants(server)}
    while not samples or samples[-1].epochs < epochs:
        if time.monotonic() > began_s + 60 * minutes:
            break
        time.sleep(_SAMPLE_S)
        if not query.isActive:
            raise query.exception() or RuntimeError("the query has ended")
        if (state := newest(log)) is None:
            continue
        mark = state.targets[0].mark
        committed_s = (checkpoint / "commits" / str(mark.epoch)).stat().st_mtime
        others = cpu.descendants(os.getpid()) - servers
        samples.append(
            Sample(
                seconds=time.monotonic() - began_s,
                epochs=mark.epoch + 1,
                cpu_s=cpu.of_tree(os.getpid()) - cpu.of_tree(server) - before_s,
                python_mb=_status(os.getpid(), "VmRSS") / 1_024,
                workers_mb=sum(_status(pid, "VmRSS", "python") for pid in others) / 1_024,
                threads=_status(os.getpid(), "Threads"),
                handles=len([*Path("/proc/self/fd").iterdir()]),
                files=sum(len(files) for _, _, files in os.walk(folder)),
                visible_ms=max(1.0, mark.at_us / 1_000 - committed_s * 1_000),
            )
        )
    return samples


def _status(pid: int, name: str, program: str = "") -> int:
    """Read a number from `/proc/<pid>/status`, see proc(5). Memory is in KiB.

    :return: 0 if the process has ended, or its program has another name.
    """
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    match = re.search(rf"^{name}:\s+(\d+)", text, re.MULTILINE)
    return int(match[1]) if match and text.startswith(f"Name:\t{program}") else 0

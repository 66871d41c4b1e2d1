"""From which size on a Spark job flushes a window sooner than a thread; the node has its own processor."""

from __future__ import annotations

import itertools
import os
import statistics
from collections.abc import Sequence
from functools import partial

import msgspec

from tests.benchmarks.affinity import pinned
from tests.benchmarks.bench import Bench
from tests.benchmarks.contenders import ours
from tests.benchmarks.figure import Figure, figure
from tests.benchmarks.process import result_of
from tests.benchmarks.rows import Source
from tests.benchmarks.sizes import PARTITIONS, SMALL
from tests.benchmarks.table import Table
from tests.benchmarks.window_app import WAYS, Config, Flushed
from wal_sink.options import SinkOptions

THREAD, *JOBS = WAYS
_BY_NAME = {field.name: field for field in msgspec.structs.fields(SinkOptions)}
DEFAULT_MIB = _BY_NAME["distributed_above_bytes"].default / 2**20


def flush_job(bench: Bench) -> list[Figure]:
    """Rate of the flush in a thread over that of jobs of one and two tasks, for windows of several sizes."""
    server, client = _apart(sorted(os.sched_getaffinity(0)))
    windows = [rows for _ in range(bench.sizes.rounds) for rows in bench.sizes.windows]
    each_after_a_small_one = [rows for window in windows for rows in (SMALL, window)]
    bounds = [0, *itertools.accumulate(each_after_a_small_one)]
    item = max(1, bench.sizes.grouped // PARTITIONS)
    source = Source(shape="grouped", rows=bounds[-1], partitions=max(1, bounds[-1] // item))
    bench.say(f"flush by a job, {len(windows)} windows, {len(WAYS)} ways")
    tables = {way: Table(bench.server, source.columns) for way in WAYS}
    config = Config(
        processors=client,
        server=bench.server.pid,
        folder=str(bench.new_folder()),
        options={way: ours.options(table) for way, table in tables.items()},
        source=source,
        bounds=bounds,
    )
    with pinned(bench.server.pid, set(server)):
        text = result_of("tests.benchmarks.window_app", msgspec.json.encode(config).decode())
    for way, table in tables.items():
        bench.complete(f"wal_sink, {way}", partial(table.check, source))
        table.drop()
    result = msgspec.json.decode(text, type=dict[str, list[Flushed]])
    return compared(result, len(bench.sizes.windows))


def compared(result: dict[str, list[Flushed]], sizes: int) -> list[Figure]:
    """Compare the ways, window by window.

    :param result: the windows of each way, in rounds of `sizes` sizes.
    """
    figures = []
    won: dict[str, list[float]] = {job: [] for job in JOBS}
    for size, job in itertools.product(range(sizes), JOBS):
        threads, jobs = result[THREAD][size::sizes], result[job][size::sizes]
        over = [
            by_job.seconds / thread.seconds for thread, by_job in zip(threads, jobs, strict=True)
        ]
        mib = threads[0].mib
        if statistics.median(over) < 1:
            won[job].append(mib)
        else:
            won[job].clear()  # not from a smaller one on
        name = f"flush job: {mib:.1f} MiB, rate of a thread over a {job}"
        busy = [thread.server_cpu_s / thread.seconds for thread in threads]
        note = f"beside a thread the server is busy for {statistics.median(busy):.2f} of the time"
        figures.append(figure(name, over, "x", note=note))
    return figures + [_wins(job, won[job], result, sizes) for job in JOBS if WAYS[job] > 1]


def _wins(job: str, won: Sequence[float], result: dict[str, list[Flushed]], sizes: int) -> Figure:
    """Say from which window on a job wins: as measured, and by CPU where the server is not the limit.

    By CPU, since that is the same on a busy machine: what a job takes more than a thread with the smallest
    window, over what its tasks take off a thread for each MiB.
    """
    largest = max(item.mib for item in result[THREAD])
    measured = f"from {won[0]:.1f} MiB on" if won else f"with no window up to {largest:.1f} MiB"
    smallest = list(zip(result[THREAD][::sizes], result[job][::sizes], strict=True))
    extra_s = statistics.median(by_job.seconds - thread.seconds for thread, by_job in smallest)
    extra_cpu_s = statistics.median(
        by_job.client_cpu_s - thread.client_cpu_s for thread, by_job in smallest
    )
    last = result[THREAD][sizes - 1 :: sizes]
    s_a_mib = statistics.median(item.driver_cpu_s / item.mib for item in last)
    saved = s_a_mib * (1 - 1 / WAYS[job])
    return figure(
        f"flush job: where the server is not the limit, a {job} wins from",
        [max(0.0, extra_cpu_s / saved)],
        "MiB",
        note=f"it costs {1e3 * extra_cpu_s:.0f} ms of CPU ({1e3 * extra_s:.0f} ms), a thread uses"
        f" {1e3 * s_a_mib:.0f} ms of CPU a MiB; measured: it wins {measured}; the default is"
        f" {DEFAULT_MIB:.0f} MiB",
    )


def _apart(processors: Sequence[int]) -> tuple[list[int], list[int]]:
    """Give the server one processor and its clients another one; both the only one where there is one."""
    return [processors[0]], [processors[-1]]

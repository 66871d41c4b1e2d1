"""A driver that flushes windows of several sizes: `python -m tests.benchmarks.window_app CONFIG`.

It keeps itself, Spark and the workers on some processors. Each way has a query, a log and a table of its own;
they take turns with each window. It prints what each window took. A small window goes right before it, so
that workers are there and connected, as they are where one large window follows another.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import NamedTuple

import msgspec
from pyspark.sql import SparkSession

from tests.benchmarks import cpu
from tests.benchmarks.affinity import pinned
from tests.benchmarks.backlog import Query, Timed, flusher_of
from tests.benchmarks.rows import Source
from tests.benchmarks.session import open_session
from wal_sink.flush.write import WindowWrite, WriteInThread, WriteRows
from wal_sink.protocol.windows import _cut
from wal_sink.spark.flush_job import WriteByJob
from wal_sink.testing.micro_batches import until_idle

WAYS = {"thread": 0, "job of 1 task": 1, "job of 2 tasks": 2}
"""How many tasks write; 0: a thread of the driver does."""


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """What is flushed, and where."""

    processors: list[int]
    """For this process and all that it starts."""
    server: int
    """Process id of the node."""
    folder: str
    options: dict[str, dict[str, str]]
    """Of the sink, without the checkpoint, by way."""
    source: Source
    bounds: list[int]
    """The windows: rows from each up to the next; every second one counts, and the others warm up."""


class Flushed(NamedTuple):
    """What one window took."""

    mib: float
    """Of its segments."""
    seconds: float
    """From the read of the ledger row to the mark."""
    driver_cpu_s: float
    """Of the driver's Python process."""
    client_cpu_s: float
    """Of that, its JVM and all workers."""
    server_cpu_s: float


class ByJob(WriteByJob):
    """Writes every window by a job of a fixed number of tasks, whatever slots are free."""

    def __init__(self, spark: SparkSession, tasks: int) -> None:
        super().__init__(spark, above_bytes=0)
        self._tasks = tasks

    def __call__(self, write: WindowWrite) -> bool:
        """Write all rows of a window; see `WriteRows`."""
        window = write.window
        ranges = [rows for manifest in window.manifests for rows in window.ranges(manifest)]
        written = self._by_job(write, _cut(ranges, self._tasks))
        if written is None:
            raise RuntimeError("there was no job; see above")
        return written


class Line:
    """One query that flushes its windows in one way."""

    def __init__(
        self, folder: Path, options: dict[str, str], write_rows: WriteRows, server: int
    ) -> None:
        self._query, self._server = Query(folder, options), server
        self._timed = Timed()
        self._flusher = flusher_of(self._query.backlog, self._timed, write_rows)

    def flush(self, epoch: int, source: Source, first: int, last: int) -> Flushed:
        """Make an epoch of these rows, and flush it."""
        self._query.checkpoint(epoch, source, first, last)
        start_cpu_s = _cpu_s(self._server)
        until_idle(self._flusher)
        used = (after - then for after, then in zip(_cpu_s(self._server), start_cpu_s, strict=True))
        return Flushed(self._timed.bytes[-1] / 2**20, self._timed.seconds[-1], *used)


def _cpu_s(server: int) -> tuple[float, float, float]:
    """Return the CPU seconds so far of this process, of it and all that it has started, and of the node."""
    return time.process_time(), cpu.of_tree(os.getpid()), cpu.of(server)


def main(config: Config) -> dict[str, list[Flushed]]:
    """Flush all windows in all ways."""
    with pinned(os.getpid(), set(config.processors)):
        spark = open_session(**{"spark.master": "local[3]"})
        lines = {
            way: Line(
                Path(config.folder, str(tasks)),
                config.options[way],
                ByJob(spark, tasks) if tasks else WriteInThread(),
                config.server,
            )
            for way, tasks in WAYS.items()
        }
        result: dict[str, list[Flushed]] = {way: [] for way in WAYS}
        for epoch in range(0, len(config.bounds) - 1, 2):
            for way, line in lines.items():
                for number in (epoch, epoch + 1):
                    flushed = line.flush(number, config.source, *config.bounds[number : number + 2])
                result[way].append(flushed)
        spark.stop()
    return result


if __name__ == "__main__":
    taken = main(msgspec.json.decode(sys.argv[1], type=Config))
    sys.stdout.write(msgspec.json.encode(taken).decode())

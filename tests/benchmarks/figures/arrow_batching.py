"""What Spark's hand-over of rows to Python costs, with and without measuring the bytes after each row."""

from __future__ import annotations

from tests.benchmarks.bench import Bench
from tests.benchmarks.contenders.counting import Counting
from tests.benchmarks.contenders.job import Job
from tests.benchmarks.figure import Figure, at_most, figure
from tests.benchmarks.rows import Source
from tests.benchmarks.run import Run, Taken

MAX_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
UNMEASURED = 2147483647
"""The one limit of bytes that Spark does not check after each row."""


class Unmeasured(Counting):
    """The sink that counts, in a session whose batches are not measured."""

    name = "counts only, batches not measured"

    def run(self, job: Job) -> Taken:
        """Do the job."""
        job.spark.conf.set(MAX_BYTES, str(UNMEASURED))
        try:
            return super().run(job)
        finally:
            job.spark.conf.unset(MAX_BYTES)


def arrow_batching(bench: Bench) -> list[Figure]:
    """Client CPU and time of a sink that counts, over the same as Spark is set."""
    source = Source(shape="grouped", rows=bench.sizes.grouped)
    bench.say(f"hand-over, {source.rows:,} rows")
    pairs: list[tuple[Run, Run]] = []
    for number in range(-1, bench.sizes.rounds):
        measured = bench.stream(Counting(), source, number)
        unmeasured = bench.stream(Unmeasured(), source, number)
        if number >= 0 and measured and unmeasured:
            pairs.append((measured, unmeasured))
    return [
        figure(
            "hand-over: client CPU without measuring the bytes, over with it",
            [without.client_cpu_s / item.client_cpu_s for item, without in pairs],
            "x",
            at_most(0.8),
        ),
        figure(
            "hand-over: time without measuring the bytes, over with it",
            [without.seconds / item.seconds for item, without in pairs],
            "x",
        ),
    ]

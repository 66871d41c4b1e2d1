"""The part `long`: compares the costs at the end of a long run with those at its beginning."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

import wal_sink
from tests.benchmarks import session
from tests.benchmarks.bench import Bench
from tests.benchmarks.figure import Figure, Target, at_most, figure, p99
from tests.benchmarks.long import curves, run, stream
from tests.benchmarks.long.curves import cpu_s
from tests.benchmarks.long.sample import Sample
from tests.benchmarks.rows import COLUMNS
from tests.benchmarks.table import Table

_TENTH = 10


def long(bench: Bench) -> list[Figure]:
    """Run one query for an hour, draw its curves, and compare the last tenth of its epochs with the second.

    The first tenth is not used, since Java's compiler still works then.
    """
    sizes = bench.sizes.long
    bench.say(
        f"long, {sizes.epochs:,} epochs of {sizes.rows:,} rows, {sizes.minutes:g} minutes at most"
    )
    table, checkpoint = Table(bench.server, COLUMNS), bench.new_folder()
    spark = session.open_session()
    try:
        samples = run.run(spark, table, checkpoint, sizes, bench.server.pid, bench.say)
    finally:
        spark.stop()
    flushed = wal_sink.status(str(checkpoint)).flushed + 1
    bench.complete("wal_sink", lambda: table.check_totals(stream.totals(flushed * sizes.rows)))
    table.drop()
    bench.plotted.append(bench.plots / "long.svg")
    curves.draw(bench.plotted[-1], samples, sizes.rows)
    return compared(samples)


def compared(samples: Sequence[Sample]) -> list[Figure]:
    """Compare the last tenth of the samples with the second tenth."""
    size = max(2, len(samples) // _TENTH)
    early, late = samples[size : 2 * size], samples[-size:]
    if len(samples) < 2 * size + 2:
        return [figure("long", [], "x", at_most(1.1), f"{len(samples)} samples are too few")]

    def grown(
        name: str, source: Callable[[Sequence[Sample]], float], unit: str, target: Target
    ) -> Figure:
        first, last = source(early), source(late)
        note = (
            f"{first:,.4g} {unit} until epoch {early[-1].epochs:,},"
            f" {last:,.4g} until {late[-1].epochs:,}"
        )
        return figure(
            f"long: {name}, last tenth over the second", [last / first], "x", target, note
        )

    return [
        grown("client CPU of an epoch", _cpu_ms, "ms", at_most(1.1)),
        grown("time of an epoch", _epoch_ms, "ms", at_most(1.1)),
        grown("commits/N to flushed, median", _median_ms, "ms", at_most(1.1)),
        grown("commits/N to flushed, 99 %", _p99_ms, "ms", at_most(1.25)),
        grown("memory of the driver's Python", _median("python_mb"), "MB", at_most(1.1)),
        grown("memory of Spark's Python workers", _median("workers_mb"), "MB", at_most(1.1)),
        grown("threads of the driver's Python", _median("threads"), "threads", at_most(1.1)),
        grown("files, sockets and pipes of that", _median("handles"), "open", at_most(1.1)),
        grown("files in the log", _median("names"), "files", at_most(1.1)),
    ]


def _cpu_ms(samples: Sequence[Sample]) -> float:
    return 1_000 * cpu_s(samples[0], samples[-1])


def _epoch_ms(samples: Sequence[Sample]) -> float:
    first, last = samples[0], samples[-1]
    return 1_000 * (last.seconds - first.seconds) / (last.epochs - first.epochs)


def _median_ms(samples: Sequence[Sample]) -> float:
    return statistics.median([ms for sample in samples for ms in sample.visible_ms])


def _p99_ms(samples: Sequence[Sample]) -> float:
    return p99([ms for sample in samples for ms in sample.visible_ms])


def _median(name: str) -> Callable[[Sequence[Sample]], float]:
    """Return the median of a field of samples."""
    return lambda samples: statistics.median(getattr(sample, name) for sample in samples)

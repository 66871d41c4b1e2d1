"""The parts about epochs: latency, overhead, and micro-batches during an outage of Cassandra."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql.streaming.query import StreamingQuery

import wal_sink
from tests.benchmarks import small_epochs
from tests.benchmarks.bench import Bench
from tests.benchmarks.contenders import counting, ours
from tests.benchmarks.figure import Figure, at_most, figure, p99
from tests.benchmarks.prober import Prober
from tests.benchmarks.small_epochs import MicroBatch
from tests.benchmarks.table import Table

_SKIPPED = 3
"""The number of first epochs that do not count, since worker processes start in them."""
_WARM_UP = 3
"""The epochs before those that `latency` measures, as a multiple of them. The JVMs of Spark and of the node
compile their code in these epochs, which takes CPU from the query.
"""


def latency(bench: Bench) -> list[Figure]:
    """Measure the time from `commits/N` to visible rows, over epochs of 1,000 rows with a local log."""
    first = _SKIPPED + _WARM_UP * bench.sizes.epochs
    last = first + bench.sizes.epochs - 1
    bench.say(f"latency, {bench.sizes.epochs} epochs after {first}")
    checkpoint, table = bench.new_folder(), Table(bench.server)
    prober = Prober(table, checkpoint, first, last)
    try:
        _ours(bench, table, checkpoint, lambda query: small_epochs.await_epoch(query, last))
        ms = sorted(1_000 * seconds for seconds in prober.seconds())
    finally:
        prober.kill()
    note = f"{len(ms)} epochs, {ms[0]:.0f} to {ms[-1]:.0f} ms"
    return [
        figure(
            "latency: commits/N to visible, median",
            [statistics.median(ms)],
            "ms",
            at_most(40),
            note,
        ),
        figure("latency: commits/N to visible, p99", [p99(ms)], "ms", at_most(250)),
    ]


def overhead(bench: Bench) -> list[Figure]:
    """Measure how much longer a micro-batch takes than with a sink that only counts."""
    epochs = bench.sizes.epochs // bench.sizes.rounds + _SKIPPED
    bench.say(f"overhead, {bench.sizes.rounds} rounds of 2 x {epochs} epochs")
    values, note = [], ""
    for _ in range(bench.sizes.rounds):
        table = Table(bench.server)
        mine = _ours(
            bench,
            table,
            bench.new_folder(),
            lambda query: small_epochs.await_epoch(query, epochs),
        )
        floor = _counted(bench, epochs)
        values.append(_median_ms(mine) - _median_ms(floor))
        note = f"{_median_ms(mine):.0f} and {_median_ms(floor):.0f} ms in the last round"
    return [figure("overhead: a micro-batch over counting", values, "ms", at_most(25), note)]


def outage(bench: Bench) -> list[Figure]:
    """Measure how much longer micro-batches take while Cassandra does not answer."""
    pause_s = bench.sizes.pause_s
    bench.say(f"outage of {pause_s:g} s")
    away: list[float] = []

    def pause(query: StreamingQuery) -> None:
        small_epochs.await_epoch(query, _SKIPPED)
        time.sleep(pause_s)
        bench.server.pause()
        away.append(time.time())
        time.sleep(pause_s)
        away.append(time.time())
        bench.server.resume()

    table = Table(bench.server)
    batches = _ours(bench, table, bench.new_folder(), pause)
    normal = [batch for batch in batches if batch.began_s + batch.ms / 1_000 < away[0]]
    during = [batch for batch in batches if away[0] < batch.began_s < away[1]]
    if not normal or not during:
        return [figure("outage: a micro-batch", [], "x", at_most(1.25), "there was none")]
    return [
        figure(
            f"outage of {pause_s:g} s: a micro-batch over one before",
            [_median_ms(during) / _median_ms(normal)],
            "x",
            at_most(1.25),
            f"{len(during)} and {len(normal)} micro-batches, {_median_ms(normal):.0f} ms before",
        )
    ]


def _ours(
    bench: Bench, table: Table, checkpoint: Path, until: Callable[[StreamingQuery], None]
) -> list[MicroBatch]:
    """Run wal_sink until a condition, and check the table."""
    with wal_sink.register(bench.spark, drain_timeout=ours.DRAIN_S):
        writer = ours.writer(small_epochs.rows(bench.spark), table)
        with small_epochs.running(writer, checkpoint, bench.sizes.every_ms) as query:
            until(query)
    epochs = wal_sink.status(str(checkpoint)).flushed + 1
    bench.complete("wal_sink", lambda: table.check_totals(small_epochs.totals(epochs)))
    table.drop()
    return small_epochs.seen(query)


def _counted(bench: Bench, epochs: int) -> list[MicroBatch]:
    writer = counting.writer(small_epochs.rows(bench.spark))
    with small_epochs.running(writer, bench.new_folder(), bench.sizes.every_ms) as query:
        small_epochs.await_epoch(query, epochs)
    return small_epochs.seen(query)


def _median_ms(batches: list[MicroBatch]) -> float:
    return statistics.median(batch.ms for batch in batches if batch.epoch >= _SKIPPED)

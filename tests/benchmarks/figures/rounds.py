"""Runs of several contenders in turn, in rounds."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from datetime import datetime
from operator import attrgetter
from typing import Any

from pyspark.sql.streaming.readwriter import DataStreamWriter

import wal_sink
from tests.benchmarks.bench import Bench
from tests.benchmarks.contenders import ours
from tests.benchmarks.contenders.contender import Contender, Store, Stream
from tests.benchmarks.rows import Source
from tests.benchmarks.run import Run, Taken

Round = dict[str, Run]
"""The runs of one round, by contender."""
RATE, CLIENT, SERVER = map(attrgetter, ("rows_per_s", "client_us", "server_us"))


def rounds(
    bench: Bench, store: Store, source: Source, contenders: Sequence[Contender], count: int
) -> list[Round]:
    """Let each contender write the source once in each round; the first contender changes."""
    bench.say(f"{store.title}, {source.rows:,} rows")
    if bench.sizes.warm_up:
        for contender in contenders:
            _stream(bench, store, contender, smaller(source, bench.sizes.warm_up), -1)
    result: list[Round] = []
    for number in range(count):
        bench.say(f" round {number + 1} of {count}")
        first = number % len(contenders)
        order = [*contenders[first:], *contenders[:first]]
        runs = [_stream(bench, store, contender, source, number) for contender in order]
        result.append({run.contender: run for run in runs if run is not None})
    return result


def _stream(
    bench: Bench, store: Store, contender: Contender, source: Source, number: int
) -> Run | None:
    epochs = bench.sizes.micro_batches
    source.files(epochs)
    stream = Stream(bench.spark, source, epochs, bench.new_folder())

    def prepare(table: Any) -> Callable[[], Taken]:
        writer = contender.writer(stream.rows(), table)
        return lambda: _run(stream, contender, writer)

    run = bench.measure(contender.name, store, source, number, prepare, check=contender.writes)
    shutil.rmtree(stream.checkpoint, ignore_errors=True)
    return run


def _run(stream: Stream, contender: Contender, writer: DataStreamWriter) -> Taken:
    if not contender.flushes:
        stream.run(writer)
        return Taken(stream.committed_s() - stream.began_s())
    with wal_sink.register(stream.spark, drain_timeout=ours.DRAIN_S):
        stream.run(writer)
    flushed = wal_sink.status(str(stream.checkpoint)).flushed_as_of
    assert flushed is not None, "the block has ended, so everything is flushed"
    return Taken(datetime.fromisoformat(flushed).timestamp() - stream.began_s())


def smaller(source: Source, rows: int) -> Source:
    """Return a source with fewer rows and partitions of the same size."""
    rows = min(rows, source.rows)
    partitions = max(1, source.partitions * rows // source.rows)
    return Source(shape=source.shape, rows=rows, partitions=partitions)


def ratios(
    result: Sequence[Round], one: str, other: str, value: Callable[[Run], float]
) -> list[float]:
    """Return the value of `one` divided by that of `other`, for each round that has both."""
    return [
        value(runs[one]) / value(runs[other]) for runs in result if one in runs and other in runs
    ]

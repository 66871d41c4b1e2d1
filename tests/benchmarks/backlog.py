"""Makes a log with epochs that are completed but not flushed, without Spark.

This module writes the files of the checkpoint; the product's code makes segments and manifests.
"""

from __future__ import annotations

import itertools
import json
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tests.benchmarks.rows import Source
from wal_sink.configuration import configure, retention_of
from wal_sink.flush.flusher import Flusher
from wal_sink.flush.pipeline import Pipeline
from wal_sink.flush.reporter import Reporter
from wal_sink.flush.write import WriteInThread
from wal_sink.model.manifest import Execution, Task
from wal_sink.publish.plans import agree
from wal_sink.telemetry import FlushedEpoch, FlushMetrics

_TASKS = 2
_SLICE = 10_000
"""The rows of a record batch, as Spark makes them."""


class Backlog(NamedTuple):
    """A query with pending epochs."""

    options: dict[str, str]
    """The options of the query, with the checkpoint."""
    query_id: str


def make(folder: Path, options: Mapping[str, str], source: Source, epochs: int) -> Backlog:
    """Make a checkpoint in `folder`, and a log with the rows of a source.

    :param options: the options of the sink, without the checkpoint.
    :param epochs: the number of epochs.
    """
    query = Query(folder, options)
    bounds = [source.rows * number // epochs for number in range(epochs + 1)]
    for epoch, (first, last) in enumerate(itertools.pairwise(bounds)):
        query.checkpoint(epoch, source, first, last)
    return query.backlog


class Query:
    """A query that is not flushed.

    :param folder: the folder of the checkpoint, which is made.
    :param options: the options of the sink, without the checkpoint.
    """

    def __init__(self, folder: Path, options: Mapping[str, str]) -> None:
        self._query_id, self._run_id = str(uuid.uuid4()), str(uuid.uuid4())
        self.backlog = Backlog({**options, "checkpointLocation": str(folder)}, self._query_id)
        _write(folder / "metadata", json.dumps({"id": self._query_id}))
        self._folder = folder
        self._configuration = configure(self.backlog.options)

    def checkpoint(self, epoch: int, source: Source, first: int, last: int) -> None:
        """Publish and complete the next epoch, with a source's rows from `first` to before `last`."""
        _write(
            self._folder / "offsets" / str(epoch),
            f'v1\n{{"batchTimestampMs":0}}\n{{"offset":{last}}}',
        )
        self._publish(epoch, source, first, last)
        _write(self._folder / "commits" / str(epoch), 'v1\n{"nextBatchWatermarkMs":0}')

    def _publish(self, epoch: int, source: Source, first: int, last: int) -> None:
        """Run the tasks and `commit()`."""
        micro_batch = agree(self._configuration, source.table(np.arange(0)).schema)
        bounds = [first + (last - first) * part // _TASKS for part in range(_TASKS + 1)]
        appended, execution = [], Execution(self._query_id, self._run_id, epoch)
        for partition, between in enumerate(itertools.pairwise(bounds)):
            rows = source.table(np.arange(*between)).combine_chunks().to_batches(_SLICE)
            appended.append(micro_batch.append(rows, Task(execution, partition, task_attempt=0)))
        micro_batch.publish(execution, appended)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


class Timed(FlushMetrics):
    """Records the duration of each window, from the read of the ledger row to the mark."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def flushed(self, epochs: Sequence[FlushedEpoch], seconds: float | None) -> None:
        """Record a window."""
        self.seconds.append(seconds or 0.0)


def flusher_of(backlog: Backlog, metrics: FlushMetrics) -> Flusher:
    """Return a flusher of the query's only target."""
    configuration = configure(backlog.options)
    (destination,) = configuration.destinations
    pipeline = Pipeline(
        query_id=backlog.query_id,
        store=configuration.location.open_log(backlog.query_id),
        checkpoint=configuration.location.open_checkpoint(),
        target=destination.target,
        target_name=destination.name,
        several=False,
        retention=retention_of(configuration.sink),
    )
    reporter = Reporter(None, destination.name, metrics=metrics)
    return Flusher(pipeline, reporter, write_rows=WriteInThread())

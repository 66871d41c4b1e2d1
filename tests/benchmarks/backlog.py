"""A log full of checkpointed epochs that are not flushed, made without Spark.

It plays Spark's part, the files of the checkpoint; segments and manifests are made by the product's own
steps, as a task and `commit()` do.
"""

from __future__ import annotations

import itertools
import json
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tests.benchmarks.rows import Source
from wal_sink.configuration import configure
from wal_sink.model.plan import plan_key
from wal_sink.model.task import Appended, Execution, Task
from wal_sink.publish.append import append
from wal_sink.publish.fencing import take_ticket
from wal_sink.publish.publisher import Publisher

_TASKS = 2
_SLICE = 10_000
"""Rows of a record batch, as Spark makes them."""


class Backlog(NamedTuple):
    """Where it is."""

    options: dict[str, str]
    """Those of the query, with the checkpoint."""
    query_id: str


def make(folder: Path, options: Mapping[str, str], source: Source, epochs: int) -> Backlog:
    """Make a checkpoint in `folder` and fill its log with a source.

    :param options: of the sink, without the checkpoint.
    :param epochs: on which the rows are spread.
    """
    backlog = Backlog({**options, "checkpointLocation": str(folder)}, str(uuid.uuid4()))
    _write(folder / "metadata", json.dumps({"id": backlog.query_id}))
    query = _Query(backlog)
    bounds = [source.rows * number // epochs for number in range(epochs + 1)]
    for epoch, (first, last) in enumerate(itertools.pairwise(bounds)):
        _write(
            folder / "offsets" / str(epoch), f'v1\n{{"batchTimestampMs":0}}\n{{"offset":{last}}}'
        )
        query.publish(epoch, source, first, last)
        _write(folder / "commits" / str(epoch), 'v1\n{"nextBatchWatermarkMs":0}')
    return backlog


class _Query:
    def __init__(self, backlog: Backlog) -> None:
        self._configuration = configure(backlog.options)
        self._query_id, self._run_id = backlog.query_id, str(uuid.uuid4())
        self._checkpoint = self._configuration.location.open_checkpoint()
        self._log = self._configuration.location.open_log(self._query_id)
        take_ticket(self._log, self._run_id)

    def publish(self, epoch: int, source: Source, first: int, last: int) -> None:
        """Do what tasks and `commit()` do."""
        target = self._configuration.target
        key = plan_key(source.table(np.arange(0)).schema, target.name, target.shape)
        if self._log.plan(key) is None:
            self._log.create_plan(target.plan(source.table(np.arange(0)).schema, key))
        publisher = Publisher(
            self._log,
            self._checkpoint,
            plan=key,
            options=self._configuration.public,
            clock_us=lambda: time.time_ns() // 1_000,
        )
        bounds = [first + (last - first) * part // _TASKS for part in range(_TASKS + 1)]
        publisher.publish(
            Execution(self._query_id, self._run_id, epoch),
            [
                self._append(epoch, task, key, source, np.arange(*between))
                for task, between in enumerate(itertools.pairwise(bounds))
            ],
        )

    def _append(
        self,
        epoch: int,
        task: int,
        key: str,
        source: Source,
        ids: np.ndarray[tuple[int], np.dtype[np.int64]],
    ) -> Appended:
        plan = self._log.plan(key)
        assert plan is not None
        return append(
            source.table(ids).combine_chunks().to_batches(_SLICE),
            task=Task(
                query_id=self._query_id,
                run_id=self._run_id,
                epoch=epoch,
                partition=task,
                attempt=0,
            ),
            backend=self._log.backend,
            check=lambda batch: self._configuration.target.check(batch, plan),
            compression="lz4",
        )


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)

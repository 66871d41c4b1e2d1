"""Writes a micro-batch to the log, from its rows to its manifest, for the data source and for `batch_writer`.

The driver's host makes the plans (`plans`). Each task appends its rows. Then the driver's host publishes or
discards the segments that all tasks have reported. Nothing is kept in memory between these calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa

from wal_sink.configuration import Configuration
from wal_sink.errors import InvalidRow
from wal_sink.model.manifest import Appended, Execution, Task
from wal_sink.model.plan import Plan
from wal_sink.publish.publisher import Publisher, discard, discard_call
from wal_sink.wal.location import log_errors
from wal_sink.wal.store import LogStore

EPOCH_TYPE = pa.int64()
"""The type of `epochColumn`."""


def with_epoch(batch: pa.RecordBatch, name: str, epoch: int) -> pa.RecordBatch:
    """Add `epochColumn` to a batch, with the same value in every row."""
    if not name:
        return batch
    packed = pa.py_buffer(epoch.to_bytes(8, "little", signed=True) * batch.num_rows)
    column = pa.Array.from_buffers(
        EPOCH_TYPE, batch.num_rows, [None, packed]
    )  # does not import pandas
    return pa.RecordBatch.from_arrays(
        [*batch.columns, column],
        schema=batch.schema.append(pa.field(name, EPOCH_TYPE, nullable=False)),
    )


class MicroBatch(NamedTuple):
    """The options and plans by which tasks and publisher write a micro-batch. Picklable, for the tasks."""

    configuration: Configuration
    plans: Mapping[str, Plan]
    """Plan of each target by the target's name. All plans have one key."""

    @property
    def plans_key(self) -> str:
        """Return the key of the plans in the log. `commit()` refuses a task's report with another key."""
        return next(iter(self.plans.values())).key

    def append(self, batches: Iterable[pa.RecordBatch], task: Task) -> Appended:
        """Append a partition's rows to the log, in the task; see `publish.append.append`.

        :raises InvalidRow: a target would refuse a row.
        """
        from wal_sink.publish.append import append, most_inline  # noqa: PLC0415 -- only tasks need pyarrow.compute

        column = self.configuration.sink.epoch_column
        return append(
            (with_epoch(batch, column, task.execution.epoch) for batch in batches),
            task=task,
            store=self._store(task.execution.query_id),
            check=self._checked,
            compression=self.configuration.sink.compression,
            on_invalid_row=self.configuration.sink.on_invalid_row,
            inline_bytes=most_inline(task.partition),
        )

    def _checked(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch after each target has checked the rows.

        A single target casts the rows, too. If there are several targets, each casts the rows in its flush.
        """
        for destination in self.configuration.destinations:
            try:
                checked = destination.target.check(batch, self.plans[destination.name])
            except InvalidRow as error:
                error.target = destination.prefix
                raise
        return batch if self.configuration.several else checked

    def publish(
        self,
        execution: Execution,
        appended: Sequence[Appended],
        begins_after: int | None = None,
    ) -> None:
        """Publish the epoch, on the driver's host. No row is sent until Spark has written `commits/N`.

        :param begins_after: see `Publisher`.
        :raises WalSinkError: see `Publisher.publish`.
        """
        sink, store = self.configuration.sink, self._store(execution.query_id)
        publisher = Publisher(
            store=store,
            checkpoint=self.configuration.location.open_checkpoint(),
            plans=self.plans,
            max_bytes=sink.max_bytes,
            on_full=sink.on_full,
            options=self.configuration.public,
            begins_after=begins_after,
        )
        with log_errors(store.url):
            publisher.publish(execution, appended)

    def discard(self, appended: Sequence[Appended]) -> None:
        """Delete the segments that tasks have reported, after another task of the batch has failed."""
        if appended:
            discard(self._store(appended[0].execution.query_id), appended)

    def discard_call(self, execution: Execution, call: str) -> None:
        """Delete the segments of one call's tasks. None of the tasks has reported."""
        discard_call(self._store(execution.query_id), execution, call)

    def _store(self, query_id: str) -> LogStore:
        return self.configuration.location.open_log(query_id)

"""Takes a micro-batch from its rows to its manifest: the one path of every Spark API of the sink.

The APIs, a data source and `foreachBatch`, only call it where Spark calls them: the plans are agreed on the
driver's host (`agreement`), each task appends its rows, and the driver's host publishes what all tasks have
reported, or discards it. No state is kept from one call to the next: it is in the log.

`epochColumn` is added here, and quarantine is refused where a refused row could not be sent again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa

from wal_sink.configuration import Configuration
from wal_sink.errors import InvalidRow, OptionError, SchemaMismatch
from wal_sink.model.manifest import Appended, Execution, Task
from wal_sink.model.plan import Plan, several_plans_key
from wal_sink.publish.publisher import Publisher, Terms, discard, discard_call
from wal_sink.wal.location import log_errors
from wal_sink.wal.store import LogStore

_TYPE = pa.int64()

RESERVED = "wal_sink:"
"""How the names of the columns begin that targets put beside those of a DataFrame."""


def with_epoch_field(schema: pa.Schema, name: str) -> pa.Schema:
    """Add the column to a DataFrame's schema; no change for an empty name.

    :raises OptionError: the DataFrame has a column of that name.
    :raises SchemaMismatch: a column has a name that targets use for their own.
    """
    for column in (*schema.names, name):
        if column.startswith(RESERVED):
            raise SchemaMismatch(
                f"Column {column}: names that begin with {RESERVED} are those of the sink's own columns.",
                f"Give it another name, .withColumnRenamed({column!r}, …).",
            )
    if not name:
        return schema
    if name in schema.names:
        raise OptionError(
            f"Option epochColumn is {name}, and the DataFrame has a column of that name.",
            "Name a column of the table that the DataFrame does not have, or drop it.",
        )
    return schema.append(pa.field(name, _TYPE, nullable=False))


def with_epoch(batch: pa.RecordBatch, name: str, epoch: int) -> pa.RecordBatch:
    """Add the column to a batch, the same value in every row."""
    if not name:
        return batch
    packed = pa.py_buffer(epoch.to_bytes(8, "little", signed=True) * batch.num_rows)
    column = pa.Array.from_buffers(_TYPE, batch.num_rows, [None, packed])  # loads no pandas
    return pa.RecordBatch.from_arrays(
        [*batch.columns, column], schema=batch.schema.append(pa.field(name, _TYPE, nullable=False))
    )


def refuse_quarantine(plans: Iterable[Plan], on_invalid_row: str) -> None:
    """Refuse quarantine for a table whose rows must not be sent twice with one timestamp (rule `repeatable`).

    :raises OptionError: such rows would be kept.
    """
    if on_invalid_row == "quarantine":
        for plan in plans:
            if plan.sent_once:
                raise OptionError(
                    f"Option onInvalidRow is quarantine, and {plan.table} has lists that are not frozen:"
                    " refused rows are known, and sent again, by their timestamps, which each attempt at such"
                    " lists raises.",
                    "Leave out the option; or make the columns frozen<list<…>>, or leave them out of the"
                    " DataFrame.",
                )


class MicroBatch(NamedTuple):
    """What tasks and publisher of a micro-batch have to know. Pickles, because it travels to the tasks."""

    configuration: Configuration
    plans: Mapping[str, Plan]
    """Of each target, by its name; all of one key."""

    @property
    def plan(self) -> str:
        """The key of the plans, by which the tasks check the rows."""
        return next(iter(self.plans.values())).key

    def append(self, batches: Iterable[pa.RecordBatch], task: Task) -> Appended:
        """Append a partition's rows to the log, in the task; see `append`.

        :raises InvalidRow: a target would refuse a row.
        """
        from wal_sink.publish.append import append, most_inline  # noqa: PLC0415 -- pyarrow.compute, for tasks alone

        column = self.configuration.sink.epoch_column
        return append(
            (with_epoch(batch, column, task.epoch) for batch in batches),
            task=task,
            backend=self._store(task.query_id).backend,
            check=self._checked,
            compression=self.configuration.sink.compression,
            on_invalid_row=self.configuration.sink.on_invalid_row,
            inline_bytes=most_inline(task.partition),
        )

    def _checked(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Let each target refuse rows. The only one casts them; of several each does so in its flush."""
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
        """Publish the epoch, on the driver's host; nothing is sent before Spark has written `commits/N`.

        :param begins_after: see `Publisher`.
        :raises WalSinkError: see `Publisher.publish`.
        """
        configuration, sink = self.configuration, self.configuration.sink
        store = self._store(execution.query_id)
        terms = Terms(self.plans, sink.max_bytes, sink.on_full, configuration.public)
        checkpoint = configuration.location.open_checkpoint()
        with log_errors(store.url):
            publisher = Publisher(store, checkpoint, terms, begins_after=begins_after)
            publisher.publish(execution, appended)

    def discard(self, appended: Sequence[Appended]) -> None:
        """Delete what tasks have reported of a batch of which a task has failed."""
        if appended:
            discard(self._store(appended[0].query_id), appended)

    def discard_call(self, execution: Execution, call: str) -> None:
        """Delete what tasks of one call have written, of which none has reported."""
        discard_call(self._store(execution.query_id), execution, call)

    def _store(self, query_id: str) -> LogStore:
        return self.configuration.location.open_log(query_id)


def plans_key(configuration: Configuration, columns: pa.Schema) -> str:
    """Return the key of the plans of all targets."""
    return several_plans_key(
        columns,
        {
            destination.prefix: (destination.target.name, destination.target.shape)
            for destination in configuration.destinations
        },
    )

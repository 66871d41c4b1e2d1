"""Receives micro-batches from Spark: a Python data source, thin over `append` and `Publisher`.

Spark makes a data source for each micro-batch, in a Python worker on the driver's host. It calls `write` in
the tasks, and `commit` and `abort` in another worker on the driver's host, on a writer that it makes anew. So
no object keeps anything from one call to the next: what the sink has to remember is in the log.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from state_backends import StateBackendError
from wal_sink.clock import now_us
from wal_sink.configuration import Configuration, configure
from wal_sink.errors import LogUnavailable, OptionError, UnsupportedSpark, WalSinkError
from wal_sink.model.plan import Plan, several_plans_key
from wal_sink.model.task import Appended
from wal_sink.protocol.budget import Budget
from wal_sink.publish.append import append
from wal_sink.publish.backpressure import Backpressure
from wal_sink.publish.discard import discard
from wal_sink.publish.epoch_column import with_epoch, with_epoch_field
from wal_sink.publish.publisher import Publisher
from wal_sink.spark import internals, worker_gc
from wal_sink.targets.base import Target
from wal_sink.wal.log import Log
from wal_sink.wal.store_errors import full_disk_errors, store_errors

FORMAT = "wal_sink"


class WalSinkDataSource(DataSource):
    """Format `wal_sink` for `writeStream`; `wal_sink.register(spark)` adds it to a session.

    :raises OptionError: an option is missing, unknown or does not fit. Spark makes the first data source as
        it plans the first micro-batch, so `awaitTermination()` raises this, not `start()`.
    """

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        # Here, because the instance is sent to other processes: relative locations count once (rule 0).
        self.configuration = configure(options)

    @classmethod
    def name(cls) -> str:
        """Return the name for `format()`."""
        return FORMAT

    def writer(self, schema: StructType, overwrite: bool) -> NoReturn:  # noqa: ARG002
        """Refuse a batch write.

        :raises OptionError: always.
        """
        raise OptionError(
            f"Format {FORMAT} writes streams only.",
            "Use df.writeStream; for a batch use trigger(availableNow=True).",
        )

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        """Return the writer of one micro-batch; the query's first one makes the plan with the target.

        :raises SchemaMismatch, TargetUnavailable, OptionError: from the plan.
        """
        if overwrite:
            raise OptionError(
                f"Format {FORMAT} writes in output mode append only.",
                'Use outputMode("append"); an aggregation needs a watermark for it.',
            )
        checkpoint = self.configuration.location.open_checkpoint()
        log = self.configuration.location.open_log(checkpoint.query_id())
        columns = with_epoch_field(
            internals.arrow_schema(schema), self.configuration.sink.epoch_column
        )
        plans = _agreed_plans(log, self.configuration, columns)
        worker_gc.settle()
        return WalSinkStreamWriter(self.configuration, plans)


def add_format(spark: SparkSession) -> None:
    """Add the format to a session.

    :raises UnsupportedSpark: Spark refuses it.
    """
    try:
        spark.dataSource.register(WalSinkDataSource)
    except AnalysisException as error:
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
        # Measured on Spark 4.3.0: such a session can neither use the format nor be given it.
        raise UnsupportedSpark(
            "This is a newSession() of a session that has the format already; Spark refuses it here",
            "Run the query in the session that was registered first.",
        ) from error


@dataclass
class Message(WriterCommitMessage):
    """Tells `commit` what a task has appended."""

    appended: Appended


class WalSinkStreamWriter(DataSourceStreamArrowWriter):
    """Writes one micro-batch to the log.

    :param plans: of each target, by its name; all of one key.
    """

    def __init__(self, configuration: Configuration, plans: Mapping[str, Plan]) -> None:
        self._configuration = configuration
        self._plans = plans

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Message:
        """Append a partition's rows to the log."""
        task = internals.current_task()
        column = self._configuration.sink.epoch_column
        appended = append(
            iterator,
            task=task,
            backend=self._configuration.location.open_log(task.query_id).backend,
            check=lambda batch: self._checked(with_epoch(batch, column, task.epoch)),
            compression=self._configuration.sink.compression,
        )
        worker_gc.settle()
        return Message(appended)

    def _checked(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Let each target refuse rows. The only one casts them; of several each does so in its flush.

        :raises InvalidRow: a target would refuse a row.
        """
        for each in self._configuration.destinations:
            checked = each.target.check(batch, self._plans[each.name])
        return batch if self._configuration.names else checked

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Publish the epoch; nothing is sent before Spark has written `commits/<batchId>`."""
        appended = [message.appended for message in messages if isinstance(message, Message)]
        if len(appended) != len(messages):
            raise WalSinkError(
                f"commit({batchId}) got {len(messages)} messages, {len(appended)} of them from tasks of"
                " this sink",
                "This is a bug in wal_sink or a change in Spark; please report it.",
            )
        checkpoint = self._configuration.location.open_checkpoint()
        log = self._configuration.location.open_log(checkpoint.query_id())
        sink = self._configuration.sink
        of_targets = {each.name: each.on_full for each in self._configuration.destinations}
        budget = Budget(sink.max_bytes, sink.on_full, of_targets if log.several else {})
        publisher = Publisher(
            log,
            checkpoint,
            plan=next(iter(self._plans.values())).key,
            options=self._configuration.public,
            clock_us=now_us,
            room=Backpressure(
                budget,
                checkpoint,
                log,
                clock_us=now_us,
            ),
        )
        with full_disk_errors(log.url):
            publisher.publish(batchId, appended)
        worker_gc.settle()

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803
        """Delete the segments of a batch of which a task has failed, for its `commit` was never called.

        When no message is missing, `commit` was called, and may have published these very segments although
        it raised: then nothing is deleted (rule 7).
        """
        appended = [message.appended for message in messages if isinstance(message, Message)]
        if appended and len(appended) < len(messages):
            discard(self._configuration.location.open_log(appended[0].query_id), appended)


def _agreed_plans(log: Log, configuration: Configuration, schema: pa.Schema) -> dict[str, Plan]:
    """Return the plan of each target, by its name."""
    there = {each.name: each.target for each in configuration.destinations}
    key = several_plans_key(schema, {n: (each.name, each.shape) for n, each in there.items()})
    return {name: _agreed_plan(log.of(name), target, key, schema) for name, target in there.items()}


def _agreed_plan(log: Log, target: Target, key: str, schema: pa.Schema) -> Plan:
    """Read the plan from the log; make it where the log has none, which alone connects to the target."""
    with store_errors():
        plan = log.plan(key)
    if plan is None:
        try:
            log.backend.probe()
        except StateBackendError as error:
            raise LogUnavailable(
                f"The log cannot be kept in {log.url}: {error}",
                "Set wal.location to a place that driver and executors share and may write to.",
            ) from error
        log.create_plan(target.plan(schema, key))
        plan = log.plan(key)
        assert plan is not None
    return plan

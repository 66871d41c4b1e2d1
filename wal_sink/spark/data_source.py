"""Receives micro-batches from Spark, as a Python data source.

Spark makes a data source for each micro-batch, in a Python worker on the driver's host. Spark calls `write`
in the tasks. In another worker on the driver's host, Spark calls `commit` or `abort` of a copy of the writer.
So the state is in the log, and no object keeps state between two calls.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.configuration import configure
from wal_sink.errors import (
    REPORT_IT,
    Fenced,
    OptionError,
    UnknownOffsetsFormat,
    UnsupportedSpark,
    WalSinkError,
)
from wal_sink.model.manifest import Appended, Execution
from wal_sink.spark.internals import python_worker
from wal_sink.spark.query_errors import append_only, unplanned

if TYPE_CHECKING:
    from wal_sink.publish.micro_batch import MicroBatch


FORMAT = "wal_sink"


class WalSinkDataSource(DataSource):
    """Format `wal_sink` for `writeStream`, for a session without a handle."""

    has_handle = False
    """True if a handle gets Spark's event of each new run, and then requests a new comparison."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        python_worker.drop_empty_accumulators()
        self._refused: OptionError | None = None
        """The error of the options, which `streamWriter` raises."""
        # Spark sends this object to other processes. So relative locations are resolved here, once.
        try:
            self.configuration = configure(options)
        except OptionError as error:
            self._refused = error

    @classmethod
    def name(cls) -> str:
        """Return the name for `format()`."""
        return FORMAT

    def writer(self, schema: StructType, overwrite: bool) -> NoReturn:  # noqa: ARG002
        """Refuse a batch write."""
        raise OptionError(
            f"Format {FORMAT} writes streams only.",
            "Use df.writeStream; for a batch use trigger(availableNow=True).",
        )

    def streamWriter(self, schema: StructType, overwrite: bool) -> WalSinkStreamWriter:  # noqa: N802
        """Return the writer of one micro-batch. The first micro-batch of a run compares plans and tables.

        Spark calls this as it plans a micro-batch. So `awaitTermination()` raises the errors, not `start()`.

        :raises OptionError: an option is missing, unknown or does not fit.
        :raises SchemaMismatch: the DataFrame does not fit a table.
        :raises TargetUnavailable: the target does not answer, and no former plan can be used.
        """
        if self._refused is not None:
            raise self._refused
        if overwrite:
            raise append_only("complete")
        from wal_sink.publish.plans import agree  # noqa: PLC0415 -- a worker that only makes sources needs none

        _refuse_unplanned(self.configuration.location.open_checkpoint())
        micro_batch = agree(self.configuration, python_worker.arrow_schema(schema))
        python_worker.finish_work()
        return WalSinkStreamWriter(micro_batch, has_handle=self.has_handle)


def _refuse_unplanned(checkpoint: Checkpoint) -> None:
    """Refuse a run if `offsets/` lacks its next epoch, since Spark then runs no plain micro-batches.

    A handle refuses such a query as it starts. In the server of a Connect session there is no handle.
    """
    epoch = checkpoint.last_commit() + 1
    try:
        planned = checkpoint.offsets(epoch) is not None
    except UnknownOffsetsFormat:
        planned = True  # `commit` raises this error
    if not planned:
        raise unplanned(f"{checkpoint.url}/offsets/{epoch}")


def add_format(
    spark: SparkSession, data_source: type[WalSinkDataSource] = WalSinkDataSource
) -> None:
    """Add the format to a session.

    :raises UnsupportedSpark: the session is a `newSession()` of a session that has the format.
    """
    try:
        spark.dataSource.register(data_source)
    except AnalysisException as error:
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
        # Spark 4.3.0: such a session cannot use the format, and cannot add the format again.
        raise UnsupportedSpark(
            "This is a newSession() of a session that has the format already; Spark refuses it here.",
            "Run the query in the session that was registered first.",
        ) from error


@dataclass
class Message(WriterCommitMessage):
    """The report of a task, which `commit` gets."""

    appended: Appended
    plans_key: str
    """Key of the plans by which the task checked the rows."""


class WalSinkStreamWriter(DataSourceStreamArrowWriter):
    """Writes one micro-batch to the log."""

    def __init__(self, micro_batch: MicroBatch, *, has_handle: bool = True) -> None:
        self.micro_batch = micro_batch
        self.has_handle = has_handle

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Message:
        """Append a partition's rows to the log."""
        appended = self.micro_batch.append(iterator, python_worker.current_task())
        python_worker.finish_work()
        return Message(appended, self.micro_batch.plans_key)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Publish the epoch. No row of it is sent before Spark has written `commits/<batchId>`."""
        ours = [message for message in messages if isinstance(message, Message)]
        if not ours or len(ours) != len(messages):
            raise WalSinkError(
                f"The commit of batch {batchId} got {len(messages)} messages, {len(ours)} of them from tasks"
                " of this sink.",
                REPORT_IT,
            )
        if {message.plans_key for message in ours} != {self.micro_batch.plans_key}:
            raise Fenced(
                f"Another run of the query has started while batch {batchId} was computed, and uses"
                " another plan.",
                "Let one driver at a time run the query.",
            )
        appended = [message.appended for message in ours]
        execution = appended[0].execution._replace(epoch=batchId)
        if self.has_handle:
            self.micro_batch.publish(execution, appended)
        else:
            self._publish(execution, appended)
        python_worker.finish_work()

    def _publish(self, execution: Execution, appended: Sequence[Appended]) -> None:
        """Publish the epoch. If it is the first of its run, make the next epoch compare plans and tables.

        Spark gives the run id to tasks and `commit` only. So `streamWriter` cannot detect a new run.
        """
        from wal_sink.publish.plans import compare_again  # noqa: PLC0415 -- as in `streamWriter`
        from wal_sink.wal.store import newest  # noqa: PLC0415 -- the same

        store = self.micro_batch.configuration.location.open_log(execution.query_id)
        state = newest(store)
        self.micro_batch.publish(execution, appended)
        if state is None or state.run is None or state.run.run_id != execution.run_id:
            compare_again(store)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803
        """Delete the segments of a batch if one of its tasks failed.

        If every task succeeded, Spark has called `commit`. `commit` may have published the segments before it
        raised an error, so the segments stay.
        """
        appended = [message.appended for message in messages if isinstance(message, Message)]
        if len(appended) < len(messages):
            self.micro_batch.discard(appended)


class HandledDataSource(WalSinkDataSource):
    """Format `wal_sink` in a classic session, to which `wal_sink.register(spark)` adds it."""

    has_handle = True

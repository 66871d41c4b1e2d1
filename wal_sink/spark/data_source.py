"""Receives micro-batches from Spark: a Python data source, thin over `publish.micro_batch`.

Spark makes a data source for each micro-batch, in a Python worker on the driver's host. It calls `write` in
the tasks, and `commit` and `abort` in another worker on the driver's host, on a writer that it makes again.
So no object keeps state from one call to the next: it is in the log.

Also here: pyspark's daemon calls `gc.collect()` in a worker after each piece of work. With pyspark, pyarrow
and this package loaded that takes some 30 ms of CPU, in two workers on the driver's host and in one for
each task. So the modules that are loaded are moved out of the collector's reach.
"""

from __future__ import annotations

import functools
import gc
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
from wal_sink.spark.internals import connect_session, dataframe, streaming_query
from wal_sink.spark.modes import append_only, unplanned

if TYPE_CHECKING:
    from wal_sink.publish.micro_batch import MicroBatch


@functools.cache
def freeze_objects() -> None:
    """Take every object that is alive now out of all later collections (`gc.freeze`); the first call counts.

    Spark's workers call it at the end of their first work, when everything is imported. A frozen object is
    freed as ever when its last reference goes. One in a cycle stays forever: at most what was alive at
    that moment, once for each process. Objects made later are collected as ever.
    """
    gc.collect()
    gc.freeze()


FORMAT = "wal_sink"


class WalSinkDataSource(DataSource):
    """Format `wal_sink` for `writeStream`; `wal_sink.register(spark)` adds it to a session.

    :raises OptionError: an option is missing, unknown or does not fit. Spark makes the first data source as
        it plans the first micro-batch, so `awaitTermination()` raises this, not `start()`.
    """

    has_handle = True
    """False if no handle lets a run that starts compare the plans with the tables."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        connect_session.drop_empty_accumulators()
        self._refused: OptionError | None = None
        """Raised by what writes. A reader is told that there is nothing to read, whatever the options."""
        # Here, because the instance is sent to other processes: relative locations count once.
        try:
            self.configuration = configure(options)
        except OptionError as error:
            self._refused = error

    @classmethod
    def name(cls) -> str:
        """Return the name for `format()`."""
        return FORMAT

    def schema(self) -> NoReturn:
        """Refuse to be read.

        :raises OptionError: always.
        """
        raise OptionError(
            f"Format {FORMAT} only writes.",
            "Read the table by the format of its own database: spark.read.format(…) with"
            ' "org.apache.spark.sql.cassandra" (Spark Cassandra Connector), "jdbc", "kafka", "delta" or'
            ' "iceberg".',
        )

    def reader(self, schema: StructType) -> NoReturn:  # noqa: ARG002
        """Refuse to be read, as `schema` does."""
        self.schema()

    def streamReader(self, schema: StructType) -> NoReturn:  # noqa: ARG002, N802
        """Refuse to be read, as `schema` does."""
        self.schema()

    def writer(self, schema: StructType, overwrite: bool) -> NoReturn:  # noqa: ARG002
        """Refuse a batch write.

        :raises OptionError: always.
        """
        raise OptionError(
            f"Format {FORMAT} writes streams only.",
            "Use df.writeStream; for a batch use trigger(availableNow=True).",
        )

    def streamWriter(self, schema: StructType, overwrite: bool) -> WalSinkStreamWriter:  # noqa: N802
        """Return the writer of one micro-batch; the run's first one compares the plan with the target.

        :raises SchemaMismatch, TargetUnavailable, OptionError: from the plan.
        """
        if self._refused is not None:
            raise self._refused
        if overwrite:
            raise append_only("complete")
        from wal_sink.publish.agreement import agree  # noqa: PLC0415 -- not where Spark only makes sources

        _refuse_unplanned(self.configuration.location.open_checkpoint())
        micro_batch = agree(self.configuration, dataframe.arrow_schema(schema))
        freeze_objects()
        connect_session.drop_empty_accumulators()
        return WalSinkStreamWriter(micro_batch, has_handle=self.has_handle)


def _refuse_unplanned(checkpoint: Checkpoint) -> None:
    """Refuse a run for whose next epoch Spark has written no offsets: it does not run in micro-batches.

    A classic session's handle refuses such a run as it starts (`modes`). The server of a Connect session has
    no handle, and the client may be of another language.

    :raises OptionError: the trigger is continuous, or the mode is unknown.
    """
    epoch = checkpoint.last_commit() + 1
    try:
        planned = checkpoint.offsets(epoch) is not None
    except UnknownOffsetsFormat:
        planned = True  # the commit refuses it
    if not planned:
        raise unplanned(f"{checkpoint.url}/offsets/{epoch}")


def add_format(
    spark: SparkSession, data_source: type[WalSinkDataSource] = WalSinkDataSource
) -> None:
    """Add the format to a session.

    :raises UnsupportedSpark: Spark refuses it.
    """
    try:
        spark.dataSource.register(data_source)
    except AnalysisException as error:
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
        # Measured on Spark 4.3.0: such a session can neither use the format nor be given it.
        raise UnsupportedSpark(
            "This is a newSession() of a session that has the format already; Spark refuses it here.",
            "Run the query in the session that was registered first.",
        ) from error


@dataclass
class Message(WriterCommitMessage):
    """Tells `commit` what a task has appended."""

    appended: Appended
    plan: str
    """By which the task has checked the rows."""


class WalSinkStreamWriter(DataSourceStreamArrowWriter):
    """Writes one micro-batch to the log.

    :param has_handle: see `WalSinkDataSource.has_handle`.
    """

    def __init__(self, micro_batch: MicroBatch, *, has_handle: bool = True) -> None:
        self.micro_batch = micro_batch
        self.has_handle = has_handle

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Message:
        """Append a partition's rows to the log."""
        appended = self.micro_batch.append(iterator, streaming_query.current_task())
        freeze_objects()
        connect_session.drop_empty_accumulators()
        return Message(appended, self.micro_batch.plan)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Publish the epoch; nothing is sent before Spark has written `commits/<batchId>`."""
        ours = [message for message in messages if isinstance(message, Message)]
        if not ours or len(ours) != len(messages):
            raise WalSinkError(
                f"The commit of batch {batchId} got {len(messages)} messages, {len(ours)} of them from tasks"
                " of this sink.",
                REPORT_IT,
            )
        if {message.plan for message in ours} != {self.micro_batch.plan}:
            raise Fenced(
                f"Another run of the query has started while batch {batchId} was computed, and goes by"
                " another plan.",
                "Let one driver at a time run the query.",
            )
        appended = [message.appended for message in ours]
        execution = appended[0].execution._replace(epoch=batchId)
        if self.has_handle:
            self.micro_batch.publish(execution, appended)
        else:
            self._publish_and_compare(execution, appended)
        freeze_objects()
        connect_session.drop_empty_accumulators()

    def _publish_and_compare(self, execution: Execution, appended: Sequence[Appended]) -> None:
        """Publish the epoch, and let the second epoch of a run compare the plans with the tables.

        Spark tells the planner no run id.
        """
        from wal_sink.publish.agreement import compare_again  # noqa: PLC0415 -- as in `streamWriter`
        from wal_sink.wal.states import newest  # noqa: PLC0415 -- the same

        store = self.micro_batch.configuration.location.open_log(execution.query_id)
        state = newest(store)
        self.micro_batch.publish(execution, appended)
        if state is None or state.run is None or state.run.run_id != execution.run_id:
            compare_again(store)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803
        """Delete the segments of a batch of which a task has failed, for its `commit` was never called.

        When no message is missing, `commit` was called, and may have published these very segments although
        it raised: then nothing is deleted.
        """
        appended = [message.appended for message in messages if isinstance(message, Message)]
        if len(appended) < len(messages):
            self.micro_batch.discard(appended)


class ConnectDataSource(WalSinkDataSource):
    """Format `wal_sink` in a Connect session, whose server has no handle that sees a run start."""

    has_handle = False

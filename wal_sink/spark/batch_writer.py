"""Receives micro-batches in `foreachBatch`, for queries that Spark does not allow with a Python data source.

Spark calls the `BatchWriter` on the driver, in the thread of the query. The writer runs a job whose tasks
append the rows, and each successful task returns a report. Then the writer publishes the epoch. Spark writes
`commits/<epoch>` after the call.

Spark does not have the options of such a query. So `_writers` has each writer of this process by its
checkpoint, and the flush of the query gets the options from its writer.
"""

from __future__ import annotations

import uuid
import weakref
from collections.abc import Iterable, Iterator
from functools import partial

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from wal_sink.configuration import Configuration, configure
from wal_sink.errors import REPORT_IT, CheckpointNotVisible, OptionError, WalSinkError
from wal_sink.model.manifest import Appended, Execution
from wal_sink.options import as_texts
from wal_sink.publish.micro_batch import MicroBatch
from wal_sink.publish.plans import agree
from wal_sink.spark.internals import python_worker, spark_session, streaming_query
from wal_sink.spark.query_errors import failure_in
from wal_sink.wal.location import locate


def batch_writer(
    spark: SparkSession,
    *,
    checkpointLocation: str,  # noqa: N803 - as Spark calls it
    **options: object,
) -> BatchWriter:
    """Return a function for `foreachBatch` that writes each micro-batch exactly once, as the format does.

    Use it for output mode update, and for other queries that Spark does not allow with a Python data source::

        writer = wal_sink.batch_writer(spark, checkpointLocation=place, keyspace="shop", table="totals",
                                       **{"cassandra.contactPoints": "127.0.0.1"})
        query = (totals.writeStream.outputMode("update").foreachBatch(writer)
            .option("checkpointLocation", place).start())

    Make the writer before `start()`: a new log begins after the epochs that are completed by then. A function
    of your own may call it, beside other actions, exactly once for each batch, also for an empty one.

    :param checkpointLocation: the checkpoint of the query, which gets the same option.
    :param options: the options of the format, by name.
    :raises OptionError: an option is missing, unknown, or does not fit.
    :raises UnsupportedSpark: the session lacks something that the sink relies on.
    """
    spark_session.check_session(spark)
    return BatchWriter(spark, as_texts({**options, "checkpointLocation": checkpointLocation}))


_REPORTS = msgspec.json.Decoder(tuple[int, Appended])
"""Decodes the report of a task: the number of its partition, and what the task has appended. The decoder is
made at import, since several threads must not make it at the same time."""


class BatchWriter:
    """A function for `foreachBatch`, which `wal_sink.batch_writer` makes.

    :param options: the options of the format, as texts, with `checkpointLocation`.
    """

    def __init__(self, spark: SparkSession, options: dict[str, str]) -> None:
        self._spark = spark
        self._checked_run = ""
        folder = spark_session.folder()
        place = options["checkpointLocation"]
        if place and not place.startswith("/") and ":" not in place:
            options = {**options, "checkpointLocation": f"{folder}/{place}"}
        self.options = options
        self.configuration: Configuration = configure(options, folder)
        try:
            self._begins_after = self.configuration.location.open_checkpoint().last_commit()
        except (OSError, CheckpointNotVisible):
            self._begins_after = -1
        _writers[self.checkpoint] = self

    @property
    def checkpoint(self) -> str:
        """URL of the checkpoint."""
        return self.configuration.location.checkpoint

    def __call__(self, batch: DataFrame, epoch: int) -> None:
        """Write a micro-batch to the log. Spark calls this method, or a function of the application does.

        :raises OptionError: the query has another checkpoint than this writer, or output mode complete.
        :raises AlreadyPublished: this run has published the batch already.
        :raises MissingManifest: Spark completed a batch for which this writer was not called.
        :raises WalSinkError: see `WalSinkStreamWriter.commit`.
        """
        execution = streaming_query.current_execution(self._spark)
        if execution is None or execution.epoch != epoch:
            raise OptionError(
                f"The writer was called with batch {epoch}, while this thread runs "
                + (f"batch {execution.epoch} of a query." if execution else "no batch of a query."),
                "Call it inside the function that foreachBatch was given, in the same thread, with the batch"
                " id that the function gets.",
            )
        if execution.run_id != self._checked_run:
            self._refuse_other_query(execution)
            self._checked_run = execution.run_id
        schema = python_worker.arrow_schema(batch.schema)
        micro_batch = self.agree(schema)
        call = uuid.uuid4().hex[:16]
        try:
            appended = _append_all(batch, micro_batch, schema, call)
        except BaseException as error:
            micro_batch.discard_call(execution, call)
            if (failure := failure_in(str(error))) is not None:
                raise failure from None  # Spark's text around a task's error has hundreds of lines
            raise
        micro_batch.publish(execution, appended, self._begins_after)

    def agree(self, schema: pa.Schema) -> MicroBatch:
        """Return a micro-batch for rows of a schema; see `publish.plans.agree`."""
        return agree(self.configuration, schema)

    def _refuse_other_query(self, execution: Execution) -> None:
        query = streaming_query.active_query(self._spark, execution.query_id)
        if query is None:
            raise OptionError(
                f"Query {execution.query_id} is not in the session that the writer was made with.",
                "Call wal_sink.batch_writer(spark, …) with the session of the query.",
            )
        if str(query.runId) != execution.run_id:
            raise OptionError(
                f"The job group of the query's thread is {execution.run_id}, and not the run id"
                f" {query.runId}. Tasks get the run id from the job group.",
                "Call the writer before setJobGroup, or run other jobs in a thread of their own.",
            )
        if (place := _url(streaming_query.checkpoint_root(query))) != self.checkpoint:
            raise OptionError(
                f"The query keeps its checkpoint in {place}, and its batch_writer was given"
                f" {self.checkpoint}.",
                "Give both the same location: the query by"
                f' .option("checkpointLocation", "{self.checkpoint}").',
            )
        if streaming_query.output_mode(query) == "complete":
            raise OptionError(
                "The query has output mode complete: each batch is the whole result. The sink would write all"
                " rows again for each batch, and rows that have left the result would stay in the table.",
                'Use outputMode("update"): a batch then has the rows that have changed.',
            )


_writers: weakref.WeakValueDictionary[str, BatchWriter] = weakref.WeakValueDictionary()
"""The newest writer of each checkpoint. An entry goes when the application drops the writer."""


def options_at(checkpoint_root: str) -> dict[str, str] | None:
    """Return the options of the writer of a checkpoint; None if there is no writer."""
    writer = _writers.get(_url(checkpoint_root))
    return None if writer is None else writer.options


def _url(place: str) -> str:
    try:
        return locate(place).checkpoint
    except OptionError:
        return place  # a store that the sink does not support


def _append_all(
    batch: DataFrame, micro_batch: MicroBatch, schema: pa.Schema, call: str
) -> list[Appended]:
    """Run a Spark job whose tasks append the rows; return what each partition has appended, in order."""
    task = partial(_append, micro_batch, schema, call)
    rows = python_worker.map_in_arrow(batch, task, "report binary").collect()
    reports = [_REPORTS.decode(bytes(row.report)) for row in rows]
    partitions = [partition for partition, _ in reports]
    if partitions != list(range(len(reports))):
        raise WalSinkError(f"Spark returned reports of partitions {partitions}.", REPORT_IT)
    return [appended for _, appended in reports]


def _append(
    micro_batch: MicroBatch, schema: pa.Schema, call: str, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    task = msgspec.structs.replace(python_worker.current_task(), call=call)
    appended = micro_batch.append((conformed(batch, schema) for batch in batches), task)
    python_worker.freeze_objects()
    report = msgspec.json.encode((task.partition, appended))
    yield pa.RecordBatch.from_pydict({"report": [report]})


def conformed(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the batch with the types of `schema`, since `mapInArrow` gives timestamps another time zone."""
    return pa.RecordBatch.from_arrays(batch.columns, schema=schema)

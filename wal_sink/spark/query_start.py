"""Reads the settings of a query from Spark, and checks them as the query starts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.configuration import FILE_MANAGER, Configuration, configure
from wal_sink.errors import OptionError, WalSinkError
from wal_sink.publish.plans import compare_again
from wal_sink.spark.batch_writer import options_at
from wal_sink.spark.data_source import FORMAT
from wal_sink.spark.internals import streaming_query
from wal_sink.spark.query_flush import Place
from wal_sink.wal.location import owned_state, refuse_other_log
from wal_sink.wal.store import LogStore


class QueryStart(NamedTuple):
    """The settings of a query that starts or runs, with its checkpoint and log."""

    configuration: Configuration
    checkpoint: Checkpoint
    store: LogStore
    sockets: Sequence[str]
    """Descriptions of the sources that cannot return a row a second time."""

    def check_log(self, query_id: str, *, already_runs: bool) -> None:
        """Refuse the log of another query. Let the first micro-batch of the run compare plans and tables.

        :param already_runs: True if a micro-batch may be in flight. Its tasks and its `commit` must use one
            plan, so the plans are not compared again.
        :raises WrongOwner: checkpoint and log do not belong together.
        :raises CorruptLog, LogUnavailable: the log cannot be read.
        """
        refuse_other_log(self.store, self.checkpoint)
        owned_state(self.store, self.checkpoint, query_id)
        if not already_runs:
            compare_again(self.store)


def query_start(spark: SparkSession, query: StreamingQuery) -> QueryStart | OptionError | None:
    """Return the settings of a query; None if the query is not of this sink.

    :return: the error of a wrong option. The query may begin, since its first micro-batch raises this error,
        too. It raises no error if Spark's workers have other packages than this process.
    :raises OptionError: the query must not begin, since its mode or its file manager is not supported.
    """
    started = streaming_query.started_query(query, FORMAT, options_at)
    if started is None:
        return None
    try:
        configuration = configure(started.options, started.folder)
    except OptionError as error:
        return error
    configuration.refuse_bucket(spark.conf.get(FILE_MANAGER, None))
    location = configuration.location
    store = location.open_log(started.query_id)
    return QueryStart(configuration, location.open_checkpoint(), store, started.sockets)


def open_place(query: StreamingQuery) -> Place:
    """Open checkpoint and log of a query of this process, by the options that Spark has.

    :raises OptionError: the query is not of this sink, or was refused, or Spark does not answer.
    """
    try:
        started = streaming_query.started_query(query, FORMAT, options_at)
    except WalSinkError:
        raise
    except (
        Exception
    ) as error:  # by py4j, if the query failed before it had a plan, or Spark is gone
        raise OptionError(
            f"Spark does not report where the checkpoint of query {query.id} is: {error!r}",
            "Pass the location of its checkpoint to wal_sink.status() or wal_sink.await_flushed().",
        ) from error
    if started is None:
        raise OptionError(
            f"Query {query.id} writes neither to format {FORMAT} nor by wal_sink.batch_writer.",
            "Pass a query of this sink, or the location of its checkpoint.",
        )
    location = configure(started.options, started.folder).location
    return location.open_checkpoint(), location.open_log(started.query_id)

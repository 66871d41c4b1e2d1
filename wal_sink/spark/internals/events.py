"""Hears a session's events without what pyspark asks the JVM for each of them."""

from __future__ import annotations

import contextlib
from functools import partial, reduce
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession
from pyspark.sql.streaming import listener as pyspark_listener
from pyspark.sql.streaming.listener import QueryProgressEvent, StreamingQueryListener

from wal_sink.spark.internals import names
from wal_sink.spark.internals.session import is_stopped


class CheckpointListener(StreamingQueryListener):
    """Hears of each epoch only that it is checkpointed, without Spark's figures on its progress."""

    def checkpointed(self, query_id: str, run_id: str, epoch: int) -> None:
        """Handle that a run has written `commits/<epoch>`."""
        raise NotImplementedError

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Handle the copy that pyspark has made of an event."""
        progress = event.progress
        self.checkpointed(str(progress.id), str(progress.runId), progress.batchId)


def add_listener(spark: SparkSession, listener: CheckpointListener) -> None:
    """Add a listener to a session, without pyspark's copying of each epoch's progress.

    To copy an event pyspark asks the JVM for every field, durations and metrics of all sources included:
    some hundred calls, 0.1 s of CPU on both sides for each micro-batch, while the next one runs. Where
    pyspark lacks what this relies on, it copies as it always does.
    """
    with contextlib.suppress(AttributeError, TypeError, Py4JError):
        events: Any = pyspark_listener.JStreamingQueryListener(listener)
        events.onQueryProgress = partial(_pass_on, listener)
        java = names.java(spark)
        # Else py4j takes the name for a package.
        java.java.lang.Class.forName(names.LISTENER_WRAPPER)
        listener._jlistenerobj = reduce(getattr, names.LISTENER_WRAPPER.split("."), java)(events)
    spark.streams.addListener(listener)


def _pass_on(listener: CheckpointListener, event: Any) -> None:
    """Ask Java's `QueryProgressEvent` for three fields."""
    progress = event.progress()
    listener.checkpointed(progress.id().toString(), progress.runId().toString(), progress.batchId())


def remove_listener(spark: SparkSession, listener: StreamingQueryListener) -> None:
    """Remove a listener; does nothing where the session is stopped, or its JVM gone."""
    if not is_stopped(spark):
        with contextlib.suppress(Py4JError, OSError):
            spark.streams.removeListener(listener)

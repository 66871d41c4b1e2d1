"""Undocumented ways of Spark's Python workers: what a worker does after each piece of work.

pyspark's daemon calls `gc.collect()` then. With pyspark, pyarrow and this package loaded, a collection takes
30 ms of CPU, in two workers on the driver's host and in one for each task. So `freeze_objects` takes the
loaded modules out of the collector's reach.
"""

from __future__ import annotations

import functools
import gc
import sys

from pyspark import TaskContext, accumulators

from wal_sink.model.manifest import Task
from wal_sink.spark.internals.spark_session import untested
from wal_sink.spark.internals.streaming_query import execution_of


def current_task() -> Task:
    """Return the query, run, epoch and partition of the current task."""
    context = TaskContext.get()
    assert context is not None
    execution = execution_of(context.getLocalProperty)
    if execution is None:
        raise untested("does not tell a task its query id, run id and batch id")
    return Task(execution, context.partitionId(), context.attemptNumber())


def finish_work() -> None:
    """Do what a worker of a data source has to do at the end of its work."""
    freeze_objects()
    drop_empty_accumulators()


@functools.cache
def freeze_objects() -> None:
    """Take every live object out of all later collections (`gc.freeze`); only the first call has an effect.

    A worker calls it at the end of its first work, when everything is imported. A frozen object is freed when
    its last reference goes. A frozen cycle stays forever: at most what was alive at that moment.
    """
    gc.collect()
    gc.freeze()


def drop_empty_accumulators() -> None:
    """Drop the accumulators that are empty, so that the worker does not send them.

    Each worker sends two for a profiler, and the server passes them on to a Connect client. The client of a
    pipeline does not know such an answer: `spark-pipelines run` ends with an error after a run that completed
    (4.3.0). A worker that is profiled keeps them.
    """
    if sys.getprofile() is not None or sys.gettrace() is not None:
        return
    registry = accumulators._accumulatorRegistry
    for key in [key for key, acc in registry.items() if key < 0 and not acc._value]:
        del registry[key]

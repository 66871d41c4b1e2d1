"""Undocumented names of DataStreamWriter: `partitionBy` and `clusterBy`, which no Python sink gets.

A started query has no trace of them (Spark 4.1 and 4.3). So the sink reads them from the writer while that
starts the query: Spark reports a start before `start()` returns. The writer is found in the frames of the
Python threads, so a query that Scala or Java starts is not seen.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.sql.streaming.readwriter import DataStreamWriter

_FIELDS = {"partitionBy": "partitioningColumns", "clusterBy": "clusteringColumns"}
_STARTS = {"start", "toTable"}


def layout_asked(checkpoint: str) -> Mapping[str, str]:
    """Return the columns that `partitionBy` and `clusterBy` were given, by the name of the method.

    :param checkpoint: of the query that starts, since several threads may each start a query.
    :return: also empty for a Spark whose writer has other fields.
    """
    writers = [writer._jwrite for writer in _starting()]
    try:
        if len(writers) > 1:
            writers = [writer for writer in writers if checkpoint == _checkpoint(writer)]
        asked = {
            method: _field(writer, name) for writer in writers for method, name in _FIELDS.items()
        }
        return {
            method: str(columns.get().mkString(", "))
            for method, columns in asked.items()
            if columns.isDefined()
        }
    except Py4JError:
        return {}


def _starting() -> Iterator[DataStreamWriter]:
    """Yield the writers that are starting a query, in any thread."""
    for innermost in _frames():
        frame: FrameType | None = innermost
        while frame is not None:
            if frame.f_code.co_name in _STARTS:
                writer = frame.f_locals.get("self")
                if isinstance(writer, DataStreamWriter):
                    yield writer
            frame = frame.f_back


def _frames() -> list[FrameType]:
    """Return the innermost frame of each thread, and keep the garbage collector from running meanwhile.

    CPython 3.11 holds the lock of its list of threads here. A finalizer that the collector runs may wait for
    a thread that waits for this lock, which is a deadlock (python/cpython#106883).
    """
    is_enabled = gc.isenabled()
    gc.disable()
    try:
        return list(sys._current_frames().values())
    finally:
        if is_enabled:
            gc.enable()


def _checkpoint(writer: Any) -> str:
    """Return the checkpoint of a writer, as Spark resolves it; empty if only the session has one."""
    place = _field(writer, "extraOptions").get("checkpointLocation")
    if place.isEmpty():
        return ""
    jvm: Any = SparkContext._jvm
    path = jvm.org.apache.hadoop.fs.Path(place.get())
    conf = _field(writer, "ds").sparkSession().sessionState().newHadoopConf()
    return str(path.getFileSystem(conf).makeQualified(path).toString())


def _field(writer: Any, name: str) -> Any:
    field = writer.getClass().getDeclaredField(name)
    field.setAccessible(True)
    return field.get(writer)

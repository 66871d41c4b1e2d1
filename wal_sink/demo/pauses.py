"""Pauses a process at a chosen point of an epoch, so that it can be killed there.

The classes of this module derive from classes of the sink and of a target; the product itself has no hooks.
Tasks, `commit()` and flusher run in different processes, so an environment variable contains the points. An
application that pauses::

    os.environ[PAUSES] = pauses(Pause(point="write", table="events", epoch=3, marker="/tmp/here"))
    spark = SparkSession.builder…            # Spark's workers inherit the environment
    with wal_sink.register(spark):
        spark.dataSource.register(PausingDataSource)
        df.writeStream.format("wal_sink").option("target", "wal_sink.demo.cassandra:PausingCassandra")…

With `foreachBatch` use `PausingBatchWriter(spark, options)`. The process that kills the application first
waits for the marker file.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn

import msgspec
import pyarrow as pa
from pyspark.sql.types import StructType

from wal_sink import coalesced_batches
from wal_sink.model.manifest import Appended, Execution, Task
from wal_sink.publish.micro_batch import MicroBatch
from wal_sink.spark.batch_writer import BatchWriter
from wal_sink.spark.data_source import HandledDataSource, WalSinkStreamWriter
from wal_sink.targets.base import Target
from wal_sink.testing.faults import Faults, faulty

PAUSES = "WAL_SINK_TESTING_PAUSES"
"""The environment variable with the points, as `pauses` returns them."""

Point = Literal[
    "write", "commit called", "commit returned", "committed", "flushing", "finishing", "finished"
]
"""A point in the processing of an epoch. In the order of time:

- `write`: a task has received half of its rows, or `foreachBatch` has got a micro-batch.
- `commit called`: the manifest does not exist yet.
- `commit returned`: the manifest exists, and `commits/N` does not exist.
- `committed`: the epoch is checkpointed, and no row is sent to the target.
- `flushing`: half of the rows of a slice are sent.
- `finishing`: all rows are sent, and the ledger row does not name the epoch.
- `finished`: the ledger row names the epoch, and the state of the log does not.
"""


class Pause(msgspec.Struct, frozen=True, kw_only=True):
    """A point, table and epoch at which a process pauses."""

    point: Point
    table: str
    """The table, topic or path of the target's options; or its last part, as in `shop.orders`."""
    epoch: int
    marker: str
    """The path of the file that the process writes before it pauses."""


def pauses(*points: Pause) -> str:
    """Return the value of `PAUSES`."""
    return msgspec.json.encode(points).decode()


def pause_at(point: Point, table: str, epoch: int) -> None:
    """If `PAUSES` has a pause for the point, write the pause's marker file, and wait for a SIGKILL."""
    for pause in msgspec.json.decode(os.environ.get(PAUSES, "[]"), type=list[Pause]):
        named = table == pause.table or table.endswith((f".{pause.table}", f"/{pause.table}"))
        if named and (pause.point, pause.epoch) == (point, epoch):
            _wait_for_kill(pause)


def _wait_for_kill(pause: Pause) -> NoReturn:
    Path(pause.marker).write_text(f"{pause.point} {pause.epoch}")
    time.sleep(600)
    raise AssertionError("this process was not killed in time")


class _Pauses(Faults):
    """Pauses the operations of a session in place of injecting faults.

    :param table: the table of the session.
    """

    def __init__(self, table: str) -> None:
        super().__init__()
        self._table = table
        self._first: int | None = None
        """The first epoch of the current window; None before the first write."""

    @contextlib.contextmanager
    def around(self, name: str) -> Iterator[None]:
        """Pause before a window, after the first half of a slice, and before and after the end of the window.

        In Cassandra, the first half of the slice is visible at the second pause.
        """
        verb, _, rest = name.partition(" ")
        epoch = int(rest.split()[0]) if verb in ("write", "finish") else -1
        if verb == "write" and self._first is None:
            self._first = epoch
            pause_at("committed", self._table, epoch)
        elif verb == "finish":
            epoch, self._first = epoch if self._first is None else self._first, None
            pause_at("finishing", self._table, epoch)
        yield
        if verb == "write":
            pause_at("flushing", self._table, epoch)
        elif verb == "finish":
            pause_at("finished", self._table, epoch)


def _table(options: object) -> str:
    """Return the option `table`, `topic` or `path` of a target, which `Pause.table` names."""
    names = (getattr(options, name, "") for name in ("table", "topic", "path"))
    return str(next(filter(None, names), ""))


class PausingDataSource(HandledDataSource):
    """The format `wal_sink` with pauses in tasks and in `commit()`."""

    def streamWriter(self, schema: StructType, overwrite: bool) -> WalSinkStreamWriter:  # noqa: N802
        writer = super().streamWriter(schema, overwrite)
        paused = PausingMicroBatch(*writer.micro_batch)
        return WalSinkStreamWriter(paused, has_handle=self.has_handle)


class PausingConnectDataSource(PausingDataSource):
    """The format `wal_sink` of a Connect session, with pauses in tasks and in `commit()`."""

    has_handle = False


class PausingBatchWriter(BatchWriter):
    """The writer for `foreachBatch`, with pauses in tasks and in `commit()`."""

    def agree(self, schema: pa.Schema) -> MicroBatch:
        return PausingMicroBatch(*super().agree(schema))


class PausingMicroBatch(MicroBatch):
    """A micro-batch that pauses in tasks, before the manifest is published, and after it is published."""

    @property
    def _table(self) -> str:
        return _table(self.configuration.destinations[0].target.options)

    def append(self, batches: Iterable[pa.RecordBatch], task: Task) -> Appended:
        """Append half of the rows of each batch before the pause, and the other half after the pause."""
        coalesced_batches.BATCH_ROWS = 1  # otherwise the rows are in memory until the task ends

        def in_parts() -> Iterator[pa.RecordBatch]:
            for batch in batches:
                quarter = batch.num_rows // 4
                yield batch.slice(0, quarter)
                # The sink writes the first slice when it gets this one.
                yield batch.slice(quarter, quarter)
                pause_at("write", self._table, task.execution.epoch)
                yield batch.slice(2 * quarter)

        return super().append(in_parts(), task)

    def publish(
        self,
        execution: Execution,
        appended: Sequence[Appended],
        begins_after: int | None = None,
    ) -> None:
        pause_at("commit called", self._table, execution.epoch)
        super().publish(execution, appended, begins_after)
        pause_at("commit returned", self._table, execution.epoch)


class Pausing(Target):
    """Lets a target pause in the flush: `class PausingMine(Pausing, MyTarget): ...`."""

    def connect(self, query_id: str) -> Any:  # any class of session
        session = super().connect(query_id)  # type: ignore[safe-super]
        return faulty(session, _Pauses(_table(self.options)))

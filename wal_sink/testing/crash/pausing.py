"""Lets a driver stand still at a chosen point of a chosen epoch, so that it can be killed there.

Subclasses of what Spark and the flusher call wait at the points; the product has no such hooks. The
environment says which points, because tasks, `commit` and the flusher run in different processes. Use it so::

    os.environ[PAUSES] = pauses(Pause(point="write", table="events", epoch=3, marker="/tmp/here"))
    spark = SparkSession.builder…            # afterwards: the workers inherit the environment
    with wal_sink.register(spark):
        spark.dataSource.register(PausingDataSource)
        df.writeStream.format("wal_sink").option("target", PAUSING_TARGET)…

`PausingBatchWriter(spark, options)` is the same for `foreachBatch`. `Pausing` makes such a target
of your own. The process that kills waits for the marker file (see `wal_sink.testing.crash.driver`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamArrowWriter
from pyspark.sql.types import StructType

from wal_sink import arrow_batches
from wal_sink.model.ledger import Mark, Outcome, Owner, Window
from wal_sink.model.plan import Plan
from wal_sink.model.task import Appended, Execution, Task
from wal_sink.publish.micro_batch import MicroBatch
from wal_sink.spark.batch_writer import BatchWriter
from wal_sink.spark.data_source import WalSinkDataSource, WalSinkStreamWriter
from wal_sink.targets.base import Session, Slice, Target
from wal_sink.targets.cassandra import CassandraTarget
from wal_sink.targets.kafka import KafkaTarget
from wal_sink.targets.postgresql import PostgresqlTarget
from wal_sink.testing.crash.faults import Faults, FaultySession, halves

PAUSES = "WAL_SINK_TESTING_PAUSES"
"""Environment variable: what `pauses` returns."""

PAUSING_TARGET = "wal_sink.testing.crash.pausing:PausingTarget"
PAUSING_POSTGRESQL = "wal_sink.testing.crash.pausing:PausingPostgresql"
PAUSING_KAFKA = "wal_sink.testing.crash.pausing:PausingKafka"
"""For option `target`: Cassandra, PostgreSQL and Kafka."""

Point = Literal[
    "write", "commit called", "commit returned", "committed", "flushing", "finishing", "finished"
]
"""In the order of an epoch's life: a task has taken half of its rows; before the manifest; between the
manifest and `commits/N`; checkpointed, and nothing sent; half of a slice's rows sent; all rows sent, and the
ledger does not say so; the ledger says so, and the log does not."""


class Pause(msgspec.Struct, frozen=True, kw_only=True):
    """Where to stand still."""

    point: Point
    table: str
    epoch: int
    marker: str
    """Path of the file that says that the point is reached."""


def pauses(*where: Pause) -> str:
    """Return the value of `PAUSES`."""
    return msgspec.json.encode(where).decode()


def pause_at(point: Point, table: str, epoch: int) -> None:
    """Write the marker and wait to be killed, if `PAUSES` names this point."""
    for pause in msgspec.json.decode(os.environ.get(PAUSES, "[]"), type=list[Pause]):
        if (pause.point, pause.table, pause.epoch) == (point, table, epoch):
            _wait_for_death(pause)


def _wait_for_death(pause: Pause) -> NoReturn:
    Path(pause.marker).write_text(f"{pause.point} {pause.epoch}")
    time.sleep(600)
    raise AssertionError("this process was not killed in time")


def _table(options: object) -> str:
    return str(getattr(options, "table", "") or getattr(options, "topic", ""))


class PausingDataSource(WalSinkDataSource):
    """The sink, standing still at a point of Spark's side."""

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        writer = super().streamWriter(schema, overwrite)
        assert isinstance(writer, WalSinkStreamWriter)
        return WalSinkStreamWriter(PausingMicroBatch(*writer.micro_batch))


class PausingBatchWriter(BatchWriter):
    """The same in `foreachBatch`: in a task, before the manifest, and before the function returns."""

    def agree(self, schema: pa.Schema) -> MicroBatch:
        return PausingMicroBatch(*super().agree(schema))


class PausingMicroBatch(MicroBatch):
    """A micro-batch, standing still in a task, and on the driver's host."""

    @property
    def _table(self) -> str:
        return _table(self.configuration.target_options)

    def append(self, batches: Iterable[pa.RecordBatch], task: Task) -> Appended:
        """Take half of the rows of each batch, and after the pause the others."""
        arrow_batches.MOST_ROWS = 1  # else nothing is written before the task ends

        def in_parts() -> Iterator[pa.RecordBatch]:
            for batch in batches:
                quarter = batch.num_rows // 4
                yield batch.slice(0, quarter)
                yield batch.slice(quarter, quarter)  # behind it, the first one is written
                pause_at("write", self._table, task.epoch)
                yield batch.slice(2 * quarter)

        return super().append(in_parts(), task)

    def publish(self, execution: Execution, appended: Sequence[Appended]) -> None:
        pause_at("commit called", self._table, execution.epoch)
        super().publish(execution, appended)
        pause_at("commit returned", self._table, execution.epoch)


class Pausing(Target):
    """Makes a target stand still in an epoch's flush: `class PausingMine(Pausing, MyTarget): ...`.

    For `Delivery.CELLS` and `Delivery.ATOMIC`. What a `Pause` calls a table is option `table`, or `topic`.
    """

    def __init__(self, options: Any) -> None:
        super().__init__(options)  # type: ignore[safe-super]
        self._pauses_at = _table(options)

    def connect(self, owner: Owner) -> Session:
        return PausingSession(super().connect(owner), self._pauses_at)  # type: ignore[safe-super]


class PausingTarget(Pausing, CassandraTarget):
    """Cassandra."""


class PausingPostgresql(Pausing, PostgresqlTarget):
    """PostgreSQL."""


class PausingKafka(Pausing, KafkaTarget):
    """Kafka."""


class PausingSession(FaultySession):
    """See `Pausing`."""

    def __init__(self, inner: Session, table: str) -> None:
        super().__init__(inner, Faults())
        self._table = table

    def begin(self, window: Window) -> Outcome:
        pause_at("committed", self._table, window.first)
        return super().begin(window)

    def replace_row(self, seen: Mark | None, new: Mark) -> Outcome:
        """Begin from a row that was not read just now (rule 14), or another attempt (rule 26)."""
        if new.begun is not None:
            pause_at("committed", self._table, new.begun.first)
        return super().replace_row(seen, new)

    def write(self, plan: Plan, rows: Slice) -> None:
        """Send half of a slice's rows, then the others; the order inside a slice is kept."""
        first, second = halves(rows)
        self.inner.write(plan, first)
        self.inner.drain()  # a reader is to see the first half
        pause_at("flushing", self._table, rows.epoch)
        self.inner.write(plan, second)

    def finish(self, window: Window) -> Outcome:
        pause_at("finishing", self._table, window.first)
        outcome = super().finish(window)
        pause_at("finished", self._table, window.first)
        return outcome

"""Starts, watches and kills a Spark application, which pauses at a chosen point of a chosen epoch.

The application runs in a process group of its own. Subclasses of what Spark and the flusher call wait at
the points (`pauses`); the product has no such hooks. Use it so::

    os.environ[PAUSES] = pauses(Pause(point="write", table="events", epoch=3, marker="/tmp/here"))
    spark = SparkSession.builder…            # afterwards: the workers inherit the environment
    with wal_sink.register(spark):
        spark.dataSource.register(PausingDataSource)
        df.writeStream.format("wal_sink").option("target", PAUSING_TARGET)…

`PausingBatchWriter(spark, options)` is the same for `foreachBatch`. `Pausing` makes such a target of your
own. The process that kills waits for the marker file.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
from pyspark.sql.types import StructType

from wal_sink import arrow_batches
from wal_sink.demo.pauses import pause_at, pausing
from wal_sink.errors import WalSinkError
from wal_sink.model.manifest import Appended, Execution, Task
from wal_sink.publish.micro_batch import MicroBatch
from wal_sink.spark.batch_writer import BatchWriter
from wal_sink.spark.data_source import ConnectDataSource, WalSinkDataSource, WalSinkStreamWriter
from wal_sink.targets.base import Target
from wal_sink.targets.cassandra import CassandraTarget
from wal_sink.targets.kafka import KafkaTarget
from wal_sink.targets.postgresql import PostgresqlTarget

_POLL_S = 0.05


class DriverDidNot(WalSinkError):
    """The application did not do in time what the test waited for; the text ends with its output."""


class Driver:
    """One application with its JVM and its Python workers.

    Leaving the `with` block kills what still runs.

    :param arguments: of Python, for example `["-m", "my_job"]`.
    :param output: the file that gets what it prints.
    :param environment: added to this process's.
    :param patience_s: how many seconds each wait may take.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        output: Path,
        environment: Mapping[str, str] = {},
        folder: Path | None = None,
        patience_s: float = 240.0,
    ) -> None:
        self.output = output
        self._patience_s = patience_s
        with output.open("wb") as file:
            self.process = subprocess.Popen(  # noqa: S603 - the caller's own program
                [sys.executable, *arguments],
                stdout=file,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # a process group of its own, to be killed whole
                env={
                    **os.environ,
                    "PYSPARK_PYTHON": sys.executable,
                    "PYTHONFAULTHANDLER": "1",  # a crash, of a worker too, prints all stacks
                    **environment,
                },
                cwd=folder,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self.process.poll() is None:
            self.kill()

    def reach(self, reached: Callable[[], bool]) -> None:
        """Wait until the application has reached a point.

        :raises DriverDidNot: it did not in time, or ended before.
        """
        self._wait(lambda: reached() or self.process.poll() is not None, "reach its point")
        if self.process.poll() is not None:
            raise DriverDidNot(
                f"The application ended ({self.process.returncode}) before its point:\n{self.log()}"
            )

    def kill(self) -> None:
        """SIGKILL driver, JVM and workers."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def finish(self, code: int = 0) -> None:
        """Wait until the application ends with this exit code.

        :raises DriverDidNot: it did not end, or ended with another one.
        """
        self._wait(lambda: self.process.poll() is not None, "end")
        if self.process.returncode != code:
            raise DriverDidNot(
                f"The application ended with {self.process.returncode}:\n{self.log()}"
            )

    def log(self) -> str:
        """Return what the application printed."""
        return self.output.read_text(errors="replace")

    def _wait(self, done: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + self._patience_s
        while not done():
            if time.monotonic() > deadline:
                self.process.send_signal(signal.SIGABRT)  # Python prints all stacks, see above
                time.sleep(_POLL_S)
                self.kill()
                raise DriverDidNot(f"The application did not {what} in time:\n{self.log()}")
            time.sleep(_POLL_S)


PAUSING_TARGET = "wal_sink.demo.crash:PausingTarget"
PAUSING_POSTGRESQL = "wal_sink.demo.crash:PausingPostgresql"
PAUSING_KAFKA = "wal_sink.demo.crash:PausingKafka"
"""For option `target`: Cassandra, PostgreSQL and Kafka."""


def _table(options: object) -> str:
    names = (getattr(options, name, "") for name in ("table", "topic", "path"))
    return str(next(filter(None, names), ""))


class PausingDataSource(WalSinkDataSource):
    """The sink, pausing at a point of Spark's side."""

    def streamWriter(self, schema: StructType, overwrite: bool) -> WalSinkStreamWriter:  # noqa: N802
        writer = super().streamWriter(schema, overwrite)
        paused = PausingMicroBatch(*writer.micro_batch)
        return WalSinkStreamWriter(paused, has_handle=self.has_handle)


class PausingConnectDataSource(PausingDataSource, ConnectDataSource):
    """The sink of a Connect session, pausing there."""


class PausingBatchWriter(BatchWriter):
    """The same in `foreachBatch`: in a task, before the manifest, and before the function returns."""

    def agree(self, schema: pa.Schema) -> MicroBatch:
        return PausingMicroBatch(*super().agree(schema))


class PausingMicroBatch(MicroBatch):
    """A micro-batch, pausing in a task, and on the driver's host."""

    @property
    def _table(self) -> str:
        return _table(self.configuration.destinations[0].target.options)

    def append(self, batches: Iterable[pa.RecordBatch], task: Task) -> Appended:
        """Take half of the rows of each batch, and after the pause the others."""
        arrow_batches.BATCH_ROWS = 1  # else nothing is written before the task ends

        def in_parts() -> Iterator[pa.RecordBatch]:
            for batch in batches:
                quarter = batch.num_rows // 4
                yield batch.slice(0, quarter)
                yield batch.slice(quarter, quarter)  # after it, the first one is written
                pause_at("write", self._table, task.epoch)
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
    """Makes a target pause in an epoch's flush: `class PausingMine(Pausing, MyTarget): ...`.

    What a `Pause` calls a table is option `table`, or `topic`, or else the path.
    """

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self._pauses_at = _table(options)

    def connect(self, query_id: str) -> Any:  # a session of the target's kind
        return pausing(super().connect(query_id), self._pauses_at)  # type: ignore[safe-super]


class PausingTarget(Pausing, CassandraTarget):
    """Cassandra."""


class PausingPostgresql(Pausing, PostgresqlTarget):
    """PostgreSQL."""


class PausingKafka(Pausing, KafkaTarget):
    """Kafka."""

"""Starts a Spark application, waits until it pauses at a chosen point of an epoch, and kills it.

The application uses subclasses of the sink and the targets, which pause at the points of
`wal_sink.demo.pauses`. The product has no such hooks. An example of an application::

    os.environ[PAUSES] = pauses(Pause(point="write", table="events", epoch=3, marker="/tmp/here"))
    spark = SparkSession.builder…            # Spark's workers inherit the environment
    with wal_sink.register(spark):
        spark.dataSource.register(PausingDataSource)
        df.writeStream.format("wal_sink").option("target", PAUSING_TARGET)…

With `foreachBatch` use `PausingBatchWriter(spark, options)`. For another target, derive a class from
`Pausing` and the target. The process that kills the application waits for the marker file.
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


class DriverFailed(WalSinkError):
    """The application ended, or did not reach a point in time. The text of the error ends with its output."""


class Driver:
    """A Spark application with its JVM and its Python workers, in its own process group.

    The end of the `with` block kills the application if it still runs.

    :param arguments: the arguments of Python, for example `["-m", "my_job"]`.
    :param output: the file for the output.
    :param environment: more variables for the process.
    :param folder: the working folder; None for that of this process.
    :param patience_s: the timeout of each wait, in seconds.
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
                start_new_session=True,  # a new process group, which `kill` ends
                env={
                    **os.environ,
                    "PYSPARK_PYTHON": sys.executable,
                    "PYTHONFAULTHANDLER": "1",  # a crash of driver or worker prints all stacks
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

        :raises DriverFailed: the application ended before, or the wait timed out.
        """
        self._wait(lambda: reached() or self.process.poll() is not None, "reach its point")
        if self.process.poll() is not None:
            raise DriverFailed(
                f"The application ended with {self.process.returncode} before its point:\n{self.log()}"
            )

    def kill(self) -> None:
        """End driver, JVM and workers by SIGKILL."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def finish(self, code: int = 0) -> None:
        """Wait until the application ends with this exit code.

        :raises DriverFailed: the application ended with another exit code, or the wait timed out.
        """
        self._wait(lambda: self.process.poll() is not None, "end")
        if self.process.returncode != code:
            raise DriverFailed(
                f"The application ended with {self.process.returncode}, not {code}:\n{self.log()}"
            )

    def log(self) -> str:
        """Return the output of the application."""
        return self.output.read_text(errors="replace")

    def _wait(self, done: Callable[[], bool], event: str) -> None:
        deadline = time.monotonic() + self._patience_s
        while not done():
            if time.monotonic() > deadline:
                self.process.send_signal(signal.SIGABRT)  # the fault handler prints all stacks
                time.sleep(_POLL_S)
                self.kill()
                raise DriverFailed(f"The application did not {event} in time:\n{self.log()}")
            time.sleep(_POLL_S)


PAUSING_TARGET = "wal_sink.demo.crash:PausingTarget"
PAUSING_POSTGRESQL = "wal_sink.demo.crash:PausingPostgresql"
PAUSING_KAFKA = "wal_sink.demo.crash:PausingKafka"
"""Values of option `target`: Cassandra, PostgreSQL and Kafka with pauses."""


def _table(options: object) -> str:
    """Return option `table`, `topic` or the path: the table of a `Pause`."""
    names = (getattr(options, name, "") for name in ("table", "topic", "path"))
    return str(next(filter(None, names), ""))


class PausingDataSource(WalSinkDataSource):
    """The format `wal_sink` with pauses in tasks and in `commit()`."""

    def streamWriter(self, schema: StructType, overwrite: bool) -> WalSinkStreamWriter:  # noqa: N802
        writer = super().streamWriter(schema, overwrite)
        paused = PausingMicroBatch(*writer.micro_batch)
        return WalSinkStreamWriter(paused, has_handle=self.has_handle)


class PausingConnectDataSource(PausingDataSource, ConnectDataSource):
    """The format `wal_sink` of a Connect session, with the same pauses."""


class PausingBatchWriter(BatchWriter):
    """The writer for `foreachBatch`, with the same pauses."""

    def agree(self, schema: pa.Schema) -> MicroBatch:
        return PausingMicroBatch(*super().agree(schema))


class PausingMicroBatch(MicroBatch):
    """A micro-batch that pauses in a task, before the manifest is published, and after that."""

    @property
    def _table(self) -> str:
        return _table(self.configuration.destinations[0].target.options)

    def append(self, batches: Iterable[pa.RecordBatch], task: Task) -> Appended:
        """Append half of the rows of each batch before the pause, and the other half after it."""
        arrow_batches.BATCH_ROWS = 1  # otherwise the rows are in memory until the task ends

        def in_parts() -> Iterator[pa.RecordBatch]:
            for batch in batches:
                quarter = batch.num_rows // 4
                yield batch.slice(0, quarter)
                yield batch.slice(quarter, quarter)  # the call for this slice writes the first one
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
    """Makes a target pause in the flush: `class PausingMine(Pausing, MyTarget): ...`."""

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self._pauses_at = _table(options)

    def connect(self, query_id: str) -> Any:  # any class of session
        return pausing(super().connect(query_id), self._pauses_at)  # type: ignore[safe-super]


class PausingTarget(Pausing, CassandraTarget):
    """Cassandra with pauses."""


class PausingPostgresql(Pausing, PostgresqlTarget):
    """PostgreSQL with pauses."""


class PausingKafka(Pausing, KafkaTarget):
    """Kafka with pauses."""

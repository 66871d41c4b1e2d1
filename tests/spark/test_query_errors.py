"""Refused modes, settings under which Spark leaves files out, and errors inside messages of Spark."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import wal_sink
from tests.spark.conftest import ROWS_PER_FILE, Shop
from tests.spark.gate import GATED_TARGET, Gate, GatedTarget
from tests.spark.live_query import live_query
from tests.spark.tables import Table, numbers, options
from tests.support.waiting import until
from wal_sink.errors import OptionError
from wal_sink.spark.query_errors import failure_in, refuse_mode

PACKAGE = "org.apache.spark.sql.execution.streaming"


def test_unknown_mode_of_a_later_spark_is_refused() -> None:
    """Plain micro-batches pass, whose class Spark 4.1 has in another package."""
    refuse_mode("q", f"{PACKAGE}.MicroBatchExecution", "OneTimeTrigger$")
    with pytest.raises(OptionError, match=rf"Query q .*\(NewExecution\)(.|\n)*{REMEDY}"):
        refuse_mode("q", f"{PACKAGE}.runtime.NewExecution", "ProcessingTimeTrigger")


def test_foreign_error_is_not_an_error_of_the_sink() -> None:
    """A message of Spark or of the user's own code stays Spark's error."""
    assert failure_in("[STREAM_FAILED] Query terminated: java.lang.OutOfMemoryError") is None
    assert failure_in("ValueError: wal_sink.errors.InvalidRow: no") is None


FRAMES = 'Traceback (most recent call last):\n  File "/lib/{}", line 1, in load\n'


@pytest.mark.parametrize(
    ("importing", "module", "is_ours"),
    [
        ("pyspark/worker.py", "wal_sink", True),
        ("pyspark/worker.py", "tests.gone", True),  # the package of the target below
        ("wal_sink/targets/delta/target.py", "deltalake", True),
        ("pyspark/worker.py", "xgboost", False),
    ],
)
def test_missing_module_that_the_sink_needs_is_its_error(
    importing: str, module: str, *, is_ours: bool
) -> None:
    """A user's function may lack a module, too, also in a micro-batch that `batch_writer` computes."""
    assert GatedTarget.__module__.startswith("tests.")
    text = FRAMES.format("wal_sink/spark/batch_writer.py") + "PythonException:\n"
    text += FRAMES.format(importing) + f"ModuleNotFoundError: No module named '{module}'\n"
    failure = failure_in(text)
    assert (failure is not None) == is_ours
    if failure is not None:
        assert isinstance(failure, OptionError)
        assert f"cannot import {module}" in failure.what
        assert "on every node" in failure.remedy


RETAIN = "spark.sql.streaming.minBatchesToRetain"
REAL_TIME = "spark.sql.streaming.realTimeMode"
OVERRIDE = {"_asyncProgressTrackingOverrideSinkSupportCheck": "true"}


class Mode(NamedTuple):
    """A mode of a query that the sink refuses."""

    named: str
    """The name of the mode in the error."""
    trigger: dict[str, str]
    options: Mapping[str, str] = MappingProxyType({})
    settings: Mapping[str, str] = MappingProxyType({})
    output: str = "append"


def real_time(*, tracked: str) -> Mode:
    """Return Real-Time Mode, with Spark's own checks switched off."""
    overrides = {
        f"{REAL_TIME}.allowlistCheck": "false",
        f"{REAL_TIME}.asyncProgressTrackingByDefault.enabled": tracked,
    }
    trigger = {"realTime": "5 seconds"}
    return Mode("realTime=…", trigger, OVERRIDE, overrides, output="update")


CONTINUOUS = Mode("continuous=…", {"continuous": "1 second"})
MODES = {
    "continuous": CONTINUOUS,
    "asynchronous": Mode(
        "asyncProgressTrackingEnabled",
        {"processingTime": "0 seconds"},
        {
            "asyncProgressTrackingEnabled": "true",
            "asyncProgressTrackingCheckpointIntervalMs": "2000",
            **OVERRIDE,
        },
    ),
    "real time": real_time(tracked="true"),
    "real time, not tracked": real_time(tracked="false"),
}
REMEDY = r"trigger\(processingTime=…\) or trigger\(availableNow=True\)"


@contextmanager
def settings(spark: SparkSession, **values: str) -> Iterator[None]:
    """Set settings of the session within the block."""
    for name, value in values.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name in values:
            spark.conf.unset(name)


@contextmanager
def started(
    spark: SparkSession, checkpoint: str, mode: Mode, table: Table | None = None
) -> Iterator[StreamingQuery]:
    """Start a query in a mode that is refused; stop it after the block.

    :param table: its table; None if the query never gets as far as the target.
    """
    rows = spark.readStream.format("rate").option("numPartitions", 1).load()
    rows = rows.selectExpr("uuid() AS key", "value AS id", "'x' AS text")
    nowhere = {"cassandra.contactPoints": "127.0.0.1", "keyspace": "none", "table": "none"}
    job = rows.writeStream.format("wal_sink").option("checkpointLocation", checkpoint)
    job = job.options(**(options(table) if table else nowhere), **mode.options)
    trigger: Any = mode.trigger
    with settings(spark, **mode.settings):
        query = job.outputMode(mode.output).trigger(**trigger).start()
    try:
        yield query
    finally:
        query.stop()


def assert_nothing_written(checkpoint: str) -> None:
    """Assert that nothing is planned, committed or published; a source may have recorded its first offset."""
    files = (path.relative_to(checkpoint) for path in Path(checkpoint).rglob("*") if path.is_file())
    names = [str(name) for name in files if name.suffix != ".crc" and name.parts[0] != "sources"]
    assert set(names) <= {"metadata"}


@pytest.mark.spark
@pytest.mark.parametrize(
    ("mode", "flush"), [*((mode, True) for mode in MODES), ("continuous", False)]
)
def test_mode_without_plain_micro_batches_is_refused(
    spark: SparkSession,
    checkpoint: str,
    caplog: pytest.LogCaptureFixture,
    mode: str,
    *,
    flush: bool,
) -> None:
    """The query never begins: it has no offsets and no log. The block and each function raise the error."""
    sink = wal_sink.register(spark, flush=flush)
    with started(spark, checkpoint, MODES[mode]) as query:
        error = rf"{query.id}.*{MODES[mode].named}(.|\n)*{REMEDY}"
        assert not query.isActive, "start() returns a stopped query"
        for ask in (sink.await_flushed, sink.status, wal_sink.await_flushed, wal_sink.status):
            with pytest.raises(OptionError, match=error):
                ask(query)
        with pytest.raises(OptionError, match=error), sink:
            query.awaitTermination()
        assert query.exception() is None
        assert query.id not in {other.id for other in spark.streams.active}
    sink.close()  # a second call raises nothing
    assert_nothing_written(checkpoint)
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert str(query.id) in record.getMessage()
    assert "What to do: Start it with trigger(processingTime=…)" in record.getMessage()


@pytest.mark.spark
@pytest.mark.cassandra
def test_continuous_query_without_a_handle_is_refused(shop: Shop) -> None:
    """A handle that is made after the failure of the query refuses nothing."""
    wal_sink.register(shop.spark).close()  # the session has the format from now on
    with started(shop.spark, shop.checkpoint, CONTINUOUS, shop.table) as query:
        with pytest.raises(StreamingQueryException, match=rf"continuous(.|\n)*{REMEDY}"):
            query.awaitTermination(60)
        wal_sink.register(shop.spark).close()
    assert_nothing_written(shop.checkpoint)


@pytest.mark.spark
@pytest.mark.cassandra
def test_refused_query_runs_in_micro_batches_afterwards(shop: Shop) -> None:
    """The query delivers all rows from the first on, and the block does not raise the error."""
    with wal_sink.register(shop.spark) as sink:
        with started(shop.spark, shop.checkpoint, CONTINUOUS) as refused:
            assert not refused.isActive
        with live_query(shop.spark, shop.table, shop.checkpoint) as query:
            assert query.id == refused.id
            until(lambda: sink.status(query).flushed >= 1)
    shop.table.assert_no_gap()


@pytest.mark.spark
@pytest.mark.cassandra
def test_flush_needs_no_batches_that_spark_has_purged(shop: Shop, gate: Gate) -> None:
    """Spark retains one batch, and the target is unavailable during all of them. Each row is written once."""
    gate.close()
    shop.add_files(6)
    with wal_sink.register(shop.spark) as sink:
        with settings(shop.spark, **{RETAIN: "1"}):
            query = shop.run(target=GATED_TARGET)
        assert sink.status(query).checkpointed == 5
        assert sink.status(query).flushed <= 0
        for folder in ("offsets", "commits"):
            names = [path.name for path in (Path(shop.checkpoint) / folder).iterdir()]
            epochs = [int(name) for name in names if name.isdecimal()]
            assert min(epochs) >= 4, "the files of pending epochs are gone"
        gate.open()
        assert sink.await_flushed(query, timeout=60).epoch == 5
    assert shop.table.ids() == list(range(6 * ROWS_PER_FILE))


@pytest.mark.spark
@pytest.mark.cassandra
@pytest.mark.parametrize(
    "where", [pytest.param("the same session", marks=pytest.mark.test_all), "another session"]
)
def test_query_started_twice_continues_in_its_second_run(
    shop: Shop, sibling: SparkSession, where: str
) -> None:
    """Spark stops the first run, then starts the second one, whose first `commit()` opens."""
    other = shop.spark if where == "the same session" else sibling
    with wal_sink.register(shop.spark) as sink, wal_sink.register(other) as other_sink:
        first = shop.writer(numbers(shop.spark)).start()
        until(lambda: sink.status(first).flushed >= 1)
        second = shop.writer(numbers(other)).start()
        assert (second.id, second.isActive, first.isActive) == (first.id, True, False)
        reached = other_sink.status(second).checkpointed
        until(lambda: other_sink.status(second).flushed > reached + 2)
        second.stop()
        assert first.exception() is None
        assert second.exception() is None
    shop.table.assert_no_gap()


@pytest.mark.spark
@pytest.mark.cassandra
def test_first_run_continues_after_spark_refuses_another(shop: Shop) -> None:
    """`start()` raises Spark's error, and the first run continues."""
    refuse = {"spark.sql.streaming.stopActiveRunOnRestart": "false"}
    with wal_sink.register(shop.spark) as sink:
        first = shop.writer(numbers(shop.spark)).start()
        until(lambda: sink.status(first).flushed >= 1)
        with (
            settings(shop.spark, **refuse),
            pytest.raises(Exception, match=r"(?i)already active|concurrent"),
        ):
            shop.writer(numbers(shop.spark)).start()
        reached = sink.status(first).checkpointed
        until(lambda: sink.status(first).flushed > reached + 1)
        first.stop()
    shop.table.assert_no_gap()

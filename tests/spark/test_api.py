"""The handle of a session: registering a session, and closing the handle."""

from __future__ import annotations

import os
import shutil
import sqlite3
import sys
import threading
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa
import pyspark.worker
import pytest
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import QueryProgressEvent
from pyspark.sql.streaming.query import StreamingQuery, StreamingQueryManager

import wal_sink
from state_backends import open_backend
from tests.protocol.engine import World
from tests.spark.conftest import Shop, write_file, write_source
from tests.spark.ending import BARRIER, CLOSED_TARGET
from tests.spark.remains import remains
from tests.spark.tables import numbers, stream
from tests.support.waiting import until
from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.demo.server import choose_port
from wal_sink.errors import (
    FlushTimeout,
    LogUnavailable,
    NotDrained,
    OptionError,
    TargetRefused,
    UnsupportedSpark,
    WrongOwner,
)
from wal_sink.flush.loop import FlushLoop
from wal_sink.spark.api import WORKER_PATH
from wal_sink.spark.classic_queries import Queries
from wal_sink.spark.internals import python_worker, spark_session
from wal_sink.spark.query_flush import QueryFlush
from wal_sink.testing.faults import Faults

pytestmark = [pytest.mark.spark, pytest.mark.cassandra]


def test_register_twice_returns_the_same_handle(spark: SparkSession, sibling: SparkSession) -> None:
    """Other arguments raise an error. After the handle is closed, a call returns a new handle."""
    with wal_sink.register(spark) as sink:
        assert wal_sink.register(spark) is sink
        with pytest.raises(OptionError, match="drain_timeout=60"):
            wal_sink.register(spark, drain_timeout=1)
        with wal_sink.register(sibling) as other:
            assert other is not sink
        with pytest.raises(UnsupportedSpark, match="newSession"):
            wal_sink.register(spark.newSession())
        with wal_sink.register(spark.newSession(), with_format=False) as without:
            assert without is not sink
    with wal_sink.register(spark, drain_timeout=1) as again:
        assert again is not sink


def test_register_with_another_metrics_port_or_host_is_refused(spark: SparkSession) -> None:
    with wal_sink.register(spark, metrics_port=0) as sink:
        assert wal_sink.register(spark, metrics_port=0) is sink
        with pytest.raises(OptionError, match=f"metrics_port={sink.metrics_port}"):
            wal_sink.register(spark)
        with pytest.raises(OptionError, match=r"metrics_host=127\.0\.0\.1"):
            wal_sink.register(spark, metrics_port=0, metrics_host="0.0.0.0")
        with pytest.raises(OptionError, match="there is no metrics_port"):
            wal_sink.register(spark, metrics_host="0.0.0.0")


def test_metrics_port_of_a_stopped_session_is_free_again(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = wal_sink.register(spark, metrics_port=0)
    with monkeypatch.context() as stopped:
        stopped.setattr(spark_session, "is_stopped", lambda _spark: True)
        second = wal_sink.register(spark, metrics_port=first.metrics_port)
    first.close()
    with second:
        assert second is not first
        address = f"http://127.0.0.1:{first.metrics_port}/metrics"
        with urllib.request.urlopen(address, timeout=10) as answer:
            assert b"wal_sink_query_info" in answer.read()


def test_metrics_port_is_closed_if_register_fails(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_manager: object, _listener: object) -> None:
        raise Py4JError

    port = choose_port("127.0.0.1")
    with monkeypatch.context() as broken:
        broken.setattr(StreamingQueryManager, "addListener", refuse)
        with pytest.raises(Py4JError):
            wal_sink.register(spark, metrics_port=port)
    with wal_sink.register(spark, metrics_port=port) as sink:
        assert sink.metrics_port == port


def test_spark_that_lacks_a_name_is_refused(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`register` raises an error with the missing name and the tested versions."""
    gone = [(spark_session.STREAM_EXECUTION, {"sink", "gone"}), (("org.example.Nothing",), set())]
    monkeypatch.setattr(spark_session, "NEEDED", gone)
    error = r"lacks StreamExecution\.gone, org\.example\.Nothing,(.|\n)*4\.3\.0"
    with pytest.raises(UnsupportedSpark, match=error):
        wal_sink.register(spark)


def test_workers_import_the_compiled_pyspark(spark: SparkSession) -> None:
    def where(_batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyspark.worker  # noqa: PLC0415 -- in a worker

        yield pa.RecordBatch.from_pydict({"place": [pyspark.worker.__file__]})

    with wal_sink.register(spark):
        path = spark.sparkContext.environment["PYTHONPATH"].split(os.pathsep)
        assert path[0] == str(WORKER_PATH)
        rows = python_worker.map_in_arrow(spark.range(1, numPartitions=1), where, "place string")
        assert Path(rows.collect()[0].place).samefile(pyspark.worker.__file__)
    with wal_sink.register(spark):
        assert spark.sparkContext.environment["PYTHONPATH"].split(os.pathsep) == path


def test_listener_hears_epochs_without_converting_their_progress(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy takes 0.1 s of CPU."""
    copied: list[Any] = []
    monkeypatch.setattr(QueryProgressEvent, "fromJObject", copied.append)
    heard: list[str] = []
    hear = Queries._wake

    def also_noted(self: Queries, query_id: str) -> None:
        heard.append(query_id)
        hear(self, query_id)

    monkeypatch.setattr(Queries, "_wake", also_noted)
    shop.add_files(2)
    with wal_sink.register(shop.spark):
        query = shop.run()
        until(lambda: heard == [str(query.id)] * 2)
    assert copied == []


CALLS: list[tuple[Callable[..., object], object, dict[str, object], str]] = [
    (wal_sink.register, None, {}, r"not a SparkSession(.|\n)*getOrCreate"),
    (wal_sink.register, SparkSession, {}, "not a SparkSession"),
    (wal_sink.register, None, {"drain_timeout": "5"}, "drain_timeout is"),
    (wal_sink.register, None, {"drain_timeout": -1}, "drain_timeout is"),
    (wal_sink.register, None, {"drain_timeout": float("nan")}, "drain_timeout is"),
    (wal_sink.register, None, {"drain_timeout": None}, "drain_timeout is"),
    (wal_sink.register, None, {"metrics_port": "9090"}, r"metrics_port is '9090'(.|\n)*int\("),
    (wal_sink.status, 7, {}, "int is neither a query nor"),
    (wal_sink.await_flushed, 7, {}, "int is neither a query nor"),
]


@pytest.mark.parametrize(("function", "argument", "options", "error"), CALLS)
def test_argument_of_a_wrong_type_is_refused(
    function: Callable[..., object], argument: object, options: dict[str, object], error: str
) -> None:
    with pytest.raises(OptionError, match=error):
        function(argument, **options)


def test_block_raises_the_error_of_a_failed_flush(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The error names the query. If the block itself fails, a log line has the error instead."""
    barrier = shop.folder / "barrier"
    monkeypatch.setenv(BARRIER, str(barrier))
    shop.add_files()
    with wal_sink.register(shop.spark):
        shop.run(target=CLOSED_TARGET)
    shop.add_files()
    barrier.touch()
    sink = wal_sink.register(shop.spark, drain_timeout=2)
    query = shop.run(target=CLOSED_TARGET)
    with pytest.raises(NotDrained, match=rf"{query.id}: FlushTimeout"):
        sink.close()
    with pytest.raises(FlushTimeout, match=r"1 epoch of .* to cassandra is not flushed"):
        wal_sink.await_flushed(shop.checkpoint, timeout=0)
    with pytest.raises(KeyError, match="mine"):
        fail_in_the_block(shop)
    (record,) = [r for r in caplog.records if "the block failed, and then" in r.getMessage()]
    assert "1 epoch of " in record.getMessage()
    assert "\n" not in record.getMessage()
    assert record.exc_info is None
    status = wal_sink.status(shop.checkpoint)
    assert (status.pending_epochs, status.safe_to_delete) == (1, False)
    assert status.oldest_pending_seconds > 0


def fail_in_the_block(shop: Shop) -> None:
    """Leave a `with` block of the handle by an exception, with an epoch that cannot be flushed."""
    with wal_sink.register(shop.spark, drain_timeout=1):
        shop.run(target=CLOSED_TARGET)
        raise KeyError("mine")


def run_to_sqlite(
    spark: SparkSession, folder: Path, target: str, *, checkpoint: str = "checkpoint"
) -> StreamingQuery:
    """Run a query to its end, from the files in the folder to a table that has the name of the target."""
    options = {"target": "sql", "sql.url": f"sqlite:///{folder / 'rows.db'}", "table": target}
    job = stream(spark, str(folder / "source")).writeStream.format("wal_sink")
    job = job.options(**{f"{target}.{name}": text for name, text in options.items()})
    job = job.options(targets=target, **{f"{target}.createTable": "true"})
    job = job.option("checkpointLocation", str(folder / checkpoint)).trigger(availableNow=True)
    query = job.start()
    query.awaitTermination()
    return query


def test_block_raises_the_error_of_an_idle_flush(spark: SparkSession, tmp_path: Path) -> None:
    """A job without new data does not succeed after the target has lost its ledger."""
    write_source(tmp_path / "source", 1)
    with wal_sink.register(spark):
        run_to_sqlite(spark, tmp_path, "t")
    with closing(sqlite3.connect(tmp_path / "rows.db")) as connection:
        connection.execute("DROP TABLE wal_sink_ledger")
    sink = wal_sink.register(spark)
    query = run_to_sqlite(spark, tmp_path, "t")
    with pytest.raises(TargetRefused, match="no such table"):
        wal_sink.await_flushed(query)
    with pytest.raises(NotDrained, match=r"TargetRefused: The ledger's table"):
        sink.close()
    assert "no such table" in str(wal_sink.status(str(tmp_path / "checkpoint")).last_error)


@pytest.mark.timeout(400)
def test_query_with_other_targets_fails_at_once(spark: SparkSession, tmp_path: Path) -> None:
    """The epoch of the former target is pending, and this process has no options to flush it."""
    write_source(tmp_path / "source", 1)
    with wal_sink.register(spark, flush=False):
        run_to_sqlite(spark, tmp_path, "former")
    write_file(tmp_path / "source", 1)
    refusal = r"names other targets than the log(.|\n)*flush CHECKPOINT"
    with (
        pytest.raises(OptionError, match=refusal),
        wal_sink.register(spark, drain_timeout=1_000),
    ):
        run_to_sqlite(spark, tmp_path, "new")


def test_copied_checkpoint_does_not_hide_the_original(spark: SparkSession, tmp_path: Path) -> None:
    """The copy has the id of the original, and gets no new row. The end of the block raises its error."""
    write_source(tmp_path / "source", 1)
    sink = wal_sink.register(spark)
    original = run_to_sqlite(spark, tmp_path, "t")
    shutil.copytree(tmp_path / "checkpoint", tmp_path / "copy")
    copy = run_to_sqlite(spark, tmp_path, "t", checkpoint="copy")
    assert sink.await_flushed(original).epoch == 0
    with pytest.raises(WrongOwner):
        sink.status(copy)
    with pytest.raises(WrongOwner):
        sink.close()


def test_status_is_readable_after_a_transient_start_error(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The block raises the error, since its flush has not begun."""
    write_source(tmp_path / "source", 1)
    with wal_sink.register(spark):
        run_to_sqlite(spark, tmp_path, "t")
    log = Path(wal_sink.status(str(tmp_path / "checkpoint")).log.removeprefix("file://"))
    states = log / "state"
    sink = wal_sink.register(spark)
    states.rename(tmp_path / "moved")
    states.symlink_to(states)  # a read fails
    query = run_to_sqlite(spark, tmp_path, "t")
    states.unlink()
    (tmp_path / "moved").rename(states)
    assert sink.status(query).flushed == 0
    with pytest.raises(LogUnavailable):
        sink.close()


def run_and_fail(spark: SparkSession, folder: Path) -> None:
    """Leave a block by an exception after a query has run."""
    with wal_sink.register(spark):
        run_to_sqlite(spark, folder, "t")
        raise KeyError("mine")


def test_block_keeps_its_exception_beside_a_corrupt_log(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_source(tmp_path / "source", 1)
    with wal_sink.register(spark):
        run_to_sqlite(spark, tmp_path, "t")
    log = open_backend(wal_sink.status(str(tmp_path / "checkpoint")).log)
    for state in log.list("state/"):
        log.replace(state, b"damaged")
    with pytest.raises(KeyError, match="mine"):
        run_and_fail(spark, tmp_path)
    assert "the block failed, and then its end failed, too" in caplog.text


def test_check_refuses_another_checkpoint_file_manager(
    spark: SparkSession, checkpoint: str
) -> None:
    """A start refuses this class, too. With a schema, `check` reads the settings of the active session."""
    name, theirs = "spark.sql.streaming.checkpointFileManagerClass", "com.provider.CheckpointFiles"
    options = {"checkpointLocation": checkpoint, "target": "delta", "delta.path": "/nowhere"}
    rows = spark.range(1)
    spark.conf.set(name, theirs)
    try:
        for rows_or_schema in (rows, rows.schema):
            with pytest.raises(OptionError, match=f"{name} is {theirs}"):
                wal_sink.check(rows_or_schema, **options)
    finally:
        spark.conf.unset(name)


class Hanging(Faults):
    """A target that does not answer before the end of the test."""

    def __init__(self) -> None:
        super().__init__()
        self.over = threading.Event()

    @contextmanager
    def around(self, name: str) -> Iterator[None]:
        """Wait in `connect`."""
        if name == "connect":
            self.over.wait(60)
        yield


def test_close_waits_once_for_all_hanging_flushes(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twenty flushes that hang take as long as one."""
    monkeypatch.setattr("wal_sink.spark.api._JOIN_S", 1.0)
    hanging = Hanging()
    sink = wal_sink.register(spark, drain_timeout=0)
    assert isinstance(sink.queries, Queries)
    loops = []
    for _ in range(20):
        name = f"memory://{uuid.uuid4().hex}"
        world = World(open_backend(f"{name}/checkpoint"), open_backend(f"{name}/log"))
        world.run().batch([("a", 1)])
        place = Checkpoint(world.checkpoint), world.log_backend
        loop = FlushLoop(world.flusher(hanging))
        flush = QueryFlush(world.query_id, "", lambda place=place: place, [loop])  # type: ignore[misc]
        sink.queries._flushes[world.query_id] = flush
        loop.start()
        loops.append(loop)
    started = time.monotonic()
    try:
        with pytest.raises(NotDrained):
            sink.close()
        assert 1 <= time.monotonic() - started < 20, "it waits for one after the other"
    finally:
        hanging.over.set()
        for loop in loops:
            loop.join()


def test_query_that_runs_after_close_logs_a_warning(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    """Its epochs stay in the log until a process flushes again."""
    with wal_sink.register(shop.spark) as sink:
        query = shop.writer(numbers(shop.spark)).start()
        until(lambda: sink.status(query).checkpointed >= 0)
    try:
        sink.close()  # the second call does nothing
        assert f"query {query.id} still runs, and nothing flushes it now" in caplog.text
        assert "wait for the query in it: query.awaitTermination()" in caplog.text
    finally:
        query.stop()
    shop.table.assert_no_gap()


def test_interrupt_at_any_line_of_close_leaves_no_thread(shop: Shop) -> None:
    """The handle is closed, or can be closed again. No thread and no connection is left."""
    port = shop.table.cassandra.port
    open_before = remains(port)
    with wal_sink.register(shop.spark) as first:
        query = shop.writer(numbers(shop.spark)).start()
        until(lambda: first.status(query).checkpointed >= 0)
    try:
        interrupted: list[int] = []
        while True:
            sink = wal_sink.register(shop.spark)  # adopts the running query
            assert sink.queries.has_seen(str(query.id))
            line = close_with_an_interrupt(sink, after=interrupted)
            if line is None:
                break
            interrupted.append(line)
            if not sink.queries.is_finished():
                sink.close()
            # A thread in a request ends after the answer, perhaps after the interrupted wait.
            until(lambda: remains(port) <= open_before, seconds=30)
    finally:
        query.stop()
    assert len(interrupted) > 8, "not every line was interrupted"
    shop.table.assert_no_gap()


def close_with_an_interrupt(sink: wal_sink.Sink, after: list[int]) -> int | None:
    """Raise an interrupt at the first line of `close` that is not in `after`; return the line, or None."""
    at: list[int] = []

    def trace(frame: FrameType, event: str, _argument: object) -> Any:
        if frame.f_code is not wal_sink.Sink.close.__code__:
            return None
        if event == "line" and not at and frame.f_lineno not in after:
            at.append(frame.f_lineno)
            raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        sink.close()
    except KeyboardInterrupt:
        assert at
    finally:
        sys.settrace(None)
    return at[0] if at else None

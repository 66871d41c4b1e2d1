"""The types of the public API, as a type checker sees them. `make lint` checks this file; it is never run.

mypy fails here if a type becomes wider, or an argument is renamed.
"""

from __future__ import annotations

from typing import assert_type

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import wal_sink
from wal_sink import Flushed, Sink, Status, WalSinkError, errors


def registers(spark: SparkSession) -> None:
    """`register` returns the handle, which is a context manager that suppresses no exception."""
    assert_type(wal_sink.register(spark), Sink)
    sink = wal_sink.register(spark, flush=False, metrics_port=None, drain_timeout=1.5)
    with wal_sink.register(spark, metrics_port=0, metrics_host="::1") as entered:
        assert_type(entered, Sink)
    assert_type(sink.flush, bool)
    assert_type(sink.metrics_port, int | None)
    assert_type(sink.metrics_host, str | None)
    assert_type(sink.drain_timeout, float)
    assert_type(sink.close(), None)


def the_handle_asks(sink: Sink, query: StreamingQuery) -> None:
    """The methods of the handle take queries, and a timeout by position or name."""
    assert_type(sink.await_flushed(query), Flushed)
    assert_type(sink.await_flushed(query, 10), Flushed)
    assert_type(sink.await_flushed(query, timeout=None), Flushed)
    assert_type(sink.status(query), Status)


def the_module_asks(query: StreamingQuery) -> None:
    """The functions take a query or the location of a checkpoint; the log's location is keyword-only."""
    assert_type(wal_sink.await_flushed(query, 10), Flushed)
    assert_type(wal_sink.await_flushed("checkpoint", timeout=10, wal="s3://bucket/log"), Flushed)
    assert_type(wal_sink.status(query), Status)
    assert_type(wal_sink.status("checkpoint", storage_options={"key": "…"}), Status)
    wal_sink.status("checkpoint", "log")  # type: ignore[call-arg]
    wal_sink.status(None)  # type: ignore[arg-type]


def what_is_flushed(flushed: Flushed) -> None:
    """The result of `await_flushed` is frozen."""
    assert_type(flushed.epoch, int)
    assert_type(flushed.rows, int)
    assert_type(flushed.seconds, float)
    flushed.epoch = 1  # type: ignore[misc]


def how_far_it_is(status: Status) -> None:
    """The fields of `status`."""
    for epoch in (status.checkpointed, status.published, status.flushed):
        assert_type(epoch, int)
    for count in (status.pending_epochs, status.pending_rows, status.pending_bytes):
        assert_type(count, int)
    assert_type(status.oldest_pending_seconds, float)
    assert_type(status.safe_to_delete, bool)
    for text in (status.query_id, status.checkpoint, status.log):
        assert_type(text, str)
    for maybe in (status.flushed_as_of, status.unsafe_because, status.last_error, status.remedy):
        assert_type(maybe, str | None)


def what_is_raised() -> None:
    """The base class of all errors has message, remedy and exit code."""
    try:
        wal_sink.await_flushed("checkpoint")
    except (errors.FlushTimeout, errors.NoFlusher) as error:
        assert_type(error.remedy, str)
    except WalSinkError as error:
        assert_type(error.what, str)
        assert_type(error.exit_code, int)
        assert_type(error.transient, bool)

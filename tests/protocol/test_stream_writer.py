"""Spark's writer, called as Spark calls it, without a JVM: `commit` and `abort`."""

from __future__ import annotations

import logging
from pathlib import Path

import pyarrow as pa
import pytest

from state_backends.local import LocalBackend
from tests.protocol.engine import Run
from tests.protocol.publishing import micro_batch, query_in
from wal_sink.configuration import Configuration, Destination
from wal_sink.errors import LogUnavailable, TargetUnavailable, WalSinkError, WrongOwner
from wal_sink.options import SinkOptions
from wal_sink.publish.plans import agree
from wal_sink.spark.data_source import Message, WalSinkStreamWriter
from wal_sink.targets.postgresql import PostgresqlTarget
from wal_sink.targets.postgresql.options import PostgresqlOptions
from wal_sink.wal.location import locate


@pytest.fixture
def started(tmp_path: Path) -> tuple[Run, WalSinkStreamWriter]:
    """Start a run; return it with the writer of its first micro-batch."""
    run = query_in(tmp_path).run()
    run.write_offsets()
    return run, WalSinkStreamWriter(micro_batch(run, tmp_path))


def test_start_with_changed_wal_location_writes_nothing_there(
    started: tuple[Run, WalSinkStreamWriter], tmp_path: Path
) -> None:
    """Not even a plan is written there, so that the log can be moved to it."""
    run, writer = started
    run.batch([("a", 1)])
    elsewhere = tmp_path / "elsewhere"
    (only,) = writer.micro_batch.configuration.destinations
    sink = SinkOptions(checkpoint=str(tmp_path), wal_location=str(elsewhere))
    moved = Configuration(sink, (only,), locate(str(tmp_path), str(elsewhere)))
    with pytest.raises(WrongOwner, match="elsewhere"):
        agree(moved, pa.schema({"k": pa.string(), "v": pa.int64()}))
    assert not elsewhere.exists()


def test_error_of_unreachable_target_at_start_advises_a_restart(
    started: tuple[Run, WalSinkStreamWriter],
) -> None:
    """Unlike a flush, a start is not tried again by itself."""
    _, writer = started
    options = PostgresqlOptions(table="orders", uri="postgresql://user@127.0.0.1:1/shop")
    target = PostgresqlTarget(options)
    sink, location = (
        writer.micro_batch.configuration.sink,
        writer.micro_batch.configuration.location,
    )
    closed = Configuration(sink, (Destination("postgresql", "", "postgresql", target),), location)
    with pytest.raises(TargetUnavailable, match="does not answer") as caught:
        agree(closed, pa.schema({"k": pa.string(), "v": pa.int64()}))
    assert caught.value.remedy.endswith("locked it. Then start the query again.")
    assert "by itself" not in caught.value.remedy


def test_commit_that_cannot_write_raises_error_with_remedy(
    started: tuple[Run, WalSinkStreamWriter], tmp_path: Path
) -> None:
    """`failure` finds this error in Spark's error."""
    run, writer = started
    messages = [Message(appended, run.plan.key) for appended in run.tasks([("a", 1)])]
    manifests = next(tmp_path.glob("wal_sink/query/plans")).with_name("manifests")
    manifests.write_text("in the way")
    with pytest.raises(LogUnavailable, match="cannot be used") as caught:
        writer.commit(messages, 0)
    assert "start the query again" in caught.value.remedy
    manifests.unlink()
    writer.commit(messages, 0)


def test_abort_after_an_effective_commit_deletes_nothing(
    started: tuple[Run, WalSinkStreamWriter],
) -> None:
    """Spark calls `abort` with all messages if `commit` raised, though the manifest may exist."""
    run, writer = started
    messages = [Message(appended, run.plan.key) for appended in run.tasks([("a", 1)], [("b", 2)])]
    writer.commit(messages, 0)
    writer.abort(messages, 0)
    run.write_commit([[("a", 1)], [("b", 2)]])
    run.query.flush()
    assert run.query.table() == run.query.expected() == {"a": 1, "b": 2}


def test_commit_without_a_tasks_message_is_refused(
    started: tuple[Run, WalSinkStreamWriter],
) -> None:
    run, writer = started
    (appended,) = run.tasks([("a", 1)])
    with pytest.raises(WalSinkError, match="2 messages, 1 of them"):
        writer.commit([Message(appended, run.plan.key), None], 0)
    assert run.query.log_backend.list("manifests/") == []


def test_batch_with_a_failed_task_leaves_no_segment(
    started: tuple[Run, WalSinkStreamWriter],
) -> None:
    """Given a row that always fails and a query that is started again and again, the log does not grow.

    Spark passes None for a task that failed or did not end, and has not called `commit`.
    """
    run, writer = started
    run.batch([("a", 1)])
    for _ in range(101):
        again = run.query.run()
        again.write_offsets()
        (fine,) = again.tasks([("b", 2)])
        writer.abort([Message(fine, run.plan.key), None], 1)
    segments = run.query.log_backend.list("segments/")
    assert [int(path.split("/")[1]) for path in segments] == [0]
    run.query.run().batches([("b", 2)])
    run.query.flush()
    assert run.query.table() == run.query.expected() == {"a": 1, "b": 2}


def test_abort_without_any_message_does_nothing(
    started: tuple[Run, WalSinkStreamWriter],
) -> None:
    run, writer = started
    run.tasks([("a", 1)])
    writer.abort([None, None], 0)
    assert len(run.query.log_backend.list("segments/")) == 1


def test_abort_over_a_failing_store_raises_nothing(
    started: tuple[Run, WalSinkStreamWriter],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Spark would report the error of `abort` instead of the error that caused it."""
    run, writer = started
    (appended,) = run.tasks([("a", 1)])
    caplog.set_level(logging.INFO)

    def refuse(_backend: LocalBackend, _paths: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(LocalBackend, "delete", refuse)
    writer.abort([Message(appended, run.plan.key), None], 0)
    assert "segments of an epoch that was not published stay for now" in caplog.text

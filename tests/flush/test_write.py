"""The write of a window, in the flusher's thread or in tasks of a flush job, over `MemoryTarget`.

Also the sessions that tasks keep open.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import replace

import pytest

from state_backends import open_backend
from tests.flush.jobs import Job
from tests.protocol.engine import World
from wal_sink import errors
from wal_sink.errors import (
    LogUnavailable,
    SchemaMismatch,
    TargetRefused,
    TargetUnavailable,
    WalSinkError,
)
from wal_sink.flush.write import (
    SessionPool,
)
from wal_sink.targets.base import RefusedRow, RowsRefused, Session
from wal_sink.testing.faults import Faults, FaultyBackend, FaultyTarget
from wal_sink.testing.memory_target import MemoryOptions, MemorySession, MemoryTarget
from wal_sink.testing.micro_batches import until_idle
from wal_sink.wal.segment import refused_files


@pytest.fixture
def world() -> World:
    """A query with two checkpointed epochs, the second one with three partitions."""
    name = f"memory://{uuid.uuid4().hex}"
    world = World(open_backend(f"{name}/checkpoint"), open_backend(f"{name}/log"))
    run = world.run().batches([(f"k{n}", n) for n in range(50)])
    run.batch(*([(f"k{n % 30}", 1_000 + n) for n in range(p, 90, 3)] for p in range(3)))
    return world


def flush(world: World, job: Job, *, quarantine: bool = False) -> None:
    flusher = world.flusher()
    flusher.pipeline = replace(flusher.pipeline, quarantine=quarantine)
    flusher._write_rows = job
    until_idle(flusher)


def test_tasks_write_the_same_rows_as_the_driver(world: World) -> None:
    flush(world, Job())
    assert world.table() == world.expected()
    assert world.mark() == 1


def test_tasks_leave_out_refused_rows(world: World) -> None:
    """Each refused row is kept in the log. A query without quarantine stops, over the same session."""
    world.target.refuses = lambda row: "no sevens" if row["v"] in (7, 1_075, 77) else ""  # type: ignore[attr-defined]
    flush(world, Job(), quarantine=True)
    # epoch 1 has another row of k7, and an earlier row of k15
    assert world.table() == world.expected() | {"k15": 1_045}
    assert [(kept.epoch, kept.rows) for kept in refused_files(world.log_backend)] == [
        (0, 1),
        (1, 1),
    ]
    world.run().batch(*([(f"k{n}", n) for n in range(p, 90, 5)] for p in range(5)))
    with pytest.raises(TargetRefused, match="no sevens"):
        flush(world, Job())


def test_refused_row_outside_the_window_stops_the_flush(world: World) -> None:
    def write(*_: object) -> None:
        raise RowsRefused([RefusedRow(5, TargetRefused("no fives.", "Change the target."))])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MemorySession, "write", write)
        with pytest.raises(TargetRefused, match=r"no fives\. .*no row with its write timestamp, 5"):
            flush(world, Job(), quarantine=True)
    assert list(refused_files(world.log_backend)) == []


def test_tasks_of_a_job_stay_below_rows_per_second(world: World) -> None:
    """The first quarter of a second's rows of each share is sent at once."""
    began = time.monotonic()
    flush(world, Job(rows_per_second=80))
    waited = (140 - 5 * 20) / 80  # 140 rows in 5 shares
    assert waited <= time.monotonic() - began
    assert world.table() == world.expected()


@pytest.mark.parametrize(
    ("raised", "kind"),
    [
        (ConnectionError, TargetUnavailable),
        (ValueError, TargetRefused),
        (lambda: SchemaMismatch("altered", "repair it"), SchemaMismatch),
    ],
)
def test_errors_of_tasks_keep_their_class_at_the_driver(
    world: World, raised: Callable[[], Exception], kind: type[WalSinkError]
) -> None:
    """The text says that the error occurred in a task."""

    def write(*_: object) -> None:
        raise raised()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MemorySession, "write", write)
        with pytest.raises(kind, match="in a Spark task on"):
            flush(world, Job())
    flush(world, Job())
    assert world.table() == world.expected()


def test_task_that_cannot_connect_raises_unavailable(world: World) -> None:
    broken = FaultyTarget(world.target, Faults(0, error=ConnectionError, matching="connect"))
    with pytest.raises(TargetUnavailable):
        flush(world, Job(broken))


def test_task_that_cannot_read_raises_log_unavailable(world: World) -> None:
    faults = Faults(0, error=OSError, matching="read segments")
    with pytest.raises(LogUnavailable):
        flush(world, Job(store=FaultyBackend(world.log_backend, faults)))


def test_error_of_a_task_names_the_missing_segment(world: World) -> None:
    (path, *_) = world.log_backend.list("segments/")
    world.log_backend.delete([path])
    with pytest.raises(errors.MissingSegment, match=path):
        flush(world, Job())


class Counted(MemorySession):
    """A session that records whether it was closed."""

    def __init__(self) -> None:
        super().__init__(MemoryTarget(MemoryOptions(keys="k")), "query")
        self.closed = False

    def close(self) -> None:
        self.closed = True


def is_closed(session: Session) -> bool:
    assert isinstance(session, Counted)
    return session.closed


def refuse() -> Counted:
    raise AssertionError("there is a session to be had")


def test_session_is_reused_by_the_next_task() -> None:
    sessions = SessionPool()
    with sessions.session("a", 1, Counted) as first:
        pass
    with sessions.session("b", 1, Counted) as other:
        assert other is not first
    with sessions.session("a", 1, refuse) as again:
        assert again is first
    with sessions.session("a", 2, Counted) as fresh:
        assert fresh is not first
    assert [is_closed(session) for session in (first, other, fresh)] == [True, False, False]
    sessions.close()
    assert is_closed(other)
    assert is_closed(fresh)


def test_session_is_not_reused_after_an_error() -> None:
    sessions = SessionPool()
    with pytest.raises(KeyError), sessions.session("a", 1, Counted) as failed:
        raise KeyError
    assert is_closed(failed)
    with sessions.session("a", 1, Counted) as fresh:
        assert fresh is not failed
    sessions.close()

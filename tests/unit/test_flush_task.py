"""What a task of a flush job does, over `MemoryTarget`: its rows, its errors, the session that it leaves."""

from __future__ import annotations

import pickle
import time
import uuid
from collections.abc import Callable

import pytest
from wal_sink.flush.rows import FileGoneError, WindowWrite
from wal_sink.wal.log import Log

from state_backends import open_backend
from tests.protocol.engine import World
from tests.protocol.quarantining import listed
from wal_sink import errors
from wal_sink.errors import (
    LogUnavailable,
    SchemaMismatch,
    TargetRefused,
    TargetUnavailable,
    WalSinkError,
)
from wal_sink.flush.tasks import FlushError, FlushTask, gravest
from wal_sink.model.ledger import Owner
from wal_sink.model.manifest import Attempt
from wal_sink.protocol.windows import share_out
from wal_sink.targets.base import Target
from wal_sink.testing.faults import Faults, FaultyBackend, FaultyTarget
from wal_sink.testing.memory_target import MemorySession

OWNER = Owner("query", "log", "memory://checkpoint")


@pytest.fixture
def world() -> World:
    """A query with two epochs checkpointed, the second one over three partitions."""
    name = f"memory://{uuid.uuid4().hex}"
    world = World(open_backend(f"{name}/checkpoint"), open_backend(f"{name}/log"))
    run = world.run().batches([(f"k{n}", n) for n in range(50)])
    run.batch(*([(f"k{n % 30}", 1_000 + n) for n in range(p, 90, 3)] for p in range(3)))
    return world


def task(world: World, target: Target | None = None, log: Log | None = None) -> FlushTask:
    return FlushTask(log or world.log, target or world.store, OWNER, uuid.uuid4().hex)


def by_tasks(task: FlushTask) -> Callable[[WindowWrite], bool]:
    """Write windows as a job does, its tasks one after the other, the last one first."""

    def write(window_write: WindowWrite) -> bool:
        found = [piece for begun in window_write.epochs for piece in window_write.pieces(begun)]
        shares = share_out(found, above_bytes=0, slots=6)
        assert len(shares) == 5
        answers = [task(pickle.loads(pickle.dumps(share))) for share in reversed(shares)]
        travelled = [pickle.loads(pickle.dumps(answer)) for answer in answers]
        if wrong := [answer for answer in travelled if answer != ()]:
            raise gravest(wrong)
        return True

    return write


def flush(world: World, task: FlushTask) -> None:
    flusher = world.flusher()
    flusher._write_rows = by_tasks(task)
    for _ in range(20):
        flusher.run_once()


def test_tasks_write_what_the_driver_would(world: World) -> None:
    """In any order: the rows, and which of two with one key stays."""
    flush(world, task(world))
    assert world.table() == world.expected()
    assert world.log.newest_flushed() is not None


def test_rule_24_tasks_pass_over_refused_rows(world: World) -> None:
    """Each is in quarantine. Another query stops, over the same session."""
    world.store.refuses = lambda row: "no sevens" if row["v"] in (7, 1_075, 77) else ""
    key = uuid.uuid4().hex
    flush(world, FlushTask(world.log, world.store, OWNER, key, quarantine=True))
    # k7 is there by epoch 1, and k15 by an earlier row of it
    assert world.table() == world.expected() | {"k15": 1_045}
    assert [(epoch, row["v"]) for epoch, row in listed(world)] == [(0, 7), (1, 1_075)]
    world.run().batch(*([(f"k{n}", n) for n in range(p, 90, 5)] for p in range(5)))
    with pytest.raises(TargetRefused, match="no sevens"):
        flush(world, FlushTask(world.log, world.store, OWNER, key))


def test_a_log_that_was_read_travels(world: World) -> None:
    """Also after the driver has chosen from its manifests."""
    log, attempt = world.log, Attempt(0, 1)
    found = log.manifest(attempt)
    assert found is not None
    log.plan(found[0].plan)
    assert pickle.loads(pickle.dumps(log)).manifest(attempt) == found


def test_a_task_keeps_its_rate(world: World) -> None:
    """Of each share the first quarter of a second's rows goes at once, what is left in its time."""
    limited = FlushTask(world.log, world.store, OWNER, uuid.uuid4().hex, rows_per_second=80)
    began = time.monotonic()
    flush(world, limited)
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
def test_the_targets_errors_get_their_kind(
    world: World, raised: Callable[[], Exception], kind: type[WalSinkError]
) -> None:
    """The same as in the driver; the text says that it was in a task."""

    def write(*_: object) -> None:
        raise raised()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MemorySession, "write", write)
        with pytest.raises(kind, match="in a Spark task on"):
            flush(world, task(world))
    flush(world, task(world))
    assert world.table() == world.expected()


def test_no_connection_is_an_error_of_its_own_kind(world: World) -> None:
    """Before a row is sent."""
    broken = FaultyTarget(world.store, Faults(0, error=ConnectionError, matching="connect"))
    with pytest.raises(TargetUnavailable):
        flush(world, task(world, broken))


def test_a_store_that_does_not_answer(world: World) -> None:
    """As the flusher says it."""
    faults = Faults(0, error=OSError, matching="read segments")
    with pytest.raises(LogUnavailable):
        flush(world, task(world, log=Log(FaultyBackend(world.log_backend, faults))))


def test_a_missing_segment_is_judged_by_the_flusher(world: World) -> None:
    """It looks again, and the ledger says that it is needed (rule 20)."""
    (path, *_) = world.log_backend.list("segments/")
    world.log_backend.delete([path])
    with pytest.raises(errors.MissingSegment, match=path):
        flush(world, task(world))


# --- errors on their way ---------------------------------------------------------------------------


def test_the_gravest_of_several_errors_is_raised() -> None:
    """A missing file first, which may mean that all is done; then what does not pass."""
    gone: FlushError = FileGoneError(3, "segments/x")
    fatal, passing = SchemaMismatch("a", "b"), TargetUnavailable("c", "d")
    assert gravest([passing, fatal, gone]) is gone
    assert gravest([passing, fatal, passing]) is fatal
    assert gravest([passing]) is passing
    travelled = pickle.loads(pickle.dumps(gone))
    assert (travelled.epoch, travelled.path) == (3, "segments/x")

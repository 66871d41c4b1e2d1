"""The disk of the log is full: a task fails cleanly, and the query continues when there is space again."""

from __future__ import annotations

import errno
import random

import pytest

from state_backends import open_backend
from tests.protocol.engine import Rows, World
from tests.support.small_disk import SmallDisk, small_disk  # noqa: F401 - a fixture
from wal_sink.errors import LogFull, LogUnavailable
from wal_sink.wal.location import log_errors

MEGABYTE = 1_000_000


@pytest.fixture
def full_world(small_disk: SmallDisk) -> World:  # noqa: F811
    """A query whose log is on a small disk, and its checkpoint elsewhere."""
    return World(open_backend("memory://full/checkpoint"), open_backend(str(small_disk.folder)))


def large(seed: int) -> Rows:
    """Return rows of about 2 MB that cannot be compressed."""
    source = random.Random(seed)
    return [(source.randbytes(50_000).hex(), number) for number in range(20)]


def test_task_that_fills_the_disk_leaves_nothing(
    full_world: World,
    small_disk: SmallDisk,  # noqa: F811
) -> None:
    world = full_world
    run = world.run().batches([("a", 1)])
    files_before = small_disk.files()
    small_disk.fill(leave=MEGABYTE)
    run.write_offsets()
    with pytest.raises(LogFull, match="No space left on device") as caught:
        run.tasks(large(1))
    assert "wal-sink flush CHECKPOINT --option wal.retention=0" in caught.value.remedy
    assert caught.value.exit_code == 4
    assert small_disk.files() == files_before, "neither a segment nor a half-written file"
    assert world.flushed() == {"a": 1}
    again = world.run()
    again.write_offsets()
    with pytest.raises(LogFull):
        again.tasks(large(2))
    small_disk.free()
    last = world.run()
    rows = large(3)
    last.batch(rows)
    assert world.flushed() == {"a": 1, **dict(rows)}
    assert [name for name in small_disk.files() if "segments" in name or ".tmp" in name] == []


def test_exceeded_quota_raises_log_full() -> None:
    with pytest.raises(LogFull, match="file:///log"), log_errors("file:///log"):
        raise OSError(errno.EDQUOT, "Disk quota exceeded")


def test_denied_access_to_the_log_raises_log_unavailable() -> None:
    refused = pytest.raises(LogUnavailable, match=r"file:///log cannot be used: .*denied")
    with refused as caught, log_errors("file:///log"):
        raise PermissionError(errno.EACCES, "denied")
    assert "start the query again" in caught.value.remedy

"""Objects of superseded runs, failed tasks and killed writers, and when they are deleted (rule `trim`)."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from state_backends import open_backend
from tests.protocol.engine import World, flush
from tests.protocol.operations import At
from tests.protocol.operators import edit
from wal_sink import errors
from wal_sink.errors import Fenced
from wal_sink.testing.faults import Faults
from wal_sink.wal.store import UNFINISHED_S

pytestmark = pytest.mark.rule("trim")


def test_objects_of_superseded_run_are_deleted_when_next_opens(world: World) -> None:
    """Given a run with an attempt that is not settled, and with tasks at work on the next epoch."""
    dead = world.run().batches([("a", 0)])
    dead.publish([("dead", 1)])
    world.run().publish([("b", 1)])
    run = world.run()
    run.publish([("b", 2)])
    names = [*world.log_backend.list("manifests/"), *world.log_backend.list("segments/")]
    assert [name for name in names if dead.run_id in name and f"{1:020}" in name] == []
    run.write_commit([[("b", 2)]])
    assert world.flushed() == {"a": 0, "b": 2}
    assert world.log_backend.list("segments/") == []


def test_run_that_never_opened_keeps_its_segments(world: World) -> None:
    """The run may still publish them. If its `commit()` is fenced, that deletes them."""
    world.run().batches([("a", 0)])
    slow = world.run()
    slow.write_offsets()
    appended = slow.tasks([("slow", 1)])
    other = world.run()
    other.publish([("other", 1)])
    assert appended[0].segments[0].path in world.log_backend.list("segments/")
    with pytest.raises(Fenced):
        slow.commit(appended)
    assert appended[0].segments[0].path not in world.log_backend.list("segments/")
    other.write_commit([[("other", 1)]])
    assert world.flushed() == {"a": 0, "other": 1}
    assert world.log_backend.list("segments/") == []


def test_segments_of_a_failed_task_are_trimmed_with_epoch(world: World) -> None:
    """Given a task that Spark runs again in the same run."""
    run = world.run()
    run.write_offsets()
    run.tasks([("failed", 1)])
    run.batch([("a", 1)])
    assert len(world.log_backend.list("segments/")) == 2
    assert world.flushed() == {"a": 1}
    assert world.log_backend.list("segments/") == []


def test_segment_written_after_its_trim_is_deleted_later(world: World) -> None:
    """A task writes the segment long after the trim of its epoch. The next trim deletes it."""
    run = world.run()
    run.flushed_batches([("a", 0)])
    run.next = 0
    run.tasks([("late", 9)])
    run.next = 1
    assert world.log_backend.list("segments/")
    run.batch([("b", 1)])
    assert world.flushed() == {"a": 0, "b": 1}
    assert world.log_backend.list("segments/") == []


@pytest.mark.parametrize("refused", [errors.Fenced, errors.Diverged, errors.SegmentNotVisible])
def test_refused_commit_leaves_no_segments(
    world: World, refused: type[errors.WalSinkError]
) -> None:
    world.run().flushed_batches([("a", 0)])
    if refused is errors.Diverged:
        world.checkpoint.delete(["commits/0", "offsets/0"])
    for _ in range(3):
        run = world.run()
        run.write_offsets("77")
        appended = run.tasks([("b", 1)], [("c", 1)])
        if refused is errors.Fenced:
            edit(world.checkpoint, "commits/1", b"v1\n{}")
        elif refused is errors.SegmentNotVisible:
            world.log_backend.delete([appended[0].segments[0].path])
        with pytest.raises(refused):
            run.commit(appended)
        edit(world.checkpoint, "commits/1", None)
        assert world.log_backend.list("segments/") == []


@pytest.mark.parametrize("when", ["before", "after"])
def test_commit_that_may_have_published_deletes_nothing(world: World, when: str) -> None:
    """Given a lost answer to the create of manifest or state, or a crash there."""
    for matching in ("create manifests/", "create state/0000000004"):
        run = world.run(Faults(0, when, OSError, matching))  # type: ignore[arg-type]
        run.write_offsets()
        appended = run.tasks([(matching, 1)])
        try:
            run.commit(appended)
        except OSError:
            assert appended[0].segments[0].path in world.log_backend.list("segments/")
    run = world.run()
    run.batch([("a", 1)])
    assert world.flushed() == {"a": 1}


def test_flusher_continues_while_another_one_trims(world: World) -> None:
    """Another flusher deletes what this one is about to read."""
    world.run().batches([("a", 0)], [("b", 1)])
    for point in ("read manifests/", "input segments/", "read plans/"):
        flush(world.flusher(At(point, world.flush)))
    assert world.table() == {"a": 0, "b": 1}


def test_files_of_killed_writers_are_deleted_when_old(tmp_path: Path) -> None:
    """The next run that opens deletes them."""
    world = World(open_backend(str(tmp_path / "checkpoint")), open_backend(str(tmp_path / "log")))
    world.run().batches([("a", 0)])
    writer = textwrap.dedent(
        """
        import os, sys
        from state_backends import open_backend
        with open_backend(sys.argv[1]).open_output("segments/half") as output:
            output.write(b"half" * 1000)
            output.flush()
            os._exit(1)
        """
    )
    subprocess.run([sys.executable, "-c", writer, world.log_backend.url], check=False)
    files = [
        path for path in tmp_path.rglob("*") if path.is_file() and b"halfhalf" in path.read_bytes()
    ]
    assert len(files) == 1
    world.run().batch([("b", 1)])
    assert files[0].exists(), "it may be at work"
    os.utime(files[0], (time.time() - UNFINISHED_S - 60,) * 2)
    world.run().batch([("c", 2)])
    assert not files[0].exists()
    assert world.flushed() == {"a": 0, "b": 1, "c": 2}

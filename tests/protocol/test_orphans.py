"""What no flusher will ever read goes, once its epoch is flushed; what one may still need stays.

Rule 18's other half, a zombie's segments for an epoch that is flushed already, is in `test_rules.py`.
"""

from __future__ import annotations

import os
import time
import uuid
from pathlib import Path

import pytest

from state_backends import open_backend
from tests.protocol.engine import World
from tests.protocol.operations import At
from wal_sink import errors
from wal_sink.model import paths
from wal_sink.model.manifest import Attempt
from wal_sink.publish.fencing import claim_generation
from wal_sink.testing.faults import Faults
from wal_sink.wal.trim import sweep

_DAY_S = 86_400


def segment_epochs(world: World) -> list[int | None]:
    """Return the epoch of each segment in the log."""
    return [paths.segment_epoch(path) for path in world.log_backend.list(paths.SEGMENT.folder)]


def test_segments_of_a_failed_task_go_with_their_epoch(world: World) -> None:
    """The task wrote its segment and failed then; Spark ran it again, and knows of the second one only."""
    run = world.run()
    run.tasks([("failed", 1)], [("failed too", 1)])
    run.batch([("a", 1)])
    assert segment_epochs(world) == [0, 0, 0]
    world.flush()
    assert segment_epochs(world) == []
    assert world.table() == {"a": 1}


def test_what_a_killed_task_left_half_written_is_swept(tmp_path: Path) -> None:
    """A day after it was written to last: until then its task may be alive. Finished files stay."""
    world = World(open_backend(str(tmp_path / "checkpoint")), open_backend(str(tmp_path / "log")))
    world.run().batches([("a", 1)])
    folder = tmp_path / "log" / paths.segment_folder(0)
    old, young = (folder / f".{uuid.uuid4().hex}.tmp" for _ in range(2))
    long_ago = time.time() - _DAY_S - 60
    for path in (old, young, *folder.glob("*.arrow")):
        path.touch()
        os.utime(path, None if path == young else (long_ago, long_ago))
    sweep(world.log, world.log.mark())
    assert (old.exists(), young.exists()) == (False, True)
    assert segment_epochs(world) == [0]


def test_a_flusher_that_starts_sweeps_half_written_files(tmp_path: Path) -> None:
    """Also of an epoch above the mark, in which nothing that is finished may be touched."""
    world = World(open_backend(str(tmp_path / "checkpoint")), open_backend(str(tmp_path / "log")))
    run = world.run().flushed_batches([("a", 1)])
    run.tasks([("not yet published", 1)])
    half = tmp_path / "log" / paths.segment_folder(1) / f".{uuid.uuid4().hex}.tmp"
    half.touch()
    os.utime(half, (0, 0))
    world.flush()
    assert not half.exists()
    assert segment_epochs(world) == [1]


@pytest.mark.parametrize("flushed", [0, 1])
def test_segments_of_an_epoch_that_is_not_flushed_stay(world: World, flushed: int) -> None:
    """Named by a manifest or not, checkpointed or not, however often a flusher starts; mark or none."""
    run = world.run().flushed_batches(*([(f"flushed {epoch}", epoch)] for epoch in range(flushed)))
    run.tasks([("unnamed", 1)])  # its task may be alive
    run.batch([("checkpointed", 1)])
    run.publish([("published", 2)])
    run.next += 1
    run.tasks([("of a task that runs", 3)])
    before = world.log_backend.list(paths.SEGMENT.folder)
    assert len(before) == 4
    for _ in range(3):
        down = Faults(at=0, error=ConnectionError, matching="begin")
        with pytest.raises(errors.TargetUnavailable):
            world.flush(down)
        assert world.log_backend.list(paths.SEGMENT.folder) == before
    world.flush()
    assert segment_epochs(world) == [flushed + 1, flushed + 2]
    assert world.table() == world.expected()


@pytest.mark.parametrize(
    "error",
    [errors.NotRegistered, errors.Fenced, errors.UnknownOffsetsFormat, errors.SegmentNotVisible],
)
def test_rule_7_a_commit_that_is_refused_leaves_nothing(
    world: World, error: type[errors.WalSinkError]
) -> None:
    """However often a supervisor starts the query again: nothing is published, and nothing stays."""
    world.run().batch([("a", 1)])
    kept = world.log_backend.list(paths.SEGMENT.folder)
    for _ in range(3):
        run = world.run(listening=error is not errors.NotRegistered)
        if error is errors.UnknownOffsetsFormat:
            world.checkpoint.delete(["offsets/1"])
            world.checkpoint.create("offsets/1", b"v9\n{}\n{}")
        run.write_offsets()
        appended = run.tasks([("b", 1)], [("c", 1)])
        if error is errors.Fenced:
            world.checkpoint.delete(["commits/1"])
            world.checkpoint.create("commits/1", b"v1\n{}")
        if error is errors.SegmentNotVisible:
            world.log.delete([appended[0].segments[0].path])
        with pytest.raises(error):
            run.commit(appended)
        world.checkpoint.delete(["commits/1", "offsets/1"])
        assert world.log_backend.list(paths.SEGMENT.folder) == kept


def test_rule_7_a_commit_that_may_have_published_deletes_nothing(world: World) -> None:
    """Fenced after its manifest, or called twice: another process may read the segments by now."""
    run = world.run()
    run.write_offsets()
    appended = run.tasks([("a", 1)])
    run.commit(appended)
    with pytest.raises(errors.AlreadyPublished):
        run.commit(appended)
    newer = world.run()
    newer.publish([("a", 2)])
    with pytest.raises(errors.Fenced):
        run.commit(appended)
    assert len(world.log.segments()) == 2


def test_rule_7_the_replay_of_a_flushed_epoch_leaves_nothing(world: World) -> None:
    """It is not published: its rows are in the table."""
    world.run().flushed_batches([("a", 1)])
    world.checkpoint.delete(["commits/0"])
    assert world.run().publish([("a", 2)]) is None
    assert world.log.segments() == []


def test_rule_7_a_run_that_is_overtaken_in_a_replay_is_fenced(world: World) -> None:
    """Else Spark lets it write `commits/`, and go on beside the newer run."""
    world.run().flushed_batches([("a", 1)])
    world.checkpoint.delete(["commits/0"])
    replay = world.run(
        At("read offsets/0", lambda: claim_generation(world.log, world.run().run_id, {}, 0))
    )
    with pytest.raises(errors.Fenced):
        replay.publish([("a", 2)])


def test_rule_7_a_run_whose_manifest_was_trimmed_is_fenced(world: World) -> None:
    """The older run wrote `commits/0` after all, and its attempt is flushed: this one's rows are not."""
    older = world.run()
    older.publish([("older", 1)])

    def flush_the_older_one() -> None:
        older.write_commit([[("older", 1)]])
        world.flush(run_history=older.run_history)

    path = paths.MANIFEST.path(Attempt(0, 2))
    newer = world.run(At(f"read {path}", flush_the_older_one))
    with pytest.raises(errors.Fenced):
        newer.publish([("newer", 2)])
    assert world.table() == {"older": 1}
    assert world.log.attempts() == ()

"""Orphans of fenced runs go, those of runs that may still publish stay, and no choice is harmed by it."""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from state_backends import open_backend
from tests.protocol.engine import NOW_US, World
from tests.protocol.operations import At
from tests.protocol.operators import edit, query, rewind
from tests.protocol.starts import killed, room
from wal_sink.admin.query import sink_options
from wal_sink.admin.rewind import plan_rewind
from wal_sink.admin.verify import verify
from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.errors import Fenced
from wal_sink.flush.run_history import RunHistory
from wal_sink.model import paths
from wal_sink.model.manifest import Attempt
from wal_sink.model.records import OrphanTombstone
from wal_sink.protocol.budget import Budget
from wal_sink.protocol.windows import WINDOW_EPOCHS
from wal_sink.publish.orphans import sweep_orphans
from wal_sink.publish.start import claim_early
from wal_sink.testing.faults import Crash, Faults
from wal_sink.testing.micro_batches import until_rest

STORES = ("memory", "local")

ONE_BYTE = Budget(1, "block")


def runs_of(world: World) -> list[tuple[int, str | None]]:
    """Return epoch and run of each segment in the log."""
    return sorted((epoch, paths.segment_run(path)) for epoch, path in world.log.segments())


def test_rule_18_a_run_that_claims_its_generation_deletes_the_orphans_before_it(
    world: World,
) -> None:
    """Of runs that never claimed one, of a run that did, of failed tasks; what manifests name stays."""
    first = world.run()
    first.tasks([("of a failed task", 1)])
    first.batch([("a", 0)])
    first.write_offsets()
    first.tasks([("killed", 1)])
    for _ in range(3):
        killed(world)
    again = world.run()
    again.publish([("b", 1)])
    assert runs_of(world) == sorted([(0, first.run_id), (1, again.run_id)])
    again.write_commit([[("b", 1)]])
    assert world.flushed() == world.expected() == {"a": 0, "b": 1}
    assert world.log.segments() == []


def test_rule_18_a_note_of_a_lost_history_is_not_about_the_run_of_this_one(world: World) -> None:
    """The backup was copied file by file: tombstones/ after runs/; the note's generation comes again."""
    world.run().batch([("a", 0)])
    world.run().publish([("died", 1)])
    world.log.create_tombstone(OrphanTombstone(epoch=1, generation=3, run_id="of-the-lost-history"))
    world.run().batch([("b", 1)])
    assert world.flushed() == world.expected() == {"a": 0, "b": 1}


def test_rule_18_segments_of_a_run_that_may_publish_stay(world: World) -> None:
    """A newer run that computes the epoch, too, is not fenced; nor is the one that asks."""
    older = world.run().batches([("a", 0)])
    newer = killed(world)
    older.publish([("b", 1)])
    assert runs_of(world) == sorted([(0, older.run_id), (1, older.run_id), (1, newer.run_id)])
    sweep_orphans(world.log, older.run_id, checkpointed=0)
    assert (1, newer.run_id) in runs_of(world)


def test_rule_18_what_an_operator_may_restore_stays(world: World) -> None:
    """A checkpointed epoch whose manifest is lost: only its segments are left of its rows."""
    run = world.run().batches([("a", 0)])
    manifest = world.log_backend.read(paths.MANIFEST.path(Attempt(0, 1)))
    world.log_backend.delete([paths.MANIFEST.path(Attempt(0, 1))])
    world.run().publish([("b", 1)])
    assert (0, run.run_id) in runs_of(world)
    world.log_backend.create(paths.MANIFEST.path(Attempt(0, 1)), manifest)
    assert world.flushed() == {"a": 0}


def test_rule_18_what_spark_goes_on_behind_stays_though_its_commit_file_is_gone(
    world: World,
) -> None:
    """Spark computes the newest planned epoch again, and takes those before it for completed."""
    run = world.run().batches([("a", 0)], [("b", 1)])
    run.write_offsets()
    edit(world.checkpoint, "commits/1", None)
    manifest = world.log_backend.read(paths.MANIFEST.path(Attempt(1, 1)))
    world.log_backend.delete([paths.MANIFEST.path(Attempt(1, 1))])
    again = world.run()
    again.next = 2
    again.batch([("c", 2)])
    assert (1, run.run_id) in runs_of(world)
    world.log_backend.create(paths.MANIFEST.path(Attempt(1, 1)), manifest)
    assert world.flushed() == {"a": 0, "b": 1, "c": 2}


@pytest.mark.parametrize("foreign", [False, True])
@pytest.mark.parametrize("late", ["before", "after"])
def test_rule_18_a_manifest_that_comes_after_its_segments_went_is_not_chosen(
    world: World, late: str, *, foreign: bool
) -> None:
    """P wrote commits/0 and died without a trace; Q, fenced, publishes late; R swept, and died, too.

    Q's is the highest generation of the two, and nothing is proven: it would be taken, and the flush would
    stop for ever at segments that are gone.

    :param foreign: a log that was restored has a note of that name, about a run of the lost history.
    """
    if foreign:
        world.log.create_tombstone(
            OrphanTombstone(epoch=0, generation=2, run_id="of-the-lost-history")
        )
    p = world.run()
    p.publish([("p", 0)])

    def r_claims_and_dies() -> None:
        if late == "before":
            p.write_commit([[("p", 0)]], heard=False)
            world.run().publish([("r", 1)])
        room(world, world.run(), max_bytes=1)

    q = world.run(At(f"create {paths.MANIFEST.path(Attempt(0, 2))}", r_claims_and_dies))
    q.write_offsets()
    tasks = q.tasks([("q", 0)])
    with pytest.raises(Fenced):
        q.commit(tasks)
    if late == "after":
        assert verify(query(world), lambda: world.target, NOW_US).findings == ()
        p.write_commit([[("p", 0)]], heard=False)
    assert set(world.log.attempts()) >= {Attempt(0, 1), Attempt(0, 2)}
    assert (0, q.run_id) not in runs_of(world)
    world.flush(run_history=RunHistory())
    assert world.table() == world.expected() == {"p": 0}
    world.run().batch([("next", 1)])
    assert world.flushed() == {"p": 0, "next": 1}
    assert world.log.attempts() == ()
    world.flush()
    assert world.log_backend.list(paths.TOMBSTONE.folder) == [], "a note goes with the next sweep"


def test_rule_18_a_manifest_that_comes_right_after_the_note_keeps_its_segments(
    world: World,
) -> None:
    """It is in the second listing: a flusher may have chosen it before the note was there."""
    q = world.run()
    q.publish([("q", 0)])
    path = paths.MANIFEST.path(Attempt(0, 1))
    manifest = world.log_backend.read(path)
    world.log_backend.delete([path])
    r = world.run(
        At(f"create {paths.TOMBSTONE.folder}", lambda: world.log_backend.create(path, manifest))
    )
    room(world, r, max_bytes=1)
    assert world.log_backend.list(paths.TOMBSTONE.folder) == [paths.TOMBSTONE.path(Attempt(0, 1))]
    assert runs_of(world) == [(0, q.run_id)]


def test_rule_18_what_is_flushed_and_kept_right_after_the_note_keeps_its_segments(
    world: World,
) -> None:
    """Its manifest has been moved by then, and is found where `wal.retention` keeps it."""
    world.retention_s = 3_600
    q = world.run()
    q.publish([("q", 0)])
    path = paths.MANIFEST.path(Attempt(0, 1))
    manifest = world.log_backend.read(path)
    world.log_backend.delete([path])

    def arrives_and_is_begun() -> None:
        world.log_backend.create(path, manifest)
        q.write_commit([[("q", 0)]])
        with pytest.raises(Crash):
            world.flush(Faults(at=0, matching="finish"))

    class Meanwhile(At):
        """Also flushes what is begun, right before its manifest is read."""

        @contextmanager
        def around(self, name: str) -> Iterator[None]:
            if name == f"read {path}":
                world.flush()
            with super().around(name):
                yield

    room(
        world,
        world.run(Meanwhile(f"create {paths.TOMBSTONE.folder}", arrives_and_is_begun)),
        max_bytes=1,
    )
    assert world.table() == {"q": 0}
    assert path not in world.log_backend.list(), "it was moved"
    assert runs_of(world) == [(0, q.run_id)]


def test_rule_18_what_a_rewind_puts_back_in_the_middle_of_a_sweep_keeps_its_segments(
    world: World,
) -> None:
    """Its manifest is found under neither name: the first one comes back after the look for it.

    The log's mark was read before, and said that the epoch is flushed.
    """
    world.retention_s = 3_600
    q = world.run()
    q.publish([("q", 0)])

    def is_flushed_and_kept() -> None:
        q.write_commit([[("q", 0)]])
        world.flush()
        assert world.log_backend.list(paths.MANIFEST.folder) == []

    def is_put_back() -> None:
        plan_rewind(query(world), world.target, -1, NOW_US).carry_out(NOW_US)

    class Meanwhile(Faults):
        """The one before the manifests are listed; the other between the looks for the two names."""

        @contextmanager
        def around(self, name: str) -> Iterator[None]:
            claimed = any(each.startswith(f"create {paths.CLAIM.folder}") for each in done)
            if claimed and name == f"list {paths.MANIFEST.folder}" and not world.table():
                is_flushed_and_kept()
            elif name == f"read {paths.RETAINED_MANIFEST.path(Attempt(0, 1))}" and world.table():
                is_put_back()
            done.append(name)
            with super().around(name):
                yield

    done: list[str] = []
    faults = Meanwhile()
    room(world, world.run(faults), max_bytes=1)
    assert runs_of(world) == [(0, q.run_id)]
    assert world.flushed() == {"q": 0}


def test_a_hundred_runs_that_are_killed_do_not_fill_the_disk(tmp_path: Path) -> None:
    """None of them reaches its first commit; each leaves a segment, and a half-written one (rule 18)."""
    world = World(open_backend(str(tmp_path / "checkpoint")), open_backend(str(tmp_path / "log")))
    world.run().batch([("a", 0)])
    most = 0
    for _ in range(101):
        run = world.run()
        room(world, run, max_bytes=20_000)
        run.write_offsets()
        run.tasks([(os.urandom(400).hex(), 1)])
        folder = tmp_path / "log" / paths.segment_folder(1)
        (folder / f".{os.urandom(16).hex()}.tmp").write_bytes(b"x" * 1_000)
        files = [
            path for path in (tmp_path / "log" / paths.SEGMENT.folder).rglob("*") if path.is_file()
        ]
        most = max(most, sum(path.stat().st_size for path in files))
    assert most < 25_000
    world.run().batch([("b", 1)])
    assert world.flushed() == world.expected() == {"a": 0, "b": 1}
    assert world.log.segments() == []


def test_what_a_newer_run_is_writing_stays(tmp_path: Path) -> None:
    """The run stands still after its early claim; meanwhile a newer one has started, and its tasks write.

    The kernel stamps files by its last tick, so that they can look older than the claim.
    """
    world = World(open_backend(str(tmp_path / "checkpoint")), open_backend(str(tmp_path / "log")))
    killed(world, size=400)
    folder = tmp_path / "log" / paths.segment_folder(0)
    dead, writing = (folder / f".{letter * 32}.tmp" for letter in "ab")
    dead.write_bytes(b"x")
    hour_ago = time.time() - 3_600
    os.utime(dead, (hour_ago, hour_ago))

    def write() -> None:
        writing.write_bytes(b"x")
        os.utime(writing, (began - 0.005, began - 0.005))

    stalled = world.run(At(f"list {paths.SEGMENT.folder}", write))
    began = time.time()  # the claim begins right after it
    room(world, stalled, max_bytes=1)
    assert (dead.exists(), writing.exists()) == (False, True)


def test_options_of_a_run_that_failed_as_it_started_are_not_those_of_the_query(
    world: World,
) -> None:
    """Commands take the options of the newest run that has published, or claimed in order to."""
    world.run().batches([("a", 0)])
    killed(world)
    failing = world.run()
    options = {"target": "cells", "flush.maxRowsPerSecond": "7"}
    claim_early(failing.log, Checkpoint(failing.checkpoint), failing.run_id, ONE_BYTE, options)
    assert world.log.highest_generation() == 2
    assert sink_options(query(world), {}).max_rows_per_second is None
    world.flush()
    assert sink_options(query(world), {}).max_rows_per_second is None
    failing.batch([("b", 1)])
    assert sink_options(query(world), {}).max_rows_per_second == 7
    world.flush()
    assert sink_options(query(world), {}).max_rows_per_second == 7


def test_a_run_that_starts_claims_nothing_while_there_is_space(world: World) -> None:
    """It may fail before its first commit: the run that is at work goes on."""
    healthy = world.run().batches([("a", 0)])
    healthy.write_offsets()
    tasks = healthy.tasks([("b", 1)])
    broken = world.run()
    room(world, broken, max_bytes=10**9)
    assert world.log.highest_generation() == 1
    healthy.commit(tasks)
    healthy.write_commit([[("b", 1)]])
    assert world.flushed() == world.expected()


def test_what_cannot_be_deleted_stops_no_run(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """A bucket that denies deletion, or a store that does not answer: said, and the epoch is published."""
    killed(world)

    def denied() -> None:
        raise PermissionError(13, "Permission denied")

    run = world.run(At(f"delete {paths.SEGMENT.folder}", denied))
    room(world, run, max_bytes=1)
    run.batch([("a", 0)])
    assert world.flushed() == {"a": 0}
    assert "could not be deleted" in caplog.text


@pytest.mark.parametrize(
    ("epochs", "first"),
    [(1, "alone"), *((WINDOW_EPOCHS + 1, first) for first in ("alone", "died", "overtaken"))],
)
def test_rule_22_what_comes_late_does_not_stand_for_what_a_rewind_flushes_again(
    world: World, epochs: int, first: str
) -> None:
    """A flusher that stood still trims the attempt that counts; then a fenced run publishes the epoch.

    The late one is alone then. Its segments are gone, so the flush would stop at them for ever.

    :param epochs: how many are flushed again; the late manifest is of the last one, in a window of its own.
    :param first: of the windows: flushed by the same flusher, begun by one that died, or flushed by another.
    """
    world.retention_s = 3_600
    world.run().flushed_batches([("a", 0)])
    table, row = copy.deepcopy(world.store.table), world.state
    run = world.run()
    for epoch in range(1, epochs):
        run.batch([("b", epoch)])
    world.run().publish([("late", epochs)])
    (late,) = world.log.attempts_at(epochs)
    manifest = world.log_backend.read(paths.MANIFEST.path(late))
    files = [paths.MANIFEST.path(late), *world.log_backend.list(paths.segment_folder(epochs))]
    world.log_backend.delete(files)
    world.run().batch([("c", epochs)])
    flusher = world.flusher()
    until_rest(flusher)
    world.store.table, world.store.ledger[world.query_id] = table, row
    assert rewind(world, 0).again == epochs
    (right,) = world.log.attempts_at(epochs)
    files = [paths.MANIFEST.path(right), *world.log_backend.list(paths.segment_folder(epochs))]
    world.log_backend.delete(files)
    world.log_backend.create(paths.MANIFEST.path(late), manifest)
    if first == "died":
        world.begin_and_die()
    if first == "overtaken":
        world.flusher().run_once()
        assert world.state.flushed == WINDOW_EPOCHS
    until_rest(flusher if first == "overtaken" else world.flusher())
    assert world.table() == world.expected()

"""`flush` trims: what is flushed goes and nothing else; `--dry-run` says what, and changes nothing."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.cli.shell import run
from tests.protocol.engine import World
from tests.protocol.operators import edit
from wal_sink import errors
from wal_sink.admin.flush import FlushCommand, FlushDone, preview
from wal_sink.admin.query import Query, find_query
from wal_sink.model import paths
from wal_sink.model.manifest import Attempt
from wal_sink.testing.faults import Faults


@pytest.fixture
def left(world: World) -> World:
    """Epochs 0 and 1 are flushed, and nothing of them is deleted; 2 waits, beside an orphan of 3."""
    batches = world.run().batches([("a", 0)])
    batches.batch([("b", 1)], [("c", 1)])
    disk = Faults(at=0, error=lambda: OSError("read-only"), matching="delete segments")
    world.flush(disk)
    assert disk.injected is not None
    batches.batch([("d", 2)])
    batches.tasks([("orphan", 3)])
    return world


def query_of(folder: Path) -> Query:
    return find_query(str(folder / "checkpoint"))


def flush(world: World, folder: Path) -> FlushDone:
    """`wal-sink flush`."""
    return FlushCommand(query_of(folder), world.target).drain()


def only_trim(world: World, folder: Path) -> None:
    """`wal-sink flush`, interrupted after its first step, before a row is written."""
    flusher = FlushCommand(query_of(folder), world.target)
    looks = 0

    def stop(_done: int, _total: int) -> None:
        nonlocal looks
        looks += 1
        if looks == 2:
            flusher.stop()

    with pytest.raises(errors.NotDrained):
        flusher.drain(stop)


def objects(world: World) -> list[str]:
    """The log, but for what a flusher reports."""
    return [path for path in world.log_backend.list() if path != paths.FLUSHER]


def flushed_objects(world: World) -> set[str]:
    """What a flusher would trim."""
    there = set(
        world.log_backend.list(paths.SEGMENT.folder) + world.log_backend.list(paths.MANIFEST.folder)
    )
    ours = {paths.segment_folder(epoch) for epoch in (2, 3)}
    return {
        path
        for path in there
        if not path.startswith(tuple(ours)) and path != paths.MANIFEST.path(Attempt(2, 1))
    }


def test_a_dry_run_lists_what_would_go(left: World, tmp_path: Path) -> None:
    """With sizes; it asks no target, for which this query has no options, and deletes nothing."""
    before = left.log_backend.list()
    found = run(tmp_path, "flush", "checkpoint", "--dry-run", "--json")
    assert found.code == 0, found.err
    shown = found.document
    assert (shown["flushed"], shown["dry_run"], shown["half_written"]) == (1, True, None)
    assert (shown["epochs"], shown["rows"], shown["pending_epochs"]) == (1, 1, 1)
    assert shown["bytes"] > 0
    assert {file["path"] for file in shown["trimmed"]} == flushed_objects(left)
    for file in shown["trimmed"]:
        assert file["bytes"] == left.log_backend.size(file["path"])
    assert shown["trimmed_bytes"] == sum(file["bytes"] for file in shown["trimmed"])
    said = run(tmp_path, "flush", "checkpoint", "--dry-run")
    assert (said.code, said.err) == (0, "")
    assert "1 epoch would be flushed: 1 row," in said.out
    assert "5 objects of" in said.out
    assert left.log_backend.list() == before


def test_exactly_that_goes(left: World, tmp_path: Path) -> None:
    """What waits stays, and so do segments that no manifest names above the mark: a task may be alive."""
    listed = flushed_objects(left)
    before = set(left.log_backend.list())
    only_trim(left, tmp_path)
    assert before - set(left.log_backend.list()) == listed
    assert preview(query_of(tmp_path), 0).trimmed == ()
    assert left.flushed() == left.expected()


def test_what_is_flushed_now_goes_as_well(left: World, tmp_path: Path) -> None:
    """The document names what was left before; a segment above the mark stays all the same."""
    listed = flushed_objects(left)
    done = flush(left, tmp_path)
    assert {file.path for file in done.trimmed} == listed
    assert (done.epochs, done.rows, done.flushed, done.dry_run) == (1, 1, 2, False)
    assert done.trimmed_bytes == sum(file.bytes for file in done.trimmed) > 0
    (orphan,) = left.log_backend.list(paths.SEGMENT.folder)
    assert orphan.startswith(paths.segment_folder(3))
    assert left.log.attempts() == ()
    assert left.table() == left.expected()


def test_nothing_goes_when_there_are_two_histories(left: World, tmp_path: Path) -> None:
    """A later manifest of a flushed epoch covers other source offsets: exit code 7."""
    attempt = Attempt(1, 1)
    found = left.log.manifest(attempt)
    assert found is not None
    fields = found[0].to_json().replace(b'"generation": 1', b'"generation": 2')
    fields = fields.replace(found[0].offsets_digest.encode(), b"0" * 64)
    edit(left.log_backend, paths.MANIFEST.path(Attempt(1, 2)), fields)
    before = left.log_backend.list()
    done = run(tmp_path, "flush", "checkpoint", "--dry-run", "--json")
    assert (done.code, done.document["error"]) == (7, "Diverged")
    assert left.log_backend.list() == before
    with pytest.raises(errors.Diverged):
        flush(left, tmp_path)
    assert objects(left) == before
    report = left.log.last_report()
    assert report is not None
    assert report.error is not None
    assert report.error.kind == "Diverged"


def test_files_that_killed_writers_left(left: World, tmp_path: Path) -> None:
    """They are no objects of the log, and may be large; one that is new stays."""
    folder = Path(left.log_backend.url.removeprefix("file://")) / "segments"
    old, new = folder / f".{'0' * 32}.tmp", folder / f".{'1' * 32}.tmp"
    for file in (old, new):
        file.write_bytes(b"half")
    os.utime(old, (time.time() - 90_000,) * 2)
    assert flush(left, tmp_path).half_written == 1
    assert (old.exists(), new.exists()) == (False, True)


def test_a_query_that_has_flushed_nothing(world: World, tmp_path: Path) -> None:
    """Nothing goes."""
    world.run().batch([("a", 1)])
    found = run(tmp_path, "flush", "checkpoint", "--dry-run", "--json").document
    assert (found["flushed"], found["trimmed"], found["epochs"]) == (-1, [], 1)
    assert "Nothing that is flushed" in run(tmp_path, "flush", "checkpoint", "--dry-run").out


def test_a_dry_run_has_an_end(world: World, tmp_path: Path) -> None:
    """With `--follow` it would mean nothing."""
    world.run()
    refused = run(tmp_path, "flush", "checkpoint", "--dry-run", "--follow", "--json")
    assert (refused.code, refused.document["error"]) == (2, "OptionError")

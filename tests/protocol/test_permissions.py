"""Permissions of the files that a query leaves in local folders."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from state_backends import open_backend
from state_backends.local import LocalBackend
from tests.protocol.engine import World
from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.flush.reporter import Reporter
from wal_sink.progress.status import read_status
from wal_sink.protocol.retention import Retention


@pytest.fixture(autouse=True)
def _usual_umask() -> Iterator[None]:
    """Set the usual umask, with which other users can read new files."""
    mask = os.umask(0o022)
    yield
    os.umask(mask)


@pytest.fixture
def shared(tmp_path: Path) -> World:
    """A query whose checkpoint Spark has made with the usual umask."""
    tmp_path.chmod(0o755)
    checkpoint = tmp_path / "checkpoint"
    for folder in (checkpoint, checkpoint / "commits", checkpoint / "offsets"):
        folder.mkdir()
    world = World(open_backend(str(checkpoint)), open_backend(str(tmp_path / "logs" / "query")))
    world.retention = Retention(us=1 << 60, bytes=1 << 60)
    return world


def _open(top: Path) -> list[str]:
    """Return the files and folders below `top` that other users can use."""
    return [
        f"{stat.filemode(path.stat().st_mode)} {path.relative_to(top)}"
        for path in sorted(top.rglob("*"))
        if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO)
    ]


def test_user_who_may_only_read_gets_the_status(
    shared: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared.run().flushed_batches([("a", 0)])
    shared.run().batch([("b", 1)])

    def refuse(_backend: LocalBackend, path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(LocalBackend, "_unfinished", refuse)
    status = read_status(Checkpoint(shared.checkpoint), shared.log_backend)
    assert (status.pending_epochs, status.last_error) == (1, None)


def test_no_other_user_reads_what_the_sink_writes(shared: World, tmp_path: Path) -> None:
    """Given a query with states, segments, manifests, plans, refused rows and a report."""
    shared.on_invalid_row = "quarantine"
    shared.store_target.refuses = lambda row: "no" if row["v"] == 2 else ""
    run = shared.run()
    for epoch in range(4):
        run.batch([("customer-4711", epoch)], [("customer-4712", epoch)])
    flusher = shared.flusher()
    flusher.reporter = Reporter(shared.log_backend, "memory")
    flusher.reporter.report("writing", 0)
    shared.flush()
    run.publish([("customer-4713", 4)])
    folders = {path.partition("/")[0] for path in shared.log_backend.list()}
    assert folders == {
        *("state", "plans", "manifests", "segments", "refused"),
        "report-memory.json",
    }
    assert (tmp_path / "checkpoint" / "wal_sink" / "location.json").is_file()
    assert _open(tmp_path / "logs") == []
    assert _open(tmp_path / "checkpoint" / "wal_sink") == []

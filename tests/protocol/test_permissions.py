"""Who may read what a query leaves in local folders: its rows, and what the commands make of them."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from state_backends import open_backend
from state_backends.local import LocalBackend
from tests.protocol.damaged import flip_a_byte, give_up
from tests.protocol.engine import NOW_US, World
from tests.protocol.operators import look, query, stuck
from wal_sink import errors
from wal_sink.admin.flush import FlushCommand
from wal_sink.admin.query import sink_options
from wal_sink.admin.rewind import plan_rewind
from wal_sink.admin.verify import verify
from wal_sink.publish.fencing import leave_proof


@pytest.fixture(autouse=True)
def _usual_umask() -> Iterator[None]:
    """With which every user can read what a program does not protect."""
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.fixture
def shared(tmp_path: Path) -> World:
    """A query whose checkpoint Spark has made with the usual umask."""
    tmp_path.chmod(0o755)
    checkpoint = tmp_path / "checkpoint"
    for folder in (checkpoint, checkpoint / "commits", checkpoint / "offsets"):
        folder.mkdir()
    world = World(open_backend(str(checkpoint)), open_backend(str(tmp_path / "logs" / "query")))
    world.retention_s = 3_600
    return world


def _open(top: Path) -> list[str]:
    """What below a folder other users than its own may use."""
    return [
        f"{stat.filemode(path.stat().st_mode)} {path.relative_to(top)}"
        for path in sorted(top.rglob("*"))
        if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO)
    ]


def test_a_user_who_may_only_read_can_look(shared: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """No command that only looks writes a file."""
    shared.run().flushed_batches([("a", 0)])
    shared.run().batch([("b", 1)])

    def refuse(_backend: LocalBackend, path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(LocalBackend, "_unfinished", refuse)
    assert sink_options(query(shared), {}).retention == 0
    assert verify(query(shared), lambda: shared.target, NOW_US).findings == ()


def test_no_other_user_reads_what_the_sink_writes(shared: World, tmp_path: Path) -> None:
    """Segments of tasks, manifests, records, reports, copies, and our file in Spark's checkpoint."""
    run = shared.run()
    for epoch in range(4):
        run.batch([("customer-4711", epoch)], [("customer-4712", epoch)])
    leave_proof(shared.log, 3, run.run_id)
    flip_a_byte(shared)  # of epoch 2
    with pytest.raises(errors.CorruptLog):
        FlushCommand(query(shared), shared.target, 3_600).drain()
    stuck(shared, errors.CorruptLog)
    give_up(shared)
    FlushCommand(query(shared), shared.target, 3_600).drain()
    plan_rewind(query(shared), shared.target, 1, NOW_US).carry_out(NOW_US)
    written = shared.log_backend.list()
    folders = {path.partition("/")[0] for path in written}
    assert folders >= {
        *("log.json", "flusher.json", "plans", "tickets", "runs", "manifests", "segments"),
        *("proofs", "flushed", "decisions", "interventions"),
    }
    assert (tmp_path / "logs" / "skipped" / "manifests").is_dir()
    assert (tmp_path / "checkpoint" / "wal_sink" / "location.json").is_file()
    assert _open(tmp_path / "logs") == []
    assert _open(tmp_path / "checkpoint" / "wal_sink") == []


def test_verify_says_that_a_log_is_open_to_others() -> None:
    """As versions before this one have made it; it is no finding, and is not changed."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        world = World(open_backend(f"{folder}/checkpoint"), open_backend(f"{folder}/log"))
        world.run().batch([("customer-4711", 1)])
        assert look(world).notes == ()
        Path(folder, "log").chmod(0o755)
        found = look(world)
        assert found.findings == ()
        (note,) = found.notes
        assert note.endswith(f"chmod -R go= {folder}/log")

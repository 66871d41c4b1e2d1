"""Segments that are inlined in a manifest. `tests.kills.test_crash_everywhere` has segments of both kinds."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest

from state_backends import open_backend
from tests.protocol.damaged import BROKEN, change_manifest, fill, give_up, manifest_path
from tests.protocol.engine import World, in_memory
from tests.protocol.operators import stops
from tests.protocol.raw import parsed
from wal_sink import errors
from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.flush.reporter import Reporter
from wal_sink.flush.target_connection import TargetConnection
from wal_sink.flush.window import Window
from wal_sink.model.manifest import Manifest
from wal_sink.progress.status import read_status

STORES = ("memory", "local")
pytestmark = pytest.mark.rule("segments")


@pytest.fixture(autouse=True)
def _inline(world: World) -> None:
    """Let manifests contain every segment."""
    world.inline = range(100)


def test_inlined_segment_is_counted_and_flushed(world: World) -> None:
    fill(world)
    assert world.log_backend.list("segments/") == []
    segments = parsed(world.log_backend.read(manifest_path(world)))["segments"]
    assert [len(segment["data"]) for segment in segments] == [
        segment["bytes"] for segment in segments
    ]
    status = read_status(Checkpoint(world.checkpoint), world.log_backend)
    assert (status.pending_epochs, status.pending_rows) == (3, 9)
    assert status.pending_bytes >= 3 * sum(segment["bytes"] for segment in segments) - 100
    assert world.flushed() == world.expected()
    assert world.log_backend.list("manifests/") == []


def test_changed_byte_of_an_inlined_segment_stops_the_flush(world: World) -> None:
    """The digest of the segment differs. An epoch that was given up keeps its manifest."""
    fill(world)
    segments = parsed(world.log_backend.read(manifest_path(world)))["segments"]
    data = bytearray(segments[1]["data"])
    data[len(data) // 2] ^= 1
    segments[1]["data"] = bytes(data)
    change_manifest(world, segments=segments)
    error = stops(world, errors.CorruptLog)
    assert f"give-up CHECKPOINT --epoch {BROKEN}" in error.remedy
    assert "in its manifest" in error.what
    kept = world.log_backend.read(manifest_path(world))
    give_up(world, BROKEN)
    world.flush()
    assert world.row.epoch == 4
    assert world.log_backend.read(manifest_path(world)) == kept


def test_flush_job_task_gets_inlined_rows_with_its_share(world: World) -> None:
    """The task reads no object of the log."""
    fill(world)
    windows: list[Window] = []

    def write(window: Window, _connection: TargetConnection, _reporter: Reporter) -> bool:
        windows.append(window)
        return False

    flusher = world.flusher()
    flusher._write_rows = write
    flusher.run_once()
    (window,) = windows
    empty = open_backend("memory://nowhere")
    nowhere = replace(window, pipeline=replace(window.pipeline, store=empty))
    ranges = pickle.loads(pickle.dumps(nowhere.ranges(window.manifests[0])))
    slices = list(nowhere.slices(ranges))
    first_us = window.manifests[0].first_us
    assert [(part.first_us, part.batch.num_rows) for part in slices] == [
        (first_us, 2),
        (first_us + 2, 1),
    ]


def test_manifests_in_memory_stay_within_their_byte_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Manifests beyond the limit are read again for the flush."""
    monkeypatch.setattr("wal_sink.wal.manifests._KEPT_BYTES", 20_000)
    world = World(*in_memory())
    world.inline = range(100)
    run = world.run()
    for number in range(30):
        run.batch([(f"k{number}", number)])
    flusher = world.flusher()
    chain = flusher._manifests
    chain.chain(world.state, -1)
    held = list(chain._kept.values())
    assert 0 < sum(_bytes(manifest) for manifest in held) <= 20_000
    assert world.flushed() == world.expected()


def _bytes(manifest: Manifest) -> int:
    return sum(len(segment.data or b"") for segment in manifest.segments)

"""Small segments that a manifest holds (rule 4): what a flusher, an operator and a crash make of them.

The other tests of crashes have epochs with a segment of either kind: `tests.protocol.test_crash_everywhere`.
"""

from __future__ import annotations

import pickle

import pytest

from state_backends import open_backend
from tests.protocol.damaged import (
    BROKEN,
    EPOCHS,
    change_manifest,
    elsewhere,
    fill,
    give_up,
    goes_on_without,
    manifest_path,
    upto,
)
from tests.protocol.engine import World
from tests.protocol.every_fault import When, every_fault, new_world, upon_rows
from tests.protocol.operators import look, query, stuck
from tests.protocol.raw import parsed
from tests.support.records import begun_epoch
from wal_sink import errors
from wal_sink.admin.inspect import inspect_epoch
from wal_sink.admin.rewind import plan_rewind
from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.flush.rows import pieces, read_piece
from wal_sink.model import paths
from wal_sink.model.manifest import Attempt
from wal_sink.progress.backlog import read_manifests
from wal_sink.progress.status import read_status

STORES = ("memory", "local")


@pytest.fixture(autouse=True)
def _inline(world: World) -> None:
    """Let manifests hold every segment."""
    world.inline_from = 0


def test_rule_4_a_small_segment_lies_in_its_manifest(world: World) -> None:
    """One durable object for an epoch; a format that an older version refuses; all that counts is counted."""
    fill(world)
    assert world.log.segments() == []
    raw = parsed(world.log_backend.read(manifest_path()))
    sizes = [len(segment["data"]) for segment in raw["segments"]]
    assert sizes == [segment["bytes"] for segment in raw["segments"]]
    found = read_status(Checkpoint(world.checkpoint), world.log)
    assert (found.pending_epochs, found.pending_rows) == (3, 9)
    assert found.pending_bytes == look(world).bytes >= 3 * sum(sizes) - 100
    assert (look(world).findings, look(world).segments, found.orphan_segments) == ((), 6, 0)
    assert world.flushed() == world.expected()
    assert world.log.attempts() == ()


@upon_rows
def test_rule_4_every_fault_upon_manifests_with_rows_is_recovered_from(
    role: str, when: When
) -> None:
    """No file is written in between, and none is read or deleted."""

    def make() -> World:
        made = new_world()
        made.inline_from = 0
        return made

    hit = every_fault(make, role, when)
    assert len(hit) > 60
    assert not any(".arrow" in operation for operation in hit)


def test_rule_4_a_changed_byte_in_a_manifest_is_never_sent(world: World) -> None:
    """The digest of the segment finds it, before `begin` and after; `verify` names the manifest."""
    fill(world)
    segments = parsed(world.log_backend.read(manifest_path()))["segments"]
    data = bytearray(segments[1]["data"])
    data[len(data) // 2] ^= 1
    segments[1]["data"] = bytes(data)
    path = change_manifest(world, segments=segments)
    (finding,) = look(world).findings
    assert (finding.kind, finding.epoch) == ("CorruptLog", BROKEN)
    assert str(finding.file).endswith(path)
    assert "in its manifest" in stuck(world, errors.CorruptLog)
    assert world.table().items() >= upto(world, BROKEN - 1).items()
    (shown,) = inspect_epoch(query(world), BROKEN, None, 9).attempts
    assert [segment.inline for segment in shown.segments] == [True, True]
    assert "in its manifest" in shown.problems[0]


def test_rule_4_what_is_given_up_is_kept_with_its_manifest(world: World) -> None:
    """`skip --to` moves the manifest, whole, and the flush goes on behind it."""
    fill(world)
    before = world.log_backend.read(manifest_path())
    change_manifest(world, plan="0" * 32)
    stuck(world, errors.CorruptLog)
    (copy,) = give_up(world, begun=False).decision.files
    kept = parsed(elsewhere(world).read(copy.path))
    assert kept["segments"] == parsed(before)["segments"]
    goes_on_without(world, {f"{name}{BROKEN}": BROKEN for name in "ab"})


def test_a_rewind_flushes_again_what_manifests_hold(world: World) -> None:
    """What `wal.retention` keeps is whole: only the manifest is retained, set aside and put back (rule 4)."""
    world.retention_s = 60.0
    fill(world)
    world.flush()
    assert world.log.segments() == []
    world.store.table.clear()
    rewound = plan_rewind(query(world), world.target, 1, world.clock()).carry_out(world.clock())
    assert rewound.again == 3
    assert {path.rpartition("/")[0].split("/")[-1] for path in world.log.names(paths.ASIDE)} == {
        "manifests",
        "proofs",
    }
    world.flush()
    again = [epoch for epoch in range(EPOCHS) if epoch > 1]
    assert world.table().keys() == {"last", *(f"{name}{epoch}" for epoch in again for name in "ab")}
    assert [record.epoch for record in world.log.flushed_since(-1)] == [*range(EPOCHS)]


def test_a_task_of_a_flush_job_gets_the_rows_with_its_share(world: World) -> None:
    """The log is not asked: a piece travels with the bytes, and their digest is looked at (rule 4)."""
    fill(world)
    manifest = world.log.manifest(Attempt(BROKEN, 1))
    assert manifest is not None
    named = {"manifest": manifest_path(), "digest": manifest.digest}
    begun = begun_epoch(BROKEN, rows=3, base_us=10, **named)
    nowhere = open_backend("memory://nowhere")
    shares = pickle.loads(pickle.dumps(pieces(world.log, begun)))
    slices = [part for piece in shares for part in read_piece(nowhere, piece)]
    assert [(part.first_us, part.batch.num_rows) for part in slices] == [(10, 2), (12, 1)]


def test_who_reads_many_manifests_lets_their_rows_go(world: World) -> None:
    """Ten thousand that wait would fill the memory of `status`; what they hold is told all the same."""
    fill(world)
    found = read_manifests(world.log, world.log.attempts()).manifests.values()
    whole = [world.log.manifest(each.attempt) for each in found]
    assert [each.bytes for each in found] == [each.manifest.bytes for each in whole if each]
    assert all(each.files == () for each in found)
    assert {segment.data for each in found for segment in each.segments} == {b""}

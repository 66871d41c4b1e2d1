"""Each kind of damage: it stops the flush under its name, nothing after it is flushed, `verify` finds it.

Then the way out: what it gives up is exactly what the oracle misses.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import NamedTuple

import msgspec
import pytest

from tests.protocol.damaged import (
    BROKEN,
    EPOCHS,
    change_manifest,
    delete_manifest,
    delete_segment,
    elsewhere,
    fill,
    flip_a_byte,
    give_up,
    goes_on_without,
    manifest_path,
    of_epoch,
    segments,
    tear_manifest,
    truncate,
    truncate_ledger,
)
from tests.protocol.engine import NOW_US, World
from tests.protocol.operations import At
from tests.protocol.operators import edit, look, query, rewind, stuck
from tests.protocol.raw import parsed
from wal_sink import errors
from wal_sink.admin.verify import Verified, verify
from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.errors import WalSinkError
from wal_sink.model import paths
from wal_sink.model.codec import FORMAT
from wal_sink.model.manifest import Attempt
from wal_sink.progress.status import read_status
from wal_sink.progress.wait import wait_until_flushed
from wal_sink.testing.memory_target import Shadow
from wal_sink.text import counted
from wal_sink.wal.log import Log

STORES = ("memory", "local")
"""Over S3 nothing is different here but the time."""


class Damage(NamedTuple):
    """What is done to the world, and the error that says so."""

    do: Callable[[World], str]
    """Returns a part of the file's name that the error and the finding have to name."""
    error: type[WalSinkError]
    epoch: int | None = BROKEN


def future_manifest(world: World) -> str:
    return change_manifest(world, format=FORMAT + 1)


def delete_plan(world: World) -> str:
    (path,) = world.log_backend.list(paths.PLAN.folder)
    edit(world.log_backend, path, None)
    return path


def point_to(path: Callable[[World], str]) -> Callable[[World], str]:
    """Return a damage: the manifest names another place than its own segments."""

    def tamper(world: World) -> str:
        fields = parsed(world.log_backend.read(manifest_path()))
        fields["segments"][0]["path"] = path(world)
        return change_manifest(world, **fields)

    return tamper


DAMAGES = {
    "a flipped byte": Damage(flip_a_byte, errors.CorruptLog),
    "a truncated segment": Damage(truncate, errors.CorruptLog),
    "a missing segment": Damage(delete_segment, errors.MissingSegment),
    "an unreadable manifest": Damage(tear_manifest, errors.CorruptLog),
    "a manifest of a future version": Damage(future_manifest, errors.CorruptLog),
    "a manifest missing in the sequence": Damage(delete_manifest, errors.MissingManifest),
    "a manifest that names a parent folder": Damage(
        point_to(lambda _: "../../other/segments/00000000000000000002/x.arrow"), errors.CorruptLog
    ),
    "a manifest that hides a parent folder": Damage(
        point_to(lambda _: "segments/00000000000000000002/../../log.json"), errors.CorruptLog
    ),
    "a manifest that names an absolute path": Damage(
        point_to(lambda _: "/etc/passwd"), errors.CorruptLog
    ),
    "a manifest that names another epoch's segment": Damage(
        point_to(lambda world: segments(world, 3)[0]), errors.CorruptLog
    ),
    "a manifest that names no segment": Damage(
        point_to(lambda _: manifest_path(3)), errors.CorruptLog
    ),
    "a missing plan": Damage(delete_plan, errors.CorruptLog),
    "a plan key that is a path": Damage(
        lambda world: change_manifest(world, plan="../../other/plans/x"), errors.CorruptLog
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_the_line_stops_and_verify_finds_it(world: World, name: str) -> None:
    """The error and the finding name kind, file or epoch, and a command of the project."""
    fill(world)
    damage = DAMAGES[name]
    named = damage.do(world)
    before = {path: world.log_backend.read(path) for path in world.log_backend.list()}
    found = look(world)
    after = {path: world.log_backend.read(path) for path in world.log_backend.list()}
    assert before == after, "verify changes nothing"
    (finding,) = found.findings
    assert (finding.kind, finding.exit_code) == (damage.error.__name__, damage.error.exit_code)
    assert finding.epoch == damage.epoch
    assert finding.file is not None
    assert finding.file.endswith(named)
    assert "wal-sink " in finding.remedy or "upgrade" in finding.remedy
    said = stuck(world, damage.error)
    assert named in said or f"Epoch {BROKEN} " in said
    assert "wal-sink " in said or "upgrade" in said
    newest = world.log.newest_flushed()
    assert newest is not None
    assert newest.epoch == BROKEN - 1
    assert world.state.flushed == BROKEN - 1
    later = {f"{name}{epoch}" for epoch in range(BROKEN + 1, EPOCHS) for name in "ab"}
    assert not later & world.table().keys()
    for epoch in range(BROKEN + 1, EPOCHS):
        assert world.log_backend.read(manifest_path(epoch))
        assert len(segments(world, epoch)) == 2


def test_a_healthy_log_has_no_findings(world: World) -> None:
    """Whatever it holds: epochs that wait, a batch under way, an attempt that failed."""
    assert fresh(world).findings == ()
    fill(world)
    world.run().publish([("waits for commits/5", 1)])
    found = look(world)
    assert found.findings == ()
    assert (found.checkpointed, found.published, found.flushed, found.ledger) == (4, 5, 1, 1)
    assert (found.epochs, found.segments) == (4, 7)
    assert found.bytes == sum(
        world.log_backend.size(path) for path in world.log_backend.list(paths.SEGMENT.folder)
    )
    alone = verify(query(world), None, NOW_US)
    assert (alone.findings, alone.ledger, alone.segments) == ((), None, 7)
    world.flush()
    assert look(world).findings == ()


def test_a_lost_log_json_stops_the_line(world: World) -> None:
    """Before the first flush, too: epochs that wait are not taken for nothing published."""
    run = world.run().batches([("a", 1)])
    edit(world.log_backend, paths.LOG, None)
    said = stuck(world, errors.CorruptLog)
    assert "log.json is gone" in said
    for make_anew in (lambda: run.batch([("b", 2)]), world.run):
        with pytest.raises(errors.CorruptLog, match=r"log\.json is gone"):
            make_anew()
    for target in (None, lambda: world.target):
        (finding,) = verify(query(world), target, NOW_US).findings
        assert "log.json is gone" in finding.what
    with pytest.raises(errors.FlushTimeout):
        wait_until_flushed(Checkpoint(world.checkpoint), world.log, timeout=0)


def test_what_waited_in_a_log_that_is_lost_does_not_count_as_flushed(world: World) -> None:
    """Nothing counts the epochs any more: `log.json` is gone, and the manifests are, too."""
    world.run().flushed_batches([("a", 1)]).batches([("b", 2)])
    world.log_backend.delete([paths.LOG, *world.log_backend.list(paths.MANIFEST.folder)])
    checkpoint = Checkpoint(world.checkpoint)
    assert not read_status(checkpoint, world.log).safe_to_delete
    with pytest.raises(errors.CorruptLog, match=r"log\.json is gone"):
        wait_until_flushed(checkpoint, world.log, timeout=0)


def test_a_run_begins_no_log_anew(world: World) -> None:
    """It has its ticket, and all that says whose the log is vanishes before its first micro-batch."""
    run = world.run()
    edit(world.log_backend, paths.LOG, None)
    world.checkpoint.delete([Checkpoint.LOG_URL])
    with pytest.raises(errors.CorruptLog, match=r"log\.json is gone"):
        run.batch([("a", 1)])
    assert not world.log.attempts()


@pytest.mark.parametrize("flushed_meanwhile", [False, True])
def test_a_log_that_lost_its_claims_is_not_begun_anew(
    world: World, *, flushed_meanwhile: bool
) -> None:
    """What waits in it went through the sink: nothing says that it may be deleted."""
    run = world.run().batches([("a", 1)])
    run.end()
    world.log_backend.delete(world.log_backend.list(paths.CLAIM.folder))
    flushes = At(f"list {paths.MANIFEST.folder}", world.flush) if flushed_meanwhile else None
    world.run(flushes).batch([("b", 2)])
    assert world.flushed() == world.expected() == {"a": 1, "b": 2}


def test_verify_beside_a_flusher(world: World) -> None:
    """What is flushed and trimmed while it looks is no finding."""
    fill(world)
    listed = world.log.attempts

    class Slow(Log):
        def attempts(self) -> tuple[Attempt, ...]:
            found = listed()
            world.flush()
            return found

    slow = query(world)._replace(log=Slow(world.log_backend))
    found = verify(slow, lambda: world.target, NOW_US)
    assert (found.findings, found.epochs) == ((), 3)


def test_status_answers_all_the_same(world: World) -> None:
    """An unreadable manifest is what the flush will stop at; the other epochs are counted."""
    fill(world)
    tear_manifest(world)
    found = read_status(Checkpoint(world.checkpoint), world.log)
    assert (found.flushed, found.pending_epochs) == (BROKEN - 1, EPOCHS - BROKEN)
    assert found.pending_rows == 3 * (EPOCHS - BROKEN - 1)
    assert str(found.last_error).startswith("CorruptLog: ")
    assert manifest_path() in str(found.last_error)


@pytest.mark.parametrize("damage", [None, tear_manifest, delete_manifest])
def test_verify_counts_segments_that_no_manifest_names(
    world: World, damage: Callable[[World], str] | None
) -> None:
    """As `status` does: what a damaged manifest names cannot be told, so its segments are none."""
    fill(world)
    world.run().tasks([("of a task that failed", 1)])
    if damage is not None:
        damage(world)
    orphans = read_status(Checkpoint(world.checkpoint), world.log).orphan_segments
    assert orphans == (3 if damage is delete_manifest else 1)
    (note,) = look(world).notes
    assert note.startswith(f"{counted(orphans, 'segment is', 'segments are')} named by no manifest")


def fresh(world: World) -> Verified:
    """A query that has just started."""
    world.run()
    return look(world)


def test_verify_finds_what_cannot_be_trimmed(world: World) -> None:
    """A later attempt at a flushed epoch, with other source offsets: the flush stops there first."""
    fill(world)
    stray = parsed(world.log_backend.read(manifest_path())) | {
        "generation": 2,
        "offsets_digest": "another history",
        "segments": [],
    }
    world.flush()
    path = paths.MANIFEST.path(Attempt(BROKEN, 2))
    world.log_backend.create(path, json.dumps(stray).encode())
    (finding,) = look(world).findings
    assert (finding.kind, finding.epoch) == ("Diverged", BROKEN)
    assert finding.what in stuck(world, errors.Diverged)
    assert path in str(finding.file)


def test_verify_says_that_the_checkpoint_was_set_back(world: World) -> None:
    """It is no error, but the reason why nothing is flushed."""
    fill(world)
    world.flush()
    assert (look(world).notes, look(world).set_back) == ((), False)
    world.checkpoint.delete(["commits/3", "commits/4"])
    for target in (None, lambda: world.target):
        found = verify(query(world), target, NOW_US)
        assert (found.findings, found.set_back) == ((), True)
        assert any("epoch 4 is flushed, but the checkpoint says 2" in note for note in found.notes)


def test_a_query_that_runs_does_not_set_its_checkpoint_back(world: World) -> None:
    """It commits and flushes an epoch after `commits/` was read, and before `flushed/` is."""
    fill(world)
    run = world.run()

    class Slow(Checkpoint):
        def last_commit(self) -> int:
            found = super().last_commit()
            if found < EPOCHS:
                run.flushed_batches([("meanwhile", 1)])
            return found

    slow = query(world)._replace(checkpoint=Slow(world.checkpoint))
    found = verify(slow, lambda: world.target, NOW_US)
    assert (found.checkpointed, found.flushed, found.set_back) == (EPOCHS - 1, EPOCHS, False)
    assert found.findings == ()


# --- the ledger -----------------------------------------------------------------------------------


def restore_old_ledger(world: World) -> None:
    """The row as it was after epoch 0, while epoch 1 was being flushed."""
    old = msgspec.structs.replace(world.state, flushed=0, begun=world.last, last=None)
    world.store.ledger[world.query_id] = old


def shadow_ledger(world: World) -> None:
    world.store.shadows[world.query_id] = Shadow(NOW_US + 10**12)


LEDGERS = {
    "a truncated ledger": (truncate_ledger, errors.LedgerBehindLog),
    "a ledger from a backup": (restore_old_ledger, errors.LedgerBehindLog),
    "a shadowed ledger row": (shadow_ledger, errors.LedgerShadowed),
}


@pytest.mark.parametrize("name", LEDGERS)
def test_a_ledger_that_cannot_be_right_stops_the_line(world: World, name: str) -> None:
    """Found by `verify` before a flusher meets it; every epoch above the mark stays in the log."""
    fill(world)
    damage, error = LEDGERS[name]
    damage(world)
    (finding,) = look(world).findings
    assert (finding.kind, finding.exit_code) == (error.__name__, error.exit_code)
    assert "wal-sink rewind CHECKPOINT --to" in finding.remedy
    said = stuck(world, error)
    assert "wal-sink rewind CHECKPOINT --to" in said
    assert world.log.flushed_epochs() == [0, 1]
    assert [attempt.epoch for attempt in world.log.attempts()] == [2, 3, 4]
    if damage is not shadow_ledger:  # which is found out by `finish`
        later = {f"{name}{epoch}" for epoch in (2, 3, 4) for name in "ab"}
        assert not later & world.table().keys()


@pytest.mark.parametrize("name", [name for name in LEDGERS if "shadowed" not in name])
def test_rewind_to_the_mark_when_the_table_is_whole(world: World, name: str) -> None:
    """The row says again what the log says; nothing is lost, nothing is flushed twice."""
    fill(world)
    used = world.state.last_us
    LEDGERS[name][0](world)
    done = rewind(world, 1)
    assert done.again == 0
    row = world.state
    assert (row.flushed, row.last_us, row.begun) == (1, used, None)
    goes_on_without(world, {})


def test_a_shadowed_row_is_left_behind_with_its_table(world: World) -> None:
    """Another ledger table gets the row; what was begun is written again, with the same timestamps."""
    fill(world)
    shadow_ledger(world)
    stuck(world, errors.LedgerShadowed)
    before = dict(world.store.table)
    del world.store.shadows[world.query_id]  # `cassandra.ledgerTable` names another one
    truncate_ledger(world)
    rewind(world, 1)
    goes_on_without(world, {})
    for key, row in before.items():
        for name, cell in row.cells.items():
            now = world.store.table[key].cells[name]
            assert now == cell or key == ("last",)


# --- ways out: an epoch is given up ---------------------------------------------------------------


LOST = [name for name in DAMAGES if "plan" not in name or "key" in name]


@pytest.mark.parametrize("flushed_first", [True, False])
@pytest.mark.parametrize("name", [name for name in LOST if "missing in" not in name])
def test_skip_lets_the_flush_go_on(world: World, name: str, flushed_first: bool) -> None:
    """Whether a flusher has met the damage before or not; what was there is at the other place."""
    fill(world)
    DAMAGES[name].do(world)
    if flushed_first:
        stuck(world, DAMAGES[name].error)
    there = {path: world.log_backend.read(path) for path in of_epoch(world)}
    given = give_up(world)
    assert of_epoch(world) == []
    copies = elsewhere(world)
    assert {path: copies.read(path) for path in copies.list()} == there
    assert {copy.path for copy in given.decision.files} == there.keys()
    begun_before = flushed_first and "manifest" not in name and "plan" not in name
    assert given.rows_possibly_in_target == begun_before
    lost = {f"a{BROKEN}": BROKEN, f"b{BROKEN}": BROKEN}
    goes_on_without(world, {key: v for key, v in lost.items() if key not in world.table()})
    assert world.log.decision(BROKEN) == given.decision
    record = world.log.flushed(BROKEN)
    assert record is not None
    assert (record.manifest, record.rows) == ("", 0)

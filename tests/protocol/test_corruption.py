"""Damage of any object of the log stops the flush, with an error that names the object and a remedy.

Bytes are flipped, cut off and deleted. Nothing after the damaged epoch is flushed, and nothing is deleted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec
import pytest

from tests.protocol.damaged import (
    BROKEN,
    EPOCHS,
    change_manifest,
    change_plan,
    delete_manifest,
    delete_plan,
    delete_segment,
    delete_states,
    fill,
    flip_a_byte,
    future_state,
    give_up,
    manifest_path,
    segments,
    tear_manifest,
    tear_plan,
    tear_state,
    truncate,
)
from tests.protocol.engine import World
from tests.protocol.operators import edit, stops
from wal_sink import errors
from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.model.manifest import manifest_digest
from wal_sink.progress.status import read_status
from wal_sink.progress.wait import wait_until_flushed
from wal_sink.wal.store import advance

pytestmark = pytest.mark.rule("stop")


class Damage(NamedTuple):
    """A way to damage the log, and the error of the flush."""

    do: Callable[[World], str]
    """Damages the log, and returns a part of the object's name that the error has."""
    error: type[errors.WalSinkError]
    remedy: str = f"give-up CHECKPOINT --epoch {BROKEN}"


def forge(**changes: object) -> Callable[[World], str]:
    """Return a damage that gives the manifest other contents, and adapts the chain of digests to them."""

    def do(world: World) -> str:
        digests: dict[bytes, bytes] = {}

        def renamed(path: str) -> None:
            data = world.log_backend.read(path)
            for earlier, after in digests.items():
                data = data.replace(earlier, after)
            edit(world.log_backend, path, data)

        for epoch in range(BROKEN, EPOCHS):
            path = manifest_path(world, epoch)
            earlier = manifest_digest(world.log_backend.read(path))
            renamed(path)
            if epoch == BROKEN:
                change_manifest(world, **changes)
            digests[earlier.encode()] = manifest_digest(world.log_backend.read(path)).encode()
        for path in world.log_backend.list("state/"):
            renamed(path)
        return manifest_path(world)

    return do


def pointing_to(path: Callable[[World], str]) -> Callable[[World], str]:
    """Return a damage that lets the manifest name another object than its own segment."""

    def do(world: World) -> str:
        rest = {"rows": 3, "bytes": 3, "digest": "0" * 64}
        return forge(segments=[{"path": path(world), **rest}])(world)

    return do


PLAN_REMEDY = (
    "start the query once with the former schema and options: the start writes the same plan again. If"
    f" neither is possible, give the epoch up: `wal-sink give-up CHECKPOINT --epoch {BROKEN}`"
)

DAMAGES = {
    "flipped byte": Damage(flip_a_byte, errors.CorruptLog),
    "truncated segment": Damage(truncate, errors.CorruptLog),
    "missing segment": Damage(delete_segment, errors.MissingSegment),
    "torn manifest": Damage(tear_manifest, errors.CorruptLog),
    "changed manifest": Damage(
        lambda world: change_manifest(world, published_us=1), errors.CorruptLog
    ),
    "missing manifest": Damage(delete_manifest, errors.MissingManifest),
    "missing plan": Damage(delete_plan, errors.CorruptLog, PLAN_REMEDY),
    "torn plan": Damage(tear_plan, errors.CorruptLog, PLAN_REMEDY),
    "changed plan": Damage(change_plan, errors.CorruptLog, PLAN_REMEDY),
    "plan that is a path": Damage(forge(plan="../../other/plans/x"), errors.CorruptLog),
    "torn state": Damage(tear_state, errors.CorruptLog, "Restore the file from a copy"),
    "state of a newer format": Damage(future_state, errors.CorruptLog, "upgrade this one"),
    "missing states": Damage(delete_states, errors.CorruptLog, "the folder as a whole"),
    "parent folder": Damage(
        pointing_to(lambda _: "../../other/segments/00000000000000000002/x.arrow"),
        errors.CorruptLog,
    ),
    "hidden parent folder": Damage(
        pointing_to(lambda _: "segments/00000000000000000002/../../state/1.json"),
        errors.CorruptLog,
    ),
    "absolute path": Damage(pointing_to(lambda _: "/etc/passwd"), errors.CorruptLog),
    "another epoch's segment": Damage(
        pointing_to(lambda world: segments(world, 3)[0]), errors.CorruptLog
    ),
    "no segment": Damage(pointing_to(lambda world: manifest_path(world, 3)), errors.CorruptLog),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damaged_object_stops_the_flush_and_is_named(world: World, name: str) -> None:
    fill(world)
    damage = DAMAGES[name]
    named = damage.do(world)
    error = stops(world, damage.error)
    assert named in error.what or f"Epoch {BROKEN} " in error.what
    assert damage.remedy in error.remedy
    assert world.row.epoch == BROKEN - 1
    later = {f"{key}{epoch}" for epoch in range(BROKEN + 1, EPOCHS) for key in "ab"}
    assert not later & world.table().keys()


@pytest.mark.parametrize(
    "name", [name for name, damage in DAMAGES.items() if damage.remedy.startswith("give-up")]
)
def test_flush_continues_after_a_damaged_epoch_is_given_up(world: World, name: str) -> None:
    """The files of the epoch stay, and all other epochs are flushed."""
    fill(world)
    DAMAGES[name].do(world)
    stops(world)
    files = {path for path in world.log_backend.list() if f"{BROKEN:020}" in path}
    give_up(world, BROKEN)
    world.flush()
    expected = world.expected()
    lost = expected.items() - world.table().items()
    assert lost <= {(f"a{BROKEN}", BROKEN), (f"b{BROKEN}", BROKEN)}
    assert not world.table().items() - expected.items()
    assert (world.mark(), world.row.epoch, world.state.trimmed) == (EPOCHS - 1,) * 3
    remaining = {
        path for path in world.log_backend.list() if not path.startswith(("state/", "plans/"))
    }
    assert remaining == files


def test_epochs_before_a_damaged_one_are_flushed(world: World) -> None:
    fill(world)
    path = delete_segment(world, EPOCHS - 1)
    with pytest.raises(errors.MissingSegment) as caught:
        world.flush()
    assert path in caught.value.what
    assert world.row.epoch == EPOCHS - 2
    give_up(world, EPOCHS - 1)
    world.flush()
    assert world.mark() == EPOCHS - 1


@pytest.mark.parametrize("damage", [delete_manifest, tear_manifest])
def test_error_of_manifest_missing_in_chain_names_set_mark(
    world: World, damage: Callable[[World], str]
) -> None:
    """Each manifest names the one before, so the epochs before the hole cannot be given up one by one."""
    world.run().batches(*([(f"a{epoch}", epoch)] for epoch in range(EPOCHS)))
    damage(world)
    error = stops(world, errors.MissingManifest)
    assert f"epochs 0 to {BROKEN} cannot be flushed" in error.what
    assert f"set-mark CHECKPOINT --to {BROKEN} " in error.remedy
    assert world.table() == {}


@pytest.mark.parametrize("damage", [tear_state, future_state, delete_states])
def test_run_over_a_damaged_state_publishes_nothing(
    world: World, damage: Callable[[World], str]
) -> None:
    """A new state would begin after the pending epochs."""
    run = world.run().batches([("a", 1)])
    damage(world)
    earlier = world.log_backend.list("state/")
    for other in (run, world.run()):
        with pytest.raises(errors.CorruptLog):
            other.publish([("b", 2)])
    assert world.log_backend.list("state/") == earlier


def test_deleted_log_is_not_created_again(world: World) -> None:
    """Nothing names the pending epochs any more, so they must not count as flushed."""
    run = world.run().flushed_batches([("a", 1)]).batches([("b", 2)])
    world.log_backend.delete([path for path in world.log_backend.list() if "plans/" not in path])
    checkpoint = Checkpoint(world.checkpoint)
    status = read_status(checkpoint, world.log_backend)
    assert not status.safe_to_delete
    assert str(status.last_error).startswith("CorruptLog: ")
    with pytest.raises(errors.CorruptLog, match="there is none"):
        wait_until_flushed(checkpoint, world.log_backend, timeout=0)
    with pytest.raises(errors.CorruptLog, match="there is none"):
        run.publish([("c", 3)])


def test_single_manifest_with_a_wrong_digest_stops_the_flush(world: World) -> None:
    """A manifest is accepted by its digest, even if it is the only one of its epoch."""
    dead = world.run()
    dead.publish([("dead", 1)])
    run = world.run().batches([("kept", 2)], [("next", 3)])
    kept, other = (f"manifests/{0:020}-{item.run_id}.json" for item in (run, dead))
    edit(world.log_backend, kept, world.log_backend.read(other))
    stops(world, errors.CorruptLog)
    edit(world.log_backend, kept, None)
    stops(world, errors.MissingManifest)
    assert world.table() == {}


@pytest.mark.rule("state")
def test_state_created_100_changes_late_is_void(world: World) -> None:
    """The number of the state was free again. The late process deletes the state that it has created."""
    run = world.run()
    run.batch([("a", 0)])
    stalled = world.state
    for number in range(1, 80):
        run.flushed_batches([("a", number)])
    assert stalled.number < int(world.log_backend.list("state/")[0][6:16])
    late = msgspec.structs.replace(stalled, number=stalled.number + 1)
    assert not advance(world.log_backend, stalled, late)
    assert world.state.number > late.number
    assert world.flushed() == {"a": 79}

"""Rule 22 after the checkpoint was set back: a decision does not give up what Spark computes after it."""

from __future__ import annotations

import logging

import msgspec
import pytest

from tests.protocol.engine import World
from tests.protocol.operators import edit, files, look, query, restore, rewind, skip, stops
from wal_sink.admin.inspect import inspect
from wal_sink.admin.rewind import plan_rewind
from wal_sink.admin.verify import verify
from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.errors import Diverged, MissingManifest, OptionError
from wal_sink.model import paths
from wal_sink.progress.status import read_status
from wal_sink.protocol.budget import Budget
from wal_sink.publish.start import claim_early

STORES = ("memory", "local")


def lost(world: World) -> dict[str, bytes]:
    """Flush epoch 0; then epoch 1 loses its manifest. Return the checkpoint of before it."""
    run = world.run().flushed_batches([("a", 0)])
    checkpoint = files(world.checkpoint)
    run.batch([("b", 1)])
    run.end()
    world.log.delete(world.log_backend.list(paths.MANIFEST.folder))
    return checkpoint


def set_back(world: World, checkpoint: dict[str, bytes]) -> None:
    """Put a backup of the checkpoint back, so that Spark computes epoch 1 again."""
    restore(world.checkpoint, checkpoint)
    world.committed.pop(1, None)


@pytest.mark.parametrize("offset", ["1", "88"])
@pytest.mark.parametrize("purged", [True, False])
def test_rule_22_a_decision_ends_when_spark_computes_its_epoch_again(
    world: World, caplog: pytest.LogCaptureFixture, offset: str, *, purged: bool
) -> None:
    """With the same source offsets, or with more of them: the rows are good, and are flushed."""
    checkpoint = lost(world)
    skip(world, 1)
    set_back(world, checkpoint)
    run = world.run()
    run.batch([("b", 1), ("c", 2)], offset=offset)
    run.batch([("d", 3)])
    if purged:
        world.checkpoint.delete(["offsets/0", "offsets/1"])
    assert read_status(query(world).checkpoint, world.log).outdated_decisions == (1,)
    found = verify(query(world), lambda: world.target, 0)
    assert found.findings == ()
    assert any("computed these epochs again" in note for note in found.notes)
    listed = inspect(query(world), None, 10).epochs
    assert [(line.epoch, line.state) for line in listed if line.epoch == 1] == [(1, "waiting")]
    with caplog.at_level(logging.WARNING):
        world.flush()
    assert "Spark has computed it again since" in caplog.text
    assert world.table() == world.expected() == {"a": 0, "b": 1, "c": 2, "d": 3}
    assert [record.rows for record in world.log.flushed_since(0)] == [2, 1]
    assert read_status(query(world).checkpoint, world.log).outdated_decisions == ()
    assert inspect(query(world), None, 10).epochs[1].state == "flushed"


def test_rule_22_what_was_given_up_stays_so_beside_what_came_later(world: World) -> None:
    """The manifest that no one can read does not stop the flush of the one that Spark published since."""
    run = world.run().flushed_batches([("a", 0)])
    checkpoint = files(world.checkpoint)
    run.batch([("b", 1)])
    (torn,) = world.log_backend.list(paths.MANIFEST.folder)
    world.log.delete([torn])
    world.log_backend.create(torn, b"{torn")
    given = skip(world, 1, f"memory://copies/{world.query_id}")
    world.log_backend.create(torn, b"{torn")  # as if the command had died before it deleted this
    set_back(world, checkpoint)
    world.run().batch([("b", 2)], offset="9")
    assert given.highest == 1
    assert verify(query(world), lambda: world.target, 0).findings == ()
    states = [(line.generation, line.state) for line in inspect(query(world), None, 10).epochs[1:]]
    assert states == [(1, "damaged"), (2, "waiting")]
    assert world.flushed() == {"a": 0, "b": 2}


def test_rule_22_a_run_that_goes_on_behind_a_decision_does_not_end_it(world: World) -> None:
    """Only `commits/` was set back: Spark goes on with the newest plan, and computes nothing before it."""
    killed, run = world.run(), world.run()
    run.batch([("a", 0)])
    world.flush()
    killed.next = 1
    killed.tasks([("killed", 1)])
    run.batch([("b", 1)])
    world.log.delete(world.log_backend.list(paths.MANIFEST.folder))
    run.batch([("c", 2)])
    run.write_offsets()
    run.tasks([("killed", 3)])
    run.end()
    skip(world, 1)
    world.checkpoint.delete(["commits/1", "commits/2"])
    later = world.run()
    claim_early(later.log, Checkpoint(later.checkpoint), later.run_id, Budget(1, "block"), {})
    later.next = 3
    later.batch([("d", 3)])
    assert world.log.highest_generation() == 2
    assert world.flushed() == {"a": 0, "c": 2, "d": 3}


def test_rule_22_an_epoch_is_given_up_again(world: World) -> None:
    """The second decision stands beside the first one, and is the one in force."""
    checkpoint = lost(world)
    first = skip(world, 1)
    set_back(world, checkpoint)
    world.run().batch([("b", 2)], offset="9")
    world.log.delete(world.log_backend.list(paths.MANIFEST.folder))
    with pytest.raises(MissingManifest, match="Epoch 1 "):
        world.flush()  # the offsets are others than those that were given up
    again = skip(world, 1)
    assert world.log.decisions(1) == [first, again]
    with pytest.raises(OptionError, match="given up already"):
        skip(world, 1)
    world.run().batch([("c", 3)])
    assert world.flushed() == {"a": 0, "c": 3}
    assert world.log.decision(1) == again
    assert world.log.decided() == [1]


def test_rule_22_a_begun_attempt_from_after_a_decision_is_finished(world: World) -> None:
    """A flusher died in the middle of its rows: the decision is about another attempt."""
    checkpoint = lost(world)
    skip(world, 1)
    set_back(world, checkpoint)
    world.run().batch([("b", 2)], offset="9")
    world.begin_and_die()
    assert verify(query(world), lambda: world.target, 0).findings == ()
    assert world.flushed() == {"a": 0, "b": 2}


@pytest.mark.parametrize("told_by", ["claim", "segments"])
@pytest.mark.parametrize("purged", [True, False])
def test_rule_12_a_manifest_that_is_lost_after_an_outdated_decision_is_missed(
    world: World, told_by: str, *, purged: bool
) -> None:
    """Spark has computed the epoch again, from the same offsets.

    Small segments were lost with the manifest; the claim of a run that went back later says nothing.
    """
    world.inline_from = 0 if told_by == "claim" else None
    checkpoint = lost(world)
    skip(world, 1)
    set_back(world, checkpoint)
    world.run().batch([("again", 2)], offset="1")
    world.run().batch([("c", 3)])
    if purged:
        world.checkpoint.delete(["offsets/0", "offsets/1"])
    (again,) = [attempt for attempt in world.log.attempts() if attempt.epoch == 1]
    world.log.delete([paths.MANIFEST.path(again)])
    if told_by == "segments":
        claim = world.log.read(paths.CLAIM, again.generation)
        assert claim is not None
        later = msgspec.structs.replace(claim, epoch=2)
        edit(world.log_backend, paths.CLAIM.path(again.generation), later.to_json())
    with pytest.raises(MissingManifest, match="Epoch 1 "):
        world.flush()
    assert read_status(query(world).checkpoint, world.log).outdated_decisions == (1,)
    skip(world, 1)
    assert world.flushed() == {"a": 0, "c": 3}


def flush_what_came_after_a_decision(world: World) -> None:
    """Epoch 1 was given up, then computed again and flushed; Spark has purged `offsets/`."""
    checkpoint = lost(world)
    skip(world, 1)
    set_back(world, checkpoint)
    world.run().batch([("b", 2)], offset="9")
    world.flush()
    world.checkpoint.delete(["offsets/0", "offsets/1"])


def test_rule_22_a_rewind_flushes_again_what_came_after_a_decision(world: World) -> None:
    """The record says that rows were flushed, whatever was decided about an earlier attempt."""
    world.retention_s = 3_600
    flush_what_came_after_a_decision(world)
    world.store.table.clear()
    now_us = world.clock.us + 600_000_000
    plan = plan_rewind(query(world), world.target, 0, now_us)
    assert "given up" not in plan.consequences
    plan.carry_out(now_us)
    assert world.flushed() == {"b": 2}


def test_rule_22_a_rewind_does_not_pass_over_what_is_trimmed(world: World) -> None:
    """The decision is about an earlier attempt; the rows that were flushed are gone from the log."""
    flush_what_came_after_a_decision(world)
    with pytest.raises(MissingManifest):
        plan_rewind(query(world), world.target, 0, world.clock.us + 600_000_000)


def given_up_unrecorded(world: World) -> None:
    """Give epoch 1 up, let a flusher die before its record, and set the checkpoint back."""
    checkpoint = lost(world)
    skip(world, 1)
    flusher = world.flusher()
    flusher._record = lambda *args: None  # type: ignore[method-assign]  # it dies
    flusher.run_once()
    set_back(world, checkpoint)


def test_rule_23_what_was_given_up_and_not_recorded_is_no_other_log(world: World) -> None:
    """A flusher dies before its record, and then the checkpoint is set back: the decision is of this log."""
    given_up_unrecorded(world)

    world.flush()
    assert world.log.flushed_epochs() == [0, 1]
    world.run().batches([("b", 1)], [("c", 2)])
    assert world.flushed() == {"a": 0, "c": 2}


def test_rule_23_what_came_after_a_decision_is_not_recorded_as_given_up(world: World) -> None:
    """The same, but Spark has computed the epoch again by then: its rows are flushed after a rewind."""
    given_up_unrecorded(world)
    world.run().publish([("b", 7)])

    error = stops(world)
    assert isinstance(error, Diverged)
    assert "rewind CHECKPOINT --to 0" in error.remedy
    rewind(world, 0)
    world.run().batches([("b", 8)])
    assert world.flushed() == world.expected() == {"a": 0, "b": 8}


@pytest.mark.parametrize("finished", [False, True])
def test_rule_23_what_came_after_a_begun_epoch_was_given_up_is_flushed(
    world: World, *, finished: bool
) -> None:
    """Spark went back behind it, and computed it from other source offsets: no one has given these rows up.

    :param finished: a flusher had passed over the epoch, and died before its record.
    """
    run = world.run().flushed_batches([("a", 0)])
    checkpoint = files(world.checkpoint)
    run.batch([("b", 1)])
    world.begin_and_die()
    skip(world, 1, f"memory://copies/{world.query_id}", begun=True)
    if finished:
        flusher = world.flusher()
        flusher._record = lambda *args: None  # type: ignore[method-assign]  # it dies
        flusher.run_once()
        assert world.state.flushed == 1
    set_back(world, checkpoint)
    world.run().batch([("b", 7)], offset="9")

    error = stops(world)
    assert isinstance(error, Diverged)
    assert "rewind CHECKPOINT --to 0" in error.remedy
    assert [finding.kind for finding in look(world).findings] == ["Diverged"]
    rewind(world, 0)
    assert world.flushed() == world.expected() == {"a": 0, "b": 7}

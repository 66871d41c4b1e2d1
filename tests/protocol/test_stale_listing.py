"""A network mount whose host answers a listing from what it has cached: nothing is decided from that."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from state_backends import LocalBackend, StateBackend, StateBackendError
from tests.protocol.caching_mount import CachingMount
from tests.protocol.engine import World, a_decision, until_rest
from tests.protocol.operators import faulty, query, rewind
from tests.protocol.starts import starts
from tests.protocol.state_repartition import go_on, repartition
from wal_sink.admin.query import Query
from wal_sink.admin.rewind import plan_rewind
from wal_sink.admin.verify import verify
from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.errors import Fenced, LedgerBehindLog, LogUnavailable, MissingManifest
from wal_sink.flush.flusher import Flusher, Pipeline
from wal_sink.flush.run_history import RunHistory
from wal_sink.model import paths
from wal_sink.model.ledger import Window
from wal_sink.model.manifest import Attempt
from wal_sink.model.records import FlushedEpoch, Ticket
from wal_sink.progress.backlog import BacklogReader
from wal_sink.protocol.budget import Budget
from wal_sink.publish.fencing import claim_generation
from wal_sink.publish.orphans import sweep_orphans
from wal_sink.publish.start import begin_log, claim_early, note_without_sink
from wal_sink.testing.faults import Crash, Faults, FaultyBackend
from wal_sink.wal.log import Log
from wal_sink.wal.runs import RUNS_KEPT, sweep_runs

STORES = ("local",)


def mounted(world: World, *, asks_again: bool) -> CachingMount:
    return CachingMount(Path(world.log_backend.url.removeprefix("file://")), asks_again=asks_again)


def flusher_over(world: World, mount: StateBackend) -> Flusher:
    """Return a flusher that sees the log through a mount."""
    checkpoint, kept_s = Checkpoint(world.checkpoint), world.retention_s
    return Flusher(
        Pipeline(world.query_id, Log(mount), checkpoint, world.target, kept_s),
        clock_us=world.clock,
        run_history=RunHistory(),
    )


def rest_over(
    mount: CachingMount, world: World, flusher: Flusher, before: dict[str, int], *, asks_again: bool
) -> None:
    """Run a flusher to its rest; where its mount never asks again, it first stops at the old listing.

    :param before: what the table has then.
    """
    if not asks_again:
        with pytest.raises(LogUnavailable, match="answers with an old listing"):
            until_rest(flusher)
        assert world.table() == before
        mount.forget()
    until_rest(flusher)


@pytest.mark.parametrize("asks_again", [True, False])
def test_rule_9_a_listing_from_before_the_commit_is_not_chosen_from(
    world: World, asks_again: bool
) -> None:
    """A dies after its manifest, B publishes the epoch and is kept; the flusher's host still lists A's."""
    world.run().batch([("a", 1)])
    mount = mounted(world, asks_again=asks_again)
    flusher = flusher_over(world, mount)
    until_rest(flusher)
    world.run().publish([("lost attempt", 1)])
    mount.cache(paths.MANIFEST.folder)
    world.run().batch([("kept attempt", 2)])
    assert len(mount.list(paths.MANIFEST.folder)) == 1, "an ordinary listing is the old one"
    rest_over(mount, world, flusher, {"a": 1}, asks_again=asks_again)
    assert world.table() == world.expected()
    assert "kept attempt" in world.table()
    mount.forget()
    assert mount.sweep_unfinished(0) == 0, "no marker is left"


@pytest.mark.parametrize("asks_again", [True, False])
def test_rule_22_a_listing_from_before_the_decision_begins_nothing(
    world: World, asks_again: bool
) -> None:
    """An operator has given an epoch of a backlog up, and the flusher's host does not list that yet."""
    mount = mounted(world, asks_again=asks_again)
    mount.cache(paths.DECISION.folder)
    world.run().batches(*([(f"k{number}", number)] for number in range(3)))
    Log(world.log_backend).create_decision(a_decision(epoch=1))
    flusher = flusher_over(world, mount)
    rest_over(mount, world, flusher, {}, asks_again=asks_again)
    assert world.table() == {"k0": 0, "k2": 2}


@pytest.mark.parametrize("asks_again", [True, False])
def test_rule_22_a_lookup_from_before_the_decision_begins_no_lost_attempt(
    world: World, asks_again: bool
) -> None:
    """`skip` died after it had deleted one of two attempts; this host still knows of no decision."""
    world.run().publish([("lost attempt", 1)])
    world.run().batch([("kept attempt", 2)])
    world.run().batch([("c", 3)])
    mount = mounted(world, asks_again=asks_again)
    mount.cache(paths.DECISION.folder)
    mount.cache_absence(paths.DECISION.path(paths.DecisionName(0, 0)))
    Log(world.log_backend).create_decision(a_decision(epoch=0, highest=3))
    world.log.delete([paths.MANIFEST.path(Attempt(0, 2))])
    flusher = flusher_over(world, mount)
    rest_over(mount, world, flusher, {}, asks_again=asks_again)
    assert world.table() == {"c": 3}


@pytest.mark.parametrize("asks_again", [True, False])
def test_rule_11_a_listing_from_before_the_note_begins_no_other_attempt(
    world: World, asks_again: bool
) -> None:
    """A is kept, and leaves its note when it is fenced; the flusher's host does not list that yet."""
    mount = mounted(world, asks_again=asks_again)
    mount.cache(paths.PROOF.folder)
    a = world.run()
    a.publish([("kept", 1)])
    world.run().publish([("given way", 2)])
    a.write_commit([[("kept", 1)]], heard=False)
    with pytest.raises(Fenced):
        a.publish([("next", 3)])
    flusher = flusher_over(world, mount)
    rest_over(mount, world, flusher, {}, asks_again=asks_again)
    assert world.table() == world.expected() == {"kept": 1}


@pytest.mark.parametrize("asks_again", [True, False])
def test_rule_12_a_lookup_from_before_the_note_flushes_nothing_that_was_passed_over(
    world: World, asks_again: bool
) -> None:
    """A run failed after its manifest, and the repartition passed over it; this host knows of no note."""
    world.run().batch([("a", 1)])
    world.run().publish([("failed", 2)])
    world.checkpoint.create("commits/1", b'v1\n{"nextBatchWatermarkMs":0}')
    repartition(world, last_kept=0, batch=2, partitions=8)
    mount = mounted(world, asks_again=asks_again)
    mount.cache(paths.WITHOUT_SINK.folder)
    mount.cache_absence(paths.WITHOUT_SINK.path(1))
    go_on(world.run(), 1)
    assert "offsets/1" not in world.checkpoint.list("offsets/")
    flusher = flusher_over(world, mount)
    rest_over(mount, world, flusher, {}, asks_again=asks_again)
    assert world.table() == {"a": 1, "later": 3}


def test_rule_12_a_listing_from_before_the_repartition_keeps_no_start_from_noting_it(
    world: World,
) -> None:
    """The tool ran on another host. The first run on this one purges what tells."""
    world.run().batch([("a", 1)])
    mount = CachingMount(Path(world.checkpoint.url.removeprefix("file://")), asks_again=True)
    mount.cache("commits/")
    world.run().publish([("failed", 2)])
    world.checkpoint.create("commits/1", b'v1\n{"nextBatchWatermarkMs":0}')
    repartition(world, last_kept=0, batch=2, partitions=8)
    note_without_sink(world.log, Checkpoint(mount))
    assert world.log.keys(paths.WITHOUT_SINK) == [1, 2]


@pytest.mark.parametrize("asks_again", [True, False])
def test_rule_3_a_listing_from_before_the_claim_lets_no_run_go_on(
    world: World, asks_again: bool
) -> None:
    """Another driver has claimed a generation, and this one's host does not list it yet."""
    older = world.run().batches([("a", 1)])
    mount = mounted(world, asks_again=asks_again)
    mount.cache(paths.CLAIM.folder)
    world.run().publish([("b", 2)])
    error = Fenced if asks_again else StateBackendError
    with pytest.raises(error):
        claim_generation(Log(mount), older.run_id, {}, older.next)


def test_rule_3_a_listing_from_before_the_commit_lets_no_run_claim(world: World) -> None:
    """Its host does not list yet that the older run was quicker: that one would have to stop, too."""
    older = world.run().batches([("a", 0)])
    mount = CachingMount(Path(world.checkpoint.url.removeprefix("file://")), asks_again=True)
    mount.cache("commits/")
    newer = world.run()
    newer.checkpoint = FaultyBackend(mount, Faults())
    older.batch([("b", 1)])
    with pytest.raises(Fenced, match="is checkpointed already"):
        newer.publish([("c", 1)])
    older.batch([("d", 2)])
    assert world.flushed() == world.expected() == {"a": 0, "b": 1, "d": 2}


@pytest.mark.parametrize("early", [False, True])
def test_rule_5_a_listing_from_before_the_commit_lets_no_run_publish(
    world: World, *, early: bool
) -> None:
    """Its host does not list `commits/1` yet: its manifest would look like the kept one.

    Before its claim it has looked, too, but for one that claimed as it started.
    """
    kept = world.run().batches([("a", 1)])
    late = world.run()
    late.checkpoint = mount = CachingMount(  # type: ignore[assignment]
        Path(world.checkpoint.url.removeprefix("file://")), asks_again=True
    )
    late.write_offsets()
    appended = late.tasks([("late attempt", 1)])
    mount.cache("commits/")
    kept.publish([("b", 2)])
    if early:
        claim_generation(world.log, late.run_id, {}, 1, early=True)
    kept.write_commit([[("b", 2)]])
    assert mount.list("commits/") == ["commits/0"]
    with pytest.raises(Fenced, match="checkpointed already"):
        late.commit(appended)


def test_rule_5_a_listing_from_before_a_rewind_takes_no_epoch_for_one_that_was_flushed_long_ago(
    world: World,
) -> None:
    """Its host lists the record that the rewind has deleted, and the checkpoint was set back."""
    world.retention_s = 3_600.0
    world.run().flushed_batches([("a", 1)], [("b", 2)])
    mount = mounted(world, asks_again=True)
    mount.cache(paths.FLUSHED.folder)
    plan_rewind(query(world), world.target, 0, world.clock.us).carry_out(world.clock.us)
    world.checkpoint.delete(["commits/1"])
    run = world.run()
    run.log = Log(mount)
    run.batch([("c", 3)])
    assert (1, run.run_id) in [
        (attempt.epoch, found.manifest.run_id)
        for attempt in world.log.attempts()
        if (found := world.log.manifest(attempt))
    ]


def test_rule_22_a_listing_from_before_the_commit_lets_no_run_claim_from_that_epoch(
    world: World,
) -> None:
    """A claim from an epoch at or before one that is given up ends that decision."""
    run = world.run()
    mount = CachingMount(Path(world.checkpoint.url.removeprefix("file://")), asks_again=True)
    mount.cache("commits/")
    run.batch([("a", 1)])
    world.run().tasks([("of a killed run", 1)])
    starts = world.run()
    claim_early(starts.log, Checkpoint(mount), starts.run_id, Budget(1, "block"), {})
    claim = world.log.read(paths.CLAIM, 2)
    assert claim is not None
    assert (claim.run_id, claim.epoch) == (starts.run_id, 1)


def test_a_listing_from_before_a_batch_that_passed_the_sink_by_begins_no_run(world: World) -> None:
    """Before anything is published: its host does not list `commits/0` yet, and would go on behind it."""
    run = world.run()
    mount = CachingMount(Path(world.checkpoint.url.removeprefix("file://")), asks_again=True)
    mount.cache("commits/")
    run.write_offsets()
    run.checkpoint.create("commits/0", b'v1\n{"nextBatchWatermarkMs":0}')
    with pytest.raises(MissingManifest, match="did not go through this sink"):
        begin_log(run.log, Checkpoint(mount))


def test_rule_23_records_that_are_not_listed_yet_do_not_stop_the_flush(world: World) -> None:
    """Another flusher has flushed on; the ledger says so, and the host lists `flushed/` as it was."""
    run = world.run().batches([("a", 1)])
    mount = mounted(world, asks_again=True)
    flusher = flusher_over(world, mount)
    until_rest(flusher)
    mount.cache(paths.FLUSHED.folder)
    for epoch in (1, 2):
        run.flushed_batches([("b", epoch)])
    looking = Query(world.query_id, Checkpoint(world.checkpoint), Log(mount))
    assert verify(looking, lambda: world.target, world.clock.us).findings == ()
    mount.cache(paths.FLUSHED.folder)
    run.flushed_batches([("c", 3)])
    run.batch([("d", 4)])
    until_rest(flusher)
    assert world.table() == world.expected()


def test_rule_13_a_listing_without_the_records_lets_no_ledger_row_be_made(world: World) -> None:
    """The ledger's table was truncated, and this host does not list yet what others have flushed."""
    run = world.run()
    mount = mounted(world, asks_again=True)
    mount.cache(paths.FLUSHED.folder)
    for epoch in range(2):
        run.flushed_batches([("a", epoch)])
    run.batch([("a", 2)])
    world.store.ledger.clear()
    assert mount.list(paths.FLUSHED.folder) == []
    flusher = Flusher(
        Pipeline(world.query_id, Log(mount), Checkpoint(world.checkpoint), world.target),
        clock_us=world.clock,
        run_history=RunHistory(),
    )
    with pytest.raises(LedgerBehindLog, match="no row"):
        until_rest(flusher)
    assert world.store.ledger == {}
    assert world.table() == {"a": 1}


def test_rule_9_a_first_look_at_old_records_does_not_count_as_the_one_that_asks_the_target(
    world: World,
) -> None:
    """Nothing is pending, and the target was restored: its ledger row lies behind."""
    run = world.run().flushed_batches([("a", 0)])
    row, mount = world.state, mounted(world, asks_again=True)
    mount.cache(paths.FLUSHED.folder)
    run.flushed_batches([("b", 1)])
    world.store.ledger[world.query_id] = row
    with pytest.raises(LedgerBehindLog):
        until_rest(flusher_over(world, mount))


def test_rule_9_a_first_look_at_old_commits_does_not_count_as_the_one_that_asks_the_target(
    world: World,
) -> None:
    """Nothing seems to be checkpointed, so it asked nothing."""
    commits = CachingMount(Path(world.checkpoint.url.removeprefix("file://")), asks_again=True)
    commits.cache("commits/")
    run = world.run().flushed_batches([("a", 0)])
    row = world.state
    run.flushed_batches([("b", 1)])
    world.store.ledger[world.query_id] = row
    pipeline = Pipeline(world.query_id, world.log, Checkpoint(commits), world.target, 0.0)
    flusher = Flusher(pipeline, clock_us=world.clock, run_history=RunHistory())
    flusher.run_once()
    commits.forget()
    with pytest.raises(LedgerBehindLog):
        until_rest(flusher)


def test_rule_18_a_listing_without_what_is_retained_lets_nothing_of_it_be_swept(
    world: World,
) -> None:
    """Another flusher has moved a flushed epoch to `retained/`, and this one's host does not list it yet."""
    world.retention_s = 86_400.0
    mount = mounted(world, asks_again=True)
    mount.cache(paths.RETAINED_RECORD.folder)
    world.run().flushed_batches([("a", 1)])
    kept = world.log_backend.list(paths.SEGMENT.folder)
    until_rest(flusher_over(world, mount))
    assert kept
    assert world.log_backend.list(paths.SEGMENT.folder) == kept


def test_rule_18_a_listing_from_before_a_rewind_leaves_no_copy_of_an_older_record(
    world: World,
) -> None:
    """The flusher stands still before its copies; another one flushes the epoch again, and dies there."""
    world.retention_s = 3_600
    world.run().batch([("a", 0)])
    mount = mounted(world, asks_again=True)
    slow = flusher_over(world, mount)
    real = slow.trimmer.retain

    def late(window: Window, records: Sequence[FlushedEpoch]) -> None:
        mount.cache(paths.FLUSHED.folder)
        rewind(world, -1)
        with pytest.raises(Crash):
            world.flush(Faults(at=0, matching="create retained/"))
        real(window, records)

    slow.trimmer.retain = late  # type: ignore[method-assign]
    until_rest(slow)
    assert world.log.read(paths.RETAINED_RECORD, 0) == world.log.flushed(0) is not None


@pytest.mark.parametrize("asks_again", [True, False])
def test_rule_9_a_rewind_from_a_host_with_old_listings_takes_no_ledger_for_another_logs(
    world: World, asks_again: bool
) -> None:
    """What was flushed and trimmed since is ahead of what it lists, and no log was restored."""
    run = world.run().flushed_batches([("a", 1)])
    mount = mounted(world, asks_again=asks_again)
    mount.cache(paths.FLUSHED.folder)
    mount.cache(paths.MANIFEST.folder)
    folder = Path(world.checkpoint.url.removeprefix("file://"))
    checkpoint = CachingMount(folder, asks_again=asks_again)
    checkpoint.cache("commits/")
    for value in (2, 3, 4):
        run.flushed_batches([("a", value)])
    elsewhere = Query(world.query_id, Checkpoint(checkpoint), Log(mount))
    with pytest.raises(MissingManifest if asks_again else StateBackendError):
        plan_rewind(elsewhere, world.target, 0, world.clock.us).carry_out(world.clock.us)
    mount.forget()
    run.batch([("b", 5)])
    assert world.flushed() == world.expected() == {"a": 4, "b": 5}


def test_rule_9_a_rewind_misses_no_record_in_an_old_listing(world: World) -> None:
    """A flusher of another host has recorded its window since the command has listed them."""
    world.retention_s = 3_600.0
    run = world.run().flushed_batches([("a", 1)])
    mount = mounted(world, asks_again=False)
    elsewhere = Query(world.query_id, Checkpoint(world.checkpoint), Log(mount))
    run.batch([("a", 2)])
    creates = f"create {paths.FLUSHED.folder}"
    with pytest.raises(Crash):
        world.flush(Faults(at=0, error=Crash, matching=creates))
    plan = plan_rewind(elsewhere, world.target, 0, world.clock.us)
    mount.cache(paths.FLUSHED.folder)
    world.flush()
    with pytest.raises(StateBackendError):
        plan.carry_out(world.clock.us)
    mount.forget()
    plan_rewind(elsewhere, world.target, 0, world.clock.us).carry_out(world.clock.us)
    assert world.flushed() == world.expected() == {"a": 2}


def test_rule_14_a_rewind_misses_no_earlier_one_in_an_old_listing(world: World) -> None:
    """Its record alone tells which timestamps were used: the ledger row is lost."""
    world.retention_s = 3_600.0
    world.run().flushed_batches([("a", 1)], [("b", 2)])
    mount = mounted(world, asks_again=True)
    mount.cache(paths.INTERVENTION.folder)
    plan_rewind(query(world), world.target, 0, world.clock.us).carry_out(world.clock.us)
    used_us = world.state.last_us
    world.store.ledger.clear()
    elsewhere = Query(world.query_id, Checkpoint(world.checkpoint), Log(mount))
    assert plan_rewind(elsewhere, world.target, 0, world.clock.us).new.last_us == used_us


def test_rule_13_a_listing_without_a_rewind_lets_no_ledger_row_be_made(world: World) -> None:
    """It took back all that was flushed, and the ledger row is lost: nothing else tells of the timestamps."""
    world.retention_s = 3_600.0
    world.run().flushed_batches([("a", 1)])
    mount = mounted(world, asks_again=True)
    mount.cache(paths.INTERVENTION.folder)
    plan_rewind(query(world), world.target, -1, world.clock.us).carry_out(world.clock.us)
    world.store.ledger.clear()
    with pytest.raises(LedgerBehindLog):
        until_rest(flusher_over(world, mount))


def test_rule_9_a_command_that_looks_before_the_targets_are_there_lists_its_own_folders(
    world: World,
) -> None:
    """It may stand still until the first run has begun the log, and then decide."""
    faults = Faults()
    seen = faulty(world, faults)
    seen._replace(log=seen.log.of("cells")).list_afresh()
    assert {f"list {each}cells/" for each in (paths.FLUSHED.folder, paths.DECISION.folder)} <= {
        *faults.operations
    }


def test_a_fresh_listing_has_what_a_listing_has(world: World) -> None:
    """Also of a folder that is not there yet; the marker is in neither."""
    world.run().batch([("a", 1)])
    for folder in (paths.MANIFEST.folder, paths.CLAIM.folder, paths.PROOF.folder, ""):
        assert world.log_backend.list_fresh(folder) == world.log_backend.list(folder)


def test_what_an_old_listing_lacks_takes_space(world: World) -> None:
    """A run counts once what waits before its first epoch: it would count too little to its end."""
    world.run().batches([("a", 1)], [("b", 2)])
    mount = mounted(world, asks_again=True)
    mount.cache(paths.MANIFEST.folder)
    world.run().batch([("c", 3)])
    backlog = BacklogReader(Checkpoint(world.checkpoint), Log(mount))
    anew = BacklogReader(Checkpoint(world.checkpoint), world.log)
    known, there = (
        each.before(3, checkpointed=2, flushed=-1, first_epoch=0) for each in (backlog, anew)
    )
    assert known.stored_bytes == there.stored_bytes > 0


def test_rule_3_a_listing_without_a_manifest_lets_no_claim_be_deleted(world: World) -> None:
    """The claim of an attempt that is not flushed yet stays, however many runs came after it."""
    mount = mounted(world, asks_again=False)
    mount.cache(paths.MANIFEST.folder)
    world.run().publish([("a", 1)])
    starts(world, 2 * RUNS_KEPT)
    with pytest.raises(StateBackendError):
        sweep_runs(Log(mount), -1)
    assert 1 in world.log.keys(paths.CLAIM, fresh=True)


@pytest.mark.parametrize("asks_again", [True, False])
def test_rule_3_a_claim_that_this_host_does_not_see_is_fenced(
    tmp_path: Path, *, asks_again: bool
) -> None:
    """Another run has claimed the generation, and this host still answers that nobody has."""
    mount, there = CachingMount(tmp_path, asks_again=asks_again), Log(LocalBackend(tmp_path))
    for run_id in ("mine", "theirs"):
        there.create(paths.TICKET, run_id, Ticket(run_id=run_id, generation=0))
    mount.cache_absence(paths.CLAIM.path(1))
    assert claim_generation(there, "theirs", {}, 0).generation == 1
    with pytest.raises(Fenced):
        claim_generation(Log(mount), "mine", {}, 0)


def test_rule_18_what_an_old_listing_takes_for_unflushed_gets_no_tombstone(world: World) -> None:
    """It lies in retained/; a rewind brings it back, and a tombstone beside it would speak against it."""
    world.retention_s = 3_600
    world.run().batch([("a", 0)])
    mount = mounted(world, asks_again=True)
    mount.cache(paths.FLUSHED.folder)
    world.flush()
    newer = world.run()
    newer.publish([("b", 1)])
    sweep_orphans(Log(mount), newer.run_id, checkpointed=-1)
    assert world.log_backend.list(paths.TOMBSTONE.folder) == []

"""A flusher stands still, is taken for dead, and wakes after the operator has rewound the log."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec
import pytest

from state_backends import open_backend
from tests.protocol.aged_log import record_each, recorded_in
from tests.protocol.engine import World, flush
from tests.protocol.interleave import Process, Turns
from tests.protocol.operations import At
from tests.protocol.operators import faulty, files, query, restore, rewind
from tests.protocol.several_world import ADDED, CELLS, SeveralWorld
from wal_sink.admin.rewind import Rewound, plan_rewind
from wal_sink.admin.skip import plan_skip
from wal_sink.admin.verify import verify
from wal_sink.errors import (
    CorruptLog,
    Fenced,
    LedgerBehindLog,
    MissingManifest,
    MissingSegment,
    OptionError,
    WalSinkError,
)
from wal_sink.flush.flusher import Flusher
from wal_sink.flush.run_history import RunHistory
from wal_sink.flush.trimmer import Trimmer
from wal_sink.model import paths
from wal_sink.model.ledger import LedgerState, Window
from wal_sink.model.manifest import Attempt, Published
from wal_sink.model.records import LEFT_FIRST, LEFT_LAST, FlushedEpoch, Intervention
from wal_sink.protocol.attempts import missing_manifest
from wal_sink.protocol.ledger import flushed_records
from wal_sink.protocol.next_step import Choose
from wal_sink.testing.faults import Crash, Faults
from wal_sink.testing.micro_batches import until_rest
from wal_sink.wal import trim
from wal_sink.wal.aside import names_aside, needless_aside
from wal_sink.wal.retention import Retention, all_records, retained_paths
from wal_sink.wal.trim import list_trimmable

STORES = ("memory", "local")

AGAIN = {"c": 3, "d": 3, "e": 3}


class Outage:
    """The target is restored from its backup of after epoch 1, while epochs 2 to 4 have been flushed."""

    def __init__(self, world: World) -> None:
        self.world = world
        run = world.run().flushed_batches([("a", 1)], [("b", 2)])
        self._table = copy.deepcopy(world.store.table)
        self._row = world.state
        for key in AGAIN:
            run.batch([(key, 3)], [(f"{key}2", 3)])

    def restore(self) -> None:
        """Put the backup back."""
        self.world.store.table = copy.deepcopy(self._table)
        self.world.store.ledger[self.world.query_id] = self._row


def test_rule_9_a_login_that_is_refused_is_not_tried_again_in_the_same_step(world: World) -> None:
    """It follows from no look, and a server may lock an account after some tries."""
    world.run().batch([("a", 1)])
    refused = Faults(
        at=0, matching="connect", error=lambda: OptionError("the login is refused", "Correct it.")
    )
    flusher = world.flusher(refused)
    with pytest.raises(OptionError, match="the login is refused"):
        flusher.run_once()
    assert refused.operations == ["connect"]


def test_rule_9_a_pass_before_the_first_epoch_does_not_ask(world: World) -> None:
    """The next pass asks the target, though nothing is pending then: its ledger row lies behind the log."""
    early = world.flusher()
    early.run_once()
    run = world.run().flushed_batches([("a", 0)])
    row = world.state
    run.flushed_batches([("b", 1)])
    world.store.ledger[world.query_id] = row
    with pytest.raises(LedgerBehindLog):
        until_rest(early)


@pytest.mark.parametrize("deleted", range(5))
def test_rule_22_a_flusher_that_wakes_in_a_trim_deletes_no_last_copy(
    world: World, deleted: int
) -> None:
    """It has deleted some segments; it goes on with names that the rewind needs again."""
    outage = Outage(world)
    slow = world.flusher()
    slow.trimmer.sweep(world.log.mark())
    real, calls = slow._log.backend.delete, iter(range(100))
    to = 1 + -(-deleted // 2)

    def late(objects: Iterable[str]) -> None:
        for path in objects:
            if next(calls) == deleted:
                outage.restore()
                assert rewind(world, to).again == 4 - to
            real([path])

    slow._log.backend.delete = late  # type: ignore[method-assign, assignment]
    slow.run_once()
    assert world.log.attempts() == ()
    assert world.log_backend.list(paths.SEGMENT.folder) == []
    assert verify(query(world), lambda: world.target, 0).findings == ()
    world.flush()
    # What was gone when the operator rewound is told by the command; all that it promised is there.
    gone = {name for key in list(AGAIN)[: to - 1] for name in (key, f"{key}2")}
    assert world.table() == {key: v for key, v in world.expected().items() if key not in gone}


@pytest.mark.parametrize("forgotten", [False, True])
def test_rule_22_a_decision_does_not_cover_what_a_flusher_deletes_after_a_rewind(
    world: World, tmp_path: Path, *, forgotten: bool
) -> None:
    """Spark has computed the epoch again since it was given up; no manifest is listed that says so.

    Nor does a claim, where hundreds of runs have claimed since.
    """
    world.run().flushed_batches([("a", 0)])
    checkpoint = files(world.checkpoint)
    world.run().batch([("b", 1)])
    now_us, to = world.clock.us, open_backend(str(tmp_path / "given_up"))
    plan_skip(query(world), world.target, 1, to, now_us, begun=False).carry_out(now_us)
    restore(world.checkpoint, checkpoint)
    table, row = copy.deepcopy(world.store.table), world.state
    world.run().batch([("b", 2)])
    slow = world.flusher()
    slow.trimmer.sweep(world.log.mark())
    real, rewound = slow._log.backend.delete, list[Rewound]()

    def late(objects: Iterable[str]) -> None:
        doomed = list(objects)
        if doomed and not rewound:
            world.store.table = copy.deepcopy(table)
            world.store.ledger[world.query_id] = row
            rewound.append(rewind(world, 0))
        real(doomed)

    slow._log.backend.delete = late  # type: ignore[method-assign, assignment]
    slow.run_once()
    assert world.log.attempts() == ()
    if forgotten:
        claims = world.log.keys(paths.CLAIM)
        newest = world.log.read(paths.CLAIM, claims[-1])
        assert newest is not None
        world.log.create(paths.CLAIM, 300, msgspec.structs.replace(newest, epoch=2))
        world.log.delete(map(paths.CLAIM.path, claims))
    assert world.flushed() == world.expected() == {"a": 0, "b": 2}


def test_rule_22_what_is_retained_late_does_not_hide_what_is_flushed_since(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint is set back with the target; the next rewind pins what was flushed after that."""
    monkeypatch.setattr("wal_sink.wal.trim.RECORDS_KEPT", 1)
    world.retention_s = 3_600
    world.run().flushed_batches([("a", 0)])
    checkpoint = files(world.checkpoint)
    table, row = copy.deepcopy(world.store.table), world.state

    def restore_target() -> None:
        world.store.table = copy.deepcopy(table)
        world.store.ledger[world.query_id] = row

    run = world.run().batches([("behind", 1)], [("behind", 2)])
    slow = world.flusher()
    real = slow.trimmer.retain

    def late(window: Window, records: Sequence[FlushedEpoch]) -> None:
        restore_target()
        assert rewind(world, 0).again == 2
        restore(world.checkpoint, checkpoint)
        real(window, records)

    slow.trimmer.retain = late  # type: ignore[method-assign]
    slow.run_once()
    run = world.run()
    run.batch([("b", 1)], offset="71")
    run.batch([("c", 2)], offset="72")
    monkeypatch.setattr("wal_sink.protocol.windows.WINDOW_EPOCHS", 1)
    world.flush()
    assert world.log.flushed_epochs() == [2]
    restore_target()
    world.checkpoint.delete(["offsets/1", "offsets/2"])  # purged
    assert rewind(world, 0).again == 2
    assert world.flushed() == {"a": 0, "b": 1, "c": 2}


@pytest.mark.parametrize("others", ["retain", "die before that", "retain and trim"])
def test_rule_18_what_is_retained_late_is_a_copy_of_the_record_that_counts(
    world: World, others: str
) -> None:
    """The flusher stands still over a rewind, and over what others flush again after it."""

    def flush_again() -> None:
        if others == "die before that":
            with pytest.raises(Crash):
                world.flush(Faults(at=0, matching="create retained/"))
            return
        world.flush()
        if others == "retain and trim":
            world.clock.us += 3_600_000_000
            world.flush()
            assert [*retained_paths(world.log)] == []

    retain_late(world, flush_again)
    for epoch in range(2, 5):
        assert world.log.read(paths.RETAINED_RECORD, epoch) == world.log.flushed(epoch)


def retain_late(world: World, then: Callable[[], object] = lambda: None) -> None:
    """Let a flusher stand still before its copies, while the target is restored and the log rewound.

    :param then: done before the flusher goes on.
    """
    world.retention_s = 3_600
    outage = Outage(world)
    slow = world.flusher()
    backend, stood_still = slow._log.backend, list[str]()
    real = backend.create_missing

    def late(objects: Mapping[str, bytes]) -> None:
        if paths.RETAINED_RECORD.path(2) in objects:
            stood_still.extend(objects)
            outage.restore()
            assert rewind(world, 1).again == 3
            then()
        real(objects)

    backend.create_missing = late  # type: ignore[method-assign]
    slow.run_once()
    assert stood_still


def test_rule_22_what_is_retained_late_is_no_mark(world: World) -> None:
    """The records are gone and their copies come late: only what is in `flushed/` is flushed."""
    retain_late(world)
    assert (world.log.flushed_epochs(), [*all_records(world.log)]) == ([0, 1], [0, 1, 2, 3, 4])
    for to in (4, 3, 2):
        with pytest.raises(OptionError, match="and 1, the last one that it says is flushed"):
            rewind(world, to)
    assert rewind(world, 0).again == 1
    assert [*all_records(world.log)] == [0]
    assert world.flushed() == world.expected()


def test_rule_22_what_is_retained_late_does_not_hold_up_the_flush(world: World) -> None:
    """The manifests went with the copies of the records, which do not say that the epochs are flushed."""
    retain_late(world)
    assert (world.log.attempts(), [*all_records(world.log)]) == ((), [0, 1, 2, 3, 4])
    assert world.flushed() == world.expected()


def test_rule_18_what_is_retained_while_it_is_put_back_is_not_lost(world: World) -> None:
    """A flusher wakes between the manifest's first name and its second one: the copy that is kept stays."""
    world.retention_s = 3_600
    outage = Outage(world)
    flusher, calls = world.flusher(), list[tuple[Window, Sequence[FlushedEpoch]]]()
    retain = flusher.trimmer.retain
    flusher.trimmer.retain = lambda *call: calls.append(call)  # type: ignore[method-assign]
    flusher.run_once()
    retain(*calls[0])  # as two flushers of the window do, of which one stands still before it
    outage.restore()
    now_us = world.clock.us + 600_000_000
    plan = plan_rewind(query(world), world.target, 1, now_us)
    create_missing = plan.query.log.backend.create_missing

    def late(objects: Mapping[str, bytes]) -> None:
        create_missing(objects)
        if paths.MANIFEST.path(Attempt(2, 1)) in objects:
            plan.query.log.backend.create_missing = create_missing  # type: ignore[method-assign]
            retain(*calls[0])

    plan.query.log.backend.create_missing = late  # type: ignore[method-assign]
    with pytest.raises(WalSinkError, match="changed meanwhile"):
        plan.carry_out(now_us)
    assert rewind(world, 1).again == 3
    assert [*retained_paths(world.log)] == [0, 1]
    assert world.flushed() == world.expected()


@pytest.mark.parametrize("whole", [True, False])
def test_rule_19_a_target_from_before_a_rewind_stops_the_flush(
    world: World, *, whole: bool
) -> None:
    """The log's mark is the same again, so only timestamps tell that what was flushed since is not there."""
    world.retention_s = 3_600
    outage = Outage(world)
    world.flush()
    table, row = copy.deepcopy(world.store.table), world.state
    outage.restore()
    rewind(world, 1)
    world.flush()
    if not whole:
        world.store.table = table
    world.store.ledger[world.query_id] = row
    with pytest.raises(LedgerBehindLog, match="epoch 4 was flushed with older timestamps"):
        world.flush()
    (finding,) = verify(query(world), lambda: world.target, world.clock.us).findings
    assert finding.kind == "LedgerBehindLog"
    assert rewind(world, 4 if whole else 1).again == (0 if whole else 3)
    assert world.flushed() == world.expected()


def test_rule_22_records_that_come_late_stop_the_flush_until_the_next_rewind(world: World) -> None:
    """The flusher stands still between two records, and trims when it wakes; all of it is brought back."""
    outage = Outage(world)
    slow = world.flusher()
    real = slow._log.record_flushed

    def late(records: Sequence[FlushedEpoch]) -> None:
        first, *others = records
        real([first])
        outage.restore()
        assert rewind(world, 1).again == 1
        real(others)

    slow._log.record_flushed = late  # type: ignore[method-assign]
    slow.run_once()
    assert world.log.attempts() == ()
    with pytest.raises(LedgerBehindLog):
        world.flush()
    assert rewind(world, 1).again == 3
    assert world.flushed() == world.expected()


def test_rule_22_a_checkpoint_that_was_set_back_hides_nothing_that_a_flusher_has_finished(
    world: World,
) -> None:
    """Spark takes the epochs before the last one that is planned for completed; it has no commit file."""
    run = world.run().flushed_batches([("a", 0)])
    table = copy.deepcopy(world.store.table)
    run.batch([("b", 1)])
    checkpoint = files(world.checkpoint)
    slow = world.flusher()
    real = slow._log.record_flushed

    def late(records: Sequence[FlushedEpoch]) -> None:
        world.store.table = table
        world.store.ledger.clear()
        world.checkpoint.delete(["commits/1"])
        rewind(world, 0)
        real(records)

    slow._log.record_flushed = late  # type: ignore[method-assign]
    slow.run_once()
    assert world.log.attempts() == ()
    restore(world.checkpoint, checkpoint)
    with pytest.raises(LedgerBehindLog):
        world.flush()
    assert rewind(world, 0).again == 1
    world.flush()
    assert world.table() == world.expected() == {"a": 0, "b": 1}


def test_rule_22_each_attempt_of_a_large_epoch_is_kept_that_may_be_finished(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The row that named one of them is lost; a window has one attempt at an epoch, of any size."""
    monkeypatch.setattr("wal_sink.protocol.windows.WINDOW_BYTES", 1)
    world.run().flushed_batches([("a", 0)])
    table = copy.deepcopy(world.store.table)
    world.run().publish([("lost", 1)])
    world.run().batch([("b", 1)])
    slow = world.flusher(run_history=RunHistory())
    real = slow._log.record_flushed

    def late(records: Sequence[FlushedEpoch]) -> None:
        world.store.table = table
        world.store.ledger.clear()
        rewind(world, 0)
        real(records)

    slow._log.record_flushed = late  # type: ignore[method-assign]
    slow.run_once()
    assert world.log.attempts() == ()
    assert rewind(world, 0).again == 1
    assert world.flushed() == {"a": 0, "b": 1}


def test_rule_22_a_rewind_that_is_refused_brings_nothing_back_that_was_flushed_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its record is forgotten meanwhile, so the flusher could not compare its manifest."""
    monkeypatch.setattr(trim, "RECORDS_KEPT", 2)
    run = world.run()
    for key in AGAIN:
        run.flushed_batches([(key, 1)])
    world.store.ledger.clear()
    run.batch([("f", 3)])
    aside = paths.aside(1, paths.MANIFEST.path(Attempt(0, 1)))
    world.log_backend.create(aside, b"{}")
    with pytest.raises(OptionError):
        rewind(world, 0)
    with pytest.raises(MissingManifest):
        rewind(world, -1)
    assert world.log.attempts() == (Attempt(3, 1),)
    rewind(world, 2)
    assert world.flushed() == world.expected()


def test_rule_22_what_is_aside_goes_when_its_epoch_is_flushed_again(world: World) -> None:
    """A record from before the rewind does not count; each goes by itself."""
    world.retention_s = 3_600
    outage = Outage(world)
    world.flush()
    records = {epoch: world.log.flushed(epoch) for epoch in range(2, 5)}
    outage.restore()
    done = rewind(world, 1)
    assert done.aside.startswith(f"{world.log.url}/aside/")
    assert len(names_aside(world.log)) == 3 * (2 + 1)
    world.log.record_flushed([record for record in records.values() if record is not None])
    assert needless_aside(world.log, 4) == []
    world.log.delete(recorded_in(world.log, *records))

    world.retention_s = 0
    world.flush()
    aside = world.log_backend.list(paths.ASIDE)
    assert len(aside) == 3 * (2 + 1 + 1)  # of each epoch also the proof
    assert set(aside) <= set(list_trimmable(world.log, Retention(0, world.clock)))
    record_each(world.log, lost=range(3))  # forgotten, as the oldest ones are
    resting = Trimmer(world.log, 0, world.clock)
    resting.sweep_aside(None)  # it has not asked the ledger
    assert world.log_backend.list(paths.ASIDE) == aside
    world.run().flushed_batches([("f", 5)])
    assert world.log_backend.list(paths.ASIDE) == []
    assert world.table() == world.expected()


def test_rule_22_what_is_aside_stays_for_a_late_record_above_the_ledger_row(world: World) -> None:
    """It comes after a flusher has found that log and ledger agree, and before that one sweeps."""
    run = world.run().flushed_batches([("a", 0)])
    table = copy.deepcopy(world.store.table)
    run.batch([("b", 1)])
    slow, quick = world.flusher(), world.flusher()
    real, sweep = slow._log.record_flushed, quick.trimmer.sweep_aside

    def late(records: Sequence[FlushedEpoch]) -> None:
        world.store.table = table
        world.store.ledger.clear()
        rewind(world, 0)

        def swept(agreed: int | None) -> None:
            real(records)
            sweep(agreed)
            raise Crash

        quick.trimmer.sweep_aside = swept  # type: ignore[method-assign]
        with pytest.raises(Crash):
            quick.run_once()

    slow._log.record_flushed = late  # type: ignore[method-assign]
    slow.run_once()
    assert world.log.attempts() == ()
    with pytest.raises(LedgerBehindLog):
        world.flush()
    assert rewind(world, 0).again == 1
    assert world.flushed() == world.expected() == {"a": 0, "b": 1}


@pytest.mark.parametrize(
    ("base_us", "goes"), [(100, False), (101, True), (900, False), (902, True)]
)
def test_rule_22_a_timestamp_that_was_left_behind_proves_nothing(
    world: World, base_us: int, *, goes: bool
) -> None:
    """The rewind has set the timestamps back from the future: a record from there may be an old one."""
    world.run().flushed_batches([("a", 0)])
    record = world.log.flushed(0)
    assert record is not None
    world.log.delete(recorded_in(world.log, 0))
    world.log.record_flushed([msgspec.structs.replace(record, base_us=base_us, rows=0)])
    name = paths.aside(100, paths.MANIFEST.path(Attempt(0, 1)))
    world.log_backend.create(name, b"x")
    after = {LEFT_FIRST: "900", LEFT_LAST: "901"}
    world.log.record_intervention(
        Intervention(verb="rewind", by="me", at_us=1, why="", before={}, after=after)
    )
    assert needless_aside(world.log, 0) == ([name] if goes else [])


def test_rule_22_attempts_that_were_not_flushed_are_set_aside_before_they_go(world: World) -> None:
    """They never come back by themselves; their rows stay until their epoch is flushed again."""
    world.retention_s = 3_600
    world.run().flushed_batches([("a", 0)])
    world.run().publish([("lost", 1)])
    world.run().flushed_batches([("b", 1)])
    world.log.delete(recorded_in(world.log, 1))
    (lost,) = [attempt for attempt in world.log.attempts() if attempt.epoch == 1]
    world.store.table.clear()
    row = world.state
    world.log.record_flushed(flushed_records(row.last, world.clock.us, ())) if row.last else None
    rewind(world, 0)
    listed = world.log_backend.list(paths.ASIDE)
    assert [path for path in listed if "not_flushed" in path and paths.MANIFEST.path(lost) in path]
    assert paths.MANIFEST.path(lost) not in names_aside(world.log)
    assert world.flushed() == {"b": 1}


def flushed_behind_a_rewind(world: World) -> Flusher:
    """Rewind behind an epoch that has two attempts, and is not flushed yet; then flush the older one.

    The rewind has kept both, as any may be begun. The next one knows which was flushed.
    """
    world.retention_s = 3_600
    world.run().batch([("a", 0)])
    run_history = RunHistory()
    flusher = world.flusher(run_history=run_history)  # it sweeps aside/ once in an hour
    until_rest(flusher)
    older = world.run(run_history=run_history)
    older.publish([("b", 1)])
    world.run().publish([("lost", 1)])
    older.write_commit([[("b", 1)]])
    rewind(world, -1)
    until_rest(flusher)
    assert world.table() == {"a": 0, "b": 1}
    return flusher


def test_rule_22_a_rewind_that_is_run_once_more_brings_back_no_attempt_that_was_not_flushed(
    world: World,
) -> None:
    """A late record has stopped the flush, and those of the rewind are gone: what is left has to tell."""
    slow = flushed_behind_a_rewind(world)
    world.run().batch([("c", 2)])
    real = slow._log.record_flushed

    def late(records: Sequence[FlushedEpoch]) -> None:
        assert rewind(world, 0).again == 2
        real(records)

    slow._log.record_flushed = late  # type: ignore[method-assign]
    slow.run_once()
    with pytest.raises(LedgerBehindLog):
        world.flush()
    assert rewind(world, 0).again == 2
    world.store.table.clear()
    assert world.flushed() == {"b": 1, "c": 2}


def test_rule_22_a_flusher_brings_back_no_attempt_that_was_not_flushed(world: World) -> None:
    """One that stood still in a trim has deleted the other; no process that has seen a proof is left."""
    flushed_behind_a_rewind(world)
    rewind(world, 0)
    world.log.delete(world.log_backend.list(paths.segment_folder(1)))
    world.log.delete(world.log_backend.list(paths.MANIFEST.folder))
    world.store.table.clear()
    assert world.flushed() == {"b": 1}


@pytest.mark.parametrize("late_trim", [False, True])
def test_rule_11_what_a_rewind_flushes_again_is_proven(world: World, *, late_trim: bool) -> None:
    """The table has rows of it. A run that stood still before its manifest has a higher generation.

    A flusher that stood still in a trim may have deleted what `manifests/` and `proofs/` say of the epoch.
    """
    world.retention_s = 3_600
    world.run().flushed_batches([("a", 0)])
    older = world.run()
    older.publish([("b", 1)])
    turns = Turns(0, counts=lambda name: name.startswith(f"create {paths.MANIFEST.folder}"))

    def publish(faults: Turns) -> None:
        world.run(faults).publish([("lost", 1)])

    newer = Process(turns, publish)
    newer.turn()
    assert not newer.ended
    older.write_commit([[("b", 1)]])
    assert world.flushed() == {"a": 0, "b": 1}
    rewind(world, 0)
    if late_trim:
        for folder in (paths.segment_folder(1), paths.MANIFEST.folder, paths.PROOF.folder):
            world.log.delete(world.log_backend.list(folder))
    newer.turn()
    assert Attempt(1, 3) in world.log.attempts()
    flusher = world.flusher(run_history=RunHistory())
    until_rest(flusher)
    assert world.table() == {"a": 0, "b": 1}


def record_between(world: World, name: str = "") -> None:
    """Flush epoch 1 to a target whose ledger row is lost then, and rewind to epoch 0.

    The flusher makes its record when the row was moved, and trims when the rewind has deleted that record.
    """
    record, manifest = f"create {paths.FLUSHED.folder}", f"delete {paths.MANIFEST.folder}"

    def flushes(faults: Turns) -> None:
        flush(world.flusher(faults, RunHistory(), name=name))

    def rewinds(faults: Turns) -> None:
        now_us = world.clock.us + 600_000_000
        asked, target = faulty(world, faults, name), world.targets[name]
        plan_rewind(asked, target, 0, now_us).carry_out(now_us)

    slow = Process(Turns(0, 1, counts=lambda each: each.startswith((record, manifest))), flushes)
    slow.turn()
    world.store.ledger.clear()
    first = Process(Turns(0, counts=lambda each: each.startswith(record)), rewinds)
    for process in (first, slow, first):
        process.turn()
    assert (first.ended, slow.ended, world.log.of(name).flushed_epochs()) == (True, False, [0])
    slow.turn()
    assert (slow.ended, world.log.attempts()) == (True, ())


def test_rule_11_what_proves_an_attempt_stays_beside_it_over_a_rewind(world: World) -> None:
    """The trim deletes the note of the run that Spark has kept, too."""
    world.run().flushed_batches([("a", 0)])
    kept = world.run()
    kept.publish([("b", 1)])
    world.run().publish([("lost", 1)])
    kept.write_commit([[("b", 1)]], heard=False)
    with pytest.raises(Fenced):
        kept.publish([("c", 2)])
    record_between(world)
    assert world.log_backend.list(paths.PROOF.folder) == []
    until_rest(world.flusher(run_history=RunHistory()))
    assert world.table() == {"a": 0, "b": 1}


def test_rule_11_what_all_targets_get_stays_chosen_over_a_rewind(tmp_path: Path) -> None:
    """Another target has it; only the choice says so, which the trim deletes, too."""
    world = SeveralWorld(tmp_path)
    world.run().batches([("a", 0)])
    world.flush_all()
    run_history = RunHistory()
    kept = world.run(run_history=run_history)
    kept.publish([("b", 1)])
    world.run().publish([("lost", 1)])
    kept.write_commit([[("b", 1)]])
    flush(world.flusher(run_history=run_history, name=ADDED))
    record_between(world, CELLS)
    assert world.log_backend.list("choices") == []
    flush(world.flusher(run_history=RunHistory(), name=CELLS))
    assert sorted(world.rows(CELLS)) == sorted(world.rows(ADDED)) == [("a", 0), ("b", 1)]
    world.end_sessions()


def test_a_file_that_is_gone_and_not_aside_is_still_an_error(world: World) -> None:
    """Nothing is brought back from nowhere."""
    world.run().batch([("a", 0)])
    world.log.delete(world.log_backend.list(paths.SEGMENT.folder))
    with pytest.raises(MissingSegment):
        world.flush()
    world.log.delete(world.log_backend.list(paths.MANIFEST.folder))
    with pytest.raises(MissingSegment):
        world.flush()


def test_rule_22_a_flusher_that_stood_still_before_a_trim_finds_no_other_history(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All records are gone by a rewind: what it was about to delete is to be flushed again."""
    world.retention_s = 3_600
    world.run().flushed_batches([("a", 0)])
    world.retention_s = 0
    slow, rewound = world.flusher(), list[Rewound]()
    trim = slow.trimmer.trim

    def late(epochs: Sequence[int]) -> None:
        if not rewound:
            rewound.append(rewind(world, -1))
        trim(epochs)

    monkeypatch.setattr(slow.trimmer, "trim", late)
    slow.run_once()
    assert rewound
    assert world.log.attempts() == (Attempt(0, 1),)
    world.store.table.clear()
    assert world.flushed() == world.expected() == {"a": 0}


def test_rule_11_of_two_attempts_none_is_taken_while_one_is_being_deleted(
    world: World, tmp_path: Path
) -> None:
    """The flusher has read the one that Spark did not keep, rows included; `skip` gives the epoch up."""
    world.inline_from = 0
    world.run().flushed_batches([("a", 0)])
    world.run().publish([("ghost", 1)])
    world.run().batch([("poison", 1)])
    given_up = list[int]()

    def skip() -> None:
        given_up.append(1)
        to = open_backend(str(tmp_path / "given_up"))
        plan = plan_skip(query(world), world.target, 1, to, world.clock.us, begun=False)
        plan.carry_out(world.clock.us)

    slow = world.flusher(At(f"read {paths.MANIFEST.path(Attempt(1, 3))}", skip))
    until_it_stops(slow)
    assert given_up == [1]
    assert world.table() == {"a": 0}
    assert world.log.flushed_epochs() == [0, 1]


@pytest.mark.parametrize("quicker", [1, 2, 5])
def test_rule_9_a_slow_flusher_misses_nothing_that_another_one_flushes_at_each_look(
    world: World, monkeypatch: pytest.MonkeyPatch, quicker: int
) -> None:
    """Both work off one backlog: each epoch that the slow one has chosen is trimmed when it reads it."""
    run = world.run().batches([("a", 0)])
    slow, left = world.flusher(), [*range(quicker)]
    real = slow._chooser._manifests

    def late(step: Choose) -> dict[Attempt, Published]:
        if left:
            left.pop()
            world.flush()
            run.batch([("a", step.epoch + 1)])
        return real(step)

    monkeypatch.setattr(slow._chooser, "_manifests", late)
    until_it_stops(slow)
    assert left == []
    assert world.table() == world.expected() == {"a": quicker}


def test_rule_9_a_flusher_that_stands_still_in_its_second_look_misses_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both looks begin with the same records; the epoch is flushed and trimmed before the second reads it."""
    world.run().batches([("a", 0)])
    slow, looks = world.flusher(), list[int]()
    real = slow._chooser._manifests

    def late(step: Choose) -> dict[Attempt, Published]:
        looks.append(step.epoch)
        if len(looks) == 1:
            raise missing_manifest(step.epoch)
        if len(looks) == 2:
            world.flush()
        return real(step)

    monkeypatch.setattr(slow._chooser, "_manifests", late)
    until_it_stops(slow)
    assert looks == [0, 0]
    assert world.table() == world.expected() == {"a": 0}


@pytest.mark.parametrize("look", [1, 2])
@pytest.mark.parametrize("stalled", ["manifests", "begin"])
def test_rule_9_an_epoch_that_was_given_up_since_the_look_is_not_missed(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, stalled: str, look: int
) -> None:
    """The flusher has read the decisions and stands still; `skip` deletes what it has kept elsewhere.

    The second look comes after an error of another kind, of which nothing is left in it.
    """
    world.run().flushed_batches([("a", 0)])
    world.run().batches([("poison", 1)], [("b", 2)])
    slow, given_up, looks = world.flusher(), list[int](), iter(range(1, 10))
    place, name = (
        (slow._connection, "begin") if stalled == "begin" else (slow._chooser, "_manifests")
    )
    real = getattr(place, name)

    def late(*arguments: object) -> object:
        at = next(looks)
        if at < look:
            raise CorruptLog("what a first look has found", "")
        if at == look:
            given_up.append(1)
            to = open_backend(str(tmp_path / "given_up"))
            plan = plan_skip(query(world), world.target, 1, to, world.clock.us, begun=False)
            plan.carry_out(world.clock.us)
        return real(*arguments)

    monkeypatch.setattr(place, name, late)
    until_it_stops(slow)
    assert given_up == [1]
    assert world.table() == {"a": 0, "b": 2}


def test_rule_9_an_error_that_names_another_host_at_each_look_is_raised(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an error of a flush job does, whose tasks run now here, now there."""
    world.run().batch([("a", 0)])
    flusher, hosts = world.flusher(), iter(range(100))

    def damaged(_step: Choose) -> dict[Attempt, Published]:
        raise CorruptLog(f"a damaged segment (in a Spark task on host{next(hosts)})", "Restore it.")

    monkeypatch.setattr(flusher._chooser, "_manifests", damaged)
    with pytest.raises(CorruptLog):
        until_it_stops(flusher)


def until_it_stops(flusher: Flusher) -> None:
    """Take some steps; an error ends them."""
    for _ in range(5):
        flusher.run_once()


@pytest.mark.parametrize("stalled", ["ledger", "manifests", "begin"])
def test_rule_9_a_flusher_that_stood_still_sees_that_the_target_was_restored(
    world: World, monkeypatch: pytest.MonkeyPatch, stalled: str
) -> None:
    """Others flush the epoch meanwhile; the ledger row from a backup is the one that it knew.

    What is left of the epoch is the manifest of a fenced run, which came late: an attempt without rows.
    """
    world.run().flushed_batches([("a", 0)])
    table, row = copy.deepcopy(world.store.table), world.state
    world.run().publish()
    (attempt,) = world.log.attempts()
    late = world.log_backend.read(paths.MANIFEST.path(attempt))
    world.log.delete([paths.MANIFEST.path(attempt)])
    run = world.run().batches([("b", 1)])
    slow, restored = world.flusher(), list[str]()
    place, name = {
        "ledger": (slow._connection, "read_ledger"),
        "manifests": (slow._chooser, "window"),
        "begin": (slow._connection, "begin"),
    }[stalled]
    real = getattr(place, name)

    def stands_still(*arguments: object) -> object:
        if not restored:
            restored.append(stalled)
            world.flush()
            world.log_backend.create(paths.MANIFEST.path(attempt), late)
            world.store.table = copy.deepcopy(table)
            world.store.ledger[world.query_id] = row
            run.batch([("c", 2)])
        return real(*arguments)

    monkeypatch.setattr(place, name, stands_still)
    with pytest.raises(LedgerBehindLog):
        until_it_stops(slow)
    assert restored
    assert world.table() == {"a": 0}
    assert world.log.flushed_epochs() == [0, 1]


def test_rule_9_a_second_look_asks_the_target_though_nothing_is_pending(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others have flushed what the flusher misses, and the target was restored since."""
    run = world.run().batches([("a", 0)])
    slow, restored = world.flusher(), list[LedgerState]()
    until_it_stops(slow)
    row = world.state
    run.batch([("b", 1)])
    real = slow._chooser._manifests

    def late(step: Choose) -> dict[Attempt, Published]:
        if not restored:
            world.flush()
            world.store.ledger[world.query_id] = row
            restored.append(row)
        return real(step)

    monkeypatch.setattr(slow._chooser, "_manifests", late)
    with pytest.raises(LedgerBehindLog):
        slow.run_once()
    assert restored


@pytest.mark.parametrize("missed", ["manifest", "segment"])
def test_rule_9_an_epoch_whose_record_is_forgotten_since_the_look_is_not_missed(
    world: World, monkeypatch: pytest.MonkeyPatch, missed: str
) -> None:
    """Others flush a thousand epochs while a flusher stands still; then the ledger row is lost."""
    monkeypatch.setattr(trim, "RECORDS_KEPT", 1)
    run = world.run().flushed_batches([("a", 0)]).batches([("b", 1)])
    slow, lost = world.flusher(), list[LedgerState]()
    place, name = (slow._chooser, "window") if missed == "manifest" else (slow, "_write_rows")
    real = getattr(place, name)

    def stands_still(*arguments: object) -> object:
        if not lost:
            world.flush()
            run.flushed_batches([("c", 2)])
            assert world.log.flushed_epochs() == [2]
            lost.append(world.store.ledger.pop(world.query_id))
            run.batch([("d", 3)])
        return real(*arguments)

    monkeypatch.setattr(place, name, stands_still)
    with pytest.raises(LedgerBehindLog):
        until_it_stops(slow)
    assert lost

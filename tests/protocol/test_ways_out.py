"""The operators' verbs, each: what it refuses, what it leaves, and a crash at every operation of it."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

import wal_sink
from state_backends import StateBackend, open_backend
from tests.protocol.aged_log import record_each
from tests.protocol.cases import covered
from tests.protocol.damaged import (
    BROKEN,
    EPOCHS,
    change_manifest,
    delete_manifest,
    delete_segment,
    elsewhere,
    fill,
    give_up,
    goes_on_without,
    manifest_path,
    of_epoch,
    segments,
    tear_manifest,
    truncate_ledger,
    upto,
)
from tests.protocol.engine import NOW_US, World
from tests.protocol.looks import Looks
from tests.protocol.operators import edit, faulty, look, query, rewind, stuck
from wal_sink import errors
from wal_sink.admin.adopt import Adopted, plan_adopt
from wal_sink.admin.flusher_at_work import PATIENCE, Patience
from wal_sink.admin.query import find_query
from wal_sink.admin.rewind import plan_rewind
from wal_sink.admin.skip import Skipped, plan_skip
from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.model import paths
from wal_sink.model.manifest import Attempt
from wal_sink.model.records import ErrorReport, FlusherReport
from wal_sink.testing.faults import AnswerLost, Crash, Faults, FaultyBackend, FaultyTarget
from wal_sink.testing.memory_target import Shadow

STORES = ("memory", "local")
"""Over S3 nothing is different here but the time."""

LOST = {f"a{BROKEN}": BROKEN, f"b{BROKEN}": BROKEN}


def gap(world: World, epoch: int = BROKEN, *, begun: bool = False) -> Skipped:
    """`wal-sink skip`."""
    plan = plan_skip(query(world), world.target, epoch, None, NOW_US, begun=begun)
    return plan.carry_out(NOW_US)


def report(
    world: World, error: str | None = None, *, transient: bool = False, beat: int = 0
) -> None:
    """A flusher of another host reports, now."""
    said = error and ErrorReport(
        kind=error, what="it broke", remedy="", epoch=BROKEN, at_us=NOW_US, transient=transient
    )
    world.log.report(
        FlusherReport(
            flusher="another-host:1",
            doing="writing",
            heartbeat_us=NOW_US,
            beat=beat,
            error=said or None,
        )
    )


# --- skip: nothing can be kept --------------------------------------------------------------------


@pytest.mark.parametrize("segments_left", [True, False])
def test_skip_of_a_gap_lets_the_flush_go_on(world: World, segments_left: bool) -> None:
    """Exactly the rows of the lost epoch are missing; what is left of it goes."""
    fill(world)
    delete_manifest(world)
    if not segments_left:
        world.log.delete(of_epoch(world))
    stuck(world, errors.MissingManifest)
    given = gap(world)
    assert (given.decision.verb, given.decision.rows) == ("skip", -1)
    assert not given.rows_possibly_in_target
    goes_on_without(world, LOST)


def test_skip_of_a_gap_while_a_flusher_tries(world: World) -> None:
    """There is nothing that it could flush: the running query goes on by itself."""
    fill(world)
    delete_manifest(world)
    flusher = world.flusher()
    with pytest.raises(errors.MissingManifest):
        flusher.run_once()
    report(world)
    gap(world)
    flusher.run_once()
    assert world.state.flushed == BROKEN


def test_skip_without_a_place_is_refused_while_there_is_a_manifest(world: World) -> None:
    """Even an unreadable one: with `--to` it is kept."""
    fill(world)
    tear_manifest(world)
    with pytest.raises(errors.OptionError, match=r"is not lost.*\n.*skip CHECKPOINT 2 --to URL"):
        gap(world)
    assert world.log.decided() == []


def test_a_begun_epoch_whose_manifest_is_lost(world: World) -> None:
    """The ledger remembers how many rows it had, and which timestamps they used."""
    fill(world)
    delete_segment(world)
    stuck(world, errors.MissingSegment)
    world.log.delete(of_epoch(world))
    with pytest.raises(errors.MissingSegment):
        world.flush()
    with pytest.raises(errors.OptionError, match="--begun"):
        gap(world)
    given = gap(world, begun=True)
    assert given.rows_possibly_in_target
    assert given.decision.rows == 3
    assert given.decision.last_us > 0
    goes_on_without(world, {f"b{BROKEN}": BROKEN})


@pytest.mark.parametrize("damage", ["changed", "lost, and what was planned cannot be read"])
def test_a_begun_epoch_whose_manifest_is_damaged(world: World, damage: str) -> None:
    """It is of this log, whatever its bytes are: what the error advises can be done."""
    fill(world)
    with pytest.raises(errors.TargetUnavailable):
        world.flush(Faults(at=0, error=ConnectionError, matching="write"))
    if damage == "changed":
        change_manifest(world, published_us=5)
        assert "skip CHECKPOINT 2" in stuck(world, errors.CorruptLog)
    else:
        delete_manifest(world)
        edit(world.checkpoint, f"offsets/{BROKEN}", b"v9\n{}\n0")
        assert "skip CHECKPOINT 2" in stuck(world, errors.MissingSegment)
    give_up(world)
    world.flush()
    assert LOST.keys().isdisjoint(world.table())
    assert world.state.flushed == EPOCHS - 1


@pytest.mark.parametrize("flushed", [False, True])
def test_a_gap_that_is_filled_while_the_operator_thinks(world: World, flushed: bool) -> None:
    """The manifest is restored before the answer: its epoch is flushed, and no decision says otherwise."""
    fill(world)
    manifest = world.log_backend.read(manifest_path())
    delete_manifest(world)
    plan = plan_skip(query(world), world.target, BROKEN, None, NOW_US, begun=False)
    world.log_backend.create(manifest_path(), manifest)
    if flushed:
        world.flush()
    with pytest.raises(errors.OptionError if flushed else errors.FlusherAtWork):
        plan.carry_out(NOW_US)
    assert world.log.decided() == []
    goes_on_without(world, {})


# --- skip: what is there is kept ------------------------------------------------------------------


@pytest.mark.parametrize("damaged", [manifest_path, lambda: None])
def test_an_empty_file_is_skipped(tmp_path: Path, damaged: Callable[[], str | None]) -> None:
    """A crash can leave one in a folder; no store takes it as a copy, so it is only recorded."""
    world = World(open_backend(str(tmp_path / "checkpoint")), open_backend(str(tmp_path / "log")))
    fill(world)
    path = damaged() or segments(world)[0]
    (tmp_path / "log" / path).write_bytes(b"")
    stuck(world, errors.CorruptLog)
    to = open_backend(str(tmp_path / "aside"))
    plan = plan_skip(query(world), world.target, BROKEN, to, NOW_US, begun=True)
    given = plan.carry_out(NOW_US)
    assert [copy.path for copy in given.decision.files if not copy.bytes] == [path]
    assert len(to.list()) == len(given.decision.files) - 1
    assert of_epoch(world) == []
    goes_on_without(world, LOST)


@pytest.mark.parametrize("kept", [True, False])
def test_with_the_ledger_row_lost_it_is_not_known_what_is_begun(world: World, kept: bool) -> None:
    """Rows of the epoch are in the table, and the decision would say that none are."""
    fill(world)
    with pytest.raises(errors.TargetUnavailable):
        world.flush(Faults(at=2, error=ConnectionError, matching="write"))
    assert f"a{BROKEN}" in world.table()
    truncate_ledger(world)
    if not kept:
        delete_manifest(world)
    with pytest.raises(errors.LedgerBehindLog, match="wal-sink rewind CHECKPOINT --to 1"):
        give_up(world, begun=False) if kept else gap(world)
    assert world.log.decided() == []


def test_what_was_flushed_meanwhile_is_not_skipped(world: World) -> None:
    """The answer comes while the epoch is flushed and not yet trimmed."""
    fill(world)
    plan = plan_skip(query(world), world.target, BROKEN, elsewhere(world), NOW_US, begun=False)
    with pytest.raises(Crash):
        world.flush(Faults(at=0, matching="delete"))
    with pytest.raises(errors.OptionError, match="is flushed"):
        plan.carry_out(NOW_US)
    assert world.log.decided() == []
    goes_on_without(world, {})


def test_a_begun_epoch_is_skipped_only_knowingly(world: World) -> None:
    """Rows of its first segment are in the table; `--begun` says that this is known."""
    fill(world)
    delete_segment(world)
    stuck(world, errors.MissingSegment)
    assert f"a{BROKEN}" in world.table()
    with pytest.raises(errors.OptionError, match="--begun"):
        give_up(world, begun=False)
    assert world.log.decided() == []
    given = give_up(world)
    assert given.rows_possibly_in_target
    assert given.decision.rows == 3
    goes_on_without(world, {f"b{BROKEN}": BROKEN})


def test_an_epoch_in_the_middle_of_a_begun_window_is_skipped(world: World) -> None:
    """What was lost after `begin` stops the window; its other epochs are finished."""
    fill(world)
    with pytest.raises(errors.TargetUnavailable):
        world.flush(Faults(at=0, error=ConnectionError, matching="write"))
    delete_segment(world, BROKEN + 1)
    assert "epoch 3" in stuck(world, errors.MissingSegment).lower()
    with pytest.raises(errors.OptionError, match="Epochs 2 to 4 are begun"):
        rewind(world, 0)
    with pytest.raises(errors.OptionError, match="--begun"):
        give_up(world, BROKEN + 1, begun=False)
    assert give_up(world, BROKEN + 1).rows_possibly_in_target
    world.flush()
    assert world.log.flushed_epochs() == [0, 1, 2, 3, 4]
    assert world.log.attempts() == ()
    kept = set(world.table())
    assert {"a2", "b2", "a4", "b4"} <= kept
    assert "b3" not in kept


@pytest.mark.parametrize(
    ("epoch", "why"),
    [(0, "is flushed"), (1, "is flushed"), (3, "not the next"), (5, "not checkpointed")],
)
def test_only_the_next_epoch_can_be_given_up(world: World, epoch: int, why: str) -> None:
    """Not what is flushed, not what may still be flushed, not what Spark computes again."""
    fill(world)
    world.run().publish([("x", 1)])
    with pytest.raises(errors.OptionError, match=why):
        give_up(world, epoch)
    world.log.delete(of_epoch(world, epoch))
    with pytest.raises(errors.OptionError, match=why):
        gap(world, epoch)
    assert world.log.decided() == []


def test_where_nothing_is_left_there_is_nothing_to_copy(world: World) -> None:
    """The error names the command without a place."""
    fill(world)
    world.log.delete(of_epoch(world))
    with pytest.raises(errors.OptionError, match="leave --to out: `wal-sink skip CHECKPOINT 2`"):
        give_up(world)


def test_an_epoch_is_given_up_once(world: World) -> None:
    """Again to the same place is no error; elsewhere, or without a place, it is."""
    fill(world)
    tear_manifest(world)
    first = give_up(world)
    assert give_up(world).decision == first.decision
    with pytest.raises(errors.OptionError, match="given up already"):
        gap(world)
    with pytest.raises(errors.OptionError, match="given up already"):
        plan_skip(
            query(world),
            world.target,
            BROKEN,
            open_backend("memory://other"),
            NOW_US,
            begun=False,
        )
    goes_on_without(world, LOST)


def test_a_place_with_other_contents_is_refused(world: World) -> None:
    """Nothing is overwritten, and nothing of the epoch goes."""
    fill(world)
    tear_manifest(world)
    elsewhere(world).create(manifest_path(), b"another query's")
    before = of_epoch(world)
    with pytest.raises(errors.CorruptLog, match="other contents"):
        give_up(world)
    assert of_epoch(world) == before
    assert world.log.decided() == []


def test_a_place_inside_of_log_or_checkpoint_is_refused(world: World) -> None:
    """It would be trimmed, or deleted with the checkpoint."""
    fill(world)
    tear_manifest(world)
    for inside in (world.log_backend.url, f"{world.log_backend.url}/x", world.checkpoint.url):
        with pytest.raises(errors.OptionError, match="is inside of"):
            plan_skip(query(world), world.target, BROKEN, open_backend(inside), NOW_US, begun=False)


def test_another_name_of_the_log_is_refused(tmp_path: Path) -> None:
    """A link: each file would be its own copy, and then be deleted."""
    world = World(open_backend(str(tmp_path / "checkpoint")), open_backend(str(tmp_path / "log")))
    fill(world)
    tear_manifest(world)
    (tmp_path / "link").symlink_to(tmp_path / "log")
    before = world.log_backend.list()
    with pytest.raises(errors.OptionError, match="another name"):
        plan_skip(
            query(world),
            world.target,
            BROKEN,
            open_backend(str(tmp_path / "link")),
            NOW_US,
            begun=False,
        )
    assert world.log_backend.list() == before


def test_several_attempts_go_together(world: World) -> None:
    """Attempts that lost, and segments that no manifest names: all of the epoch."""
    world.run().publish([("ghost", 9)])
    run = world.run()
    run.tasks([("orphan", 9)])
    run.batch([("a", 1)])
    run.batch([("b", 2)])
    edit(world.log_backend, paths.MANIFEST.path(Attempt(0, 1)), b"{")
    with pytest.raises(errors.CorruptLog):
        world.flush()
    given = give_up(world, 0)
    assert len(given.decision.files) == 5
    assert (given.decision.generation, given.decision.rows) == (2, -1)
    assert world.flushed() == {"b": 2}


def test_what_is_given_up_is_trimmed_although_it_cannot_be_read(world: World) -> None:
    """The command died after the decision: the flusher finishes its work."""
    world.run().publish([("ghost", 9)])
    world.run().batches([("a", 1)], [("b", 2)])
    edit(world.log_backend, paths.MANIFEST.path(Attempt(0, 1)), b"{")
    broken = Faults(at=0, matching="delete")
    plan = plan_skip(faulty(world, broken), world.target, 0, elsewhere(world), NOW_US, begun=False)
    with pytest.raises(Crash):
        plan.carry_out(NOW_US)
    assert world.flushed() == {"b": 2}
    assert world.log.attempts() == ()
    assert world.log_backend.list(paths.SEGMENT.folder) == []


# --- who flushes meanwhile ------------------------------------------------------------------------


def test_a_flusher_at_work_is_waited_for(world: World) -> None:
    """It may be about to flush what is given up; one that has stopped at an error is no harm."""
    fill(world)
    tear_manifest(world)
    error: str | None = None
    looks = Looks(lambda: report(world, error, transient=True, beat=looks.number))
    for error in (None, "TargetUnavailable"):
        report(world, error, transient=True)
        with pytest.raises(errors.FlusherAtWork, match="another-host"):
            give_up(world, patience=looks.patience)
    report(world, "CorruptLog")
    looks = Looks(lambda: report(world, "CorruptLog", beat=looks.number))
    with pytest.raises(errors.FlusherAtWork):
        plan_rewind(looks.by(query(world)), world.target, 0, NOW_US)
    given = give_up(world)
    assert given.decision.why == "as a test"
    goes_on_without(world, LOST)


def test_a_flusher_whose_process_is_gone_is_none(world: World) -> None:
    """On this host that can be seen at once; the error that it left is the reason of the decision."""
    fill(world)
    delete_manifest(world)
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        gone.wait()
    report(world, "MissingManifest")
    last = world.log.last_report()
    assert last is not None
    here = msgspec.structs.replace(last, flusher=f"{socket.gethostname()}:{os.getpid()}")
    alive = msgspec.structs.replace(here, error=None)
    world.log.report(alive)
    looks = Looks(lambda: world.log.report(msgspec.structs.replace(alive, beat=looks.number)))
    with pytest.raises(errors.FlusherAtWork):
        give_up_without_reason(world, looks.patience)
    here = msgspec.structs.replace(last, flusher=f"{socket.gethostname()}:{gone.pid}")
    world.log.report(here)
    given = give_up_without_reason(world)
    assert given.decision.why == "MissingManifest: it broke"


def give_up_without_reason(world: World, patience: Patience = PATIENCE) -> Skipped:
    plan = plan_skip(
        query(world)._replace(patience=patience),
        world.target,
        BROKEN,
        elsewhere(world),
        NOW_US,
        begun=False,
    )
    return plan.carry_out(NOW_US)


# --- rewind ---------------------------------------------------------------------------------------


def fill_and_keep(world: World) -> dict[str, bytes]:
    """Flush everything but the last epoch; return a backup of the log from before."""
    dead = world.run()
    dead.publish([("ghost", 7)])
    run = world.run()
    for epoch in range(EPOCHS):
        run.batch([(f"a{epoch}", epoch), ("last", epoch)], [(f"b{epoch}", epoch)])
        if epoch == EPOCHS - 2:
            backup = {path: world.log_backend.read(path) for path in world.log_backend.list()}
            world.flush()
    return backup


def restore(world: World, backup: dict[str, bytes], epochs: range) -> None:
    """Put back what the log held of some epochs."""
    for path, data in backup.items():
        attempt = paths.MANIFEST.parse(path)
        epoch = attempt.epoch if attempt else paths.segment_epoch(path)
        if epoch in epochs:
            world.log_backend.create(path, data)


def test_rewind_flushes_again_what_the_target_lost(world: World) -> None:
    """Table and ledger are from a backup; the log's files were kept. Every row comes back, newer."""
    backup = fill_and_keep(world)
    lost_rows(world)
    restore_ledger(world, 0)
    restore(world, backup, range(1, EPOCHS - 1))
    used = max(record_last_us(world, epoch) for epoch in world.log.flushed_epochs())
    stuck(world, errors.LedgerBehindLog)
    done = rewind(world, 0)
    assert done.again == EPOCHS - 2
    assert world.state.last_us == used
    assert world.flushed() == world.expected()
    assert world.log.flushed_epochs() == list(range(EPOCHS))
    again = [record_last_us(world, epoch) for epoch in range(1, EPOCHS)]
    assert used < again[0]
    assert again == sorted(again)
    assert look(world).findings == ()


def test_rewind_when_only_rows_are_lost(world: World) -> None:
    """The ledger is as the log says; before the first epoch the log has no record at all."""
    backup = fill_and_keep(world)
    world.store.table.clear()
    restore(world, backup, range(EPOCHS))
    assert rewind(world, -1).again == EPOCHS - 1
    assert world.log.flushed_epochs() == []
    assert world.flushed() == world.expected()
    assert "ghost" not in world.table(), "the attempt that was flushed is flushed again"


def lost_rows(world: World) -> None:
    """The table as it was after epoch 0."""
    for key in list(world.store.table):
        if key[0] not in ("a0", "b0"):
            del world.store.table[key]


def restore_ledger(world: World, flushed: int) -> None:
    record = world.log.flushed(flushed)
    assert record is not None
    row = world.state
    world.store.ledger[world.query_id] = msgspec.structs.replace(
        row, flushed=flushed, last_us=record_last_us(world, flushed), last=None
    )


def record_last_us(world: World, epoch: int) -> int:
    record = world.log.flushed(epoch)
    assert record is not None
    return record.base_us + max(record.rows, 1) - 1


def test_rewind_is_refused_where_the_log_has_forgotten(world: World) -> None:
    """It names the first epoch that is gone, and how far back it can go."""
    backup = fill_and_keep(world)
    restore(world, backup, range(2, EPOCHS - 1))
    path = world.log_backend.list(paths.segment_folder(2))[0]
    with pytest.raises(
        errors.MissingManifest, match=r"Epoch 1 .*wal\.retention.*\n.*only to 1:.*--to 1"
    ):
        rewind(world, 0)
    edit(world.log_backend, path, b"damaged")
    with pytest.raises(errors.MissingManifest, match=r"Epoch 2 .*\n.*only to 2:"):
        rewind(world, 1)
    before = world.state
    assert rewind(world, 2).again == 1
    assert world.state.last_us == before.last_us
    assert world.flushed() == world.expected()


def advised(world: World, to: int) -> int | None:
    """The epoch to which the refusal of a rewind says that one can go back; None when it names none."""
    with pytest.raises(errors.MissingManifest) as caught:
        rewind(world, to)
    found = re.search(r"--to (-?\d+)", caught.value.remedy)
    return int(found[1]) if found else None


def test_where_nothing_can_be_flushed_again_no_rewind_is_advised(world: World) -> None:
    """Ledger and log both say that the newest epoch is flushed, and it is gone: `--to` it is refused."""
    fill_and_keep(world)
    assert advised(world, 0) is None


@pytest.mark.usefixtures("one_by_one")
def test_no_rewind_above_the_mark_of_the_log_is_advised(world: World) -> None:
    """The ledger is an epoch ahead: a flusher died before it recorded it, and then its files went."""
    fill(world)
    with pytest.raises(Crash):
        world.flush(Faults(at=0, matching=f"create {paths.FLUSHED.folder}"))
    world.log.delete(of_epoch(world))
    mark = world.state.flushed
    assert (mark, world.log.flushed_epochs()[-1]) == (BROKEN, BROKEN - 1)
    assert advised(world, 0) is None


def test_a_rewind_to_an_epoch_that_has_a_record_is_advised(world: World) -> None:
    """The one before the newest records is forgotten, so it cannot become the mark."""
    backup = fill_and_keep(world)
    record_each(world.log, lost=[0, 1])
    assert world.log.flushed_epochs() == [2, 3]
    restore(world, backup, range(2, EPOCHS - 1))
    with pytest.raises(errors.OptionError, match=r"no record of epoch 1,(.|\n)*only to 2,"):
        rewind(world, 1)
    to = advised(world, -1)
    assert to == BROKEN
    assert rewind(world, to).again == 1


@pytest.mark.parametrize("to", [-2, 2, 9])
def test_rewind_stays_within_what_is_flushed(world: World, to: int) -> None:
    """Not before the first epoch, and never forward."""
    fill(world)
    with pytest.raises(errors.OptionError, match="is not between -1"):
        rewind(world, to)


def test_rewind_to_where_it_stands_is_refused(world: World) -> None:
    """There is nothing to do."""
    fill(world)
    with pytest.raises(errors.OptionError, match="nothing to set back"):
        rewind(world, 1)


def test_rewind_waits_for_what_is_begun(world: World) -> None:
    """Its rows are of one attempt; forgetting that could mix two."""
    fill(world)
    with pytest.raises(errors.TargetUnavailable):
        world.flush(Faults(at=0, error=ConnectionError, matching="write"))
    with pytest.raises(errors.OptionError, match="Epochs 2 to 4 are begun"):
        rewind(world, 0)


def test_rule_16_a_rewind_leaves_a_row_that_alone_says_what_was_flushed(world: World) -> None:
    """Its mark is hidden, and Spark has computed the epoch again: forgetting the attempt would mix two."""
    world.retention_s = 3_600
    run = world.run().flushed_batches([("a", 0)], [("b", 1)])
    world.store.shadows[world.query_id] = Shadow(2**62, ("flushed",))
    run.batch([("c", 2)])
    stuck(world, errors.LedgerShadowed)
    run.end()
    world.checkpoint.delete(["commits/2", "offsets/2"])
    world.committed.pop(2)
    world.run().batch([("d", 2)])
    row = world.state
    with pytest.raises(errors.LedgerShadowed, match=r"last is 2 to 2(.|\n)*--to 1 --option"):
        rewind(world, 0)
    assert world.state == row
    stuck(world, errors.LedgerShadowed)
    assert world.table() == {"a": 0, "b": 1, "c": 2}


def test_rule_16_a_rewind_leaves_what_a_flusher_records_yet_to_the_flusher(world: World) -> None:
    """Of the row only that nothing is begun is hidden. Once the record is there, the mark is that epoch."""
    world.run().flushed_batches([("a", 0)]).batch([("b", 1)])
    world.begin_and_die()
    world.store.shadows[world.query_id] = Shadow(2**62, ("begun",))
    with pytest.raises(errors.LogUnavailable):
        world.flush(Faults(at=0, error=ConnectionError, matching=f"create {paths.FLUSHED.folder}"))
    with pytest.raises(errors.OptionError, match="Let a flusher finish it first"):
        rewind(world, 0)
    world.flush()
    with pytest.raises(errors.LedgerShadowed, match="--to 1 --option"):
        world.run().flushed_batches([("c", 2)])


def test_a_rewind_over_epochs_that_were_given_up(world: World) -> None:
    """They stay given up; their timestamps, used or not, are not used again."""
    fill(world)
    delete_segment(world)
    stuck(world, errors.MissingSegment)
    given = give_up(world)
    world.flush()
    late = max(row.cells["v"].us for row in world.store.table.values())
    assert late > given.decision.last_us
    truncate_ledger(world)
    record_each(world.log, lost=[3, 4])
    rewind(world, 2)
    assert world.state.last_us == given.decision.last_us


def test_a_second_rewind_remembers_the_timestamps_of_the_first(world: World) -> None:
    """The row is lost while epoch 1 is flushed again: what follows has to be newer than that."""
    world.run().batches(*([("last", 30 - epoch), ("first", epoch)] for epoch in range(3)))
    backup = {path: world.log_backend.read(path) for path in world.log_backend.list()}
    world.flush()
    restore(world, backup, range(1, 3))
    rewind(world, 0)
    with pytest.raises(Crash):
        world.flush(Faults(at=0, when="after", matching="write"))
    assert world.log.flushed_epochs() == [0]
    truncate_ledger(world)
    stuck(world, errors.LedgerBehindLog)
    rewind(world, 0)
    assert world.flushed() == world.expected() == {"last": 28, "first": 2}


def test_after_a_rewind_to_the_beginning_a_lost_row_is_not_made_anew(world: World) -> None:
    """The log has no record then, but timestamps were used: an old value would win over a new one."""
    world.run().batches(*([("last", 20 - epoch), ("first", epoch)] for epoch in range(2)))
    backup = {path: world.log_backend.read(path) for path in world.log_backend.list()}
    world.flush()
    restore(world, backup, range(2))
    rewind(world, -1)
    with pytest.raises(Crash):
        world.flush(Faults(at=0, when="after", matching="write"))
    truncate_ledger(world)
    assert "--to -1" in stuck(world, errors.LedgerBehindLog)
    assert [finding.kind for finding in look(world).findings] == ["LedgerBehindLog"]
    rewind(world, -1)
    assert world.flushed() == world.expected() == {"last": 19, "first": 1}


def test_a_rewind_says_which_rows_do_not_come_back(world: World) -> None:
    """What was given up is passed over again, also where its files were put back."""
    fill(world)
    backup = {path: world.log_backend.read(path) for path in world.log_backend.list()}
    tear_manifest(world)
    give_up(world)
    world.flush()
    restore(world, backup, range(BROKEN, EPOCHS))
    plan = plan_rewind(query(world), world.target, 1, NOW_US)
    assert "Epochs 2 to 4 are flushed again" in plan.consequences
    assert "given up and stay so: 2." in plan.consequences
    plan.carry_out(NOW_US)
    goes_on_without(world, LOST)


# --- adopt ----------------------------------------------------------------------------------------


class Places:
    """A query in folders, as they are by default: the log is inside of the checkpoint."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.world = self.at(root / "checkpoint")
        fill(self.world)

    def at(self, checkpoint: Path, logs: Path | None = None, old: World | None = None) -> World:
        """The same query, with its checkpoint there."""
        query_id = old.query_id if old else str(uuid.uuid4())
        logs = logs or checkpoint / "wal_sink"
        world = World(
            open_backend(str(checkpoint)),
            open_backend(str(logs / query_id)),
            old.target if old else None,
        )
        world.query_id = query_id
        if old:
            world.store, world.clock = old.store, old.clock
            world.committed, world.keepers, world.computed = (
                old.committed,
                old.keepers,
                old.computed,
            )
        return world


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(tmp_path)


def take_over(world: World) -> Adopted:
    """`wal-sink adopt`."""
    return plan_adopt(query(world), world.target, NOW_US).carry_out(NOW_US, "moved")


def test_a_checkpoint_that_was_moved_with_its_log(places: Places) -> None:
    """All three name the old place: publishing and flushing stop, and go on after `adopt`."""
    (places.root / "checkpoint").rename(places.root / "moved")
    moved = places.at(places.root / "moved", old=places.world)
    stuck(moved, errors.WrongOwner)
    with pytest.raises(errors.WrongOwner):
        moved.run().batch([("x", 1)])
    assert {finding.kind for finding in look(moved).findings} == {"WrongOwner"}
    done = take_over(moved)
    assert set(done.after.values()) >= {moved.checkpoint.url, moved.log_backend.url}
    assert places.world.checkpoint.url in done.before.values()
    moved.run().batch([("x", 1)])
    assert moved.flushed() == moved.expected()
    assert look(moved).findings == ()


def test_a_log_that_was_moved(places: Places) -> None:
    """Only the checkpoint names it wrongly; ledger and log.json stay as they are."""
    (places.root / "checkpoint" / "wal_sink" / places.world.query_id).rename(
        places.root / places.world.query_id
    )
    moved = places.at(places.root / "checkpoint", places.root, places.world)
    stuck(moved, errors.WrongOwner)
    row, identity = moved.state, moved.log.identity()
    take_over(moved)
    assert moved.store.ledger[moved.query_id] == row
    assert moved.log.identity() == identity
    goes_on_without(moved, {})


def copied(places: Places) -> World:
    """Staging: a copy of the checkpoint with its log, while production lives on."""
    shutil.copytree(places.root / "checkpoint", places.root / "staging")
    return places.at(places.root / "staging", old=places.world)


def test_a_copy_is_not_adopted(places: Places) -> None:
    """Production is still there: staging must not flush into its table, asked or not."""
    copy = copied(places)
    stuck(copy, errors.WrongOwner)
    with pytest.raises(errors.WrongOwner, match=r"still at .*/checkpoint.*is a copy"):
        take_over(copy)
    assert copy.log_backend.list(paths.DECISION.folder) == []
    goes_on_without(places.world, {})


def test_a_copied_log_is_not_adopted(places: Places) -> None:
    """The checkpoint's own log is still where it says."""
    shutil.copytree(
        places.root / "checkpoint" / "wal_sink" / places.world.query_id,
        places.root / "copies" / places.world.query_id,
    )
    copy = places.at(places.root / "checkpoint", places.root / "copies", places.world)
    with pytest.raises(errors.WrongOwner, match=r"log is still at .*is a copy"):
        take_over(copy)


def test_an_original_that_cannot_be_read_is_not_taken_for_gone(places: Places) -> None:
    """It may live on: only the operator can say that it does not, and the record keeps that word."""
    copy = copied(places)
    shutil.rmtree(places.root / "checkpoint")
    (places.root / "checkpoint").symlink_to("checkpoint")  # a store that answers with an error
    with pytest.raises(errors.LogUnavailable, match=r"/checkpoint, .*\n.*--original-is-gone"):
        take_over(copy)
    assert copy.log_backend.list(paths.DECISION.folder) == []
    plan = plan_adopt(query(copy), copy.target, NOW_US, original_is_gone=True)
    assert f"checkpoint {places.world.checkpoint.url}: it cannot be read" in plan.consequences
    plan.carry_out(NOW_US, "the disk died")
    (record,) = copy.log.interventions("adopt")
    assert record.why.startswith("the disk died; said to be gone: checkpoint file:")
    goes_on_without(copy, {})


def test_an_original_that_is_there_is_not_taken_on_trust(places: Places) -> None:
    """Saying that it is gone does not make it so; nor does a `metadata` that is torn."""
    copy = copied(places)
    for _ in range(2):
        with pytest.raises(errors.WrongOwner, match="is still at"):
            plan_adopt(query(copy), copy.target, NOW_US, original_is_gone=True)
        edit(places.world.checkpoint, "metadata", b"{")


def test_what_is_known_of_the_original_is_said_before_the_question(places: Places) -> None:
    """Nothing is there; or the place was given to another query."""
    (places.root / "checkpoint").rename(places.root / "moved")
    moved = places.at(places.root / "moved", old=places.world)
    said = plan_adopt(query(moved), moved.target, NOW_US).consequences
    assert f"checkpoint {places.world.checkpoint.url}: nothing is there" in said
    assert f"log {places.world.log_backend.url}: nothing is there" in said
    places.at(places.root / "checkpoint").run()
    said = plan_adopt(query(moved), moved.target, NOW_US).consequences
    assert f"checkpoint {places.world.checkpoint.url}: another query has its own there" in said


def test_a_log_that_has_lost_its_name_is_still_there(places: Places) -> None:
    """The operator began to delete it: the epochs that it holds are nowhere else."""
    old = places.world.log_backend
    shutil.copytree(
        places.root / "checkpoint" / "wal_sink" / places.world.query_id,
        places.root / "copies" / places.world.query_id,
    )
    edit(old, paths.LOG, None)
    copy = places.at(places.root / "checkpoint", places.root / "copies", places.world)
    with pytest.raises(errors.WrongOwner, match=r"log is still at .*is a copy"):
        take_over(copy)


def test_the_log_that_adopts_owns_alone(places: Places) -> None:
    """The original, put back from a backup, can no longer flush."""
    copy = copied(places)
    (places.root / "checkpoint").rename(places.root / "away")
    take_over(copy)
    (places.root / "away").rename(places.root / "checkpoint")
    goes_on_without(copy, {})
    with pytest.raises(errors.WrongOwner):
        places.world.flush()


def test_a_ledger_row_of_a_log_that_was_deleted(world: World) -> None:
    """The query made a new log; the row still says which epochs are flushed."""
    world.run().flushed_batches([("a", 0)])
    world.log_backend.delete(world.log_backend.list())
    world.checkpoint.delete([Checkpoint.LOG_URL])
    world.run().batch([("b", 1)])
    stuck(world, errors.WrongOwner)
    assert [finding.kind for finding in look(world).findings] == ["WrongOwner"]
    take_over(world)
    assert world.flushed() == {"a": 0, "b": 1}


def test_nothing_to_adopt(world: World) -> None:
    """What belongs together stays as it is."""
    fill(world)
    with pytest.raises(errors.OptionError, match="belong together"):
        take_over(world)
    assert world.log_backend.list(paths.DECISION.folder) == []


def test_other_verbs_want_the_owner(places: Places) -> None:
    """Nothing is decided about a log that belongs to another checkpoint, or a row to another log."""
    copy = copied(places)
    tear_manifest(copy)
    for verb in (give_up, gap):
        with pytest.raises(errors.WrongOwner):
            verb(copy)
    with pytest.raises(errors.WrongOwner):
        rewind(copy, 0)
    world = places.world
    tear_manifest(world)
    row = world.state
    world.store.ledger[world.query_id] = msgspec.structs.replace(row, log_id="another")
    with pytest.raises(errors.WrongOwner, match="adopt"):
        give_up(world)
    with pytest.raises(errors.WrongOwner, match="adopt"):
        rewind(world, 0)


# --- a crash at every operation -------------------------------------------------------------------


def skip_under(world: World, faults: Faults) -> None:
    to = FaultyBackend(elsewhere(world), faults)
    plan = plan_skip(
        faulty(world, faults), FaultyTarget(world.target, faults), BROKEN, to, NOW_US, begun=True
    )
    plan.carry_out(NOW_US)


def rewind_under(world: World, faults: Faults) -> None:
    target = FaultyTarget(world.target, faults)
    looks = Looks()  # one that died counts as a flusher until it has been silent for long
    plan = plan_rewind(looks.by(faulty(world, faults)), target, 0, NOW_US)
    plan.carry_out(NOW_US)


def adopt_under(world: World, faults: Faults) -> None:
    plan = plan_adopt(faulty(world, faults), FaultyTarget(world.target, faults), NOW_US)
    plan.carry_out(NOW_US)


def set_up_damage() -> World:
    world = memory()
    fill(world)
    delete_segment(world)
    stuck(world, errors.MissingSegment)
    return world


def set_up_rewind() -> World:
    world = memory()
    backup = fill_and_keep(world)
    lost_rows(world)
    restore_ledger(world, 0)
    restore(world, backup, range(1, EPOCHS - 1))
    return world


def set_up_move() -> World:
    """Checkpoint and log are moved: to the stores in memory that is another name."""
    world = memory()
    fill(world)
    moved = memory()
    moved.query_id, moved.store, moved.target = world.query_id, world.store, world.target
    moved.committed, moved.clock = world.committed, world.clock
    for old, new in (
        (world.checkpoint, moved.checkpoint),
        (world.log_backend, moved.log_backend),
    ):
        for path in old.list():
            new.create(path, old.read(path))
        old.delete(old.list())
    return moved


def memory() -> World:
    root = f"memory://{uuid.uuid4().hex}"
    return World(open_backend(f"{root}/checkpoint"), open_backend(f"{root}/log"))


VERBS: dict[str, tuple[Callable[[], World], Callable[[World, Faults], None], dict[str, int]]] = {
    "skip": (set_up_damage, skip_under, {f"b{BROKEN}": BROKEN}),
    "rewind": (set_up_rewind, rewind_under, {}),
    "adopt": (set_up_move, adopt_under, {}),
}


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_that_dies_is_run_again(verb: str) -> None:
    """Before and after each of its operations, and with a lost answer: the end is the same.

    In between, a flusher either stops with an error that is known, or goes on as decided: never does a row
    appear that should not, or a mark move past what is not there.
    """
    set_up, act, lost = VERBS[verb]
    counting = Faults()
    act(set_up(), counting)
    cases = 0
    for at in range(len(counting.operations)):
        for when, error in (("before", Crash), ("after", Crash), ("after", AnswerLost)):
            if error is AnswerLost and "replace row" not in counting.operations[at]:
                continue
            world = set_up()
            faults = Faults(at=at, when=when, error=error)  # type: ignore[arg-type]
            died = f"{verb}: {error.__name__} {when} {counting.operations[at]}"
            if error is AnswerLost:
                act(world, faults)
            else:
                with pytest.raises(Crash):
                    act(world, faults)
            known = (errors.MissingSegment, errors.LedgerBehindLog, errors.WrongOwner)
            try:
                world.flush()
            except known:
                act(world, Faults())
            world.flush()
            there = world.table()
            assert {k: v for k, v in upto(world, EPOCHS - 1).items() if k not in there} == lost, (
                died
            )
            assert {k: v for k, v in there.items() if world.expected().get(k) != v} == {}, died
            assert world.log.flushed_epochs() == list(range(EPOCHS)), died
            world.forget()
            cases += 1
    covered(f"crashes of {verb}", f"{cases} at {len(counting.operations)} operations")


# --- hostile names --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["../../other", "a/../../b", "/etc", "", ".", "x\x00y"])
def test_a_query_id_that_is_a_path_opens_nothing(tmp_path: Path, name: str) -> None:
    """`metadata` is a file in a shared folder, and its id names folders."""
    (tmp_path / "metadata").write_text(json.dumps({"id": name}))
    (tmp_path.parent / "other").mkdir(exist_ok=True)
    with pytest.raises(errors.WalSinkError):
        find_query(str(tmp_path))


def test_a_checkpoint_that_names_a_strange_log(tmp_path: Path) -> None:
    """`location.json` can name any place; only one of this query's name is opened."""
    places = Places(tmp_path)
    backend: StateBackend = places.world.checkpoint
    edit(backend, Checkpoint.LOG_URL, json.dumps({"format": 1, "log": "file:///etc"}).encode())
    with pytest.raises(errors.WrongOwner, match="file:///etc"):
        find_query(backend.url)


def test_a_log_that_is_gone_is_not_an_idle_one(places: Places) -> None:
    """A share that is not mounted: `status` does not say that everything may be deleted."""
    url = places.world.checkpoint.url
    assert wal_sink.status(url).pending_epochs == EPOCHS - 2
    (places.root / "checkpoint" / "wal_sink" / places.world.query_id).rename(places.root / "away")
    for look_for in (wal_sink.status, find_query):
        with pytest.raises(errors.OptionError, match="There is no log"):
            look_for(url)

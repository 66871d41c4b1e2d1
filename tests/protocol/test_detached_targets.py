"""A target that is detached holds back nothing; it is attached again from where the log has everything."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from state_backends import open_backend
from tests.protocol.engine import NOW_US
from tests.protocol.several_world import ADDED, CELLS, SeveralWorld
from tests.protocol.test_budget import Driver
from tests.protocol.test_corruption import query
from tests.protocol.test_crash_everywhere import flush
from wal_sink.admin.attach import plan_attach, plan_detach
from wal_sink.admin.ledger_row import ledger_row
from wal_sink.admin.rewind import plan_rewind
from wal_sink.admin.skip import plan_skip
from wal_sink.admin.verify import verify
from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.errors import Fenced, LogFull, MissingManifest, NoFlusher, OptionError
from wal_sink.model.records import Kept
from wal_sink.progress.status import read_status
from wal_sink.progress.status_value import status_lines
from wal_sink.progress.wait import wait_until_flushed
from wal_sink.protocol.steps import Rest
from wal_sink.testing.crash.faults import Crash, Faults
from wal_sink.wal.attached import absent, lacking, refuse_other_targets
from wal_sink.wal.log import Log

STORES = ("memory",)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[SeveralWorld]:
    """Return a query with two targets, both of which have epoch 0."""
    world = SeveralWorld(tmp_path)
    run = world.run()
    run.batch([("0", 0)])
    world.flush_all()
    yield world
    world.end_sessions()


def epochs(world: SeveralWorld, *numbers: int) -> None:
    run = world.run()
    for number in numbers:
        run.batch([(str(number), number)])


def waiting(world: SeveralWorld) -> list[int]:
    return [attempt.epoch for attempt in world.log.attempts()]


def test_rule_18_a_detached_target_holds_back_nothing(world: SeveralWorld) -> None:
    """Its flusher rests, `verify` says what it lacks, and `status` that it is detached."""
    epochs(world, 1, 2)
    flush(world.flusher(name=CELLS))
    assert waiting(world) == [1, 2]
    plan_detach(query(world).of(ADDED)).carry_out(NOW_US, "test")
    flush(world.flusher(name=CELLS))
    assert waiting(world) == []
    rest = world.flusher(name=ADDED).run_once()
    assert isinstance(rest, Rest)
    assert "detached (test)" in rest.why
    assert sorted(world.rows(ADDED)) == [("0", 0)]
    (view,) = query(world).each("")
    found = verify(view, lambda: world.targets[CELLS], NOW_US)
    assert f"target {ADDED} was detached, and lacks these epochs: all from 1 on" in found.notes
    shown = read_status(Checkpoint(world.checkpoint), world.log)
    assert (shown.detached, shown.flushed, shown.safe_to_delete) == ((ADDED,), 2, True)
    assert any(line.name == f"target {ADDED}" for line in status_lines(shown))


def test_a_target_is_attached_where_it_was_if_nothing_went(world: SeveralWorld) -> None:
    """Nothing is missing then."""
    epochs(world, 1)
    plan_detach(query(world).of(ADDED)).carry_out(NOW_US)
    done = plan_attach(query(world).of(ADDED), world.targets[ADDED]).carry_out(NOW_US)
    assert (done.missing, done.state.epoch) == ((), 1)
    world.flush_all()
    assert sorted(world.rows(ADDED)) == sorted(world.rows(CELLS)) == [("0", 0), ("1", 1)]
    assert lacking(world.log.of(ADDED)) == []


def test_a_target_is_attached_behind_what_is_trimmed(world: SeveralWorld) -> None:
    """What lies between is missing for good, and said; the ledger row moves over it."""
    plan_detach(query(world).of(ADDED)).carry_out(NOW_US)
    epochs(world, 1, 2)
    flush(world.flusher(name=CELLS))
    epochs(world, 3)
    planned = plan_attach(query(world).of(ADDED), world.targets[ADDED])
    assert "epochs 1 to 2 are no longer in the log" in planned.consequences
    assert planned.carry_out(NOW_US).missing == (1, 2)
    epochs(world, 4)
    world.flush_all()
    assert sorted(world.rows(ADDED)) == [("0", 0), ("3", 3), ("4", 4)]
    assert sorted(world.rows(CELLS)) == [(str(n), n) for n in range(5)]
    assert waiting(world) == []
    assert lacking(world.log.of(ADDED)) == [(1, 2)]


def test_rule_14_a_ledger_row_that_moves_over_epochs_does_not_forget_who_dated_the_rows(
    world: SeveralWorld,
) -> None:
    """The rows of its last window may be newer than any timestamp that it names."""
    plan_detach(query(world).of(CELLS)).carry_out(NOW_US)
    epochs(world, 1, 2)
    flush(world.flusher(name=ADDED))
    view = query(world).of(CELLS)
    with ledger_row(world.targets[CELLS], view.owner(view.identity())) as row:
        seen = row.read()
        assert seen is not None
        assert seen.last is not None
        last = msgspec.structs.replace(seen.last, target_dated=True)
        row.replace(seen, msgspec.structs.replace(seen, last=last))
        assert plan_attach(view, world.targets[CELLS]).carry_out(NOW_US).missing == (1, 2)
        moved = row.read()
    assert moved is not None
    assert (moved.flushed, moved.last_us > seen.last_us, moved.target_dated) == (2, True, True)


def trimmed_in_part(world: SeveralWorld, deleted: int) -> None:
    """Flush to the target that is left; the process dies while it trims, after so many manifests went."""
    faults = Faults(at=deleted, matching="delete manifests/")
    with pytest.raises(Crash):
        flush(world.flusher(faults, name=CELLS))


@pytest.mark.parametrize("deleted", [0, 1])
def test_a_target_is_attached_behind_what_is_trimmed_in_part(
    world: SeveralWorld, deleted: int
) -> None:
    """Segments go before manifests: an epoch that still has its manifest may have lost its rows."""
    plan_detach(query(world).of(ADDED)).carry_out(NOW_US)
    epochs(world, 1, 2)
    trimmed_in_part(world, deleted)
    assert (waiting(world), world.log.segments()) == ([1, 2][deleted:], [])
    epochs(world, 3)
    done = plan_attach(query(world).of(ADDED), world.targets[ADDED]).carry_out(NOW_US)
    assert done.missing == (1, 2)
    world.flush_all()
    assert sorted(world.rows(ADDED)) == [("0", 0), ("3", 3)]
    assert waiting(world) == []
    assert lacking(world.log.of(ADDED)) == [(1, 2)]


def two_attempts(world: SeveralWorld) -> None:
    """Publish an epoch twice, with the rows in the manifests; a note proves that Spark has kept the first."""
    world.inline_from = 0
    a = world.run()
    a.publish([("a", 1)])
    world.run().publish([("b", 1)])
    a.write_commit([[("a", 1)]], heard=False)
    with pytest.raises(Fenced):
        a.publish([("next", 2)])


@pytest.mark.parametrize("older", [False, True])
@pytest.mark.parametrize("deleted", [0, 1])
def test_a_target_that_is_attached_gets_no_attempt_that_another_did_not_get(
    world: SeveralWorld, deleted: int, *, older: bool
) -> None:
    """Manifests hold the rows, and what tells which of them was kept is trimmed, too.

    :param older: a version that deleted the choice and its proof before the manifests.
    """
    plan_detach(query(world).of(ADDED)).carry_out(NOW_US)
    two_attempts(world)
    trimmed_in_part(world, deleted)
    if older:
        world.log_backend.delete(
            [*world.log_backend.list("chosen"), *world.log_backend.list("kept")]
        )
    assert waiting(world) == [1, 1][deleted:]
    done = plan_attach(query(world).of(ADDED), world.targets[ADDED]).carry_out(NOW_US)
    is_whole = not (deleted or older)
    assert done.missing == (() if is_whole else (1, 1))
    world.flush_all()
    assert sorted(world.rows(ADDED)) == [("0", 0), *([("a", 1)] if is_whole else [])]
    assert sorted(world.rows(CELLS)) == [("0", 0), ("a", 1)]
    assert (waiting(world), world.log_backend.list("chosen")) == ([], [])


def test_rule_11_a_flusher_that_stood_still_over_a_detach_takes_no_attempt_unproven(
    world: SeveralWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has read two attempts, and before it looks for proofs its target is detached, and all is trimmed."""
    two_attempts(world)
    kept = Log.kept

    def late(log: Log, epoch: int) -> list[Kept]:
        monkeypatch.setattr(Log, "kept", kept)
        plan_detach(query(world).of(ADDED)).carry_out(NOW_US)
        flush(world.flusher(name=CELLS))
        return kept(log, epoch)

    monkeypatch.setattr(Log, "kept", late)
    with pytest.raises(MissingManifest):
        flush(world.flusher(name=ADDED))
    assert (world.rows(ADDED), world.log_backend.list("chosen")) == ([("0", 0)], [])
    assert isinstance(world.flusher(name=ADDED).run_once(), Rest)
    assert sorted(world.rows(CELLS)) == [("0", 0), ("a", 1)]


def test_attaching_that_is_interrupted_is_taken_up(world: SeveralWorld) -> None:
    """After the ledger row has moved and before the target is attached."""
    plan_detach(query(world).of(ADDED)).carry_out(NOW_US)
    epochs(world, 1)
    flush(world.flusher(name=CELLS))
    for path in ("targets/added/000003.json", "flushed/added/00000000000000000001.json"):
        plan_attach(query(world).of(ADDED), world.targets[ADDED]).carry_out(NOW_US)
        world.log.delete([path, "targets/added/000004.json", "targets/added/000003.json"])
        assert "not attached" in absent(world.log.of(ADDED)) or "detached" in absent(
            world.log.of(ADDED)
        )
    done = plan_attach(query(world).of(ADDED), world.targets[ADDED]).carry_out(NOW_US)
    assert done.state.epoch == 2
    epochs(world, 2)
    world.flush_all()
    assert sorted(world.rows(ADDED)) == [("0", 0), ("2", 2)]


def test_a_query_that_does_not_name_an_attached_target_is_refused(world: SeveralWorld) -> None:
    """Its epochs would wait for ever; one that is detached may be left out, or named."""
    with pytest.raises(OptionError, match="does not name any more"):
        refuse_other_targets(world.log, [CELLS])
    with pytest.raises(OptionError, match="option targets is not given"):
        refuse_other_targets(world.log, [])
    plan_detach(query(world).of(ADDED)).carry_out(NOW_US)
    refuse_other_targets(world.log, [CELLS])
    refuse_other_targets(world.log, [CELLS, ADDED])
    with pytest.raises(OptionError, match="is the only one"):
        plan_detach(query(world).of(CELLS))
    with pytest.raises(OptionError, match="is detached already"):
        plan_detach(query(world).of(ADDED))
    with pytest.raises(OptionError, match="is attached"):
        plan_attach(query(world).of(CELLS), world.targets[CELLS])


def test_a_log_of_one_target_gets_no_names(world: SeveralWorld, tmp_path: Path) -> None:
    """What was flushed without a name is not known by any."""
    world.log_backend.delete(world.log_backend.list("targets/"))
    with pytest.raises(OptionError, match="begun for one target"):
        refuse_other_targets(world.log, [CELLS])


def test_the_log_is_full_of_what_one_target_lacks(world: SeveralWorld) -> None:
    """`fail` fails the query; `detach` lets it go on without that target, but never without the last."""
    epochs(world, 1)
    flush(world.flusher(name=CELLS))
    with pytest.raises(LogFull):
        driver(world, {ADDED: "fail", CELLS: "block"}).batch([("2", 2)])
    driver(world, {ADDED: "detach", CELLS: "block"}).batch([("2", 2)])
    assert "onFull is detach" in absent(world.log.of(ADDED))
    flush(world.flusher(name=CELLS))
    epochs(world, 3)
    with pytest.raises(NoFlusher):
        driver(world, {CELLS: "detach"}).batch([("4", 4)])
    assert absent(world.log.of(CELLS)) == ""


def driver(world: SeveralWorld, on_full: dict[str, str]) -> Driver:
    found = Driver(world.run())
    found.budget = found.budget._replace(of_targets=on_full)
    return found


def test_a_command_is_about_one_target_or_says_which_there_are(world: SeveralWorld) -> None:
    """A rewind of one sends nothing to the other."""
    with pytest.raises(OptionError, match="has the targets added, cells"):
        query(world).of("")
    with pytest.raises(OptionError, match="There is no target lake"):
        query(world).of("lake")
    assert [each.log.target for each in query(world).each("")] == [ADDED, CELLS]
    epochs(world, 1)
    flush(world.flusher(name=CELLS))
    world.store.table.clear()
    plan_rewind(query(world).of(CELLS), world.targets[CELLS], 0, NOW_US).carry_out(NOW_US)
    world.flush_all()
    assert world.rows(CELLS) == [("1", 1)]
    assert sorted(world.rows(ADDED)) == [("0", 0), ("1", 1)]


def test_waiting_is_for_each_target_or_for_one(world: SeveralWorld) -> None:
    """What only one of them has is not flushed."""
    epochs(world, 1)
    flush(world.flusher(name=CELLS))
    checkpoint = Checkpoint(world.checkpoint)
    assert wait_until_flushed(checkpoint, world.log.of(CELLS), 0).epoch == 1
    shown = read_status(checkpoint, world.log)
    assert {each.target: each.pending_epochs for each in shown.targets} == {ADDED: 1, CELLS: 0}
    assert (shown.flushed, shown.pending_epochs, shown.safe_to_delete) == (0, 1, False)
    assert shown.unsafe_because == f"target {ADDED}: 1 checkpointed epoch is not flushed"
    flush(world.flusher(name=ADDED))
    assert wait_until_flushed(checkpoint, world.log, 0).epoch == 1


def test_rule_22_what_is_given_up_for_one_target_stays_for_the_other(
    world: SeveralWorld, tmp_path: Path
) -> None:
    """`skip --to` copies the files, and they go when the other target has the epoch."""
    epochs(world, 1)
    to = open_backend(str(tmp_path / "kept"))
    asked = query(world).of(CELLS)
    planned = plan_skip(asked, world.targets[CELLS], 1, to, NOW_US, begun=False)
    assert "2 files of it will be copied" in planned.consequences
    assert len(planned.carry_out(NOW_US).decision.files) == len(to.list()) == 2
    flush(world.flusher(name=CELLS))
    flush(world.flusher(name=ADDED))
    assert (world.rows(CELLS), sorted(world.rows(ADDED))) == ([("0", 0)], [("0", 0), ("1", 1)])
    flush(world.flusher(name=CELLS))
    assert waiting(world) == []

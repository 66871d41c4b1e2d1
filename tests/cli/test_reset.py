"""`reset`: a stopped query begins anew, and no row that only the log has is lost unasked."""

from __future__ import annotations

import contextlib
import itertools
import shutil
from pathlib import Path

import pytest

from state_backends import StateBackend, open_backend
from tests.cli.shell import run
from tests.protocol.engine import World
from tests.protocol.operations import At
from tests.protocol.operators import query, rewind
from tests.protocol.several_world import SeveralWorld
from wal_sink import errors
from wal_sink.admin.flush import FlushCommand
from wal_sink.admin.flusher_at_work import Patience
from wal_sink.admin.query import Query, find_query
from wal_sink.admin.reset import plan_reset
from wal_sink.admin.rewind import plan_rewind
from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.clock import now_us
from wal_sink.model.records import FlusherReport
from wal_sink.protocol.next_step import Idle
from wal_sink.testing.faults import Crash, Faults, FaultyBackend, FaultyTarget
from wal_sink.wal.log import Log


@pytest.fixture
def flushed(world: World) -> World:
    """Two epochs, both in the target; no flusher is left."""
    world.run().flushed_batches([("a", 0)], [("b", 1)])
    return world


def files(folder: Path) -> set[Path]:
    return {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}


def test_a_flushed_query_is_deleted_whole(flushed: World, tmp_path: Path) -> None:
    """After a yes; with its log, and rows in the target stay."""
    refused = run(tmp_path, "reset", "checkpoint", answer="n\n")
    assert refused.code == errors.OptionError.exit_code
    assert "reads its source from the beginning" in refused.err
    assert files(tmp_path / "checkpoint")
    done = run(tmp_path, "reset", "checkpoint", "--yes", "--json")
    assert done.code == 0, done.err
    assert done.document["query_id"] == flushed.query_id
    assert done.document["discarded_epochs"] == 0
    assert not (tmp_path / "checkpoint").exists()
    assert set(flushed.table()) == {"a", "b"}


def test_what_only_the_log_has_is_kept(flushed: World, tmp_path: Path) -> None:
    """Until the operator gives it up by a flag of its own: --yes is not enough."""
    flushed.run().batch([("c", 2)])
    before = files(tmp_path / "checkpoint")
    refused = run(tmp_path, "reset", "checkpoint", "--yes", "--json")
    assert refused.code == errors.NotDrained.exit_code
    assert "wal-sink flush CHECKPOINT" in refused.document["remedy"]
    assert files(tmp_path / "checkpoint") == before
    done = run(tmp_path, "reset", "checkpoint", "--yes", "--json", "--discard-unflushed")
    assert (done.code, done.document["discarded_rows"]) == (0, 1), done.err
    assert not (tmp_path / "checkpoint").exists()


def test_what_the_target_has_lost_and_the_log_may_have_is_kept(
    flushed: World, tmp_path: Path
) -> None:
    """The target was restored from a backup: the log says that all is flushed, and holds it perhaps."""
    flushed.store.ledger.clear()
    with pytest.raises(errors.LedgerBehindLog):
        FlushCommand(query(flushed), flushed.target).drain()
    refused = run(tmp_path, "reset", "checkpoint", "--yes", "--json")
    assert refused.code == errors.NotDrained.exit_code
    assert "may lack what the log says is flushed" in refused.document["what"]
    assert "rewind CHECKPOINT --to 1" in refused.document["remedy"]
    assert not run(tmp_path, "status", "checkpoint", "--json").document["safe_to_delete"]
    faults = Faults(at=1, matching="connect")
    plan = plan_rewind(query(flushed), FaultyTarget(flushed.target, faults), 1, now_us())
    with pytest.raises(Crash):
        plan.carry_out(now_us())
    assert not run(tmp_path, "status", "checkpoint", "--json").document["safe_to_delete"]
    rewind(flushed, 1)
    assert run(tmp_path, "status", "checkpoint", "--json").document["safe_to_delete"]


class DyingQuery(Query):
    """A query whose stores delete no more from one operation on."""

    faults = Faults()

    def open(self, url: str) -> StateBackend:
        return FaultyBackend(super().open(url), self.faults)


def test_what_a_deleted_checkpoint_has_left_is_flushed_without_it(
    flushed: World, tmp_path: Path
) -> None:
    """`flush` needs the checkpoint: the error has the commands that do without."""
    flushed.run().batch([("c", 2)])
    for name in ("metadata", "offsets", "commits"):
        left = tmp_path / "checkpoint" / name
        left.unlink() if left.is_file() else shutil.rmtree(left)
    for command in (("status",), ("reset", "--yes")):
        refused = run(tmp_path, command[0], "checkpoint", *command[1:], "--json")
        says = errors.stand_in(flushed.log.url, "LAST")
        if command[0] == "reset":
            says = errors.flush_published(flushed.log.url, 2)
        assert says in refused.document["remedy"], refused.document
    done = run(tmp_path, "reset", "checkpoint", "--yes", "--json", "--discard-unflushed")
    assert done.code == 0, done.err


def reset(world: World, faults: Faults, *, discard: bool) -> None:
    """Run the command, whose process may die at a deletion."""
    found = find_query(world.checkpoint.url, in_reset=True)
    query = DyingQuery(
        found.query_id,
        Checkpoint(FaultyBackend(world.checkpoint, faults)),
        Log(FaultyBackend(found.log.backend, faults), several=found.log.several),
        found.stores,
    )
    query.faults = faults
    plan_reset(query, now_us(), discard_unflushed=discard).carry_out(now_us())


def a_world(folder: Path, *, elsewhere: bool) -> World:
    checkpoint = open_backend(str(folder / "checkpoint"))
    made = World(checkpoint, checkpoint)
    logs = folder / "logs" if elsewhere else folder / "checkpoint" / "wal_sink"
    made.log_backend = open_backend(str(logs / made.query_id))
    made.clock.us = now_us()
    return made


@pytest.mark.parametrize(
    ("discard", "elsewhere", "start"),
    [(False, False, True), (True, True, True), (True, False, False)],
    ids=["flushed", "log elsewhere", "no start between"],
)
def test_one_that_died_at_any_deletion_is_run_again(
    tmp_path: Path, discard: bool, elsewhere: bool, start: bool
) -> None:
    """By the same command. Until then a start is that of the whole query, or refused; never a mixture.

    Dying before a deletion is dying after the one before it.
    """
    for at in range(100):
        world = a_world(tmp_path / str(at), elsewhere=elsewhere)
        run = world.run().flushed_batches([("a", 0)], [("b", 1)])
        if discard:
            run.batch([("c", 2)])
        before = world.checkpoint.list(), world.log_backend.list()
        faults = Faults(at=at, matching="delete ")
        try:
            reset(world, faults, discard=discard)
        except Crash:
            pass
        else:
            assert at > len(before[0]), "each of its deletions was one to die at"
            break
        finally:
            assert set(world.table()) == {"a", "b"}
        whole = (world.checkpoint.list(), world.log_backend.list()) == before
        named = Checkpoint.LOG_URL in world.checkpoint.list()
        assert whole or not named or Checkpoint.METADATA not in world.checkpoint.list()
        assert named or world.checkpoint.list() == world.log_backend.list() == []
        if not named:
            continue  # it has died after its end
        if start and not whole:
            later = a_world(tmp_path / str(at), elsewhere=elsewhere)
            with pytest.raises(errors.WrongOwner, match="run `wal-sink reset CHECKPOINT`"):
                later.run()
        reset(world, Faults(), discard=discard)
        assert world.checkpoint.list() == world.log_backend.list() == []
        assert not (tmp_path / str(at) / "checkpoint").exists()
        new = a_world(tmp_path / str(at), elsewhere=elsewhere)
        new.run().batch([("d", 3)])
        assert new.flushed() == {"d": 3}
    else:
        raise AssertionError("it never ended")


@pytest.mark.parametrize("at", [f"read {Checkpoint.LOG_URL}", "delete flushed/"])
def test_one_that_stood_still_leaves_the_next_query_alone(tmp_path: Path, at: str) -> None:
    """Before it deletes from the checkpoint. Somebody runs it again meanwhile, and starts the query."""
    usual = Faults()
    world, other = (a_world(tmp_path / name, elsewhere=False) for name in ("a", "b"))
    for each in (world, other):
        each.run().flushed_batches([("a", 0)])
    reset(other, usual, discard=False)
    before = usual.operations[: usual.operations.index("delete metadata")]
    started: list[World] = []

    def meanwhile() -> None:
        reset(world, Faults(), discard=False)
        started.append(a_world(tmp_path / "a", elsewhere=False))
        started[0].run().batch([("b", 1)])

    with pytest.raises(errors.WrongOwner):
        reset(world, At(at, meanwhile, max(before.count(at), 1)), discard=False)
    (new,) = started
    assert Checkpoint(new.checkpoint).query_id() == new.query_id
    assert Checkpoint(new.checkpoint).log_url() == new.log.url
    assert new.flushed() == {"b": 1}


def test_several_targets_that_died_are_reset_again(tmp_path: Path) -> None:
    """States of targets go one by one; what is left of them does not forbid the rest."""
    for at in range(100):
        world = SeveralWorld(tmp_path)
        checkpoint = open_backend(str(tmp_path / str(at)))
        world.checkpoint = checkpoint
        world.log_backend = open_backend(str(tmp_path / str(at) / "wal_sink" / world.query_id))
        world.run().batch([("a", 0)])
        for name in world.targets:
            with contextlib.closing(world.flusher(name=name)) as flusher:
                while not isinstance(flusher.run_once(), Idle):
                    pass
        faults = Faults(at=at, matching="delete ")
        try:
            reset(world, faults, discard=False)
        except Crash:
            reset(world, Faults(), discard=False)
        assert checkpoint.list() == []
        if faults.injected is None:
            return
    raise AssertionError("it never ended")


def test_what_is_of_others_stays(flushed: World, tmp_path: Path) -> None:
    """Files that are not Spark's, and logs of other queries; the reset is refused while one of them waits."""
    other = a_world(tmp_path, elsewhere=False)
    other.log_backend.create("segments/of_another.arrow", b"x")
    flushed.checkpoint.create("notes/why.txt", b"x")
    done = run(tmp_path, "reset", "checkpoint", "--yes", "--json")
    assert done.code == 0, done.err
    assert files(tmp_path / "checkpoint") == {
        Path("notes/why.txt"),
        Path("wal_sink") / other.query_id / "segments/of_another.arrow",
    }


def test_a_log_that_an_earlier_query_has_left_is_not_lost(world: World, tmp_path: Path) -> None:
    """Its checkpoint was deleted by hand, and the next query has the same: nothing is deleted."""
    world.run().batch([("a", 0)])
    left = world.log_backend
    world.checkpoint.delete(
        [path for path in world.checkpoint.list() if world.query_id not in path]
    )
    new = a_world(tmp_path, elsewhere=False)
    new.run().flushed_batches([("b", 1)])
    before = files(tmp_path / "checkpoint")
    refused = run(tmp_path, "reset", "checkpoint", "--yes", "--json", "--discard-unflushed")
    assert refused.code == errors.NotDrained.exit_code
    assert left.url in refused.document["remedy"]
    assert files(tmp_path / "checkpoint") == before


def test_the_copy_of_a_checkpoint_does_not_take_the_log(tmp_path: Path) -> None:
    world = a_world(tmp_path, elsewhere=True)
    world.run().flushed_batches([("a", 0)])
    shutil.copytree(tmp_path / "checkpoint", tmp_path / "copy")
    before = world.log_backend.list()
    refused = run(tmp_path, "reset", "copy", "--yes", "--json")
    assert refused.code == errors.WrongOwner.exit_code
    assert world.log_backend.list() == before


@pytest.mark.parametrize("discard", [False, True])
def test_what_came_while_the_operator_was_asked_is_kept(flushed: World, discard: bool) -> None:
    """More rows are in the log than the operator was asked about."""
    batches = flushed.run()
    if discard:
        batches.batch([("c", 2)])
    query = find_query(flushed.checkpoint.url, in_reset=True)
    plan = plan_reset(query, now_us(), discard_unflushed=discard)
    batches.batch([("d", 3)])
    before = flushed.checkpoint.list()
    with pytest.raises(errors.NotDrained):
        plan.carry_out(now_us())
    assert flushed.checkpoint.list() == before


def test_a_flusher_that_came_while_the_operator_was_asked_is_not_harmed(flushed: World) -> None:
    """It reports while the command looks."""
    beats = itertools.count(1)

    def beat(_: float) -> None:
        report = FlusherReport(
            flusher="elsewhere:1", doing="flushing", heartbeat_us=now_us(), beat=next(beats)
        )
        flushed.log.report(report)

    found = find_query(flushed.checkpoint.url, in_reset=True)
    query = found._replace(patience=Patience(sleep=beat, say=lambda _: None))
    plan = plan_reset(query, now_us())
    beat(0)
    before = flushed.checkpoint.list()
    with pytest.raises(errors.FlusherAtWork, match="elsewhere:1"):
        plan.carry_out(now_us())
    assert flushed.checkpoint.list() == before

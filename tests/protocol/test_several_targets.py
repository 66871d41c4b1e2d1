"""A query with several targets: each has its own mark, and all get the settled attempt of an epoch."""

from __future__ import annotations

import logging
from typing import get_args

import pyarrow as pa
import pytest

from tests.kills.every_fault import When, every_fault, partitions
from tests.protocol import raw
from tests.protocol.cases import covered
from tests.protocol.damaged import change
from tests.protocol.engine import World, flush, in_memory
from tests.protocol.publishing import Driver
from tests.protocol.several_world import ADDED, CELLS, SeveralWorld
from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.errors import LogFull, OptionError
from wal_sink.flush.loop import FlushLoop
from wal_sink.progress.status import read_status
from wal_sink.progress.wait import wait_until_flushed
from wal_sink.protocol import state as protocol
from wal_sink.targets.base import Target
from wal_sink.testing.memory_target import MemoryOptions, MemoryTarget


@pytest.fixture
def several() -> SeveralWorld:
    """A query with two targets."""
    return SeveralWorld()


def give_up(world: World, name: str) -> None:
    """Do what `wal-sink give-up CHECKPOINT --target NAME` does."""
    change(world, lambda state, actor: protocol.give_up_target(state, name, actor))


@pytest.mark.parametrize("when", get_args(When))
@pytest.mark.parametrize("role", ["run", "flusher", "flusher of a backlog"])
def test_targets_at_every_fault_get_each_row_once(role: str, when: When) -> None:
    hit = every_fault(SeveralWorld, role, when)
    covered(f"fault at every operation of a {role} with two targets, {when}", f"{len(hit)}")


@pytest.mark.rule("trim")
def test_epoch_that_one_target_lacks_is_not_trimmed(several: SeveralWorld) -> None:
    run = several.run()
    for epoch in range(4):
        run.batch(*partitions(epoch, run.run_id))
        flush(several.flusher(name=CELLS))
        raw.safe(several, epoch)
    assert len(several.log_backend.list("manifests/")) == 4
    assert (several.mark(CELLS), several.mark(ADDED), several.state.trimmed) == (3, -1, -1)
    flush(several.flusher(name=ADDED))
    raw.complete(several, 4, "")


def test_budget_counts_epochs_that_the_slowest_target_lacks(several: SeveralWorld) -> None:
    """Epochs that only a given up target lacks do not count."""
    Driver(several.run()).batch([("a", 1)])
    flush(several.flusher(name=CELLS))
    with pytest.raises(LogFull, match="not flushed to added"):
        Driver(several.run(), on_full="fail").publish([("b", 2)])
    give_up(several, ADDED)
    Driver(several.run(), on_full="fail").batch([("b", 3)])
    for name in (ADDED, CELLS):
        flush(several.flusher(name=name))
    assert (several.rows(CELLS), several.rows(ADDED)) == ([("a", 1), ("b", 3)], [])
    assert several.log_backend.list("segments/") == several.log_backend.list("manifests/") == []
    status = read_status(Checkpoint(several.checkpoint), several.log_backend)
    assert (status.given_up, status.pending_epochs) == ((ADDED,), 0)


def test_target_given_up_is_not_waited_for(several: SeveralWorld) -> None:
    several.run().batch([("a", 1)])
    give_up(several, ADDED)
    with pytest.raises(OptionError, match="Target added was given up, and gets nothing more"):
        wait_until_flushed(Checkpoint(several.checkpoint), several.log_backend, target=ADDED)


@pytest.mark.parametrize("order", [(CELLS, ADDED), (ADDED, CELLS)])
def test_targets_named_in_another_order_keep_their_epochs(
    several: SeveralWorld, order: tuple[str, ...]
) -> None:
    several.run().batch([("a", 1)])
    several.named = {name: several.known[name] for name in order}
    several.run().batch([("b", 2)])
    several.flush()
    assert several.rows(CELLS) == several.rows(ADDED) == [("a", 1), ("b", 2)]


@pytest.mark.parametrize("names", [(CELLS,), (ADDED,), ("lake",), (CELLS, ADDED, "lake")], ids=str)
def test_other_targets_are_refused_while_epochs_are_pending(
    several: SeveralWorld, names: tuple[str, ...]
) -> None:
    """The error names the former targets."""
    several.run().batch([("a", 1)])
    several.known["lake"] = MemoryTarget(MemoryOptions(keys="k"))
    several.named = {name: several.known[name] for name in names}
    earlier = set(several.log_backend.list("segments/"))
    with pytest.raises(OptionError, match="Epoch 0 is not in") as caught:
        several.run().publish([("b", 2)])
    assert "former targets, cells, added" in caught.value.remedy
    assert "give-up CHECKPOINT --target NAME" in caught.value.remedy
    assert set(several.log_backend.list("segments/")) == earlier
    several.named = {name: several.known[name] for name in (CELLS, ADDED)}
    several.run().batch([("b", 2)])
    several.flush()
    assert several.rows(CELLS) == several.rows(ADDED) == [("a", 1), ("b", 2)]


def test_target_added_again_skips_epochs_of_its_absence(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A warning names the skipped epochs."""
    world = SeveralWorld()
    world.run().flushed_batches([("a", 1)])
    world.named = {CELLS: world.store_target}
    world.run().flushed_batches([("b", 2)], [("c", 3)])
    world.named = {CELLS: world.store_target, ADDED: world.adding}
    world.run().flushed_batches([("d", 4)])
    assert world.rows(CELLS) == [("a", 1), ("b", 2), ("c", 3), ("d", 4)]
    assert world.rows(ADDED) == [("a", 1), ("d", 4)]
    assert "Target added lacks epochs 1 to 2" in caplog.text


def test_target_given_up_returns_after_two_starts(several: SeveralWorld) -> None:
    """A start that does not name the target forgets it. The next start that names it adds it again."""
    several.run().batch([("a", 1)])
    give_up(several, ADDED)
    flush(several.flusher(name=CELLS))
    several.named = {CELLS: several.known[CELLS]}
    several.run().flushed_batches([("b", 2)])
    several.named = dict(several.known)
    several.run().flushed_batches([("c", 3)])
    assert several.rows(ADDED) == [("c", 3)]
    assert several.rows(CELLS) == [("a", 1), ("b", 2), ("c", 3)]


def test_start_with_only_a_given_up_target_is_refused(several: SeveralWorld) -> None:
    """Given a live target that the start does not name, the rows would reach no target."""
    several.run().flushed_batches([("a", 1)])
    give_up(several, ADDED)
    several.named = {ADDED: several.known[ADDED]}
    with pytest.raises(
        OptionError, match=f"Every target of the query was given up: {ADDED}"
    ) as error:
        several.run().batch([("b", 2)])
    assert error.value.remedy.startswith(f"Start the query once with {CELLS}.")
    several.named = {CELLS: several.known[CELLS]}
    several.run().flushed_batches([("b", 2)])
    assert several.rows(CELLS) == [("a", 1), ("b", 2)]


def test_status_and_wait_show_each_target(several: SeveralWorld) -> None:
    several.run().flushed_batches([("0", 0)]).batches([("1", 1)])
    flush(several.flusher(name=CELLS))
    checkpoint = Checkpoint(several.checkpoint)
    assert wait_until_flushed(checkpoint, several.log_backend, 0, target=CELLS).epoch == 1
    status = read_status(checkpoint, several.log_backend)
    assert {target.target: target.pending_epochs for target in status.targets} == {
        CELLS: 0,
        ADDED: 1,
    }
    assert (status.flushed, status.pending_epochs, status.safe_to_delete) == (0, 1, False)
    flush(several.flusher(name=ADDED))
    assert wait_until_flushed(checkpoint, several.log_backend, 0).epoch == 1


def test_log_lines_of_a_flush_name_the_target(
    several: SeveralWorld, caplog: pytest.LogCaptureFixture
) -> None:
    """The name is in the text, and an attribute of the record."""
    caplog.set_level(logging.INFO, "wal_sink")
    several.run().batch([("a", 1)])
    loop = FlushLoop(several.flusher(name=ADDED))
    loop.end()
    loop.start()
    loop.join(30)
    lines = [record for record in caplog.records if record.threadName == loop.name]
    texts = [record.getMessage() for record in lines]
    place = f"query {several.query_id}, target {ADDED}"
    assert any("flushed 1 row of" in text for text in texts), texts
    assert [text for text in texts if not text.startswith(place)] == []
    assert {getattr(record, "target", None) for record in lines} == {ADDED}


class AuditedWorld(World):
    """A query whose first target deletes rows by an operation column.

    The second target appends every change. A value of None is a delete. It is written as 0, so that no key of
    the history is null.
    """

    def __init__(self) -> None:
        super().__init__(*in_memory(), MemoryTarget(MemoryOptions(keys="k", operation_column="op")))
        self.audit = MemoryTarget(MemoryOptions(keys="k,op,v"))

    @property
    def targets(self) -> dict[str, Target]:
        """Return the target that follows the source, and the target that keeps its history."""
        return {"state": self.store_target, "audit": self.audit}

    def frame(self, rows: object) -> pa.RecordBatch:
        """Return rows as the DataFrame has them."""
        changes = [
            {"k": key, "op": "delete" if value is None else "upsert", "v": value or 0}
            for key, value in rows  # type: ignore[attr-defined]
        ]
        schema = pa.schema([("k", pa.string()), ("op", pa.string()), ("v", pa.int64())])
        return pa.RecordBatch.from_pylist(changes, schema)


def test_targets_cast_rows_by_their_own_options() -> None:
    world = AuditedWorld()
    run = world.run().batches([("a", 1), ("b", 2), ("c", 3)])
    run.batch([("a", None), ("b", 4)], [("c", None), ("c", 5)])
    world.flush()
    assert world.table() == {"b": 4, "c": 5}
    upserts = {(key, "upsert", value) for key, value in zip("abcbc", (1, 2, 3, 4, 5), strict=True)}
    assert set(world.audit.rows()) == {*upserts, ("a", "delete", 0), ("c", "delete", 0)}

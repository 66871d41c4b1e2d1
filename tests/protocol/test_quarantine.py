"""`onInvalidRow=quarantine`: each refused row is kept once, and the others are written."""

from __future__ import annotations

from typing import get_args

import pyarrow as pa
import pytest

from tests.kills.every_fault import EPOCHS, When, every_fault, partitions
from tests.protocol import raw
from tests.protocol.adding import AddingTarget, AddingWorld, StagingTarget
from tests.protocol.cases import covered
from tests.protocol.engine import Rows, World, flush
from tests.protocol.operations import At
from tests.protocol.operators import edit, stops
from tests.protocol.quarantining import (
    REFUSED,
    SEVENS,
    QuarantiningWorld,
    RefusingWorld,
    kept,
    refused_later,
)
from tests.protocol.several_world import ADDED, CELLS, SeveralWorld
from wal_sink import errors
from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.progress.status import read_status
from wal_sink.testing.faults import Crash, Faults
from wal_sink.testing.memory_target import MemoryOptions
from wal_sink.wal.segment import refused_files


class BadTextWorld(AddingWorld):
    """A query with keys that are not UTF-8, as Spark's strings may be."""

    def frame(self, rows: Rows) -> pa.RecordBatch:
        """Return rows as Spark passes them, without a check of their bytes."""
        encoded = [b"\xff" if k == REFUSED else k.encode() for k, _ in rows]
        values = pa.array([v for _, v in rows], pa.int64())
        arrays = [pa.array(encoded, pa.binary()).view(pa.string()), values]
        return pa.record_batch(arrays, names=["k", "v"])


def test_invalid_utf8_is_refused_before_the_targets_check() -> None:
    """The task refuses it, though the target's own check accepts it."""
    world = BadTextWorld()
    with pytest.raises(errors.InvalidRow, match=r"Column k .*is not UTF-8, in the row with .*v=2"):
        world.run().batch([("a", 1), (REFUSED, 2)])
    world.on_invalid_row = "quarantine"
    world.run().flushed_batches([("a", 1), (REFUSED, 2), ("b", 3), (REFUSED, 4)])
    assert world.visible() == [("a", 1), ("b", 3)]
    assert [(file.epoch, file.rows) for file in refused_files(world.log_backend)] == [(0, 2)]


def test_refused_row_is_kept_when_its_epoch_is_trimmed() -> None:
    """The budget counts its bytes, and the status does not call the log deletable."""
    world = QuarantiningWorld()
    run = world.run().flushed_batches([("a", 1)])
    run.batch([("b", 2), (REFUSED, 7), (REFUSED, 8)], [("c", 3)], [(REFUSED, 9)])
    sizes = [world.log_backend.size(path) for path in world.log_backend.list("segments/")]
    last = world.state.last
    assert last.sums.bytes - last.predecessor.sums.bytes == sum(sizes)
    assert last.sums.rows - last.predecessor.sums.rows == 2
    assert kept(world) == [], "not flushed yet"
    assert world.flushed() == {"a": 1, "b": 2, "c": 3}
    assert world.log_backend.list("segments/") == []
    assert kept(world) == [(1, "", None, 7), (1, "", None, 8), (1, "", None, 9)]
    status = read_status(Checkpoint(world.checkpoint), world.log_backend)
    assert (status.quarantined_rows, status.safe_to_delete) == (3, False)
    assert "quarantine" in repr(status)


def test_epoch_with_only_refused_rows_is_flushed() -> None:
    world = QuarantiningWorld()
    world.run().batches([(REFUSED, 1)], [("a", 1)])
    assert world.flushed() == {"a": 1}
    assert [epoch for epoch, *_ in kept(world)] == [0]


def some_refused(epoch: int, run: str) -> list[Rows]:
    """Return the rows of `every_fault`, with a row that the tasks refuse."""
    rows = partitions(epoch, run)
    return [*rows, [(REFUSED, None)]] if rows else []


@pytest.mark.parametrize("when", get_args(When))
@pytest.mark.parametrize("role", ["run", "flusher", "flusher of a backlog"])
def test_rows_refused_by_tasks_are_kept_once_despite_faults(role: str, when: When) -> None:
    hit = every_fault(QuarantiningWorld, role, when, some_refused)
    if role != "run":
        assert sum("refused/" in name for name in hit) >= EPOCHS - 1
    covered(f"fault at every operation of a {role} with refused rows, {when}", str(len(hit)))


@pytest.mark.parametrize("kind", ["cells", "transactions", "staged"])
@pytest.mark.parametrize(
    ("role", "when"),
    [
        *(("flusher", when) for when in get_args(When)),
        *(("flusher of a backlog", when) for when in get_args(When) if when != "answer lost"),
        pytest.param("flusher of a backlog", "answer lost", marks=pytest.mark.test_all),
    ],
)
def test_rows_refused_by_servers_are_kept_once_despite_faults(
    role: str, when: When, kind: str
) -> None:
    def world() -> World:
        options = MemoryOptions(keys="k")
        target = {"transactions": AddingTarget, "staged": StagingTarget}.get(kind)
        made = RefusingWorld(target(options) if target else None)
        made.adds, made.dates = target is not None, target is None
        return made

    hit = every_fault(world, role, when, refused_later)
    assert sum("create refused/" in name for name in hit) >= EPOCHS - 1
    covered(
        f"fault at every operation of a {role} with rows refused in it, {kind}, {when}",
        str(len(hit)),
    )


@pytest.mark.parametrize("change", [None, b"another"])
def test_damaged_segment_of_refused_rows_stops_the_flush(change: bytes | None) -> None:
    """The ledger row does not move, since the trim would delete the only copy."""
    world = QuarantiningWorld()
    world.run().batch([("a", 1), (REFUSED, 2)])
    (manifest,) = raw.objects(world.log_backend, "manifests/").values()
    edit(world.log_backend, manifest["refused"][0]["path"], change)
    stopped = stops(world)
    assert isinstance(stopped, errors.MissingSegment if change is None else errors.CorruptLog)
    assert world.row.epoch == -1


def test_quarantined_row_is_skipped_by_every_later_flusher() -> None:
    """Given a flusher without quarantine, and a target that would accept the row now."""
    world = RefusingWorld()
    world.run().batch([("a", 1), ("bad", None), ("b", 2)])
    with pytest.raises(Crash):
        world.flush(Faults(0, matching="finish 0"))
    assert [row for _, _, *row in kept(world)] == [["bad", SEVENS]]
    world.on_invalid_row = "fail"
    world.store_target.refuses = lambda _: ""
    assert world.flushed() == {"a": 1, "b": 2}


def test_row_kept_by_a_stalled_flusher_is_quarantined_once() -> None:
    """Given a flusher that stalls before it keeps the row, while another one keeps it, finishes and trims."""
    world = RefusingWorld()
    world.run().batch([("a", 1), ("bad", None)])
    flush(world.flusher(At("create refused/", world.flush)))
    assert world.table() == {"a": 1}
    assert kept(world) == [(0, "memory", "bad", SEVENS)]


def test_row_refused_without_quarantine_stops_the_flush() -> None:
    """The flush continues when the target accepts the row."""
    world = RefusingWorld()
    world.on_invalid_row = "fail"
    world.run().batch([("a", 1), ("bad", None)])
    stopped = stops(world, errors.TargetRefused)
    assert "three sevens" in stopped.what
    assert "onInvalidRow=quarantine" in stopped.remedy
    assert "give-up CHECKPOINT --epoch 0" in stopped.remedy
    assert kept(world) == []
    world.store_target.refuses = lambda _: ""
    assert world.flushed() == {"a": 1, "bad": SEVENS}


def test_row_refused_by_one_target_arrives_in_the_other() -> None:
    world = SeveralWorld()
    world.on_invalid_row = "quarantine"
    world.store_target.refuses = lambda row: "no" if row["v"] == SEVENS else ""
    world.run().flushed_batches([("a", 1), ("bad", SEVENS)])
    assert world.rows(CELLS) == [("a", 1)]
    assert world.rows(ADDED) == [("a", 1), ("bad", SEVENS)]
    assert kept(world) == [(0, CELLS, "bad", SEVENS)]
    assert raw.state(world.log_backend)["trimmed"] == 0

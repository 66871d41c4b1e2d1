"""Deletes by row, under the faults that upserts have: repeated, late, by two flushers.

A row that was deleted and is seen again, or one that came after a delete and is not seen, would show here:
each epoch deletes keys of the epoch before, and writes some of them again.
"""

from __future__ import annotations

import pyarrow as pa
import pytest

from tests.protocol.cases import covered
from tests.protocol.engine import Rows, World, in_memory
from tests.protocol.one_stops import every_stop
from tests.protocol.test_crash_everywhere import EPOCHS, When, every_fault, flush, upon_rows
from wal_sink import errors
from wal_sink.flush.rows import pieces, read_piece
from wal_sink.model.ledger import Owner
from wal_sink.targets.base import Target
from wal_sink.testing.faults import Faults
from wal_sink.testing.memory_target import MemoryOptions, MemoryTarget

SCHEMA = pa.schema([("k", pa.string()), ("op", pa.string()), ("v", pa.int64())])


class DeletingWorld(World):
    """A query in memory whose rows are upserts and deletes; a value of None is a delete."""

    def __init__(self) -> None:
        super().__init__(*in_memory(), MemoryTarget(MemoryOptions(keys="k", operation_column="op")))

    def frame(self, rows: Rows) -> pa.RecordBatch:
        """Return rows as the DataFrame has them."""
        changes = [
            {"k": key, "op": "delete" if value is None else "upsert", "v": value}
            for key, value in rows
        ]
        return pa.RecordBatch.from_pylist(changes, SCHEMA)


def changes(epoch: int, run: str) -> list[Rows]:
    """Changes as a non-deterministic query computes them: values of each attempt; epoch 2 has none."""
    mark = int(run[:6], 16) * EPOCHS + epoch
    by_epoch: list[list[Rows]] = [
        [[("shared", mark), ("gone", mark)], [("back", mark)]],
        [
            [("shared", None), ("shared", mark), ("gone", None)],
            [("back", None), (f"1-{run[:8]}", mark)],
        ],
        [],
        [[("back", mark), ("never", None)], [("shared", None)]],
    ]
    return by_epoch[epoch]


@upon_rows
def test_every_fault_upon_deletes_is_recovered_from(role: str, when: When) -> None:
    """In epochs of their own, and in one window of all: every key is as its last change has it."""
    hit = every_fault(DeletingWorld, role, when, changes)
    assert len([name for name in hit if name.startswith("write ")]) > 3
    covered(f"fault at every operation of a {role} that deletes, {when}", f"{len(hit)}")


def test_two_flushers_that_delete_leave_one_table() -> None:
    """One stops before its k-th operation, the other one flushes all, and the first one goes on."""
    assert every_stop(DeletingWorld, changes)


def test_rule_15_a_late_flusher_cannot_bring_a_deleted_row_back() -> None:
    """It stood still before its rows, while another one finished them and the epoch that deletes them.

    Nor can its late delete hide what came after.
    """
    world = DeletingWorld()
    run = world.run()
    run.batch([("k", 1), ("again", 1), ("again", None)])
    faults = Faults(at=0, error=ConnectionError, matching="write")
    stale = world.flusher(faults)
    stale.run_once()
    with pytest.raises(errors.TargetUnavailable):
        stale.run_once()
    window = world.store.ledger[world.query_id].begun
    assert window is not None
    (piece,) = pieces(world.log, window.epochs[0])
    held = list(read_piece(world.log_backend, piece))
    run.batch([("k", None), ("again", 2)])
    world.flush()
    assert world.table() == {"again": 2}
    with world.store.connect(Owner(world.query_id, "", "")) as session:
        for rows in held:
            session.write(piece.plan, rows)
        session.drain()
    assert world.table() == {"again": 2}


def test_a_word_that_is_not_known_publishes_nothing() -> None:
    """The task fails, and with it the micro-batch; the log has no segment of it."""
    world = DeletingWorld()
    run = world.run()
    unknown = world.frame([("a", 1)]).set_column(1, "op", pa.array(["truncate"]))
    world.frame = lambda rows: unknown  # type: ignore[method-assign]
    with pytest.raises(errors.InvalidRow, match="is no operation"):
        run.publish([("a", 1)])
    assert not [path for path in world.log_backend.list() if path.startswith(("seg", "man"))]


class AuditedWorld(DeletingWorld):
    """The same, with a second target that appends every change, its word as a column like any other."""

    def __init__(self) -> None:
        super().__init__()
        self.audit = MemoryTarget(MemoryOptions(keys="k,op,v"))
        self.audit.clock_us = self.store.clock_us

    @property
    def targets(self) -> dict[str, Target]:
        """One follows the source, the other one keeps its history."""
        return {"state": self.store, "audit": self.audit}

    def frame(self, rows: Rows) -> pa.RecordBatch:
        """Return rows with a value in deletes, too: no key of the history is null."""
        batch = super().frame(rows)
        return batch.set_column(2, "v", batch.column("v").fill_null(0))


def test_of_several_targets_one_deletes_and_another_keeps_the_change() -> None:
    """What the word means is the business of the target that names its column."""
    world = AuditedWorld()
    run = world.run()
    run.batch([("a", 1), ("b", 2), ("c", 3)])
    run.batch([("a", None), ("b", 4)], [("c", None), ("c", 5)])
    for name in world.targets:
        flusher = world.flusher(name=name)
        flush(flusher)
        flusher.close()
    assert world.table() == {"b": 4, "c": 5}
    values = {
        ("a", "upsert", 1),
        ("b", "upsert", 2),
        ("c", "upsert", 3),
        ("b", "upsert", 4),
        ("c", "upsert", 5),
    }
    assert set(world.audit.rows()) == {*values, ("a", "delete", 0), ("c", "delete", 0)}

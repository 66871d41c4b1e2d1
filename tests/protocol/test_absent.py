"""Rows that are written where there is none of their key, under the faults that rows have.

The judge knows the first row of each key; the query has a later one of each, which must not win.
"""

from __future__ import annotations

import itertools
import uuid

import pyarrow as pa
import pytest

from state_backends import open_backend
from tests.protocol import raw
from tests.protocol.cases import covered
from tests.protocol.engine import Rows, World
from tests.protocol.interleave import Process, Turns, open_operations, take_turns
from tests.protocol.test_crash_everywhere import EPOCHS, When, every_fault, flush
from wal_sink.flush.run_history import RunHistory
from wal_sink.model.ledger import Mark
from wal_sink.testing.cell_store import CellStore, CellStoreOptions


class AbsentWorld(World):
    """A query in memory whose rows come twice: the judge's row, and a later one that must not replace it."""

    def __init__(self) -> None:
        name = uuid.uuid4().hex
        self.cells = CellStore(CellStoreOptions(keys="k", if_not_exists=True))
        super().__init__(
            open_backend(f"memory://{name}/ck"), open_backend(f"memory://{name}/log"), self.cells
        )
        self.cells.clock_us = self.store.clock_us

    def frame(self, rows: Rows) -> pa.RecordBatch:
        """Return rows as the DataFrame has them: each key a second time."""
        later = [(key, -1) for key, _ in rows]
        return super().frame([*rows, *later])

    def visible(self) -> list[tuple[str, int]]:
        """Return the rows that a reader sees."""
        return [(key[0], row["v"]) for key, row in self.cells.rows().items()]

    def ledger(self) -> Mark | None:
        """Return the ledger row."""
        return self.cells.ledger.get(self.query_id)


def firsts(epoch: int, run: str) -> list[Rows]:
    """Rows as a non-deterministic query computes them: values of each attempt, each key in one epoch."""
    if epoch == 2:
        return []
    mark = int(run[:6], 16) * EPOCHS + epoch
    return [[(f"{epoch}-a", mark), (f"{epoch}-{run[:8]}", mark)], [(f"{epoch}-b", mark)]]


@pytest.mark.parametrize(
    ("role", "when"),
    [
        ("flusher", "after"),
        ("flusher of a backlog", "before"),
        ("flusher of a backlog", "answer lost"),
    ],
)
def test_every_fault_upon_first_rows_is_recovered_from(role: str, when: When) -> None:
    """Every key has the first row of the attempt that is kept, and no other row."""
    hit = every_fault(AbsentWorld, role, when, firsts)
    assert len([name for name in hit if name.startswith("write ")]) > 3
    covered(f"fault at every operation of a {role} of first rows, {when}", f"{len(hit)}")


def test_two_flushers_leave_the_same_first_rows() -> None:
    """One stops before its k-th operation, the other one flushes all, and the first one goes on."""
    both = 0
    for k in itertools.count():
        world = AbsentWorld()
        run = world.run()
        while run.next < EPOCHS:
            run.batch(*firsts(run.next, run.run_id))
        counts = open_operations(world)
        processes = []
        for stops in ((k,), ()):
            turns = Turns(*stops, counts=counts)
            flusher = world.flusher(turns, RunHistory())
            processes.append(Process(turns, lambda _, flusher=flusher: flush(flusher)))  # type: ignore[misc]
        first, second = processes
        take_turns(first, second, lambda: raw.safe(world, k))  # noqa: B023 -- it is called at once
        wrote = [any(op.startswith("write ") for op in p.turns.operations) for p in processes]
        both += all(wrote)
        raw.complete(world, EPOCHS, (k, first.turns.stopped_before))
        world.forget()
        if not first.turns.stopped_before:
            break
    assert both


def test_the_first_epoch_wins() -> None:
    """A key that comes again in a later epoch, of the same window or another one, keeps its row."""
    world = AbsentWorld()
    run = world.run()
    run.batch([("a", 1)])
    run.batch([("a", 2), ("b", 2)])
    world.flush()
    run.batch([("b", 3), ("c", 3)])
    world.flush()
    assert world.table() == {"a": 1, "b": 2, "c": 3}

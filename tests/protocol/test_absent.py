"""Rows that are written where there is none of their key, under the faults that rows have.

The judge knows the first row of each key; the query has a later one of each, which must not win.
"""

from __future__ import annotations

import pyarrow as pa

from tests.protocol.cases import covered
from tests.protocol.engine import Rows, World, in_memory
from tests.protocol.one_stops import every_stop
from tests.protocol.test_crash_everywhere import EPOCHS, When, every_fault, upon_rows
from wal_sink.testing.memory_target import MemoryOptions, MemoryTarget


class AbsentWorld(World):
    """A query in memory whose rows come twice: the judge's row, and a later one that must not replace it."""

    dates = False

    def __init__(self) -> None:
        super().__init__(*in_memory(), MemoryTarget(MemoryOptions(keys="k", if_absent=True)))

    def frame(self, rows: Rows) -> pa.RecordBatch:
        """Return rows as the DataFrame has them: each key a second time."""
        later = [(key, -1) for key, _ in rows]
        return super().frame([*rows, *later])


def firsts(epoch: int, run: str) -> list[Rows]:
    """Rows as a non-deterministic query computes them: values of each attempt, each key in one epoch."""
    if epoch == 2:
        return []
    mark = int(run[:6], 16) * EPOCHS + epoch
    return [[(f"{epoch}-a", mark), (f"{epoch}-{run[:8]}", mark)], [(f"{epoch}-b", mark)]]


@upon_rows
def test_every_fault_upon_first_rows_is_recovered_from(role: str, when: When) -> None:
    """Every key has the first row of the attempt that is kept, and no other row."""
    hit = every_fault(AbsentWorld, role, when, firsts)
    assert len([name for name in hit if name.startswith("write ")]) > 3
    covered(f"fault at every operation of a {role} of first rows, {when}", f"{len(hit)}")


def test_two_flushers_leave_the_same_first_rows() -> None:
    """One stops before its k-th operation, the other one flushes all, and the first one goes on."""
    assert every_stop(AbsentWorld, firsts)


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

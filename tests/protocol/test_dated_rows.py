"""Rows that the target dates itself beside rows that the log dates: options that change (rule 14).

A row with a condition has the time at which it is written, and others that of their epoch. In every order of
the two, and of deletes, the table has to end as if the rows had been written one after the other.
"""

from __future__ import annotations

import contextlib
import itertools

import pyarrow as pa
import pytest

from tests.protocol.cases import covered
from tests.protocol.engine import Rows, World, in_memory
from tests.protocol.test_restored import rewind
from tests.protocol.test_set_back import skip
from wal_sink.errors import TargetUnavailable
from wal_sink.model import paths
from wal_sink.testing.memory_target import MemoryOptions

SECOND = 1_000_000
KINDS = {
    "first": MemoryOptions(keys="k", if_absent=True),
    "newest": MemoryOptions(keys="k"),
    "delete": MemoryOptions(keys="k", operation_column="op"),
}
"""Options of runs of one query: what becomes of a row."""


class ChangingWorld(World):
    """A query in memory each run of which has other options, over one table; knows what should be there."""

    def __init__(self, ahead_s: float = 0.0) -> None:
        """:param ahead_s: how far the target's clock is ahead of the hosts'."""
        super().__init__(*in_memory())
        self.target_ahead_us = int(ahead_s * SECOND)
        self.kind = "newest"
        self.should: dict[str, int | None] = {}

    def frame(self, rows: Rows) -> pa.RecordBatch:
        """Return rows as the DataFrame has them."""
        batch = super().frame(rows)
        if self.kind != "delete":
            return batch
        return batch.append_column("op", pa.array(["delete"] * len(rows), pa.string()))

    def epoch(self, kind: str, value: int) -> None:
        """Run an epoch of one row of key k, with the options of a kind."""
        self.kind, self.target = kind, self.store.with_options(KINDS[kind])
        run = self.run()
        run.batch([("k", value)])
        run.end()
        if kind != "first" or self.should.get("k") is None:
            self.should["k"] = None if kind == "delete" else value

    def flush_all(self) -> None:
        """Flush; where the target might date rows too early, when that time is over."""
        for _ in range(5):  # each change may wait
            with contextlib.suppress(TargetUnavailable):
                self.flush()
                return
            self.clock.us += 120 * SECOND

    def is_right(self) -> bool:
        """Whether a reader sees what the rows leave one after the other."""
        expected = {key: value for key, value in self.should.items() if value is not None}
        return self.table() == expected


@pytest.mark.parametrize("ahead_s", [-20, 0, 20])
def test_rule_14_no_row_hides_a_later_one_of_another_clock(ahead_s: float) -> None:
    """In every order of kinds, whether their epochs wait for each other or not, and whose clock is ahead."""
    tried = 0
    for kinds in itertools.product(KINDS, repeat=3):
        for waits in itertools.product((False, True), repeat=2):
            world = ChangingWorld(ahead_s)
            for value, (kind, waiting) in enumerate(zip(kinds, (*waits, False), strict=True)):
                world.epoch(kind, value)
                if not waiting:
                    world.flush_all()
                    assert world.is_right(), (kinds, waits, value)
            world.forget()
            tried += 1
    covered(f"orders of rows that log and target date, target {ahead_s} s ahead", f"{tried}")


def test_rule_14_an_epoch_that_is_passed_over_does_not_forget_who_dated_the_rows_before() -> None:
    """Between the last row that the target has dated and the next one of the log lies one without rows."""
    world = ChangingWorld(20)
    world.epoch("first", 1)
    world.flush()
    world.epoch("newest", 2)
    world.log.delete(world.log_backend.list(paths.MANIFEST.folder))
    skip(world, 1)
    world.flush()
    world.epoch("newest", 3)
    world.flush()
    assert world.is_right()


def test_rule_14_a_ledger_row_that_is_made_anew_does_not_forget_it() -> None:
    """After a rewind the row names no window; the plans of the log tell."""
    world = ChangingWorld(20)
    world.epoch("first", 0)
    world.flush()
    world.epoch("newest", 1)
    world.store.ledger.clear()
    rewind(world, 0)
    world.flush()
    assert world.is_right()

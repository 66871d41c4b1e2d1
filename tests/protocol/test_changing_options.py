"""Random histories of a query whose options change between its runs, while epochs are pending.

The table must end as if each epoch had been flushed before the next one. A history has random kinds of rows,
faults of flushers, refused rows, inlined segments, retention, and a target that goes back. A failure names
the seed.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Sequence

import pyarrow as pa

from tests.protocol.cases import covered
from tests.protocol.engine import Rows, World, in_memory
from tests.protocol.operators import TargetBackup
from tests.protocol.quarantining import kept
from wal_sink.errors import WalSinkError
from wal_sink.protocol.retention import Retention
from wal_sink.testing.faults import AnswerLost, Crash, Faults
from wal_sink.testing.memory_target import MemoryOptions

SEEDS = 120
KINDS = {
    "newest": MemoryOptions(keys="k"),
    "nulls": MemoryOptions(keys="k", nulls="write"),
    "delete": MemoryOptions(keys="k", operation_column="op"),
    "list": MemoryOptions(keys="k", lists="v"),
}
"""Options of a run by the kind of its rows."""
WITHOUT_LISTS = ("newest", "nulls", "delete")


class Step:
    """One micro-batch: its kind, its rows, and which of them are deletes."""

    def __init__(self, chance: random.Random, kinds: Sequence[str], first: int) -> None:
        self.kind = chance.choice(kinds)
        self.rows = [(chance.choice("kj"), first + i) for i in range(chance.randint(0, 4))]
        self.deletes = [self.kind == "delete" and chance.random() < 0.5 for _ in self.rows]


class History(World):
    """A query in memory with a random history.

    :param refuses: the target refuses rows whose value is divisible by this number; 0 for none.
    """

    def __init__(self, seed: int, refuses: int = 0) -> None:
        super().__init__(*in_memory())
        self.chance = random.Random(seed)
        stays = self.chance.choice([0, 1 << 60])
        self.retention = Retention(us=stays, bytes=stays)
        self.inline = range(self.chance.choice([100, 0, 1]), 100)
        self.steps: list[Step] = []
        self.refuses = refuses
        self.store_target.refuses = lambda row: "no" if self.is_refused(row["v"]) else ""
        if refuses:
            self.on_invalid_row = "quarantine"

    def is_refused(self, value: int) -> bool:
        """Return True if the target refuses a row."""
        return bool(self.refuses) and value % self.refuses == 0

    def frame(self, rows: Rows) -> pa.RecordBatch:
        """Return rows as the DataFrame has them."""
        batch = super().frame(rows)
        if not self.steps or self.steps[-1].kind != "delete":
            return batch
        step = self.steps[-1]
        gone = {row for row, deletes in zip(step.rows, step.deletes, strict=True) if deletes}
        words = ["delete" if row in gone else "upsert" for row in rows]
        return batch.append_column("op", pa.array(words, pa.string()))

    def play(self, kinds: Sequence[str]) -> None:
        """Run some micro-batches, and flush after some of them, with or without a fault."""
        backup: TargetBackup | None = None
        for number in range(self.chance.randint(2, 7)):
            step = Step(self.chance, kinds, 100 * (number + 1))
            self.steps.append(step)
            self.target = self.store_target.with_options(KINDS[step.kind])
            cut = self.chance.randint(0, len(step.rows))
            self.run().batch(step.rows[:cut], step.rows[cut:])
            what = self.chance.random()
            if what < 0.3:
                self.flush()
            elif what < 0.7:
                error = self.chance.choice([Crash, AnswerLost, ConnectionError])
                when = self.chance.choice(["before", "after"])
                faults = Faults(at=self.chance.randint(0, 60), when=when, error=error)  # type: ignore[arg-type]
                with contextlib.suppress(Crash, AnswerLost, ConnectionError, WalSinkError):
                    self.flush(faults)
            if what < 0.2:
                backup = TargetBackup(self)
            elif what > 0.85 and self.retention.us and backup is not None:
                backup.restore()
        self.flush()

    def in_turn(self) -> dict[str, int]:
        """Return the table after all rows in order, without the refused rows."""
        table: dict[str, int | None] = {}
        for step in self.steps:
            for (key, value), deletes in zip(step.rows, step.deletes, strict=True):
                if not self.is_refused(value):
                    table[key] = None if deletes else value
        return {key: value for key, value in table.items() if value is not None}


def test_changed_options_keep_rows_once_and_in_order() -> None:
    for seed in range(SEEDS):
        history = History(seed)
        history.play(list(KINDS))
        assert history.table() == history.in_turn(), f"seed {seed}"
        history.forget()
    covered("histories of a query whose options change", f"{SEEDS}")


def test_changed_options_quarantine_each_refused_row() -> None:
    refused = 0
    for seed in range(SEEDS):
        history = History(seed, refuses=3)
        history.play(WITHOUT_LISTS)
        assert history.table() == history.in_turn(), f"seed {seed}"
        values = [value for step in history.steps for _, value in step.rows]
        assert sorted(row[3] for row in kept(history)) == [
            value for value in values if history.is_refused(value)
        ], f"seed {seed}"
        refused += len(kept(history))
        history.forget()
    covered("rows that were refused in these histories", f"{refused}")
    assert refused > SEEDS

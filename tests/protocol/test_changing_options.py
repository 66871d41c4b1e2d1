"""Histories of a query whose options change between its runs, while epochs wait.

The table has to end as if each epoch had been flushed before the next one came. Random, by a seed that a
failure names: kinds of rows, faults of flushers, quarantine, segments in manifests, a clock that is ahead.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Sequence
from typing import Literal, get_args

import pyarrow as pa

from tests.protocol.cases import covered
from tests.protocol.engine import Rows, World, in_memory
from tests.protocol.operators import query, rewind
from wal_sink.admin.quarantine import plan_retry
from wal_sink.errors import WalSinkError
from wal_sink.testing.faults import AnswerLost, Crash, Faults
from wal_sink.testing.memory_target import MemoryOptions

SECOND = 1_000_000
SEEDS = 120
KINDS = {
    "newest": MemoryOptions(keys="k"),
    "nulls": MemoryOptions(keys="k", nulls="write"),
    "delete": MemoryOptions(keys="k", operation_column="op"),
    "list": MemoryOptions(keys="k", lists="v"),
}
"""Options of a run, by what becomes of its rows."""
When = Literal["before", "after"]
BY_ITSELF = ("newest", "nulls", "delete")
"""Kinds of which a row may be sent again after others."""


class Step:
    """A micro-batch: its kind, its rows, and which of them are deletes."""

    def __init__(self, chance: random.Random, kinds: Sequence[str], first: int) -> None:
        self.kind = chance.choice(kinds)
        self.rows = [(chance.choice("kj"), first + i) for i in range(chance.randint(0, 4))]
        self.deletes = [self.kind == "delete" and chance.random() < 0.5 for _ in self.rows]

    def upon(self, table: dict[str, int | None], refused: Callable[[int], bool]) -> None:
        """Do to a table what the rows say, one after the other."""
        for (key, value), deletes in zip(self.rows, self.deletes, strict=True):
            if refused(value):
                continue
            if deletes:
                table[key] = None
            else:
                table[key] = value


class History(World):
    """A query in memory, and what chance makes of it.

    :param refuses: rows whose value this number divides are refused by the target; 0: none.
    """

    def __init__(self, seed: int, refuses: int = 0) -> None:
        super().__init__(*in_memory())
        self.chance = random.Random(seed)
        self.target_ahead_us = self.chance.choice([-20, 0, 20]) * SECOND
        self.retention_s = self.chance.choice([0.0, 3_600.0])
        self.inline_from = self.chance.choice([None, 0, 1])
        self.steps: list[Step] = []
        self.refuses = refuses
        self.store.refuses = lambda row: "no" if self.is_refused(row["v"]) else ""
        if refuses:
            self.on_invalid_row = "quarantine"

    def is_refused(self, value: int) -> bool:
        """Whether the target refuses a row."""
        return bool(self.refuses) and value % self.refuses == 0

    def frame(self, rows: Rows) -> pa.RecordBatch:
        """Return rows as the DataFrame has them."""
        batch = super().frame(rows)
        if not self.steps or self.steps[-1].kind != "delete":
            return batch
        step = self.steps[-1]
        gone = {
            value for (_, value), deletes in zip(step.rows, step.deletes, strict=True) if deletes
        }
        words = ["delete" if value in gone else "upsert" for _, value in rows]
        return batch.append_column("op", pa.array(words, pa.string()))

    def have(self, kind: str) -> None:
        """Let the next run have the options of a kind, over the same table."""
        self.target = self.store.with_options(KINDS[kind])

    def play(self, kinds: Sequence[str]) -> None:
        """Run some micro-batches; flush after some of them, with a fault somewhere or without."""
        for number in range(self.chance.randint(2, 7)):
            step = Step(self.chance, kinds, 100 * (number + 1))
            self.steps.append(step)
            self.have(step.kind)
            cut = self.chance.randint(0, len(step.rows))
            run = self.run()
            run.batch(step.rows[:cut], step.rows[cut:])
            run.end()
            what = self.chance.random()
            if what < 0.3:
                self.flush_all()
            elif what < 0.7:
                error = self.chance.choice([Crash, AnswerLost, ConnectionError])
                when = self.chance.choice(get_args(When))
                faults = Faults(at=self.chance.randint(0, 60), when=when, error=error)
                with contextlib.suppress(Crash, AnswerLost, ConnectionError, WalSinkError):
                    self.flush(faults)
        self.flush_all()

    def flush_all(self) -> None:
        """Flush without a fault."""
        self.flush()

    def in_turn(self) -> dict[str, int]:
        """Return what the rows leave one after the other, those that are refused left out."""
        table: dict[str, int | None] = {}
        for step in self.steps:
            step.upon(table, self.is_refused)
        return {key: value for key, value in table.items() if value is not None}


def test_no_row_is_lost_or_mixed_where_options_change() -> None:
    """While epochs wait, flushers fail at any operation, and clocks differ; in each order of kinds."""
    for seed in range(SEEDS):
        history = History(seed)
        history.play(list(KINDS))
        assert history.table() == history.in_turn(), f"seed {seed}"
        history.forget()
    covered("histories of a query whose options change", f"{SEEDS}")


def test_what_is_flushed_again_by_a_rewind_ends_the_same() -> None:
    """Whatever options each epoch had."""
    for seed in range(SEEDS):
        history = History(seed)
        history.retention_s = 3_600.0
        history.play(list(KINDS))
        rewind(history, history.chance.randint(-1, history.state.flushed - 1))
        history.clock.us += 1_200 * SECOND
        history.flush_all()
        assert history.table() == history.in_turn(), f"seed {seed}"
        history.forget()
    covered("histories of a query whose options change, rewound", f"{SEEDS}")


def test_rows_in_quarantine_are_missing_alone_and_come_back_in_their_place() -> None:
    """The server refuses some rows until it is repaired; then they are sent as of their epochs."""
    sent = 0
    for seed in range(SEEDS):
        history = History(seed, refuses=3)
        history.play(BY_ITSELF)
        assert history.table() == history.in_turn(), f"seed {seed}"
        history.refuses = 0
        sent += plan_retry(query(history), history.target).carry_out(history.clock.us).sent
        assert history.table() == history.in_turn(), f"seed {seed}, sent again"
        history.forget()
    covered("rows that left the quarantine in these histories", f"{sent}")
    assert sent > SEEDS

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
from tests.protocol.operators import query, rewind, skip
from wal_sink.admin.quarantine import plan_retry
from wal_sink.errors import TargetUnavailable, WalSinkError
from wal_sink.model import paths
from wal_sink.testing.faults import AnswerLost, Crash, Faults
from wal_sink.testing.memory_target import MemoryOptions

SECOND = 1_000_000
SEEDS = 120
KINDS = {
    "newest": MemoryOptions(keys="k"),
    "nulls": MemoryOptions(keys="k", nulls="write"),
    "delete": MemoryOptions(keys="k", operation_column="op"),
    "first": MemoryOptions(keys="k", if_absent=True),
    "total": MemoryOptions(keys="k", totals="v"),
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
            there = table.get(key)
            if refused(value):
                continue
            if deletes:
                table[key] = None
            elif self.kind == "total":
                table[key] = (there or 0) + value
            elif self.kind != "first" or there is None:
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
        """Flush; where the target might date rows too early, when that time is over."""
        for _ in range(12):  # each change of who dates the rows may wait
            with contextlib.suppress(TargetUnavailable):
                self.flush()
                return
            self.clock.us += 120 * SECOND

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
    """Totals aside, which a rewind to before them may refuse."""
    for seed in range(SEEDS):
        history = History(seed)
        history.retention_s = 3_600.0
        history.play([kind for kind in KINDS if kind != "total"])
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


def dated_by_the_target() -> History:
    """Return a query whose first row the target has dated, by a clock that is ahead."""
    history = History(0)
    history.target_ahead_us, history.retention_s, history.inline_from = 20 * SECOND, 0.0, None
    epoch(history, "first", 1)
    history.flush()
    return history


def epoch(history: History, kind: str, value: int) -> None:
    """Run an epoch of one row of key k, with the options of a kind."""
    history.have(kind)
    history.run().batches([("k", value)]).end()


def test_rule_14_an_epoch_that_is_passed_over_does_not_forget_who_dated_the_rows_before() -> None:
    """Between the last row that the target has dated and the next one of the log lies one without rows."""
    history = dated_by_the_target()
    epoch(history, "newest", 2)
    history.log.delete(history.log_backend.list(paths.MANIFEST.folder))
    skip(history, 1)
    history.flush()
    epoch(history, "newest", 3)
    assert history.flushed() == {"k": 3}


def test_rule_14_a_ledger_row_that_is_made_anew_does_not_forget_it() -> None:
    """After a rewind the row names no window; the plans of the log tell."""
    history = dated_by_the_target()
    epoch(history, "newest", 2)
    history.store.ledger.clear()
    rewind(history, 0)
    assert history.flushed() == {"k": 2}

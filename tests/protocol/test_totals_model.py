"""A state-space model of totals: flushers read, add and write, in every order, each as often as it likes.

What is written in place of rows is decided by the product's `totals`; which write to a cell stays is that of
Cassandra. A flusher that takes no further step has died, or stands still and goes on later, when others have
flushed what it had begun. What is switched off in `Rules` is a rule broken on purpose.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pytest

from tests.cql_driver import plan_of
from tests.protocol.cases import covered
from tests.support.records import begun_epoch
from wal_sink.model.ledger import Window
from wal_sink.targets.cassandra.features.totals import Adding, Current, Places, totals
from wal_sink.targets.cassandra.row_plan import ADDED_COLUMN

EPOCHS = ((1, 2), (4,), (8, 16))
"""The rows of one key, by epoch: of their sum each number tells which of them are in it."""
WINDOWS = ((0, 1), (2,))
BASE_US = 100
QUERY = "q"


@dataclass(frozen=True)
class Rules:
    """What is explored; the defaults are the protocol as it is."""

    told: bool = True
    """Off: the table does not say which rows are in a total."""
    by_row: bool = True
    """Off: it says the epoch alone, also of a part of it."""
    fixed: bool = True
    """Off: a total has the time at which it is written."""
    sees: bool = True
    """Off: a read may miss what was acknowledged, as at ONE."""
    drained: bool = True
    """Off: a flusher reads before its earlier write is acknowledged."""


class Cell(NamedTuple):
    """The row of the table; its cells are written together."""

    us: int = -1
    value: int = 0
    added: str | None = None


class Flusher(NamedTuple):
    """Where a flusher is."""

    window: int = -1
    """Which it writes; -1: none."""
    cut: int = 0
    """The next of its cuts of the window's rows."""
    sent: frozenset[Cell] = frozenset()
    """What it has added to what it read, and is not acknowledged."""


class State(NamedTuple):
    """The table, the ledger and the flushers."""

    cells: tuple[Cell, ...] = (Cell(),)
    """What was there, the newest last; all but that only where a read may miss it."""
    flushed: int = 0
    """How many windows."""
    flushers: tuple[Flusher, ...] = (Flusher(), Flusher())
    clock: int = 0


class Row(NamedTuple):
    """A row of the log."""

    us: int
    value: int


def rows_of(window: int) -> list[Row]:
    """Return the rows of a window."""
    rows = []
    us = BASE_US
    for epoch, values in enumerate(EPOCHS):
        if epoch in WINDOWS[window]:
            rows += [Row(us + i, value) for i, value in enumerate(values)]
        us += len(values)
    return rows


def cuts_of(flusher: int, window: int) -> list[list[Row]]:
    """Return how a flusher divides a window: the first takes it as a whole, the second row by row."""
    rows = rows_of(window)
    return [rows] if flusher == 0 else [[row] for row in rows]


def steps(rules: Rules, s: State) -> Iterator[State]:
    """Yield what may come next."""
    for number, flusher in enumerate(s.flushers):
        if flusher.window < 0:
            if s.flushed < len(WINDOWS):
                yield _with(s, number, Flusher(s.flushed))
            continue
        yield _with(s, number, Flusher())  # it dies, and another one comes
        cuts = cuts_of(number, flusher.window)
        for out in flusher.sent:
            yield _written(rules, s, number, out)
        if flusher.cut < len(cuts) and not (flusher.sent and rules.drained):
            for out in _read(rules, s, cuts[flusher.cut]):
                sent = flusher.sent | {out}
                yield _with(s, number, Flusher(flusher.window, flusher.cut + 1, sent))
        elif not flusher.sent:
            done = max(s.flushed, flusher.window + 1)
            yield _with(s._replace(flushed=done), number, Flusher())


def _with(s: State, number: int, flusher: Flusher) -> State:
    flushers = [*s.flushers]
    flushers[number] = flusher
    return s._replace(flushers=tuple(flushers))


def _read(rules: Rules, s: State, rows: list[Row]) -> Iterator[Cell]:
    for held in s.cells if not rules.sees else s.cells[-1:]:
        told = held.added if rules.told else None
        if told and not rules.by_row:
            told = f"{told.rsplit(' ', 1)[0]} 99"
        yield add(held._replace(us=-1, added=told), tuple(rows)) or held


def _written(rules: Rules, s: State, number: int, out: Cell) -> State:
    flusher = s.flushers[number]
    s = _with(s, number, flusher._replace(sent=flusher.sent - {out}))
    if not rules.fixed:
        s = s._replace(clock=s.clock + 1)
        out = out._replace(us=s.clock)
    newest = max(s.cells[-1], out, key=lambda cell: cell[:2])
    return s._replace(cells=(newest,) if rules.sees else (s.cells[-1], newest))


PLAN = plan_of(
    ("k", "partition", "bigint", pa.int64()),
    ("v", "regular", "bigint", pa.int64()),
    added=("v",),
)


@cache
def places() -> Places:
    """Return the places of all rows."""
    us, begun = BASE_US, []
    for epoch, values in enumerate(EPOCHS):
        begun.append(begun_epoch(epoch, base_us=us, rows=len(values)))
        us += len(values)
    return Places(Window(nonce="", begun_us=0, epochs=tuple(begun)))


@cache
def add(held: Cell, rows: tuple[Row, ...]) -> Cell | None:
    """Add rows as a flusher does; None: all of them are in it."""
    batch = pa.record_batch({"k": [7] * len(rows), "v": [row.value for row in rows]})
    found = totals(
        batch,
        np.array([row.us for row in rows]),
        np.zeros(len(rows), np.int64),
        [Current((held.value,), held.added, held.us, held.us)],
        Adding(PLAN, QUERY, (), places()),
    )
    for row, us in zip(found.batch.to_pylist(), found.stamps.tolist(), strict=True):
        return Cell(us, row["v"], row[ADDED_COLUMN])
    return None


PREFIXES = [sum(sum(EPOCHS, ())[:number]) for number in range(len(sum(EPOCHS, ())) + 1)]
"""The total after each row."""
AFTER = [sum(sum(EPOCHS[epoch]) for window in WINDOWS[:n] for epoch in window) for n in range(3)]
"""The total after each window."""


def broken(s: State) -> str:
    """Return which invariant does not hold; empty for none."""
    value = s.cells[-1].value
    if value not in PREFIXES:
        return "a total that no order of rows has"
    if value < AFTER[s.flushed]:
        return "a flushed row is missing"
    return ""


def explore(rules: Rules) -> tuple[int, str]:
    """Visit every state, breadth first; return how many there are, and what is broken in the first such."""
    start = State()
    seen, waiting = {start}, deque([start])
    while waiting:
        state = waiting.popleft()
        if why := broken(state):
            return len(seen), why
        if state.clock > 4:
            continue
        for following in steps(rules, state):
            if following not in seen:
                seen.add(following)
                waiting.append(following)
    return len(seen), ""


def test_rule_27_every_order_of_reads_and_writes_ends_in_the_same_totals() -> None:
    """No row is missing, none is in a total twice, and none is taken back."""
    states, why = explore(Rules())
    assert not why
    covered("totals: states of two flushers, which cut windows otherwise", f"{states}")


@pytest.mark.parametrize(
    ("rules", "why"),
    [
        (Rules(told=False), "no order of rows has"),
        (Rules(by_row=False), "no order of rows has"),
        (Rules(fixed=False), "missing"),
        (Rules(sees=False), "no order of rows has"),
        (Rules(drained=False), "no order of rows has"),
    ],
    ids=["nothing told", "told by epoch", "times of writes", "stale reads", "not drained"],
)
def test_rule_27_is_needed(rules: Rules, why: str) -> None:
    """Each part of it, when it is switched off."""
    states, found = explore(rules)
    assert found, f"{states} states and no counter-example"
    assert why in found

"""A model of TTLs: three rows of one key, written in every order, at every second, any number of times.

`remaining_ttls` of the product computes what is left of a TTL. The rules by which Cassandra merges writes and
hides expired cells are written down here. `Rules` can switch off rules of the product.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pytest

from tests.protocol.cases import covered
from wal_sink.targets.cassandra.row_plan import CassandraRowPlan
from wal_sink.targets.cassandra.statements import TimestampedRows, remaining_ttls

LAST_S = 9
S_US = 1_000_000


@dataclass(frozen=True)
class Rules:
    """The rules that are explored. The defaults are those of the product."""

    fixed: bool = True
    """If False, a TTL begins again each time that its row is written."""
    over: str = "nulls"
    """What is sent of an expired row: `nulls`, `nothing`, `delete`, or `values`."""


class Cell(NamedTuple):
    """A value (None for a deletion), its write timestamp, and the second from which it is a deletion."""

    value: str | None
    us: int
    ends_s: int | None = None

    def at(self, now_s: int) -> str | None:
        """Return the value at a second."""
        return None if self.ends_s is not None and self.ends_s <= now_s else self.value

    def merged(self, other: Cell | None) -> Cell:
        """Return the write that stays: the later one, else a deletion, else the one that expires (later)."""
        return max(self, other or self, key=Cell._rank)

    def _rank(self) -> tuple[int, bool, bool, int]:
        return self.us, self.value is None, self.ends_s is not None, self.ends_s or 0


class Written(NamedTuple):
    """A row of the log. A column that it lacks leaves the cell unchanged."""

    published_s: int
    ttl_s: int | None
    values: dict[str, str]


ROWS = (
    Written(0, None, {"v": "old", "t": "old", "w": "stays"}),
    Written(1, 2, {"v": "short"}),
    Written(2, 4, {"t": "long"}),
)


class State(NamedTuple):
    """The content of the table at a second."""

    now_s: int = 0
    cells: tuple[tuple[str, Cell], ...] = ()
    marker: Cell | None = None
    deleted_us: int = -1
    written: frozenset[int] = frozenset()
    quiet: bool = True
    """True if the second of the last write is over."""

    def seen(self, now_s: int) -> dict[str, str | None]:
        """Return the values that a reader sees; empty for no row."""
        present = self.marker and self.marker.us > self.deleted_us and self.marker.at(now_s)
        values = {name: c.at(now_s) if c.us > self.deleted_us else None for name, c in self.cells}
        return values if present or any(values.values()) else {}


def steps(rules: Rules, s: State) -> Iterator[State]:
    """Yield the next states: a published row is written, or a second passes."""
    if s.now_s < LAST_S:
        yield s._replace(now_s=s.now_s + 1, quiet=True)
    for number, row in enumerate(ROWS):
        if row.published_s <= s.now_s:
            yield write(rules, s, number)


def write(rules: Rules, s: State, number: int) -> State:
    """Write a row as a flusher does."""
    row = ROWS[number]
    us, remaining_s = row.published_s * S_US, None
    if row.ttl_s is not None:
        timestamps_us = np.array([us if rules.fixed else s.now_s * S_US])
        rows = TimestampedRows(pa.record_batch({}), timestamps_us)
        details = CassandraRowPlan(keyspace="ks", table="t", ttl_s=row.ttl_s)
        ttls = remaining_ttls(rows, details, s.now_s)
        assert ttls is not None
        remaining_s = int(ttls[0])
    done = s._replace(written=s.written | {number}, quiet=False)
    over = remaining_s is not None and remaining_s < 1
    if over and rules.over == "nothing":
        return done
    if over and rules.over == "delete":
        return done._replace(deleted_us=max(us, s.deleted_us))
    ends_s = None if remaining_s is None else s.now_s + max(remaining_s, 1)
    cells = dict(s.cells)
    for name, value in row.values.items():
        cell = Cell(None, us) if over and rules.over == "nulls" else Cell(value, us, ends_s)
        cells[name] = cell.merged(cells.get(name))
    marker = Cell("there", us, ends_s).merged(s.marker)
    return done._replace(cells=tuple(sorted(cells.items())), marker=marker)


def broken(s: State) -> str:
    """Return the invariant that does not hold; empty for none."""
    for row in ROWS:
        ends_s = LAST_S + 1 if row.ttl_s is None else row.published_s + row.ttl_s
        if s.now_s >= ends_s and set(row.values.values()) & set(s.seen(s.now_s).values()):
            return "a value outlives its end"
    if s.quiet and len(s.written) == len(ROWS):
        at_once = State()
        for number, row in enumerate(ROWS):
            at_once = write(Rules(), at_once._replace(now_s=row.published_s), number)
        if present(s.seen(s.now_s)) != present(at_once.seen(s.now_s)):
            return "another table than if each had been written at once"
    return ""


def present(row: dict[str, str | None]) -> dict[str, str]:
    """Return the values that are not null."""
    return {name: value for name, value in row.items() if value is not None}


def explore(rules: Rules) -> tuple[int, set[str]]:
    """Visit every state; return their number, and the broken invariants."""
    known, todo, violations = {State()}, deque([State()]), set()
    while todo:
        state = todo.popleft()
        violations.add(broken(state))
        for reached in steps(rules, state):
            if reached not in known:
                known.add(reached)
                todo.append(reached)
    return len(known), violations - {""}


def test_every_order_of_writes_leaves_the_same_table() -> None:
    """Given rows that are written late or again, no value is visible after its end."""
    states, violations = explore(Rules())
    covered("model of TTLs", f"{states:,} states")
    assert violations == set()
    assert states > 200


@pytest.mark.parametrize(
    ("rules", "breaks"),
    [
        (Rules(fixed=False), "a value outlives its end"),
        (Rules(over="values"), "a value outlives its end"),
        (Rules(over="nothing"), "another table than if each had been written at once"),
        (Rules(over="delete"), "another table than if each had been written at once"),
    ],
    ids=["begins-again", "values-when-over", "nothing-when-over", "delete-when-over"],
)
def test_ttl_rule_switched_off_breaks_an_invariant(rules: Rules, breaks: str) -> None:
    assert breaks in explore(rules)[1]

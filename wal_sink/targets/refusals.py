"""Rows that only the server refuses: found by halving, and named. No I/O.

What the target's check refuses is taken out in the tasks: `publish.append`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

from wal_sink.errors import InvalidRow, TargetRefused
from wal_sink.model.plan import Plan
from wal_sink.targets.base import RefusedRow, RowSlice, part_of
from wal_sink.targets.casts import row_text
from wal_sink.targets.sql_text import unquoted

Rows = TypeVar("Rows")
"""Some rows of a window, as a target sends them."""

MOST_REFUSED = 100
"""Most rows of a window that are refused one by one before the server has taken any. Beyond, the table is at
fault."""


class Savepoints(NamedTuple):
    """Statements by which a transaction goes back to before the rows that the server has refused."""

    make: str = "SAVEPOINT wal_sink_rows"
    go_back: str = "ROLLBACK TO SAVEPOINT wal_sink_rows"
    release: str = ""
    """Empty where the database has no such statement, or where it may commit, as in SQLite: there
    the release of the outermost savepoint does, after a driver has connected again without an
    error."""


RELEASED = Savepoints(release="RELEASE SAVEPOINT wal_sink_rows")
"""For a database in which many savepoints of one transaction cost much, such as PostgreSQL."""


class RefusalSearch:
    """Finds the rows of one window that the server refuses; the others are inserted."""

    def __init__(self) -> None:
        self.refused: list[RefusedRow] = []
        self._takes_others = False

    def insert(
        self,
        plan: Plan,
        rows: RowSlice,
        insert: Callable[[RowSlice], Exception | None],
        compare: Callable[[], None],
    ) -> None:
        """Insert rows, but for those that the server refuses.

        :param insert: see `find_refused`.
        :param compare: raises if the table is wrong, and not the rows.
        :raises TargetRefused: none of more than `MOST_REFUSED` rows is taken: the table is at fault.
        """

        def tried(part: RowSlice) -> Exception | None:
            error = insert(part)
            self._takes_others = self._takes_others or error is None
            return error

        refused_so_far = len(self.refused)
        for part, error in find_refused(rows, tried, _halves):
            refused = RefusedRow(part.first_us, refusal(plan, part, error))
            self.refused.append(refused)
            if not self._takes_others and len(self.refused) > MOST_REFUSED:
                raise refused.error
        if len(self.refused) > refused_so_far:
            compare()


def find_refused(
    rows: Rows, send: Callable[[Rows], Exception | None], halves: Callable[[Rows], Sequence[Rows]]
) -> Iterator[tuple[Rows, Exception]]:
    """Send rows in their order, and yield each that is refused by itself; the others are there at the end.

    Of n rows with one that is refused, about twice as many are sent, by twice the logarithm of n.

    :param send: sends rows, all or none; returns with which error they are refused.
    :param halves: returns the two halves of rows; nothing for a single row.
    """
    waiting = [rows]
    while waiting:
        part = waiting.pop()
        error = send(part)
        if error is None:
            continue
        if parts := halves(part):
            waiting += reversed(parts)
        else:
            yield part, error


def _halves(rows: RowSlice) -> list[RowSlice]:
    half, number = rows.batch.num_rows // 2, rows.batch.num_rows
    return [part_of(rows, 0, half), part_of(rows, half, number)] if half else []


def refusal(plan: Plan, rows: RowSlice, error: Exception) -> TargetRefused:
    """Return the error that names the first of some rows, and what the server says of it."""
    others = rows.batch.num_rows - 1
    one_of = f"one of the {others} rows after it, or " if others else ""
    return TargetRefused(
        f"{unquoted(plan.table)} refuses {one_of}a row of epoch {rows.epoch},"
        f" {row_text(rows.batch, plan, 0)}: {_said(error)}",
        error.remedy if isinstance(error, InvalidRow) else "Change in the target what refuses it.",
    )


def _said(error: Exception) -> str:
    """Return what a check or a driver's error says, with column and constraint where that is known."""
    if isinstance(error, InvalidRow):
        return f"{error.what.rstrip('.')}{error.column and f', column {error.column}'}"
    known: Any = getattr(error, "diag", None)  # of psycopg
    parts = [f"{type(error).__name__}: {' '.join(str(error).split())}"]
    for noun in ("column", "constraint"):
        name = getattr(known, f"{noun}_name", None)
        if name and name not in parts[0]:
            parts.append(f"{noun} {name}")
    return ", ".join(parts)

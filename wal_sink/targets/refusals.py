"""Rows that only the server refuses: search by halving, and the error that names a row. No I/O.

Rows that the target's `check` refuses never arrive here: see `publish.append`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

from wal_sink.errors import InvalidRow, TargetRefused
from wal_sink.model.plan import Plan
from wal_sink.targets.base import RefusedRow, RowSlice, part_of
from wal_sink.targets.casts import row_text
from wal_sink.targets.ddl import unquoted

Rows = TypeVar("Rows")
"""Some rows of a window, in the form in which a target sends them."""

MOST_REFUSED = 100
"""The largest number of rows of a window that are refused one by one before the server has accepted any row.
If more are refused, the table is at fault."""


class Savepoints(NamedTuple):
    """Statements that undo the rows of a transaction that the server has refused."""

    make: str = "SAVEPOINT wal_sink_rows"
    go_back: str = "ROLLBACK TO SAVEPOINT wal_sink_rows"
    release: str = ""
    """Empty if the database has no such statement, or if it may commit. In SQLite the release of the
    outermost savepoint commits after a silent reconnect of the driver."""


RELEASED = Savepoints(release="RELEASE SAVEPOINT wal_sink_rows")
"""The statements for a database in which many savepoints of one transaction are expensive, such as
PostgreSQL."""


class RefusalSearch:
    """Inserts the rows of one window, and finds the rows that the server refuses."""

    def __init__(self) -> None:
        self.refused: list[RefusedRow] = []
        self._takes_others = False

    def insert(
        self, plan: Plan, rows: RowSlice, insert: Callable[[RowSlice], Exception | None]
    ) -> None:
        """Insert the rows that the server accepts, and collect the others in `refused`.

        :param insert: inserts all rows of a slice or none. It returns the error of a refusal.
        :raises TargetRefused: the server refused more than `MOST_REFUSED` rows and accepted none.
        """

        def tried(part: RowSlice) -> Exception | None:
            error = insert(part)
            self._takes_others = self._takes_others or error is None
            return error

        for part, error in find_refused(rows, tried, _halves):
            refused = RefusedRow(part.first_us, refusal(plan, part, error))
            self.refused.append(refused)
            if not self._takes_others and len(self.refused) > MOST_REFUSED:
                raise refused.error


def find_refused(
    rows: Rows, send: Callable[[Rows], Exception | None], halves: Callable[[Rows], Sequence[Rows]]
) -> Iterator[tuple[Rows, Exception]]:
    """Send rows in their order, and yield each row that the server refuses alone, with its error.

    At the end the server has all other rows. For one refused row of n, the search sends about 2 n rows in 2
    log2(n) requests.

    :param send: sends all rows or none, and returns the error of a refusal.
    :param halves: returns the two halves of rows. Empty for a single row.
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
    """Return the error that names the first row of a slice, with the server's reason."""
    others = rows.batch.num_rows - 1
    one_of = f"one of the {others} rows after it, or " if others else ""
    return TargetRefused(
        f"{unquoted(plan.table)} refuses {one_of}a row of epoch {rows.epoch},"
        f" {row_text(rows.batch, plan, 0)}: {_said(error)}",
        error.remedy
        if isinstance(error, InvalidRow)
        else "Change the rule of the target that refuses the row.",
    )


def _said(error: Exception) -> str:
    """Return the reason of a check or of a driver's error, with column and constraint if they are known."""
    if isinstance(error, InvalidRow):
        return f"{error.what.rstrip('.')}{error.column and f', column {error.column}'}"
    details: Any = getattr(error, "diag", None)  # set by psycopg
    parts = [f"{type(error).__name__}: {' '.join(str(error).split())}"]
    for noun in ("column", "constraint"):
        name = getattr(details, f"{noun}_name", None)
        if name and name not in parts[0]:
            parts.append(f"{noun} {name}")
    return ", ".join(parts)

"""Rows that the server refuses: the search for them by bisection, and the error that names a row. No I/O.

Rows that a task's check refuses are not in the log, so a flush never sends them.
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
"""Some rows of a window, such as a slice or a request."""

MOST_REFUSED = 100
"""The most rows of a window that may be refused while the server has accepted no row. If the server
refuses more, the table is at fault, and the flush stops."""


class Savepoints(NamedTuple):
    """The statements with which a transaction drops the rows that the server has refused."""

    make: str = "SAVEPOINT wal_sink_rows"
    go_back: str = "ROLLBACK TO SAVEPOINT wal_sink_rows"
    release: str = ""
    """Empty if the database has no such statement, or if the statement may commit. In SQLite it commits
    if the driver has reconnected silently, since the savepoint is then outside of a transaction."""


RELEASED = Savepoints(release="RELEASE SAVEPOINT wal_sink_rows")
"""The statements for a database in which many savepoints of one transaction are expensive, such as
PostgreSQL."""


class RefusalSearch:
    """Inserts the rows of one window, and collects the rows that the server refuses."""

    def __init__(self) -> None:
        self.refused: list[RefusedRow] = []
        self._takes_others = False

    def insert(
        self, plan: Plan, rows: RowSlice, insert: Callable[[RowSlice], Exception | None]
    ) -> None:
        """Insert the rows that the server accepts, and append the other rows to `refused`.

        :param insert: inserts all rows of a slice or none. Returns the error if the server refuses a row.
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
    """Send rows in their order, and yield each row that the server refuses, with its error.

    The server gets all other rows. To find one refused row among n rows, the search sends about 2·n rows in
    2·log2(n) requests.

    :param send: sends all rows or none, and returns the error if the server refuses a row.
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
    """Return the error for refused rows, with the first row of the slice and the server's reason."""
    count = rows.batch.num_rows
    if isinstance(error, InvalidRow) and error.what != error.problem:
        refused = f"a row of epoch {rows.epoch}"  # the text of the reason names the row
    else:
        refused = f"{'a row' if count == 1 else f'one of {count} rows'} of epoch {rows.epoch}"
        refused += f" ({'the first is ' * (count > 1)}{row_text(rows.batch, plan, 0)})"
    return TargetRefused(
        f"{unquoted(plan.table)} refuses {refused}: {_reason(error)}",
        error.remedy
        if isinstance(error, InvalidRow)
        else "Change the rule of the target that refuses the row.",
    )


_WHOLE_ROW = ("23502", "23514")
"""The SQLSTATEs of NOT NULL and CHECK, for which the full text of PostgreSQL's error has the whole row."""


def _reason(error: Exception) -> str:
    """Return the reason of a check or of a driver's error, with column and constraint if they are known."""
    if isinstance(error, InvalidRow):
        return error.what.rstrip(".")
    details: Any = getattr(error, "diag", None)  # set by psycopg
    is_shown = getattr(error, "sqlstate", None) in _WHOLE_ROW
    text = details.message_primary if is_shown else str(error)
    parts = [f"{type(error).__name__}: {' '.join(text.split())}"]
    for noun in ("column", "constraint"):
        name = getattr(details, f"{noun}_name", None)
        if name and name not in parts[0]:
            parts.append(f"{noun} {name}")
    return ", ".join(parts)

"""Rows that only the server refuses: found by halving, and named (rule 24). No I/O.

What the target's check refuses is taken out in the tasks: `publish.append`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from wal_sink.errors import InvalidRow, TargetRefused
from wal_sink.model.ledger import LedgerState, PassedRow, Window
from wal_sink.model.plan import Plan
from wal_sink.targets.base import OnRefused, Slice, part_of
from wal_sink.targets.casts import row_text
from wal_sink.targets.names import unquoted

MOST_REFUSED = 100
"""So many rows of a window are passed over while the server has taken none. Beyond, the table is at fault."""


class Savepoints(NamedTuple):
    """Statements by which a transaction goes back behind rows that the server has refused."""

    make: str = "SAVEPOINT wal_sink_rows"
    go_back: str = "ROLLBACK TO SAVEPOINT wal_sink_rows"
    release: str = "RELEASE SAVEPOINT wal_sink_rows"
    """Empty where the database has no such statement."""


class WindowRefusals:
    """The rows of one window that the server refuses.

    :param report: gets them; None: the first one is raised.
    :param passed: rows of the window that are passed over already.
    """

    def __init__(self, report: OnRefused | None = None, passed: Sequence[PassedRow] = ()) -> None:
        self.report = report
        self.passed = list(passed)
        self._alone = 0
        """How many were refused before the server has taken a row of the window."""
        self._takes_others = False

    def find(
        self,
        plan: Plan,
        rows: Slice,
        window: Window | None,
        insert: Callable[[Slice], Exception | None],
        compare: Callable[[], None],
    ) -> None:
        """Insert rows, and report those that the server refuses.

        :param insert: see `find_refused`.
        :param compare: raises where the table is wrong, and not the rows.
        :raises TargetRefused: a row, where there is no report; or too many, where the server takes none.
        """

        def tried(part: Slice) -> Exception | None:
            error = insert(part)
            self._takes_others = self._takes_others or error is None
            return error

        found: list[tuple[int, TargetRefused]] = []
        for part, error in find_refused(rows, tried):
            found.append((part.first_us, refusal(plan, part, window, error)))
            alone = 0 if self._takes_others else self._alone + len(found)
            if self.report is None or alone > MOST_REFUSED:
                raise found[-1][1]
        if not found or self.report is None:
            return
        compare()
        if not self._takes_others:
            self._alone += len(found)
        for us, why in found:
            self.report(us, why)
            self.passed.append(PassedRow(rows.epoch, us))


def find_refused(
    rows: Slice, insert: Callable[[Slice], Exception | None]
) -> Iterator[tuple[Slice, Exception]]:
    """Insert rows in their order, and yield each that is refused by itself; the others are there at the end.

    Of n rows with one that is refused, about twice as many are inserted, by twice the logarithm of n.

    :param insert: inserts rows, all or none; returns with which error they are refused.
    """
    waiting = [rows]
    while waiting:
        part = waiting.pop()
        error = insert(part)
        if error is None:
            continue
        half = part.batch.num_rows // 2
        if half:
            waiting += [part_of(part, half, part.batch.num_rows), part_of(part, 0, half)]
        else:
            yield part, error


def refusal(plan: Plan, rows: Slice, window: Window | None, error: Exception) -> TargetRefused:
    """Return the error that names the first of some rows, and what the server says of it.

    :param window: in which the row lies; None: it is sent again from quarantine.
    """
    bases = {each.epoch: each.base_us for each in window.epochs} if window else {}
    number = f"row {rows.first_us - bases[rows.epoch]}" if rows.epoch in bases else "a row"
    others = rows.batch.num_rows - 1
    one_of = f"one of the {others} behind it, or " if others else ""
    return TargetRefused(
        f"{unquoted(plan.table)} refuses {one_of}{number} of epoch {rows.epoch},"
        f" {row_text(rows.batch, plan, 0)}: {_said(error)}",
        "Change in the target what refuses it.",
    )


def is_sent(row: PassedRow, note: LedgerState | None, sent: LedgerState, *, noted: bool) -> bool:
    """Whether the table has a row of the quarantine already (rule 24).

    :param note: what the ledger has of it, and `sent`: what it has of one that was sent.
    :param noted: whether a window has passed it over, which leaves a note.
    :raises TargetRefused: the note is lost.
    """
    if note is None and noted:
        raise TargetRefused(
            f"The ledger has no note of a row of epoch {row.epoch}. Either another flusher has finished the"
            " epoch with that row, and the table has it; or the ledger was restored, replaced or made anew,"
            " and the table may lack it",
            "Look for it in the table by its key.",
        )
    return note == sent


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

"""Tests that rows arrive complete, unchanged and once. Every session's suite contains them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait

import msgspec
import pyarrow as pa
import pytest

from wal_sink.errors import SchemaMismatch, TargetRefused
from wal_sink.model.ledger import LedgerRow, Outcome
from wal_sink.model.plan import Plan, plan_key
from wal_sink.targets.base import RowSlice, RowsRefused, Session, Target, without
from wal_sink.testing.contracts.ledger import (
    LedgerContract,
    finish,
    first_row,
    following,
    new_query,
    outcome_of,
    row_of,
)

SCHEMA = pa.schema([("k", pa.string()), ("n", pa.int32()), ("v", pa.int64()), ("t", pa.string())])
"""The columns of most DataFrames in the suites."""

WITH_DOUBLE = SCHEMA.append(pa.field("d", pa.float64()))
"""The columns of the table; `d` is null in most rows."""

Record = tuple[str | None, int | None, int | None, str | None]
DoubleRecord = tuple[str, int, int, str, float]

BASE_US = 1_700_000_000_000_000

ROWS: list[Record] = [("a", 1, 10, "x"), ("b", 2, None, "y")]

EXACT: list[Record] = [
    ("a", -(2**31), -(2**63), ""),
    ("a", 2**31 - 1, 2**63 - 1, None),
    ("a", 0, None, None),
    ("A", 1, 2**53 + 1, " "),
    ("a ", 1, 0, "  blanks at both ends  "),
    (" a", 1, None, "\tlines\r\nand\n"),
    ("e\u0301", 1, -1, "e\u0301 is two characters, \xe9 one, \U0001d11e four bytes"),
    ("\xe9", 1, 1, "NULL"),
    ("'\"`", 1, 2, "\\N \\n '' \"\" `` % %s $1 ? :a {} ;--"),
    ("b", 1, 3, "x" * 99_999 + "y"),
    ("b", 2, 4, "\xe4" * 50_000),
]
"""Rows that a narrow type, a short column, a collation or a wrong escape would change."""

DOUBLES = [0.1, 1 / 3, -123456789.12345679, 5e-324, 1.7976931348623157e308, 2.0**53 + 2]
"""The smallest and the largest double, and some that need 17 digits as text."""

RACERS = 3
_PATIENCE_S = 5.0
"""Seconds for which racing flushers wait for each other."""
_LOCKED_S = 0.3
"""Seconds for which an update may wait for the lock of another session until that session commits."""


class RowsContract(LedgerContract):
    """Tests of the rows. Every session's suite contains them."""

    unwritable_error: type[Exception] = SchemaMismatch
    """The error that `write` or `finish` raises for the rows of `unwritable`."""

    def unwritable(self, target: Target, plan: Plan) -> tuple[Plan, RowSlice]:
        """Return a plan and rows that the target cannot write. By default the table lacks a column."""
        first, *others = plan.columns
        gone = msgspec.structs.replace(first, name="is_gone")
        changed = msgspec.structs.replace(plan, key="another", columns=(gone, *others))
        rows = self.slice(target, plan, ROWS)
        names = [column.name for column in changed.columns]
        return changed, rows._replace(batch=rows.batch.rename_columns(names))

    def frame(self, records: Sequence[Record | DoubleRecord]) -> pa.RecordBatch:
        """Return records as a batch of a DataFrame; a target without a table overrides this.

        :param records: rows with the columns of `SCHEMA`, or rows with the columns of `WITH_DOUBLE`.
        """
        is_wide = bool(records) and len(records[0]) == len(WITH_DOUBLE)
        return arrow_batch(records, WITH_DOUBLE if is_wide else SCHEMA)

    def slice(
        self, target: Target, plan: Plan, records: Sequence[Record], us: int = BASE_US
    ) -> RowSlice:
        """Check records as a task does, and return them as a slice.

        :param us: the write timestamp of the first row, in microseconds.
        """
        return RowSlice(0, target.check(self.frame(records), plan), us)

    @pytest.fixture
    def plan(self, target: Target) -> Plan:
        """Return the plan of a DataFrame with the columns of `SCHEMA`."""
        return agreed(target, self.frame([]).schema)

    def test_values_arrive_unchanged(self, target: Target, plan: Plan, session: Session) -> None:
        """No value is cut, converted or made null, and similar keys stay different."""
        deliver(session, plan, self.slice(target, plan, EXACT))
        assert self.rows(target) == {(k, n): (v, t) for k, n, v, t in EXACT}

    def test_doubles_arrive_unchanged(self, target: Target, session: Session) -> None:
        rows = self.frame([(f"k{n}", n, n, "x", d) for n, d in enumerate(DOUBLES)])
        plan = agreed(target, rows.schema)
        deliver(session, plan, RowSlice(0, target.check(rows, plan), BASE_US))
        assert {n: d for _, n, _, _, d in self.records(target)} == dict(enumerate(DOUBLES))

    def test_many_rows_arrive_once(self, target: Target, plan: Plan, session: Session) -> None:
        """The first window has many slices, one of them without rows. The second window has no slice."""
        slices = [self.slice(target, plan, [])]
        for i in range(25):
            records: list[Record] = [(f"k{n}", 200 * i + n, i, str(i)) for n in range(200)]
            slices.append(self.slice(target, plan, records, us=BASE_US + 200 * i))
        deliver(session, plan, *slices)
        assert self.rows(target) == {
            (f"k{n}", 200 * i + n): (i, str(i)) for i in range(25) for n in range(200)
        }
        deliver(session, plan)
        assert row_of(session).epoch == 1

    def test_rows_of_two_plans_share_a_window(self, target: Target, session: Session) -> None:
        """The query was started again with a new column, and again without it, while epochs were pending."""
        frames = [
            self.frame([("a", 1, 1, "x")]),
            self.frame([("b", 2, 2, "y", 0.5)]),
            self.frame([("c", 3, 3, "z")]),
        ]
        plans = [agreed(target, rows.schema) for rows in frames]
        current = row_of(session)
        for us, (plan, rows) in enumerate(zip(plans, frames, strict=True)):
            session.write(plan, RowSlice(0, target.check(rows, plan), BASE_US + us))
        assert finish(session, current, following(current)) is Outcome.APPLIED
        assert sorted(self.records(target)) == [
            ("a", 1, 1, "x", None),
            ("b", 2, 2, "y", 0.5),
            ("c", 3, 3, "z", None),
        ]

    def test_unwritable_rows_raise_before_finish_has_an_effect(
        self, target: Target, plan: Plan, session: Session, query_id: str
    ) -> None:
        """`write` or `finish` raises, and the ledger row is unchanged. Another session writes the window."""
        rows, current = self.slice(target, plan, ROWS), row_of(session)
        with pytest.raises(self.unwritable_error):
            write_all(session, [(plan, rows), self.unwritable(target, plan), (plan, rows)], current)
        session.close()
        with target.connect(query_id) as other:
            assert other.read() == current
            deliver(other, plan, rows)
        assert self.rows(target) == {("a", 1): (10, "x"), ("b", 2): (None, "y")}

    def test_session_may_close_twice_with_rows_pending(
        self, target: Target, plan: Plan, session: Session, query_id: str
    ) -> None:
        """A flusher closes its session twice before `finish`. The next session writes the window."""
        current, rows = row_of(session), self.slice(target, plan, ROWS)
        session.write(plan, rows)
        session.close()
        session.close()
        with target.connect(query_id) as other:
            assert other.read() == current
            deliver(other, plan, rows)
        assert len(self.rows(target)) == len(ROWS)

    def test_two_simultaneous_updates_are_never_both_applied(
        self, target: Target, plan: Plan, session: Session, query_id: str
    ) -> None:
        """A command and a flusher update the ledger row at the same time. At most one update is applied."""
        with target.connect(query_id) as other, ThreadPoolExecutor(1) as pool:
            current = row_of(other)
            assert row_of(session) == current
            moved, finished = following(current, 7), following(current)
            session.write(plan, self.slice(target, plan, ROWS))
            waiting = pool.submit(outcome_of, target, lambda: finish(other, current, moved))
            wait([waiting], timeout=_LOCKED_S)
            of_flusher = outcome_of(target, lambda: finish(session, current, finished))
            of_command = waiting.result()
        with target.connect(query_id) as third:
            row = row_of(third)
        assert row in (current, moved, finished)
        for outcome, after in ((of_command, moved), (of_flusher, finished)):
            if outcome is not Outcome.UNKNOWN:
                assert (outcome is Outcome.APPLIED) == (row == after)

    def test_racing_flushers_write_a_window_once(self, target: Target, plan: Plan) -> None:
        """Several flushers create the ledger row at the same time, and then write the same window."""
        current = _race(target, plan, None, first_row(new_query()), [])
        _race(target, plan, current, current, [self.slice(target, plan, ROWS)])
        assert self.rows(target) == {("a", 1): (10, "x"), ("b", 2): (None, "y")}


def _race(
    target: Target, plan: Plan, current: LedgerRow | None, start: LedgerRow, slices: list[RowSlice]
) -> LedgerRow:
    """Let `RACERS` sessions write one window at the same time; return the new ledger row.

    :param start: each session moves the ledger row from `current` to a row that follows `start`.
    """
    ready = threading.Barrier(RACERS)

    def flush_alone(new: LedgerRow) -> Outcome:
        with target.connect(new.query_id) as racer:

            def update() -> Outcome:
                try:
                    if racer.read() != current:
                        return Outcome.CONFLICT
                    for rows in slices:
                        racer.write(plan, rows)
                finally:
                    with contextlib.suppress(threading.BrokenBarrierError):
                        ready.wait(_PATIENCE_S)  # a racer may hold a lock that blocks the others
                return finish(racer, current, new)

            return outcome_of(target, update)

    moved = [following(start) for _ in range(RACERS)]
    with ThreadPoolExecutor(RACERS) as pool:
        outcomes = list(pool.map(flush_alone, moved))
    with target.connect(start.query_id) as last:
        row = last.read()
        if row == current:  # the racers blocked each other, so the next session must succeed
            for rows in slices:
                last.write(plan, rows)
            outcomes[0], row = finish(last, current, moved[0]), moved[0]
            assert row_of(last) == row
    assert row in moved
    for new, outcome in zip(moved, outcomes, strict=True):
        if outcome is not Outcome.UNKNOWN:
            assert (outcome is Outcome.APPLIED) == (new == row)
    return row


def arrow_batch(rows: Sequence[tuple[object, ...]], schema: pa.Schema) -> pa.RecordBatch:
    """Return rows as a record batch of a schema."""
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    arrays = [pa.array(c, field.type) for c, field in zip(columns, schema, strict=True)]
    return pa.record_batch(arrays, schema=schema)


def agreed(target: Target, schema: pa.Schema) -> Plan:
    """Return the target's plan of a DataFrame."""
    return target.plan(schema, plan_key(schema, target.name, target.shape))


def deliver(session: Session, plan: Plan, *slices: RowSlice) -> None:
    """Write slices as the next window, and finish the window, as a flusher does."""
    current = row_of(session)
    for rows in slices:
        session.write(plan, rows)
    assert finish(session, current, following(current)) is Outcome.APPLIED


def write_all(
    session: Session, slices: Sequence[tuple[Plan, RowSlice]], current: LedgerRow
) -> None:
    """Write a window and finish it; `write` or `finish` may raise."""
    for plan, rows in slices:
        session.write(plan, rows)
    finish(session, current, following(current))


def write_without_refused(
    target: Target, plan: Plan, rows: RowSlice, current: LedgerRow
) -> dict[int, TargetRefused]:
    """Write a window. After `RowsRefused`, write it again without the refused rows, as a flusher does.

    :return: the error of each refused row, by its write timestamp.
    """
    refused: dict[int, TargetRefused] = {}
    while True:
        with target.connect(current.query_id) as session:
            assert session.read() == current
            try:
                session.write(plan, rows._replace(batch=rows.batch.slice(0, 0)))
                for part in without(rows, refused):
                    session.write(plan, part)
                assert finish(session, current, following(current)) is Outcome.APPLIED
            except RowsRefused as error:
                errors = {row.us: row.error for row in error.rows}
                assert errors, "an error without rows"
                assert not refused.keys() & errors.keys(), (
                    "a row is refused again without being sent"
                )
                refused |= errors
            else:
                return refused

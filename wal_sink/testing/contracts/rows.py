"""Checks that rows arrive, whichever session a target has: a part of every contract suite."""

from __future__ import annotations

import contextlib
import pickle
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait

import msgspec
import pyarrow as pa
import pytest

from wal_sink.errors import SchemaMismatch, TargetUnavailable, WalSinkError
from wal_sink.model.ledger import LedgerRow, Outcome
from wal_sink.model.plan import Plan, plan_key
from wal_sink.targets.base import RowSlice, Session, Target
from wal_sink.testing.contracts.ledger import (
    LedgerContract,
    finish,
    following,
    outcome_of,
    row_of,
)

SCHEMA = pa.schema([("k", pa.string()), ("n", pa.int32()), ("v", pa.int64()), ("t", pa.string())])
"""Columns of the table: k text, n int, v a bigint, t a text."""

WITH_DOUBLE = SCHEMA.append(pa.field("d", pa.float64()))
"""With the last column of the table, d a double, which other rows leave null."""

Record = tuple[str | None, int | None, int | None, str | None]
DoubleRecord = tuple[str, int, int, str, float]
Table = dict[tuple[str, int], tuple[int | None, str | None]]

BASE_US = 1_700_000_000_000_000

ROWS: list[Record] = [("a", 1, 10, "x"), ("b", 2, None, "y")]

EXACT: list[Record] = [
    ("a", -(2**31), -(2**63), ""),
    ("a", 2**31 - 1, 2**63 - 1, None),
    ("A", 1, 2**53 + 1, " "),
    ("a ", 1, 0, "  blanks at both ends  "),
    (" a", 1, None, "\tlines\r\nand\n"),
    ("e\u0301", 1, -1, "e\u0301 is two characters, \xe9 one, \U0001d11e four bytes"),
    ("\xe9", 1, 1, "NULL"),
    ("'\"`", 1, 2, "\\N \\n '' \"\" `` % %s $1 ? :a {} ;--"),
    ("b", 1, 3, "x" * 99_999 + "y"),
    ("b", 2, 4, "\xe4" * 50_000),
]
"""What a type, a column's length, a collation, or a statement that is put together may change."""

DOUBLES = [0.1, 1 / 3, -123456789.12345679, 5e-324, 1.7976931348623157e308, 2.0**53 + 2]
"""What only 17 digits tell from its neighbours; the least and the largest."""

RACERS = 3
_PATIENCE_S = 5.0
"""How long they wait for each other."""
_WAITS_S = 0.3
"""How long an update may wait before the one that it waits for takes effect."""


class RowsContract(LedgerContract, ABC):
    """Part of every contract suite; needs the fixture `target` and `rows`."""

    @abstractmethod
    def rows(self, target: Target) -> Table:
        """Read the whole table by other means than the target."""

    @abstractmethod
    def doubles(self, target: Target) -> list[float | None]:
        """Read column d of the whole table by other means than the target.

        A row may lack it: then null, or no element at all.
        """

    unwritable_error: type[Exception] = SchemaMismatch
    """What `write` or `finish` raises for `unwritable`."""

    def unwritable(self, target: Target, plan: Plan) -> tuple[Plan, RowSlice]:
        """Return rows that the target refuses, with their plan: one of a column that the table has lost."""
        first, *others = plan.columns
        gone = msgspec.structs.replace(first, name="is_gone")
        changed = msgspec.structs.replace(plan, key="another", columns=(gone, *others))
        rows = self.slice(target, plan, ROWS)
        names = [column.name for column in changed.columns]
        return changed, rows._replace(batch=rows.batch.rename_columns(names))

    def frame(self, records: Sequence[Record | DoubleRecord]) -> pa.RecordBatch:
        """Return records as a DataFrame has them; to be overridden where a row is not a table's.

        :param records: of `SCHEMA`, or all of them of `WITH_DOUBLE`.
        """
        return frame(records)

    def slice(
        self, target: Target, plan: Plan, records: Sequence[Record], us: int = BASE_US
    ) -> RowSlice:
        """Make a slice as a task does: checked rows."""
        return RowSlice(0, target.check(self.frame(records), plan), us)

    @pytest.fixture
    def plan(self, target: Target) -> Plan:
        """Return the agreed plan."""
        return _agreed(target, self.frame([]).schema)

    def test_rows_are_written(self, target: Target, plan: Plan, session: Session) -> None:
        """Rows arrive under their keys; one without values is a row all the same."""
        records = [("a", 1, 10, "x"), ("a", 2, None, "y"), ("b", 1, None, None)]
        deliver(session, plan, self.slice(target, plan, records))
        assert self.rows(target) == {
            ("a", 1): (10, "x"),
            ("a", 2): (None, "y"),
            ("b", 1): (None, None),
        }

    def test_values_arrive_as_they_are(self, target: Target, plan: Plan, session: Session) -> None:
        """Nothing becomes null, is cut, or is taken for something else; keys that are alike are different."""
        deliver(session, plan, self.slice(target, plan, EXACT))
        table = self.rows(target)
        for k, n, v, t in EXACT:
            assert table.get((str(k), int(n or 0))) == (v, t)
        assert len(table) == len(EXACT)

    def test_doubles_arrive_as_they_are(self, target: Target, session: Session) -> None:
        """To the last bit."""
        rows = self.frame([(f"k{n}", n, n, "x", d) for n, d in enumerate(DOUBLES)])
        plan = _agreed(target, rows.schema)
        deliver(session, plan, RowSlice(0, target.check(rows, plan), BASE_US))
        stored = [value for value in self.doubles(target) if value is not None]
        assert sorted(stored) == sorted(DOUBLES)

    def test_many_rows_arrive_once(self, target: Target, plan: Plan, session: Session) -> None:
        """What is finished is there: every reader sees all of it."""
        records: list[Record] = [(f"k{i % 37}", i, i * i, str(i)) for i in range(5_000)]
        deliver(session, plan, self.slice(target, plan, records))
        assert self.rows(target) == {(f"k{i % 37}", i): (i * i, str(i)) for i in range(5_000)}

    def test_slice_without_rows_is_written(
        self, target: Target, plan: Plan, session: Session
    ) -> None:
        """A window may have no rows at all; a second `drain` has none either."""
        deliver(session, plan, self.slice(target, plan, []))
        deliver(session, plan)
        assert self.rows(target) == {}
        assert row_of(session).epoch == 1

    def test_many_slices_share_a_window(self, target: Target, plan: Plan, session: Session) -> None:
        """Rows of several calls may be on their way together."""
        slices = []
        for i in range(30):
            records: list[Record] = [(f"k{n}", 50 * i + n, i, str(i)) for n in range(50)]
            slices.append(self.slice(target, plan, records, us=BASE_US + 50 * i))
        deliver(session, plan, *slices)
        assert self.rows(target) == {
            (f"k{n}", 50 * i + n): (i, str(i)) for i in range(30) for n in range(50)
        }

    def test_rows_of_two_plans_share_a_window(self, target: Target, session: Session) -> None:
        """The query got another column while epochs were pending, and lost it again."""
        frames = [
            self.frame([("a", 1, 1, "x")]),
            self.frame([("b", 2, 2, "y", 0.5)]),
            self.frame([("c", 3, 3, "z")]),
        ]
        plans = [_agreed(target, rows.schema) for rows in frames]
        current = row_of(session)
        for us, (plan, rows) in enumerate(zip(plans, frames, strict=True)):
            session.write(plan, RowSlice(0, target.check(rows, plan), BASE_US + us))
        assert finish(session, current, following(current)) is Outcome.APPLIED
        assert self.rows(target) == {("a", 1): (1, "x"), ("b", 2): (2, "y"), ("c", 3): (3, "z")}
        assert [value for value in self.doubles(target) if value is not None] == [0.5]

    @pytest.mark.parametrize("at", [0, 1])
    def test_refused_rows_raise(
        self, target: Target, plan: Plan, session: Session, query_id: str, at: int
    ) -> None:
        """By `finish` at the latest, and it has no effect; another session writes the window again."""
        rows = self.slice(target, plan, ROWS)
        slices = [(plan, rows)]
        slices.insert(at, self.unwritable(target, plan))
        current = row_of(session)
        with pytest.raises(self.unwritable_error):
            write_all(session, slices, current)
        session.close()
        with target.connect(query_id) as other:
            assert other.read() == current
            deliver(other, plan, rows)
        assert self.rows(target) == {("a", 1): (10, "x"), ("b", 2): (None, "y")}

    def test_session_closes_twice_with_rows_pending(
        self, target: Target, plan: Plan, session: Session, query_id: str
    ) -> None:
        """The next session writes the window."""
        current, rows = row_of(session), self.slice(target, plan, ROWS)
        session.write(plan, rows)
        session.close()
        session.close()
        with target.connect(query_id) as other:
            assert other.read() == current
            deliver(other, plan, rows)
        assert len(self.rows(target)) == len(ROWS)

    def test_update_that_waits_compares_what_it_finds(
        self, target: Target, plan: Plan, session: Session, query_id: str
    ) -> None:
        """A flusher has written rows, and an operator's command moves the row: one of them wins."""
        with target.connect(query_id) as other, ThreadPoolExecutor(1) as pool:
            current = row_of(other)
            assert row_of(session) == current
            moved, finished = following(current, 7), following(current)
            session.write(plan, self.slice(target, plan, ROWS))
            waiting = pool.submit(outcome_of, target, lambda: finish(other, current, moved))
            wait([waiting], timeout=_WAITS_S)
            ended = outcome_of(target, lambda: finish(session, current, finished))
            replaced = waiting.result()
        with target.connect(query_id) as third:
            row = row_of(third)
        assert row in (current, moved, finished)
        for outcome, after in ((replaced, moved), (ended, finished)):
            if outcome is not Outcome.UNKNOWN:
                assert (outcome is Outcome.APPLIED) == (row == after)

    def test_one_of_many_racing_flushers_wins(
        self, target: Target, plan: Plan, session: Session, query_id: str
    ) -> None:
        """Flushers that finish one window at once: it counts once, and its rows are in the table once."""
        current, ready = row_of(session), threading.Barrier(RACERS)
        rows = self.slice(target, plan, ROWS)
        session.close()

        def flush_alone(_: int) -> Outcome:
            with target.connect(query_id) as racer:

                def update() -> Outcome:
                    try:
                        if racer.read() != current:
                            return Outcome.CONFLICT
                        racer.write(plan, rows)
                    finally:
                        with contextlib.suppress(threading.BrokenBarrierError):
                            ready.wait(
                                _PATIENCE_S
                            )  # one that holds a lock keeps the others from it
                    return finish(racer, current, following(current))

                return outcome_of(target, update)

        with ThreadPoolExecutor(RACERS) as pool:
            outcomes = list(pool.map(flush_alone, range(RACERS)))
        with target.connect(query_id) as last:
            applied = outcomes.count(Outcome.APPLIED)
            assert applied <= 1
            if row_of(last) == current:  # each has kept the others from it
                assert applied == 0
                deliver(last, plan, rows)
            assert row_of(last).epoch == current.epoch + 1
        assert self.rows(target) == {("a", 1): (10, "x"), ("b", 2): (None, "y")}

    # --- what travels ---

    def test_plan_travels(self, plan: Plan) -> None:
        """A plan pickles, and survives the log."""
        assert pickle.loads(pickle.dumps(plan)) == plan  # noqa: S301 - our own bytes
        assert Plan.from_json(plan.to_json(), "plan") == plan


def frame(records: Sequence[Record | DoubleRecord]) -> pa.RecordBatch:
    """Return records as rows of `SCHEMA`, or of `WITH_DOUBLE`."""
    columns = list(zip(*records, strict=True)) or [()] * len(SCHEMA)
    schema = WITH_DOUBLE if len(columns) == len(WITH_DOUBLE) else SCHEMA
    arrays = [pa.array(c, field.type) for c, field in zip(columns, schema, strict=True)]
    return pa.record_batch(arrays, schema=schema)


def _agreed(target: Target, schema: pa.Schema) -> Plan:
    return target.plan(schema, plan_key(schema, target.name, target.shape))


def deliver(session: Session, plan: Plan, *slices: RowSlice) -> None:
    """Bring slices into the target as a flusher does, as the window after the ledger row."""
    current = row_of(session)
    for rows in slices:
        session.write(plan, rows)
    assert finish(session, current, following(current)) is Outcome.APPLIED


def write_all(
    session: Session, slices: Sequence[tuple[Plan, RowSlice]], current: LedgerRow
) -> None:
    """Write a window, and finish it; whichever raises."""
    for plan, rows in slices:
        session.write(plan, rows)
    finish(session, current, following(current))


@contextlib.contextmanager
def refused(target: Target) -> Iterator[None]:
    """Let the block raise what a flusher would meet by trying again."""
    try:
        yield
    except (AssertionError, WalSinkError) as error:
        if not isinstance(error, TargetUnavailable):
            raise
    except Exception as error:
        if target.classify(error) == "fatal":
            raise

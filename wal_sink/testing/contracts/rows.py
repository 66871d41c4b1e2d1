"""Checks that rows arrive, for a target of any delivery: a part of the contract suite of targets."""

from __future__ import annotations

import pickle
from abc import ABC, abstractmethod
from collections.abc import Sequence

import msgspec
import pyarrow as pa
import pytest

from wal_sink.model.ledger import Outcome, Window
from wal_sink.model.plan import Plan, plan_key
from wal_sink.targets.base import Session, Slice, StagedSession, Target
from wal_sink.targets.offered import TakesOffers
from wal_sink.testing.contracts.ledger import LedgerContract, begun_window, mark_of

SCHEMA = pa.schema([("k", pa.string()), ("n", pa.int32()), ("v", pa.int64()), ("t", pa.string())])
"""Columns of the table: k text, n int, v a bigint, t a text."""

Record = tuple[str | None, int | None, int | None, str | None]
Table = dict[tuple[str, int], tuple[int | None, str | None]]

BASE_US = 1_700_000_000_000_000


class RowsContract(LedgerContract, ABC):
    """Part of every contract suite; needs the fixture `target` and `rows`."""

    @abstractmethod
    def rows(self, target: Target) -> Table:
        """Read the whole table by other means than the target."""

    def frame(self, records: Sequence[Record]) -> pa.RecordBatch:
        """Return records as a DataFrame has them; to be overridden where a row is not a table's."""
        return frame(records)

    def slice(
        self, target: Target, plan: Plan, records: Sequence[Record], us: int = BASE_US
    ) -> Slice:
        """Make a slice as a task does: checked rows."""
        return Slice(0, target.check(self.frame(records), plan), us)

    @pytest.fixture
    def plan(self, target: Target) -> Plan:
        """Return the agreed plan."""
        schema = self.frame([]).schema
        return target.plan(schema, plan_key(schema, target.name, target.shape))

    def test_rows_are_written(self, target: Target, plan: Plan, session: Session) -> None:
        """Rows arrive under their keys; one without values is a row all the same."""
        records = [("a", 1, 10, "x"), ("a", 2, None, "y"), ("b", 1, None, None)]
        deliver(session, plan, self.slice(target, plan, records))
        assert self.rows(target) == {
            ("a", 1): (10, "x"),
            ("a", 2): (None, "y"),
            ("b", 1): (None, None),
        }

    def test_many_rows_arrive_once(self, target: Target, plan: Plan, session: Session) -> None:
        """What is finished is there: every reader sees all of it."""
        records: list[Record] = [(f"k{i % 37}", i, i * i, str(i)) for i in range(5_000)]
        deliver(session, plan, self.slice(target, plan, records))
        assert self.rows(target) == {(f"k{i % 37}", i): (i * i, str(i)) for i in range(5_000)}

    def test_an_empty_slice_is_written(self, target: Target, plan: Plan, session: Session) -> None:
        """A batch without rows is no error."""
        deliver(session, plan, self.slice(target, plan, []))
        assert self.rows(target) == {}

    def test_many_slices_share_a_window(self, target: Target, plan: Plan, session: Session) -> None:
        """Rows of several calls may be on their way together; after `drain` none is."""
        slices = []
        for i in range(30):
            records: list[Record] = [(f"k{n}", 50 * i + n, i, str(i)) for n in range(50)]
            slices.append(self.slice(target, plan, records, us=BASE_US + 50 * i))
        deliver(session, plan, *slices)
        assert self.rows(target) == {
            (f"k{n}", 50 * i + n): (i, str(i)) for i in range(30) for n in range(50)
        }

    def test_there_may_be_nothing_to_drain(self, target: Target, session: Session) -> None:
        """A window without rows, and a second `drain`."""
        session.begin(window := begun_window(0, rows=0))
        session.start(window)
        session.drain()
        session.drain()
        assert session.finish(window) is Outcome.APPLIED
        assert self.rows(target) == {}

    # --- what travels ---

    def test_the_plan_travels(self, plan: Plan) -> None:
        """A plan pickles, and survives the log."""
        assert pickle.loads(pickle.dumps(plan)) == plan  # noqa: S301 - our own bytes
        assert Plan.from_json(plan.to_json(), "plan") == plan

    def test_an_unknown_error_is_fatal(self, target: Target) -> None:
        """An unknown error stops the flush; it is never retried in silence."""
        assert target.classify(ValueError("never seen")) == "fatal"


def frame(records: Sequence[Record]) -> pa.RecordBatch:
    """Return records as rows of `SCHEMA`."""
    columns = list(zip(*records, strict=True)) or [()] * len(SCHEMA)
    arrays = [pa.array(c, field.type) for c, field in zip(columns, SCHEMA, strict=True)]
    return pa.record_batch(arrays, schema=SCHEMA)


def offer(session: Session, plan: Plan, *slices: Slice) -> None:
    """Offer slices for the next `begin`; a session may take no offers."""
    if isinstance(session, TakesOffers):
        session.offer((plan, each) for each in slices)


def deliver(session: Session, plan: Plan, *slices: Slice, known: bool = False) -> None:
    """Bring slices into the target as a flusher does, as the window after the mark.

    :param known: begin it by `replace_row`, as a flusher that has not read the row just now.
    """
    rows = sum(each.batch.num_rows for each in slices)
    mark = mark_of(session)
    window = begun_window(mark.flushed + 1, rows)
    if known:
        new = msgspec.structs.replace(mark, begun=window)
        assert session.replace_row(mark, new) is Outcome.APPLIED
    else:
        assert session.begin(window) is Outcome.APPLIED
    session.start(window)
    for each in slices:
        session.write(plan, each)
    assert finish(session, window, drained(session)) is Outcome.APPLIED


def drained(session: Session) -> tuple[bytes, ...]:
    """Drain; return the receipts, none where rows are not staged."""
    return session.drain() or ()


def finish(session: Session, window: Window, receipts: Sequence[bytes]) -> Outcome:
    """Finish, with the receipts where rows are staged."""
    if isinstance(session, StagedSession):
        return session.finish(window, receipts)
    return session.finish(window)

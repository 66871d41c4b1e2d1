"""Tests of the ledger row (guarantees 1 and 2 of `wal_sink.targets.base`), a part of every suite."""

from __future__ import annotations

import contextlib
import hashlib
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence

import pytest

from wal_sink.errors import TargetUnavailable, WalSinkError
from wal_sink.model.ledger import LedgerRow, Outcome
from wal_sink.model.plan import Plan
from wal_sink.targets.base import Session, StagedSession, Target

Stored = tuple[str, int, int | None, str | None, float | None]
"""A row of the table: k, n, v, t and d."""

Table = dict[tuple[str, int], tuple[int | None, str | None]]
"""The rows of the table without d: (v, t) by (k, n)."""


def new_query() -> str:
    """Return the id of a query that has no ledger row."""
    return str(uuid.uuid4())


def first_row(query_id: str, epoch: int = -1) -> LedgerRow:
    """Return the ledger row of a query whose last flushed epoch is `epoch`."""
    return LedgerRow(query_id, "log", epoch, "")


def following(row: LedgerRow, epochs: int = 1) -> LedgerRow:
    """Return the ledger row after `epochs` more epochs. Each call returns another digest."""
    digest = hashlib.sha256(uuid.uuid4().bytes).hexdigest()
    return row._replace(epoch=row.epoch + epochs, digest=digest, sending=0)


def create(session: Session, query_id: str, epoch: int = -1) -> LedgerRow:
    """Return the ledger row of a query; create it if there is none."""
    row = session.read()
    if row is None:
        row = first_row(query_id, epoch)
        assert finish(session, None, row) is Outcome.APPLIED
    return row


def finish(
    session: Session, current: LedgerRow | None, new: LedgerRow, receipts: Sequence[bytes] = ()
) -> Outcome:
    """Call `finish` of any session; a `StagedSession` gets the receipts."""
    if isinstance(session, StagedSession):
        return session.finish(current, new, receipts)
    return session.finish(current, new)  # type: ignore[attr-defined,no-any-return]


def row_of(session: Session) -> LedgerRow:
    """Read the ledger row, which must exist."""
    row = session.read()
    assert row is not None
    return row


@contextlib.contextmanager
def tolerate_retried_errors(target: Target) -> Iterator[None]:
    """Suppress `TargetUnavailable`, and errors of the driver that a flusher retries."""
    try:
        yield
    except (AssertionError, WalSinkError) as error:
        if not isinstance(error, TargetUnavailable):
            raise
    except Exception as error:
        if target.classify(error) == "fatal":
            raise


def outcome_of(target: Target, update: Callable[[], Outcome]) -> Outcome:
    """Return the outcome of an update. An error that a flusher retries counts as CONFLICT."""
    outcome = Outcome.CONFLICT
    with tolerate_retried_errors(target):
        outcome = update()
    return outcome  # noqa: RET504 -- the block may have raised


class Suite(ABC):
    """The base of every suite. The author writes the fixture `target` and the method `records`."""

    @abstractmethod
    def records(self, target: Target) -> Sequence[Stored]:
        """Read all rows (k, n, v, t, d), not by the target. A row that the table has twice comes twice."""

    def rows(self, target: Target) -> Table:
        """Return the rows by (k, n). Fail if two rows have the same (k, n)."""
        records = self.records(target)
        table: Table = {(k, n): (v, t) for k, n, v, t, *_ in records}
        assert len(table) == len(records), "rows are doubled"
        return table

    @pytest.fixture
    def query_id(self) -> str:
        """Return the id of a new query."""
        return new_query()

    @pytest.fixture
    def session(self, target: Target, plan: Plan, query_id: str) -> Iterator[Session]:
        """Return a session of a new query, whose ledger row exists and has epoch -1."""
        assert plan.target == target.name
        with target.connect(query_id) as session:
            create(session, query_id)
            yield session


class LedgerContract(Suite):
    """Tests of the ledger row. Every session's suite contains them."""

    @pytest.mark.usefixtures("plan")
    def test_ledger_row_is_created_once(self, target: Target, query_id: str) -> None:
        """A new query has no row. An update creates no row. Of two creates, one is applied."""
        first, second = following(first_row(query_id, 6)), first_row(query_id, 41)
        with target.connect(query_id) as session, target.connect(query_id) as other:
            assert session.read() is None
            assert finish(session, second, following(second)) is Outcome.CONFLICT
            assert session.read() is None
            assert finish(session, None, first) is Outcome.APPLIED
            assert outcome_of(target, lambda: finish(other, None, second)) is Outcome.CONFLICT
            assert finish(session, None, second) is Outcome.CONFLICT
            assert session.read() == other.read() == first
        with target.connect(new_query()) as another:
            assert another.read() is None

    def test_ledger_row_is_replaced_as_a_whole(
        self, target: Target, session: Session, query_id: str
    ) -> None:
        """A new row may differ from the ledger row in all cells, in some, or in none.

        Each update returns APPLIED, even if the driver reports that no row was changed.
        """
        row, last = row_of(session), following(row_of(session), 3)
        for new in (
            following(row, 3),
            following(row, 3)._replace(log_id=uuid.uuid4().hex, epoch=2**40, sending=12_345),
            row._replace(log_id="Another log"),
            last,
            last,
        ):
            assert finish(session, row_of(session), new) is Outcome.APPLIED
            with target.connect(query_id) as other:
                assert other.read() == new

    def test_update_with_another_expected_cell_is_not_applied(self, session: Session) -> None:
        """An update is not applied if its expected row differs from the ledger row in one cell."""
        present = following(row_of(session))._replace(sending=2)
        assert finish(session, row_of(session), present) is Outcome.APPLIED
        for current in (
            present._replace(epoch=3),
            present._replace(log_id="another"),
            present._replace(log_id="LOG"),  # some collations ignore case
            present._replace(digest="another"),
            present._replace(digest=""),
            present._replace(sending=3),
            present._replace(sending=0),
        ):
            assert finish(session, current, following(current)) is Outcome.CONFLICT, current
            assert session.read() == present
        assert finish(session, present, following(present)) is Outcome.APPLIED

    def test_second_update_of_the_same_ledger_row_conflicts(
        self, target: Target, session: Session, query_id: str
    ) -> None:
        """Two sessions read the ledger row and update it. The second update is a conflict."""
        with target.connect(query_id) as late:
            current = row_of(late)
            new = following(current)
            assert finish(session, current, new) is Outcome.APPLIED
            outcome = outcome_of(target, lambda: finish(late, current, following(current)))
            assert outcome is Outcome.CONFLICT
            assert late.read() == session.read() == new
            assert finish(late, new, following(new)) is Outcome.APPLIED

    def test_unknown_error_is_fatal(self, target: Target) -> None:
        """An error that the target does not know must stop the flush, which would otherwise retry forever."""
        assert target.classify(ValueError("never seen")) == "fatal"

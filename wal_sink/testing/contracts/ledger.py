"""Checks a target's ledger row, guarantees 1 and 2: a part of every contract suite."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from wal_sink.errors import TargetUnavailable
from wal_sink.model.ledger import LedgerRow, Outcome
from wal_sink.model.plan import Plan
from wal_sink.targets.base import Session, StagedSession, Target

__all__ = ["LedgerContract", "create", "finish", "following", "new_query", "row_of"]

RACERS = 4


def new_query() -> str:
    """Return the id of a query that the ledger does not know."""
    return str(uuid.uuid4())


def first_row(query_id: str, epoch: int = -1) -> LedgerRow:
    """Return the ledger row of a query that starts after an epoch."""
    return LedgerRow(query_id, "log", epoch, "")


def following(row: LedgerRow, epochs: int = 1) -> LedgerRow:
    """Return the row after some more epochs; each call returns another manifest's digest."""
    digest = hashlib.sha256(uuid.uuid4().bytes).hexdigest()
    return row._replace(epoch=row.epoch + epochs, digest=digest, sending=0)


def create(session: Session, query_id: str, epoch: int = -1) -> LedgerRow:
    """Create the ledger row of a query, unless it has one; return the row."""
    row = session.read()
    if row is None:
        row = first_row(query_id, epoch)
        assert finish(session, None, row) is Outcome.APPLIED
    return row


def finish(
    session: Session, current: LedgerRow | None, new: LedgerRow, receipts: Sequence[bytes] = ()
) -> Outcome:
    """Call `finish` of a session, with receipts where rows are staged."""
    if isinstance(session, StagedSession):
        return session.finish(current, new, receipts)
    return session.finish(current, new)  # type: ignore[attr-defined,no-any-return]


def row_of(session: Session) -> LedgerRow:
    """Read the ledger row, which has to exist."""
    row = session.read()
    assert row is not None
    return row


def outcome_of(target: Target, update: Callable[[], Outcome]) -> Outcome:
    """Return the outcome of an update; a transient error says that it had no effect."""
    try:
        return update()
    except TargetUnavailable:
        return Outcome.CONFLICT
    except Exception as error:
        if target.classify(error) == "fatal":
            raise
        return Outcome.CONFLICT


class SessionFixtures:
    """Part of every contract suite; needs its fixtures `target` and `plan`."""

    @pytest.fixture
    def query_id(self) -> str:
        """Return the key of a ledger row that no other test uses."""
        return new_query()

    @pytest.fixture
    def session(self, target: Target, plan: Plan, query_id: str) -> Iterator[Session]:
        """Connect, with the ledger row of a query that starts at epoch 0."""
        assert plan.target == target.name
        with target.connect(query_id) as session:
            create(session, query_id)
            yield session


class LedgerContract(SessionFixtures):
    """Part of the suite of every kind of session."""

    @pytest.mark.usefixtures("plan")
    def test_ledger_row_is_created_once(self, target: Target, query_id: str) -> None:
        """A query that is new to the target has no row."""
        first, second = following(first_row(query_id, 6)), first_row(query_id, 41)
        with target.connect(query_id) as session, target.connect(query_id) as other:
            assert session.read() is None
            assert finish(session, None, first) is Outcome.APPLIED
            assert outcome_of(target, lambda: finish(other, None, second)) is Outcome.CONFLICT
            assert finish(session, None, second) is Outcome.CONFLICT
            assert session.read() == other.read() == first

    def test_ledger_row_is_replaced_whole(
        self, target: Target, session: Session, query_id: str
    ) -> None:
        """Every cell changes, up and down; another session reads each row."""
        row = row_of(session)
        for new in (
            following(row, 3),
            following(row, 3)._replace(log_id=uuid.uuid4().hex, epoch=2**40, sending=12_345),
            row._replace(log_id="Another log"),
            following(row, 3),
        ):
            assert finish(session, row_of(session), new) is Outcome.APPLIED
            with target.connect(query_id) as other:
                assert other.read() == new

    @pytest.mark.parametrize(
        "changed",
        [
            {"epoch": 3},
            {"log_id": "another"},
            {"log_id": "LOG"},  # a collation may ignore upper and lower case
            {"digest": "another"},
            {"digest": ""},
            {"sending": 3},
            {"sending": 0},
        ],
        ids=str,
    )
    def test_row_with_another_cell_is_not_replaced(
        self, session: Session, changed: dict[str, object]
    ) -> None:
        """Each cell counts: the row was moved since it was read."""
        first = row_of(session)
        present = following(first)._replace(sending=2)
        assert finish(session, first, present) is Outcome.APPLIED
        current = present._replace(**changed)  # type: ignore[arg-type]
        assert finish(session, current, following(current)) is Outcome.CONFLICT
        assert session.read() == present
        assert finish(session, present, following(present)) is Outcome.APPLIED

    def test_ledger_row_is_replaced_by_itself(self, session: Session) -> None:
        """Nothing changes: a driver may count changed rows only."""
        row = row_of(session)
        assert finish(session, row, row) is Outcome.APPLIED
        assert session.read() == row

    @pytest.mark.usefixtures("plan")
    def test_ledger_row_that_is_gone_stays_gone(self, target: Target, query_id: str) -> None:
        """An update creates no row."""
        current = first_row(query_id, 1)
        with target.connect(query_id) as session:
            assert session.read() is None
            assert finish(session, current, following(current)) is Outcome.CONFLICT
            assert session.read() is None

    def test_ledger_row_moves_once_from_a_row(
        self, target: Target, session: Session, query_id: str
    ) -> None:
        """A session that has read the row before another one moved it has a conflict."""
        with target.connect(query_id) as late:
            current = row_of(late)
            new = following(current)
            assert finish(session, current, new) is Outcome.APPLIED
            outcome = outcome_of(target, lambda: finish(late, current, following(current)))
            assert outcome is Outcome.CONFLICT
            assert late.read() == session.read() == new
            assert finish(late, new, following(new)) is Outcome.APPLIED

    @pytest.mark.parametrize("creates", [True, False])
    def test_one_of_many_racing_updates_wins(
        self, target: Target, session: Session, *, creates: bool
    ) -> None:
        """From one row, or from none: one takes effect at most, and its answer says so."""
        query_id = new_query() if creates else row_of(session).query_id
        for _ in range(2):
            current = None if creates else row_of(session)
            rows = [following(current or first_row(query_id)) for _ in range(RACERS)]

            update = partial(_alone, target, current)
            with ThreadPoolExecutor(RACERS) as pool:
                outcomes = list(pool.map(update, rows))
            assert outcomes.count(Outcome.APPLIED) <= 1
            with target.connect(query_id) as reader:
                row = reader.read()
            if row == current:  # each has kept the others from it: the next one to try wins
                assert Outcome.APPLIED not in outcomes
                outcomes[0], row = update(rows[0]), rows[0]
            assert row in rows
            for new, outcome in zip(rows, outcomes, strict=True):
                if outcome is not Outcome.UNKNOWN:
                    assert (outcome is Outcome.APPLIED) == (new == row)
            query_id = new_query() if creates else query_id

    def test_queries_have_rows_of_their_own(self, target: Target, session: Session) -> None:
        """Neither reads or moves the other's."""
        row = row_of(session)
        with target.connect(new_query()) as other:
            assert other.read() is None
            moved = row._replace(query_id=new_query())
            assert finish(other, moved, following(moved)) is Outcome.CONFLICT
        assert session.read() == row

    def test_unknown_error_is_fatal(self, target: Target) -> None:
        """The flush says that it stops; it is never tried again in silence."""
        assert target.classify(ValueError("never seen")) == "fatal"


def _alone(target: Target, current: LedgerRow | None, new: LedgerRow) -> Outcome:
    """Move the row over a session of its own."""

    def update() -> Outcome:
        with target.connect(new.query_id) as session:
            session.read()
            return finish(session, current, new)

    return outcome_of(target, update)

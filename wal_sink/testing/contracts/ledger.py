"""Checks a target's ledger, guarantees 1 and 2: one suite for every update of the row.

What the row says next is decided by `protocol.ledger`, which the suite asks as a flusher does.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial

import msgspec
import pytest

from wal_sink.errors import TargetUnavailable
from wal_sink.model.ledger import BegunEpoch, LedgerState, Outcome, Owner, Window
from wal_sink.model.plan import Plan
from wal_sink.protocol import ledger
from wal_sink.targets.base import Session, StagedSession, Target, TransactionalSession

_BASE_US = 1_700_000_000_000_000
_OWNER = Owner("", "log", "file:///checkpoint")
_RACERS = 6
_CLOCKS_DIFFER_US = 60_000_000
_WAITS_S = 0.3
"""How long an update may be on its way before the one that it waits for takes effect."""
WINDOW_EPOCHS = 64
"""Of a window; their JSON has 32 kB at most."""


def new_owner() -> Owner:
    """Return the owner of a ledger row that no other test uses."""
    return Owner(str(uuid.uuid4()), uuid.uuid4().hex, "file:///checkpoint")


class SessionFixtures:
    """Part of every contract suite; needs its fixtures `target` and `plan`."""

    @pytest.fixture
    def owner(self) -> Owner:
        """Return the owner of a ledger row that no other test uses."""
        return new_owner()

    @pytest.fixture
    def session(self, target: Target, plan: Plan, owner: Owner) -> Iterator[Session]:
        """Connect, with the ledger row of a query that starts at epoch 0."""
        assert plan.target == target.name
        with target.connect(owner) as session:
            create(session, owner=owner)
            yield session


class LedgerContract(SessionFixtures):
    """Part of the suite of every delivery."""

    @pytest.mark.usefixtures("plan")
    def test_the_ledger_row_is_created_once(self, target: Target, owner: Owner) -> None:
        """A query that is new to the target has no row; the first update makes it, with all of its fields."""
        window = begun_window(7)
        first, second = _state(owner, 6, begun=window), _state(owner, 41)
        with target.connect(owner) as session:
            assert session.read_ledger() is None
            assert session.compare_and_set(None, first) is Outcome.APPLIED
            assert session.compare_and_set(None, second) is Outcome.CONFLICT
            assert session.read_ledger() == first
            session.start(window)
            assert commit(session, first) is Outcome.APPLIED

    def test_a_row_is_replaced_whole(self, target: Target, session: Session, owner: Owner) -> None:
        """Every field, and to and from nothing begun; other sessions read each row."""
        there = row_of(session)
        window, elsewhere = (
            begun_window(0, rows=3),
            Owner(owner.query_id, "another", "file:///moved"),
        )
        for new in (
            msgspec.structs.replace(there, begun=window),
            _state(elsewhere, 7, last=window),
            _state(elsewhere, 7, begun=begun_window(8), last=window),
            _state(owner, 0),
        ):
            assert session.compare_and_set(there, new) is Outcome.APPLIED
            with target.connect(owner) as other:
                assert other.read_ledger() == new
            there = row_of(session)

    def test_the_longest_windows_are_kept_whole(self, session: Session) -> None:
        """Both that the row holds, `begun` and `last`, at once; and they are compared whole."""
        windows = [_long_window(0), _long_window(WINDOW_EPOCHS)]
        for window in windows:
            assert begin(session, window) is Outcome.APPLIED
            seen = row_of(session)
            assert seen.begun == window
            assert session.compare_and_set(seen, seen) is Outcome.APPLIED
            session.start(window)
            assert finish(session, window) is Outcome.APPLIED
            assert row_of(session).last == window

    @pytest.mark.parametrize("last_update", [False, True])
    @pytest.mark.parametrize(
        "other",
        [
            {"flushed": 3},
            {"last_us": 3},
            {"log_id": "another"},
            {"checkpoint": "file:///another"},
            {"checkpoint": "file:///CHECKPOINT"},  # a collation may ignore upper and lower case
            {"begun": None},
            {"last": None},
        ],
    )
    def test_a_row_that_was_not_seen_is_not_replaced(
        self, session: Session, owner: Owner, other: dict[str, object], *, last_update: bool
    ) -> None:
        """Each field counts, for each kind of update: the row was moved since it was read."""
        for epoch in (0, 1):
            begin(session, window := begun_window(epoch))
            session.start(window)
            if epoch == 0:
                finish(session, window)
        present = row_of(session)
        seen = msgspec.structs.replace(present, **other)
        if last_update and seen.begun is not None:
            assert commit(session, seen) is Outcome.CONFLICT
        else:
            assert session.compare_and_set(seen, _state(owner, 9)) is Outcome.CONFLICT
        assert session.read_ledger() == present

    def test_a_row_is_replaced_by_itself(self, session: Session) -> None:
        """It was as it was seen, though nothing changes: a driver may count changed rows only."""
        begin(session, begun_window(0))
        seen = row_of(session)
        assert session.compare_and_set(seen, seen) is Outcome.APPLIED
        assert session.read_ledger() == seen

    @pytest.mark.usefixtures("plan")
    def test_a_lost_row_is_not_replaced(self, target: Target, owner: Owner) -> None:
        """Neither a flusher's update nor an operator's makes it anew."""
        with target.connect(owner) as session:
            outcome = session.compare_and_set(_state(owner, 1), _state(owner, 2))
            assert outcome is Outcome.CONFLICT
            session.start(window := begun_window(0))
            assert finish(session, window) is Outcome.CONFLICT
            assert session.read_ledger() is None

    def test_another_window_is_not_finished(self, session: Session) -> None:
        """Only the one that is begun, and once."""
        session.start(window := begun_window(0))
        assert finish(session, window) is Outcome.CONFLICT
        begin(session, window)
        session.start(other := begun_window(0))
        assert finish(session, other) is Outcome.CONFLICT
        session.start(window)
        seen = row_of(session)
        assert commit(session, seen) is Outcome.APPLIED
        session.start(window)
        assert commit(session, seen) is Outcome.CONFLICT

    def test_of_many_updates_one_wins(self, target: Target, session: Session, owner: Owner) -> None:
        """Of many that race from one row, one takes effect at most, and answers so."""
        for epoch in range(3):
            windows = [begun_window(epoch) for _ in range(_RACERS)]
            seen = row_of(session)
            states = [msgspec.structs.replace(seen, begun=window) for window in windows]
            with ThreadPoolExecutor(_RACERS) as pool:
                outcomes = list(pool.map(partial(_alone, target, owner, seen), states))
            assert outcomes.count(Outcome.APPLIED) <= 1
            there = row_of(session)
            if there == seen:  # each has kept another one from it: the next one to try wins
                assert Outcome.APPLIED not in outcomes
                outcomes[0] = _alone(target, owner, seen, states[0])
                there = row_of(session)
            assert there in states
            for new, outcome in zip(states, outcomes, strict=True):
                if outcome is not Outcome.UNKNOWN:
                    assert (outcome is Outcome.APPLIED) == (new == there)
            assert there.begun is not None
            with target.connect(owner) as last:  # one of them may have shut the others out
                last.start(there.begun)
                assert commit(last, there) is Outcome.APPLIED

    def test_an_update_that_waits_is_compared_with_what_it_waited_for(
        self, target: Target, session: Session, owner: Owner
    ) -> None:
        """A flusher holds the row, and an operator's command comes in the middle: one of them has its way."""
        begin(session, window := begun_window(0))
        session.start(window)
        seen = row_of(session)
        moved, finished = _state(owner, 7), ledger.finish(seen)
        with target.connect(owner) as other, ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(outcome_of, target, lambda: other.compare_and_set(seen, moved))
            wait([waiting], timeout=_WAITS_S)
            committed = outcome_of(target, lambda: commit(session, seen))
            replaced = waiting.result()
        with target.connect(owner) as third:
            row = row_of(third)
        assert row in (seen, moved, finished)
        for outcome, after in ((replaced, moved), (committed, finished)):
            if outcome is not Outcome.UNKNOWN:
                assert (outcome is Outcome.APPLIED) == (row == after)

    def test_queries_do_not_share_a_row(self, target: Target, session: Session) -> None:
        """Each query has a ledger row of its own."""
        begin(session, begun_window(0))
        with target.connect(Owner(str(uuid.uuid4()), "other", "file:///other")) as other:
            assert other.read_ledger() is None

    def test_a_second_session_goes_on(self, target: Target, session: Session, owner: Owner) -> None:
        """A row is linearizable over sessions."""
        begin(session, window := begun_window(0))
        with target.connect(owner) as other:
            assert row_of(other).begun == window
            other.start(window)
            assert finish(other, window) is Outcome.APPLIED
        assert row_of(session).flushed == 0

    def test_a_session_closes_twice(self, target: Target, session: Session, owner: Owner) -> None:
        """Whether or not a window is under way; the next session goes on."""
        begin(session, window := begun_window(0))
        session.start(window)
        session.close()
        session.close()
        with target.connect(owner) as other:
            assert row_of(other).begun == window

    def test_when_the_row_was_written_is_past(self, session: Session) -> None:
        """Where the target can tell at all: a time of the future is what `LedgerShadowed` is about."""
        written = session.written_us()
        assert written is None or abs(written - time.time_ns() // 1_000) < _CLOCKS_DIFFER_US

    def test_the_targets_clock_goes(self, session: Session) -> None:
        """Where it has one: it is near this host's, and goes on."""
        first = session.now_us()
        if first is None:
            return  # rows are then dated by the flusher's clock alone
        assert abs(first - time.time_ns() // 1_000) < _CLOCKS_DIFFER_US
        time.sleep(0.05)
        then = session.now_us()
        assert then is not None
        assert 20_000 < then - first < _CLOCKS_DIFFER_US


def create(session: Session, flushed: int = -1, owner: Owner = _OWNER) -> Outcome:
    """Create the ledger row, unless there is one."""
    return session.compare_and_set(None, ledger.create(owner, flushed))


def begin(session: Session, window: Window) -> Outcome:
    """Begin a window, as a flusher that takes the epoch before it for flushed."""
    seen = _taken_for(session, window, None)
    return session.compare_and_set(seen, ledger.begin(seen, window))


def finish(session: Session, window: Window, receipts: Sequence[bytes] = ()) -> Outcome:
    """Finish a window, as a flusher that takes it for begun; with the receipts where rows are staged."""
    return commit(session, _taken_for(session, window, window), receipts)


def commit(session: Session, seen: LedgerState, receipts: Sequence[bytes] = ()) -> Outcome:
    """Finish the window that a row has begun, as the delivery asks for."""
    new = ledger.finish(seen)
    match session:
        case StagedSession():
            return session.commit(seen, new, receipts)
        case TransactionalSession():
            return session.commit(seen, new)
    return session.compare_and_set(seen, new)


def _taken_for(session: Session, window: Window, begun: Window | None) -> LedgerState:
    there = session.read_ledger() or ledger.create(_OWNER, -1)
    return msgspec.structs.replace(there, flushed=window.first - 1, begun=begun)


def row_of(session: Session) -> LedgerState:
    """Read the ledger row, which has to be there."""
    row = session.read_ledger()
    assert row is not None
    return row


def begun_window(epoch: int, rows: int = 1) -> Window:
    """Make a window of one epoch."""
    begun = BegunEpoch(
        epoch=epoch,
        generation=1,
        manifest=f"manifests/{epoch}",
        digest="d",
        offsets_digest="o",
        base_us=_BASE_US + epoch * 1_000,
        rows=rows,
        bytes=rows * 10,
        published_us=_BASE_US,
    )
    return Window(nonce=uuid.uuid4().hex, begun_us=_BASE_US, epochs=(begun,))


def _long_window(first: int) -> Window:
    """Make a window of as many epochs as there may be, with long names: some 500 bytes for each."""
    epochs = []
    for epoch in range(first, first + WINDOW_EPOCHS):
        (short,) = begun_window(epoch).epochs
        digest = uuid.uuid4().hex * 2
        name = f"manifests/{epoch:020}-{uuid.uuid4().hex}-{'x' * 140}.json"
        epochs.append(
            msgspec.structs.replace(short, manifest=name, digest=digest, offsets_digest=digest)
        )
    window = Window(nonce=uuid.uuid4().hex, begun_us=_BASE_US, epochs=tuple(epochs))
    assert 30_000 < len(window.to_text()) < 32_768
    return window


def _state(
    owner: Owner, flushed: int, begun: Window | None = None, last: Window | None = None
) -> LedgerState:
    return LedgerState(
        log_id=owner.log_id,
        checkpoint=owner.checkpoint,
        flushed=flushed,
        last_us=_BASE_US - 1,
        begun=begun,
        last=last,
    )


def _alone(target: Target, owner: Owner, seen: LedgerState, new: LedgerState) -> Outcome:
    """Update over a session of its own."""
    with target.connect(owner) as session:
        return outcome_of(target, lambda: session.compare_and_set(seen, new))


def outcome_of(target: Target, update: Callable[[], Outcome]) -> Outcome:
    """Return the outcome of an update; an error that passes says that it had no effect."""
    try:
        return update()
    except TargetUnavailable:
        return Outcome.CONFLICT
    except Exception as error:
        if target.classify(error) == "fatal":
            raise
        return Outcome.CONFLICT

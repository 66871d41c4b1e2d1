"""Checks a target's ledger, guarantees 1 and 2: a part of the contract suite of targets."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait

import msgspec
import pytest

from wal_sink.errors import TargetUnavailable
from wal_sink.model.ledger import BegunEpoch, LedgerState, Outcome, Owner, Window
from wal_sink.model.plan import Plan
from wal_sink.targets.base import Session, Target

_BASE_US = 1_700_000_000_000_000
_RACERS = 6
_CLOCKS_DIFFER_US = 60_000_000
_WAITS_S = 0.3
"""How long an update may be on its way before the one that it waits for takes effect."""
MOST_EPOCHS = 64
"""Of a window; their JSON has 32 kB at most."""


def new_owner() -> Owner:
    """Return the owner of a ledger row that no other test uses."""
    return Owner(str(uuid.uuid4()), uuid.uuid4().hex, "file:///checkpoint")


class LedgerContract:
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
            session.create(-1)
            yield session

    # --- the ledger: guarantees 1 and 2 ---

    @pytest.mark.usefixtures("plan")
    def test_the_ledger_row_is_created_once(self, target: Target, owner: Owner) -> None:
        """A query that the target does not know has no mark; the first `create` makes it."""
        with target.connect(owner) as session:
            assert session.read_ledger() is None
            session.create(6)
            session.create(41)
            mark = mark_of(session)
        assert (mark.flushed, mark.last_us, mark.begun, mark.last) == (6, 0, None, None)
        assert (mark.log_id, mark.checkpoint) == (owner.log_id, owner.checkpoint)

    def test_begin_and_finish_move_the_mark(self, session: Session) -> None:
        """`begin` stores the window, `finish` makes it the last one and moves `flushed` and `last_us`."""
        window = begun_window(0, rows=10)
        assert session.begin(window) is Outcome.APPLIED
        begun = mark_of(session)
        assert (begun.flushed, begun.begun) == (-1, window)
        session.start(window)
        assert session.finish(window) is Outcome.APPLIED
        mark = mark_of(session)
        assert (mark.flushed, mark.last_us) == (0, _BASE_US + 9)
        assert (mark.begun, mark.last) == (None, window)

    def test_the_longest_windows_are_kept_whole(self, session: Session) -> None:
        """Both that the row holds, `begun` and `last`, at once; and they are compared whole."""
        windows = [_long_window(0), _long_window(MOST_EPOCHS)]
        for window in windows:
            assert session.begin(window) is Outcome.APPLIED
            seen = mark_of(session)
            assert seen.begun == window
            assert session.compare_and_set(seen, seen) is Outcome.APPLIED
            session.start(window)
            assert session.finish(window) is Outcome.APPLIED
            assert mark_of(session).last == window

    def test_begin_is_refused_while_something_is_begun(self, session: Session) -> None:
        """The second flusher finishes what is begun; it cannot begin something else."""
        assert session.begin(first := begun_window(0)) is Outcome.APPLIED
        assert session.begin(begun_window(0)) is Outcome.CONFLICT
        mark = mark_of(session)
        assert mark.begun == first

    @pytest.mark.parametrize("epoch", [1, 5])
    def test_begin_is_refused_behind_a_gap(self, session: Session, epoch: int) -> None:
        """Only `flushed + 1` can be begun: the mark never jumps over an epoch."""
        assert session.begin(begun_window(epoch)) is Outcome.CONFLICT

    def test_begin_is_refused_for_what_is_flushed(self, session: Session) -> None:
        """A flushed epoch is not begun again."""
        session.begin(window := begun_window(0))
        session.start(window)
        session.finish(window)
        assert session.begin(begun_window(0)) is Outcome.CONFLICT

    def test_finish_is_refused_for_another_begun_window(self, session: Session) -> None:
        """Only who knows exactly what is begun can finish it."""
        session.start(window := begun_window(0))
        assert session.finish(window) is Outcome.CONFLICT
        session.begin(window := begun_window(0))
        session.start(other := begun_window(0))
        assert session.finish(other) is Outcome.CONFLICT
        session.start(window)
        assert session.finish(window) is Outcome.APPLIED
        session.start(window)
        assert session.finish(window) is Outcome.CONFLICT

    @pytest.mark.usefixtures("plan")
    def test_without_a_row_nothing_is_applied(self, target: Target, owner: Owner) -> None:
        """A lost ledger row is not made anew by `begin` or `finish`."""
        with target.connect(owner) as session:
            window = begun_window(0)
            assert session.begin(window) is Outcome.CONFLICT
            session.start(window)
            assert session.finish(window) is Outcome.CONFLICT
            assert session.read_ledger() is None

    def test_of_many_beginners_one_wins(
        self, target: Target, session: Session, owner: Owner
    ) -> None:
        """Of many that race `begin` takes effect for one at most; the ledger holds the winner's window."""
        for epoch in range(3):
            windows = [begun_window(epoch) for _ in range(_RACERS)]
            with ThreadPoolExecutor(_RACERS) as pool:
                outcomes = list(pool.map(lambda w: _begin_alone(target, owner, w), windows))
            assert outcomes.count(Outcome.APPLIED) <= 1
            mark = mark_of(session)
            if mark.begun is None:  # each has kept another one from it: the next one to try wins
                assert Outcome.APPLIED not in outcomes
                outcomes[0] = _begin_alone(target, owner, windows[0])
                mark = mark_of(session)
            assert mark.begun in windows
            for window, outcome in zip(windows, outcomes, strict=True):
                if outcome is not Outcome.UNKNOWN:
                    assert (outcome is Outcome.APPLIED) == (window == mark.begun)
            assert mark.begun is not None
            with target.connect(owner) as last:  # a beginner may have shut the others out
                last.start(mark.begun)
                assert last.finish(mark.begun) is Outcome.APPLIED

    def test_an_update_that_waits_is_compared_with_what_it_waited_for(
        self, target: Target, session: Session, owner: Owner
    ) -> None:
        """A flusher holds the row, and an operator's command comes in the middle: one of them has its way."""
        session.begin(window := begun_window(0))
        session.start(window)
        seen = mark_of(session)
        moved = _mark(owner, 7)
        with target.connect(owner) as other, ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(outcome_of, target, lambda: other.compare_and_set(seen, moved))
            wait([waiting], timeout=_WAITS_S)
            finished = outcome_of(target, lambda: session.finish(window))
            replaced = waiting.result()
        with target.connect(owner) as third:
            mark = mark_of(third)
        assert mark in (seen, moved, seen.finished(window))
        for outcome, after in ((replaced, moved), (finished, seen.finished(window))):
            if outcome is not Outcome.UNKNOWN:
                assert (outcome is Outcome.APPLIED) == (mark == after)

    def test_queries_do_not_share_a_mark(self, target: Target, session: Session) -> None:
        """Each query has a ledger row of its own."""
        session.begin(begun_window(0))
        with target.connect(Owner(str(uuid.uuid4()), "other", "file:///other")) as other:
            assert other.read_ledger() is None

    def test_a_second_session_sees_the_mark(
        self, target: Target, session: Session, owner: Owner
    ) -> None:
        """`flushed` is linearizable over sessions."""
        session.begin(window := begun_window(0))
        with target.connect(owner) as other:
            mark = mark_of(other)
            assert mark.begun == window
            other.start(window)
            assert other.finish(window) is Outcome.APPLIED
        mark = mark_of(session)
        assert mark.flushed == 0

    # --- the ledger, for operators: guarantees 1 and 2 ---

    @pytest.mark.usefixtures("plan")
    def test_a_row_is_made_where_there_is_none(self, target: Target, owner: Owner) -> None:
        """`compare_and_set` of nothing creates the row once, with all of its fields."""
        window = begun_window(7)
        first, second = _mark(owner, 6, begun=window), _mark(owner, 41)
        with target.connect(owner) as session:
            assert session.compare_and_set(None, first) is Outcome.APPLIED
            assert session.compare_and_set(None, second) is Outcome.CONFLICT
            assert session.read_ledger() == first
            session.start(window)
            assert session.finish(window) is Outcome.APPLIED

    def test_a_row_is_replaced_whole(self, session: Session, owner: Owner) -> None:
        """Every field, to and from nothing begun; and flushing goes on from the new row."""
        session.begin(window := begun_window(0, rows=3))
        begun = session.read_ledger()
        other = Owner(owner.query_id, "another log", "file:///moved")
        moved = _mark(other, 7, last=window)
        assert session.compare_and_set(begun, moved) is Outcome.APPLIED
        assert session.read_ledger() == moved
        assert session.begin(begun_window(0)) is Outcome.CONFLICT
        assert session.begin(begun_window(8)) is Outcome.APPLIED

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
        self, session: Session, owner: Owner, other: dict[str, object]
    ) -> None:
        """Each field counts: the row was moved since it was read."""
        session.begin(window := begun_window(0))
        session.start(window)
        session.finish(window)
        session.begin(begun_window(1))
        present = mark_of(session)
        seen = msgspec.structs.replace(present, **other)
        assert session.compare_and_set(seen, _mark(owner, 9)) is Outcome.CONFLICT
        assert session.read_ledger() == present

    def test_a_row_is_replaced_by_itself(self, session: Session) -> None:
        """It was as it was seen, though nothing changes: a driver may count changed rows only."""
        session.begin(begun_window(0))
        seen = mark_of(session)
        assert session.compare_and_set(seen, seen) is Outcome.APPLIED
        assert session.read_ledger() == seen

    @pytest.mark.usefixtures("plan")
    def test_a_lost_row_is_not_replaced(self, target: Target, owner: Owner) -> None:
        """A command that has seen a row which is gone looks again."""
        with target.connect(owner) as session:
            outcome = session.compare_and_set(_mark(owner, 1), _mark(owner, 2))
            assert outcome is Outcome.CONFLICT
            assert session.read_ledger() is None

    def test_a_session_closes_twice(self, target: Target, session: Session, owner: Owner) -> None:
        """Whether or not a window is under way; the next session goes on."""
        session.begin(window := begun_window(0))
        session.start(window)
        session.close()
        session.close()
        with target.connect(owner) as other:
            assert mark_of(other).begun == window

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


def mark_of(session: Session) -> LedgerState:
    """Read the ledger row, which has to be there."""
    mark = session.read_ledger()
    assert mark is not None
    return mark


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
    for epoch in range(first, first + MOST_EPOCHS):
        (short,) = begun_window(epoch).epochs
        digest = uuid.uuid4().hex * 2
        name = f"manifests/{epoch:020}-{uuid.uuid4().hex}-{'x' * 140}.json"
        epochs.append(
            msgspec.structs.replace(short, manifest=name, digest=digest, offsets_digest=digest)
        )
    window = Window(nonce=uuid.uuid4().hex, begun_us=_BASE_US, epochs=tuple(epochs))
    assert 30_000 < len(window.to_text()) < 32_768
    return window


def _mark(
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


def _begin_alone(target: Target, owner: Owner, window: Window) -> Outcome:
    """Begin over a session of its own."""
    with target.connect(owner) as session:
        return outcome_of(target, lambda: session.begin(window))


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

"""Checks a target that adds rows, and passes over those that only the server refuses (rule 24).

A plug-in author whose target has `resends` derives it beside `TransactionalContract`, and gives two methods::

    class TestMyTarget(RefusalsContract, TransactionalContract):
        def refuse_long(self, target: Target) -> None: ...  # let the server refuse the rows of LONG

        def take_long(self, target: Target) -> None: ...  # and take them again
"""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Callable, Sequence

import pytest

from wal_sink.errors import TargetRefused, WalSinkError
from wal_sink.model.ledger import Outcome, Owner, PassedRow, Window
from wal_sink.model.plan import Plan
from wal_sink.protocol import ledger as protocol
from wal_sink.targets.base import Session, Slice, Target, TransactionalSession, without
from wal_sink.testing.contracts.ledger import begin, begun_window, commit, row_of
from wal_sink.testing.contracts.rows import BASE_US, Record
from wal_sink.testing.contracts.transactional import CountedContract
from wal_sink.testing.faults import CallFaults, Crash, Faults, faulty

LONG = "x" * 5_000
"""The text of a row that the server refuses; the others are short."""


class _Killed(Exception):
    """The flusher dies."""


class _Log:
    """What is durable in the log: the rows in quarantine, by their timestamps."""

    def __init__(self) -> None:
        self.kept: dict[int, str] = {}
        self.steps_left: int | None = None

    def step(self) -> None:
        """Die here, if it is time."""
        if self.steps_left is not None:
            self.steps_left -= 1
            if self.steps_left < 0:
                raise _Killed

    def keep(self, us: int, error: TargetRefused) -> None:
        """Take a row: an `OnRefused`."""
        self.step()
        self.kept[us] = error.what
        self.step()


def _records(size: int, refused: Sequence[int]) -> list[Record]:
    return [(f"k{n}", n, n, LONG if n in refused else "short") for n in range(size)]


class RefusalsContract(CountedContract):
    """Subclass as `Test…` beside `TransactionalContract`, with `refuse_long` and `take_long`."""

    @abstractmethod
    def refuse_long(self, target: Target) -> None:
        """Let the server refuse rows whose text is `LONG`; tasks took them."""

    @abstractmethod
    def take_long(self, target: Target) -> None:
        """Let it take them again."""

    def long_slice(
        self, target: Target, plan: Plan, size: int, refused: Sequence[int], us: int = BASE_US
    ) -> Slice:
        """Return rows as their tasks have checked them; refuse the long ones from here on."""
        rows = self.slice(target, plan, _records(size, refused), us)
        self.refuse_long(target)
        return rows

    @pytest.mark.parametrize("refused", [(0,), (6,), (1, 2, 5), range(7)])
    def test_the_others_go_on(
        self,
        target: Target,
        plan: Plan,
        session: Session,
        owner: Owner,
        refused: Sequence[int],
    ) -> None:
        """Whichever rows of a slice are refused; the slices before and behind it are there, too."""
        log = _Log()
        rows = self.long_slice(target, plan, 7, refused)
        with self.connect(target, session, owner) as other:
            begin(other, window := begun_window(0, rows=7))
            other.start(window)
            other.pass_over(log.keep)
            for each in (rows._replace(batch=rows.batch.slice(0, 0)), rows):
                other.write(plan, each)
            other.drain()
            assert commit(other, row_of(other)) is Outcome.APPLIED
        assert sorted(log.kept) == [BASE_US + n for n in refused]
        assert {k for k, *_ in self.records(target)} == {
            f"k{n}" for n in range(7) if n not in refused
        }

    def test_without_quarantine_the_error_names_the_row(
        self, target: Target, plan: Plan, session: Session, owner: Owner
    ) -> None:
        """By epoch and number; nothing of the window is there."""
        rows = self.long_slice(target, plan, 9, [4])
        with self.connect(target, session, owner) as other:
            begin(other, window := begun_window(0, rows=9))
            other.start(window)
            with pytest.raises(WalSinkError, match="row 4 of epoch 0") as raised:
                other.write(plan, rows)
        assert not raised.value.transient
        assert self.records(target) == []
        self.take_long(target)
        with target.connect(owner) as other:
            _write(other, window, plan, rows, _Log())
        assert len(self.records(target)) == 9

    def test_a_table_that_takes_no_row_stops_the_flush(
        self, target: Target, plan: Plan, session: Session, owner: Owner
    ) -> None:
        """Then the table is at fault, or all of the stream: no row is passed over."""
        log, size = _Log(), 300
        rows = self.long_slice(target, plan, size, range(size))
        with self.connect(target, session, owner) as other:
            begin(other, window := begun_window(0, rows=size))
            other.start(window)
            other.pass_over(log.keep)
            with pytest.raises(WalSinkError, match="of epoch 0"):
                other.write(plan, rows)
        assert log.kept == {}

    @pytest.mark.parametrize("repaired", [False, True])
    def test_a_kill_between_any_two_steps(
        self, target: Target, plan: Plan, owner: Owner, session: Session, *, repaired: bool
    ) -> None:
        """The next flusher finishes; each row is then in the table or can be sent, once, and never both.

        :param repaired: the server takes the rows by then.
        """
        del session  # it has made the ledger row
        for steps in range(20):
            log, us = _Log(), BASE_US + 1_000 * steps
            self.take_long(target)
            rows = self.long_slice(target, plan, 5, [1, 3], us)._replace(epoch=steps)
            log.steps_left, killed = steps, False
            with target.connect(owner) as dies:
                begin(dies, window := begun_window(steps, rows=5))
                try:
                    _write(dies, window, plan, rows, log)
                except _Killed:
                    killed = True
            log.steps_left = None
            if repaired:
                self.take_long(target)
            with target.connect(owner) as other:
                if row_of(other).flushed < steps:
                    _write(other, window, plan, rows, log)
            self.take_long(target)
            with target.connect(owner) as other:
                self._send_again(plan, other, rows, log)
            found = sorted(str(k) for k, *_ in self.records(target))
            assert found == sorted(f"k{n}" for n in range(5) for _ in range(steps + 1))
            if not killed:
                return
        raise AssertionError("it is killed without end")

    def test_a_flusher_that_has_not_listed_the_rows(
        self, target: Target, plan: Plan, owner: Owner, session: Session
    ) -> None:
        """It finishes the window with a row that another one has put into quarantine: it is there once.

        Without a note, the row is not sent: a ledger that was replaced since lacks the notes, too.
        """
        log = _Log()
        rows = self.long_slice(target, plan, 5, [2])
        with self.connect(target, session, owner) as dies:
            begin(dies, window := begun_window(0, rows=5))
            dies.start(window)
            dies.pass_over(log.keep)
            dies.write(plan, rows)
        assert list(log.kept) == [BASE_US + 2]
        self.take_long(target)
        with target.connect(owner) as other:
            other.start(window)
            other.write(plan, rows)
            other.drain()
            assert commit(other, row_of(other)) is Outcome.APPLIED
        with (
            target.connect(owner) as other,
            pytest.raises(TargetRefused, match="has no note of a row of epoch 0"),
        ):
            self._send_again(plan, other, rows, log)
        assert sorted(str(k) for k, *_ in self.records(target)) == [f"k{n}" for n in range(5)]

    def test_a_row_that_a_task_has_refused_is_added_once(
        self, target: Target, plan: Plan, session: Session
    ) -> None:
        """No window has a note of it; the same row sent twice is there once."""
        assert isinstance(session, TransactionalSession)
        _write(session, _begun(session), plan, self.slice(target, plan, []), _Log())
        row = self.slice(target, plan, [("late", 1, 1, "t")], BASE_US - 1)
        for _ in range(2):
            assert session.resend(plan, row, row_of(session), noted=False)
        assert self.records(target) == [("late", 1, 1, "t")]

    def test_a_row_is_sent_under_the_ledger_row_that_was_seen(
        self, target: Target, plan: Plan, session: Session
    ) -> None:
        """Another one may let its epoch be flushed again: nothing is added, and no note is made."""
        assert isinstance(session, TransactionalSession)
        _write(session, _begun(session), plan, self.slice(target, plan, []), _Log())
        seen = row_of(session)
        begin(session, begun_window(1, rows=0))
        row = self.slice(target, plan, [("late", 1, 1, "t")], BASE_US - 1)
        assert not session.resend(plan, row, seen, noted=False)
        assert self.records(target) == []
        assert session.resend(plan, row, row_of(session), noted=False)
        assert self.records(target) == [("late", 1, 1, "t")]

    def test_a_resend_may_die_anywhere(
        self, target: Target, plan: Plan, session: Session, owner: Owner
    ) -> None:
        """The command is run again: a row whose note came in another step would be there twice."""
        _write(session, _begun(session), plan, self.slice(target, plan, []), _Log())
        kinds, expected = (type(target), type(session)), list[Record]()

        def play(at: int | None) -> CallFaults:
            expected.append((f"k{len(expected)}", 1, 1, "t"))
            row = self.slice(target, plan, expected[-1:], BASE_US - len(expected))
            killed = CallFaults(kinds, "resend", at)
            for faults in (killed, Faults()):
                with faulty(target.connect(owner), faults) as other, contextlib.suppress(Crash):
                    assert isinstance(other, TransactionalSession)
                    other.resend(plan, row, row_of(session), noted=False)
            assert sorted(self.records(target)) == sorted(expected), f"killed at {killed.injected}"
            return killed

        operations = play(None).operations
        self.assert_injected([play(at) for at in self.spread(range(len(operations)))])

    def test_what_is_refused_again_stays(
        self, target: Target, plan: Plan, session: Session, owner: Owner
    ) -> None:
        """And is sent when the server takes it."""
        log = _Log()
        rows = self.long_slice(target, plan, 3, [0])
        (row,) = _rows_of(rows, {BASE_US})
        with self.connect(target, session, owner) as other:
            begin(other, window := begun_window(0, rows=3))
            _write(other, window, plan, rows, log)
            with pytest.raises(TargetRefused):
                _resend(other, plan, row)
        assert len(self.records(target)) == 2
        self.take_long(target)
        with target.connect(owner) as other:
            _resend(other, plan, row)
        assert len(self.records(target)) == 3

    def connect(self, target: Target, session: Session, owner: Owner) -> Session:
        """Connect as a flusher does after an error: a session may keep what it has asked of the server."""
        session.close()
        return target.connect(owner)

    def _send_again(self, plan: Plan, session: Session, rows: Slice, log: _Log) -> None:
        """Send the rows in quarantine, each twice, as after an answer that was lost."""
        for _ in range(2):
            for row in _rows_of(rows, set(log.kept)):
                _resend(session, plan, row)


def _resend(session: Session, plan: Plan, row: Slice) -> None:
    assert isinstance(session, TransactionalSession)
    assert session.resend(plan, row, row_of(session), noted=True)


def _begun(session: Session) -> Window:
    window = begun_window(row_of(session).flushed + 1, rows=0)
    assert begin(session, window) is Outcome.APPLIED
    return window


def _rows_of(rows: Slice, us: set[int]) -> list[Slice]:
    return [
        rows._replace(batch=rows.batch.slice(n, 1), first_us=rows.first_us + n)
        for n in range(rows.batch.num_rows)
        if rows.first_us + n in us
    ]


def _write(session: Session, window: Window, plan: Plan, rows: Slice, log: _Log) -> None:
    """Write a window as a flusher does that resumes it, step by step; die where the log says."""
    assert isinstance(session, TransactionalSession)
    session.start(window)
    listed = [us for us in log.kept if us >= rows.first_us]
    passed = [PassedRow(rows.epoch, us) for us in listed]
    log.step()
    session.pass_over(log.keep, passed)
    steps: list[Callable[[], object]] = [
        *(lambda part=part: session.write(plan, part) for part in without(rows, listed)),
        session.drain,
    ]
    for step in steps:
        step()
        log.step()
    seen = row_of(session)
    assert session.commit(seen, protocol.finish(seen)) is Outcome.APPLIED
    log.step()

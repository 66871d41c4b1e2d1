"""Checks a transactional target that skips the rows that only the server refuses (rule 24).

An author whose session has `pass_over` derives it beside `TransactionalContract`, and gives two methods::

    class TestMyTarget(RefusalsContract, TransactionalContract):
        def refuse_long(self, target: Target) -> None: ...  # let the server refuse the rows of LONG

        def take_long(self, target: Target) -> None: ...  # and take them again
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence

import pytest

from wal_sink.errors import TargetRefused, WalSinkError
from wal_sink.model.ledger import Outcome, Owner, Window
from wal_sink.model.plan import Plan
from wal_sink.protocol import ledger as protocol
from wal_sink.targets.base import Session, Slice, Target, TransactionalSession, without
from wal_sink.testing.contracts.ledger import begin, begun_window, commit, row_of
from wal_sink.testing.contracts.rows import BASE_US, Record
from wal_sink.testing.contracts.transactional import CountedContract

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
        """The next flusher finishes; each row is then in the table once, or in quarantine, and never both.

        :param repaired: the server takes the rows by then.
        """
        del session  # it has made the ledger row
        kept: list[str] = []
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
            kept += [f"k{us - rows.first_us}" for us in log.kept]
            keys = sorted([*(str(k) for k, *_ in self.records(target)), *kept])
            assert keys == sorted(f"k{n}" for n in range(5) for _ in range(steps + 1))
            if not killed:
                return
        raise AssertionError("it is killed without end")

    def connect(self, target: Target, session: Session, owner: Owner) -> Session:
        """Connect as a flusher does after an error: a session may keep what it has asked of the server."""
        session.close()
        return target.connect(owner)


def _write(session: Session, window: Window, plan: Plan, rows: Slice, log: _Log) -> None:
    """Write a window as a flusher does that resumes it, step by step; die where the log says."""
    assert isinstance(session, TransactionalSession)
    session.start(window)
    listed = list(log.kept)
    log.step()
    session.pass_over(log.keep)
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

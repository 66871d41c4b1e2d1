"""A flusher's connection to the target: made when it is needed; after a lost answer it reads the row back.

It makes, by compare-and-set, the updates of `protocol.ledger`: to create the ledger row, to begin a window or
another sending of one (rule 26), and to finish it, with the receipts of staged rows (rules 15 and 16).
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Iterator, Sequence

from wal_sink.errors import OptionError, TargetRefused, TargetUnavailable, WalSinkError
from wal_sink.flush.report import Reporter
from wal_sink.log_context import line_logger
from wal_sink.model.ledger import LedgerState, Outcome, Owner, PassedRow, Window
from wal_sink.model.plan import Plan
from wal_sink.protocol import ledger
from wal_sink.protocol.next_step import Idle, Resume
from wal_sink.targets.base import (
    SESSIONS,
    Delivery,
    OnRefused,
    Session,
    Slice,
    StagedSession,
    Target,
    TransactionalSession,
)

logger = line_logger(__name__)


class Receipts:
    """Keeps the receipts of staged rows, of one try at one window; none for a target that does not stage."""

    def __init__(self) -> None:
        self._kept: list[bytes] = []
        self._of: Window | None = None
        """The window whose rows are staged; None: none has been started since the last `commit` or error."""

    def start(self, session: Session, window: Window) -> None:
        """Announce all rows of a window to the target; discard those of an earlier try."""
        self.discard(session)
        session.start(window)
        self._of = window

    def add(self, receipts: Sequence[bytes]) -> None:
        """Keep what the target, or a task, has returned for staged rows."""
        self._kept += receipts

    def commit(self, session: StagedSession, seen: LedgerState, new: LedgerState) -> Outcome:
        """Commit all of them, once; discard them after a conflict.

        After a lost answer, or an error, nothing is discarded: the commit may still take effect.

        :raises TargetUnavailable: they are lost with an earlier session; no commit was sent.
        """
        if self._of != seen.begun:
            raise TargetUnavailable(
                f"The connection that staged the rows of epoch {new.flushed} is lost",
                "Nothing: all rows are staged again.",
            )
        receipts = self._taken()
        outcome = session.commit(seen, new, receipts)
        if outcome is Outcome.CONFLICT:
            _discard(session, receipts)
        return outcome

    def discard(self, session: Session) -> None:
        """Drop all of them; let the target delete their files, if it can."""
        receipts = self._taken()
        if isinstance(session, StagedSession):
            _discard(session, receipts)

    def _taken(self) -> tuple[bytes, ...]:
        taken, self._kept, self._of = tuple(self._kept), [], None
        return taken


def drained(session: Session) -> tuple[bytes, ...]:
    """Drain a session; return the receipts, none where rows are not staged."""
    return session.drain() or ()


def _discard(session: StagedSession, receipts: Sequence[bytes]) -> None:
    if not receipts:
        return
    try:
        session.discard(receipts)
    except Exception as error:  # noqa: BLE001 -- no reader sees what is left over
        logger.warning(
            "staged files that are not needed could not be deleted: %r. The"
            " table's own clean-up removes them",
            error,
        )


_LEDGER_LOOK_US = 1_000_000
"""How old the last look at the ledger may be before the next slice (rule 15)."""

_FINISH_TRIES = 5

_READ_EVERY_S = 60.0
"""How often a pass reads the row although it is known: some things are done only where it was read."""

_ANSWERS = "See that the target answers conditional updates; the flush goes on by itself."


class TargetConnection:
    """One session at a time with the target of one query. Its methods are called by the flush's thread.

    Every method that sends requests raises `TargetRefused`, `TargetUnavailable`, or an error of ours that the
    session raises, such as `SchemaMismatch`; see `target_errors`.

    :param owner: whose ledger row it is; the flusher corrects it when it has read the log's identity.
    :param reporter: reports that it connects; its observer counts requests in flight and repeated ones.
    :param clock_us: microseconds since 1970.
    """

    def __init__(
        self, target: Target, owner: Owner, reporter: Reporter, clock_us: Callable[[], int]
    ) -> None:
        self.target = target
        self.owner = owner
        self._reporter = reporter
        self._clock_us = clock_us
        self._session: Session | None = None
        self._receipts = Receipts()
        self._looked_us = 0
        self._seen: LedgerState | None = None
        """The row as it was read last, with nothing begun, unless it was asked to change since."""
        self._read_s = float("-inf")
        self._finish_asked = ""
        """The nonce of the last window of which `finish` was asked, and not refused; see `may_count`."""
        self._interrupted = False

    @contextlib.contextmanager
    def session(self) -> Iterator[Session]:
        """Provide the session; connect when there is none."""
        with target_errors(self.target):
            if self._session is None:
                self._reporter.say("connecting", None)
                self._session = connected(self.target, self.owner)
                self._session.report_to(self._reporter.observer)
            yield self._session

    def close(self) -> None:
        """Release the session; the next call connects again."""
        session, self._session = self._session, None
        self._seen = None
        self._reporter.observer.in_flight = 0
        if session is not None:
            self._receipts.discard(session)
            session.close()

    # --- the ledger -------------------------------------------------------------------------------

    def row(self, mark: int | None) -> tuple[LedgerState | None, bool]:
        """Return the ledger row, and whether it is the last one seen, and was not read now.

        To begin a window the last one is good enough, since `begin` compares all of it (rule 14). It is used
        where nothing is begun in it, and its flushed epoch is the newest with a record.

        :param mark: the epoch of the newest `flushed/` record; None without one.
        """
        now_s, seen = time.monotonic(), self._seen
        if seen is not None and seen.flushed == mark and now_s - self._read_s < _READ_EVERY_S:
            return seen, True
        self._read_s = now_s
        return self.read_ledger(), False

    def read_ledger(self) -> LedgerState | None:
        """Read the ledger row; None when there is none."""
        with self.session() as session:
            row = session.read_ledger()
        self._looked_us = self._clock_us()
        self._seen = row if row is not None and row.begun is None else None
        return row

    def now_us(self) -> int | None:
        """Ask for the target's time, microseconds since 1970; None when it has no clock."""
        with self.session() as session:
            return session.now_us()

    def create(self, flushed: int) -> None:
        """Create the ledger row (rule 13).

        :raises TargetUnavailable: afterwards there is none.
        """
        self._seen = None
        with self.session() as session:
            session.compare_and_set(None, ledger.create(self.owner, flushed))
        if self.read_ledger() is None:
            raise TargetUnavailable("The ledger row could not be created", _ANSWERS)

    def begin(
        self, window: Window, seen: LedgerState, rows: Iterator[tuple[Plan, Slice]] | None = None
    ) -> LedgerState | None:
        """Begin a window, or another sending of the one that is begun (rules 14 and 26).

        :param seen: the row from which the window was planned; if it has moved on, nothing is begun.
        :param rows: of the window, so that the session can read some meanwhile. All come by `write` as well.
        :returns: the row that names the window, if this flusher may write its rows.
        :raises TargetUnavailable: the row is what it was.
        """
        self._seen, new = None, ledger.begin(seen, window)
        with self.session() as session:
            if rows is not None:
                session.offer(rows)
            outcome = session.compare_and_set(seen, new)
        if outcome is Outcome.APPLIED:
            self._looked_us = self._clock_us()
            return new
        read_back = self.read_ledger()
        if ledger.is_mine(outcome, window, read_back):
            return read_back
        if read_back == seen:
            raise TargetUnavailable(f"Epoch {window.first} could not be begun", _ANSWERS)
        return None

    def start(self, window: Window) -> None:
        """Announce the rows of a begun window, all of them (rule 15)."""
        with self.session() as session:
            self._receipts.start(session, window)

    def pass_over(self, refused: OnRefused | None, passed: Sequence[PassedRow]) -> None:
        """Let the session leave out rows that the target refuses, if it can (rule 24).

        :param passed: rows of the window that are in quarantine already.
        """
        with self.session() as session:
            session.pass_over(refused, passed)

    def staged(self, receipts: Sequence[bytes]) -> None:
        """Take the receipts of rows that other sessions have staged for the window since `start`."""
        self._receipts.add(receipts)

    def give_up_rows(self) -> None:
        """Leave nothing of a window that is not finished: no transaction with its locks, nothing staged."""
        if self._counted_by_finish:
            self.close()

    def finish(self, begun: LedgerState) -> bool:
        """Wait until every row is acknowledged, then move the mark, unless another flusher has (rule 16).

        :param begun: the row that names the window.
        :returns: whether the window is finished; False when the row has moved on without naming it.
        :raises LedgerShadowed, LedgerBehindLog: see `after_finish`.
        :raises TargetUnavailable: it is not finished; where rows count by it, all are written again.
        """
        window = begun.begun
        assert window is not None
        seen, applied = begun, False
        with self.session() as session:
            self._receipts.add(drained(session))
        for left in reversed(range(1 if self._counted_by_finish else _FINISH_TRIES)):
            self._reporter.say("finishing", window.last)
            with self.session() as session:
                outcome = self._finish(session, seen)
            applied |= outcome is Outcome.APPLIED
            if outcome is not Outcome.CONFLICT:
                self._finish_asked = window.nonce
            try:
                read_back = self.read_ledger()
            except TargetUnavailable:
                if not left:
                    raise
                continue  # the same update again is harmless; another try of the step writes all rows
            became = ledger.after_finish(
                window,
                read_back,
                applied=applied,
                atomic=self._counted_by_finish,
                before=begun,
            )
            if became != "again":
                return became == "finished"
            assert read_back is not None
            seen = read_back
        raise TargetUnavailable(f"Epoch {window.last} could not be finished", _ANSWERS)

    def _finish(self, session: Session, seen: LedgerState) -> Outcome:
        self._seen, new = None, ledger.finish(seen)
        match session:
            case StagedSession():
                return self._receipts.commit(session, seen, new)
            case TransactionalSession():
                return session.commit(seen, new)
        return session.compare_and_set(seen, new)

    @property
    def _counted_by_finish(self) -> bool:
        """Whether the last update makes rows count: it is never repeated without them."""
        return self.target.delivery is not Delivery.IDEMPOTENT

    def may_count(self, window: Window) -> bool:
        """Return True once for each window whose mark this flusher has moved.

        A row is counted when the mark moves over it, not when it is written: a window that is written again
        would count twice. The answer to `finish` may be lost, and only the next read of the ledger shows
        whether the mark has moved. So the window of the last `finish` is kept, unless that had a conflict:
        then another flusher has moved the mark, and counts.
        """
        if self._finish_asked != window.nonce:
            return False
        self._finish_asked = ""
        return True

    # --- while rows are written -------------------------------------------------------------------

    def interrupt(self) -> None:
        """Let no further slice be written; called from another thread, or a signal handler."""
        self._interrupted = True

    def is_over(self, window: Window) -> bool:
        """Whether to write no more of a window: interrupted, or another flusher has it (rules 15 and 26).

        Called before each slice; reads the ledger at most once a second. A failed read stops nothing: either
        the rows fail, too, or the target is slow, and should not get the rows again. Late rows lose by their
        timestamps.
        """
        if self._interrupted:
            return True
        if abs(self._clock_us() - self._looked_us) < _LEDGER_LOOK_US:  # the clock may be set back
            return False
        try:
            row = self.read_ledger()
        except TargetUnavailable:
            self._looked_us = self._clock_us()
            return False
        if row is None:
            return False
        return row.flushed >= window.last or (window.sent_once and row.begun != window)


def connected(target: Target, owner: Owner) -> Session:
    """Open a session of the class that the target's delivery asks for.

    :raises OptionError: it is of another class.
    """
    session, kind = target.connect(owner), SESSIONS[target.delivery]
    if not isinstance(session, kind):
        session.close()
        raise OptionError(
            f"Target {target.name} has {target.delivery}, and its session is no {kind.__name__}",
            f"Derive {type(session).__name__} from wal_sink.targets.{kind.__name__}, or correct it.",
        )
    return session


@contextlib.contextmanager
def target_errors(target: Target) -> Iterator[None]:
    """Give the target's own exceptions a kind; errors of ours pass as they are (rule 21).

    :raises TargetRefused: it would refuse again.
    :raises TargetUnavailable: it does not answer.
    """
    try:
        yield
    except WalSinkError:
        raise
    except Exception as error:
        if target.classify(error) == "fatal":
            raise TargetRefused(
                f"The target refused for good: {type(error).__name__}: {error}",
                "Repair the target.",
            ) from error
        raise TargetUnavailable(
            f"The target does not answer: {type(error).__name__}: {error}",
            "Nothing, if this is an outage: the flush goes on by itself when it is over.",
        ) from error


_PATIENCE_S = 15.0


class Takeovers:
    """Takes begun windows whose rows may be sent once with each timestamp (rule 26), for one flusher.

    Of two flushers that live, each would take the window from the other again and again. So one from which it
    was taken waits before it takes it back, twice as long each time: one of them comes to the end.

    :param now_us: the time that `begin` uses, see `bounded_now`.
    :param clock_s: monotonic.
    """

    def __init__(
        self,
        connection: TargetConnection,
        now_us: Callable[[], int],
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connection = connection
        self._now_us = now_us
        self._clock_s = clock_s
        self._mine: Window | None = None
        """What this flusher has begun, or was about to take, last."""
        self._others = ""
        """The nonce of another flusher's sending, seen after that."""
        self._since_s = 0.0
        self._times = 0
        """How often the window was taken from this flusher."""

    def begins(self, window: Window) -> None:
        """Note the window that this flusher is about to begin."""
        self._mine, self._others, self._times = window, "", 0

    def due(self, step: Resume) -> Resume | Idle:
        """Return the step, or that the flusher waits, as another one has taken the window from it."""
        window, mine = step.window, self._mine
        if not window.sent_once or mine is None or mine.first != window.first:
            return step
        if window.nonce == mine.nonce:
            return step
        if window.nonce != self._others:
            self._others, self._since_s = window.nonce, self._clock_s()
            self._times += 1
        left_s = self._since_s + _PATIENCE_S * 2**self._times - self._clock_s()
        if left_s <= 0:
            return step
        return Idle(
            f"another flusher has taken epoch {window.first} from this one, which waits in case that it dies"
        )

    def take(self, row: LedgerState) -> LedgerState | None:
        """Begin the next sending of a begun window; return the row that names it, None when it has moved on.

        :param row: the ledger row that names the window.
        :returns: the same row where the window's rows may be sent again.
        :raises TargetUnavailable: the row is what it was, or the target does not say what time it is.
        """
        window = row.begun
        assert window is not None
        if not window.sent_once:
            return row
        again = ledger.next_sending(window, self._now_us(), uuid.uuid4().hex)
        if self._mine is None or self._mine.first != window.first:
            self._others, self._times = "", 0
        self._mine = again  # also if the answer is lost, and the update takes effect
        if (taken := self._connection.begin(again, row)) is None:
            return None
        logger.info(
            "began sending %s of epochs %d to %d, with new timestamps",
            again.sending,
            again.first,
            again.last,
        )
        return taken

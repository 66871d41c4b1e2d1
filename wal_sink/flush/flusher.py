"""Executes the protocol's steps: brings checkpointed epochs into the target, in order.

`run_once` looks, lets `next_step.next_step` decide, and does that one step. It can be interrupted at any
point and repeated by anyone: what is durable decides where it goes on.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence

from state_backends import StateBackendError
from wal_sink import remedies
from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.errors import LogUnavailable, MissingSegment, TargetUnavailable, WrongOwner
from wal_sink.flush.delivery_count import DeliveryCount
from wal_sink.flush.evidence import gather
from wal_sink.flush.plan_window import ManifestGoneError, to_begin
from wal_sink.flush.read_window import FileGoneError
from wal_sink.flush.run_history import RUN_HISTORY, RunHistory
from wal_sink.flush.target_connection import target_errors
from wal_sink.flush.write_window import WindowWrite, WriteInThread, WriteRows
from wal_sink.log_context import line_logger
from wal_sink.model.ledger import BegunEpoch, Mark, Outcome, Owner, Window
from wal_sink.observer import Observer
from wal_sink.protocol.choose_attempt import choose
from wal_sink.protocol.ledger_updates import after_finish, flushed_epochs, is_mine
from wal_sink.protocol.next_step import (
    next_step,
    refuse_missing_manifest,
    refuse_missing_records,
    resting,
)
from wal_sink.protocol.steps import (
    Begin,
    Choose,
    CreateLedger,
    ManifestMissing,
    PassOver,
    RecordFlushed,
    RecordsBehind,
    Rest,
    Resume,
    Step,
    Trim,
    View,
)
from wal_sink.protocol.windows import Choice, following, joined
from wal_sink.targets.base import Session, Target
from wal_sink.wal.log import Log
from wal_sink.wal.ownership import owned
from wal_sink.wal.trim import sweep, trim
from wal_sink.wal.trim_delay import TrimDelay

logger = line_logger(__name__)

_LEDGER_LOOK_US = 1_000_000
"""How old the last look at the ledger may be before the next slice (rule 15)."""

_FINISH_TRIES = 5

_ANSWERS = "See that the target answers conditional updates; the flush goes on by itself."


class Flusher:
    """Flushes one query. One thread at a time; any number of flushers may act on one query.

    :param clock_us: microseconds since 1970.
    :param say: told what the flusher does, before it does it.
    :param run_history: what was seen of the query's runs where this flusher runs (rule 11).
    :param write_rows: writes the rows of a begun window.
    :param observer: counts; None: nobody does.
    :param trim_delay_s: seconds that a flushed epoch stays in the log.
    """

    def __init__(  # noqa: PLR0913 - all that it works with
        self,
        log: Log,
        checkpoint: Checkpoint,
        target: Target,
        *,
        query_id: str,
        clock_us: Callable[[], int],
        say: Callable[[str, int | None], None] = lambda _doing, _epoch: None,
        run_history: RunHistory = RUN_HISTORY,
        write_rows: WriteRows = WriteInThread(),  # noqa: B008 - without a pace it keeps nothing
        observer: Observer | None = None,
        trim_delay_s: float = 0.0,
    ) -> None:
        self._log = log
        self._checkpoint = checkpoint
        self._target = target
        self._query_id = query_id
        self._clock_us = clock_us
        self._say = say
        self._run_history = run_history
        self._write_rows = write_rows
        self._observer = observer or Observer()
        self._delivery_count = DeliveryCount(self._observer)
        self._trim_delay = TrimDelay(trim_delay_s, clock_us)
        run_history.watch(query_id)
        self.half_written: int | None = None
        """Files of killed writers that the first look has deleted; None: it has not succeeded yet."""
        self._session: Session | None = None
        self._owner = Owner(query_id, "", checkpoint.url)
        self._looked_us = 0
        self._started = False
        self._interrupted = False

    @property
    def billed(self) -> bool:
        """Whether every look at log or checkpoint costs a request over a network."""
        return self._log.backend.billed or self._checkpoint.billed

    def run_once(self) -> Step:
        """Look, decide, do one step; return it. A `Rest` means that there is nothing to do now.

        :raises WalSinkError: the line stops here; calling again takes up the same step.
        """
        self._delivery_count.look()
        try:
            view = self._look()
            step = next_step(view, self._owner)
            if self.half_written is None:
                # Not before the ledger is found to agree: `rewind` may need what is there.
                self.half_written = sweep(self._log, view.trimmable)
            if isinstance(step, Choose):
                step = joined(map(self._choose, following(step, view.checkpointed)))
            self._do(step, view)
        except (OSError, StateBackendError) as error:
            raise LogUnavailable(
                f"The log or the checkpoint cannot be used: {error!r}",
                f"See to {self._log.url} and {self._checkpoint.url}; the flush goes on by itself.",
            ) from error
        return step

    def interrupt(self) -> None:
        """Stop before the next slice; called from another thread. What is begun stays begun."""
        self._interrupted = True

    def close(self) -> None:
        """Release the connection to the target. The flusher can go on; it connects again."""
        session, self._session = self._session, None
        self._observer.in_flight = 0
        if session is not None:
            session.close()

    # --- look -------------------------------------------------------------------------------------

    def _look(self) -> View:
        """Read everything afresh, in the order of rule 9: `commits/` first, manifests last."""
        checkpointed = self._checkpoint.last_commit()
        if (found := self._checkpoint.query_id()) != self._query_id:
            raise WrongOwner(
                f"{self._checkpoint.url} is now the checkpoint of query {found}, not of {self._query_id}",
                "The checkpoint was deleted and made anew. Its new query has a log of its own; what the"
                f" old one left in {self._log.url} can be deleted.",
            )
        recorded = self._log.newest_flushed()
        identity = owned(self._log, self._checkpoint)
        mark, asked = None, False
        if identity is not None:
            self._owner = Owner(self._query_id, identity.log_id, identity.checkpoint)
            # At start-up the ledger is read in any case: it may be ahead of the records (rule 17).
            asked = not self._started or not resting(checkpointed, recorded, identity)
            mark = self._read_ledger() if asked else None
            self._started = True
        attempts = self._log.attempts()
        fresh = asked and mark is None and recorded is None
        rewound = fresh and bool(self._log.interventions("rewind"))
        trimmable = self._trim_delay.trimmable(self._log, recorded, attempts)
        return View(checkpointed, recorded, identity, asked, mark, attempts, rewound, trimmable)

    def _choose(self, step: Choose) -> Choice:
        """Choose among an epoch's attempts (rule 11)."""
        return choose(gather(step, self._log, self._checkpoint, self._query_id, self._run_history))

    def _read_ledger(self) -> Mark | None:
        with target_errors(self._target):
            mark = self._connected().read_ledger()
        self._looked_us = self._clock_us()
        return mark

    def _connected(self) -> Session:
        if self._session is None:
            self._say("connecting", None)
            self._session = self._target.connect(self._owner)
            self._session.report_to(self._observer)
        return self._session

    # --- do ---------------------------------------------------------------------------------------

    def _do(self, step: Step, view: View) -> None:
        match step:
            case Rest():
                self._rest(step, view)
            case CreateLedger(flushed):
                self._create_ledger(flushed)
            case RecordFlushed(window):
                self._record(window, self._log.given_up(window))
            case Trim(epochs):
                self._say("trimming", epochs[0])
                trim(self._log, epochs)
            case Resume(window):
                self._say("resuming", window.first)
                logger.info("resuming epochs %d to %d", window.first, window.last)
                self._flush(window, self._log.given_up(window))
            case Begin() | PassOver():
                self._begin(step, view)
            case ManifestMissing(epoch):
                refuse_missing_manifest(epoch, self._read_ledger())
            case RecordsBehind(window):
                refuse_missing_records(window, self._log.newest_flushed())

    def _rest(self, rest: Rest, view: View) -> None:
        if rest.odd and self._checkpoint.last_commit() > view.checkpointed:
            return  # another flusher was quick since the look: nothing is odd
        self._say(rest.why, None)
        if rest.odd:
            logger.warning("%s: %s", self._checkpoint.url, rest.why)

    def _create_ledger(self, flushed: int) -> None:
        with target_errors(self._target):
            self._connected().create(flushed)
        if self._read_ledger() is None:
            raise TargetUnavailable("The ledger row could not be created", _ANSWERS)

    def _begin(self, step: Begin | PassOver, view: View) -> None:
        """Begin at the mark seen; should the ledger have moved on, the conditional update refuses."""
        try:
            now_us, nonce = self._clock_us(), uuid.uuid4().hex
            window = to_begin(step, view, self._log, now_us, nonce)
        except ManifestGoneError as gone:
            refuse_missing_manifest(gone.epoch, self._read_ledger())
            return  # another flusher has just done it
        self._say("beginning", window.first)
        epochs = {epoch.epoch for epoch in window.epochs}
        self._checkpoint.make_durable(*epochs, view.checkpointed)  # rule 8
        with target_errors(self._target):
            outcome = self._connected().begin(window)
        read_back = None if outcome is Outcome.APPLIED else self._read_ledger()
        if is_mine(outcome, window, read_back):
            self._flush(window)
        elif read_back == view.mark:
            raise TargetUnavailable(f"Epoch {window.first} could not be begun", _ANSWERS)

    def _flush(self, window: Window, given_up: frozenset[int] = frozenset()) -> None:
        """Write what is begun, finish, record, trim. Every line may be the last: `Resume` follows.

        Just begun, nothing can be given up without `Resume` finding it.
        """
        wanted = [epoch for epoch in window.epochs if epoch.epoch not in given_up]
        if not self._write(window, wanted):
            return
        with target_errors(self._target):
            self._connected().drain()
        self._finish(window)
        self._record(window, given_up)
        if not self._trim_delay.seconds:
            trim(self._log, [epoch.epoch for epoch in window.epochs])

    def _write(self, window: Window, epochs: Sequence[BegunEpoch]) -> bool:
        """Write the rows of epochs; False when that is interrupted, or was finished by another flusher."""
        rows = WindowWrite(
            self._log,
            self._target,
            self._owner,
            window,
            epochs,
            session=self._connected,
            over=lambda: self._interrupted or self._overtaken(window),
            say=self._say,
        )
        try:
            return self._write_rows(rows)
        except FileGoneError as gone:
            mark = self._read_ledger()
            if mark is not None and mark.flushed >= window.last:  # rule 20
                return False
            raise MissingSegment(
                f"Epoch {gone.epoch} needs {gone.path}, which is gone from {self._log.url}",
                remedies.lost_segment(gone.epoch, begun=True),
            ) from gone

    def _overtaken(self, window: Window) -> bool:
        """Rule 15: whether the window is finished already; asked while rows are written, not too often.

        A look that fails for now stops nothing: the rows meet the same outage, or else the target is slow,
        and what it has taken is not to be written again. Late rows lose by their timestamps.
        """
        if self._clock_us() - self._looked_us < _LEDGER_LOOK_US:
            return False
        try:
            mark = self._read_ledger()
        except TargetUnavailable:
            self._looked_us = self._clock_us()
            return False
        return mark is not None and mark.flushed >= window.last

    def _finish(self, window: Window) -> None:
        """Move the mark (rule 16)."""
        for left in reversed(range(_FINISH_TRIES)):
            self._say("finishing", window.last)
            with target_errors(self._target):
                outcome = self._connected().finish(window)
            self._delivery_count.asked(window, outcome)
            try:
                read_back = self._read_ledger()
            except TargetUnavailable:
                if not left:
                    raise
                continue  # `finish` again is harmless; another try of the step writes all rows
            if after_finish(outcome, window, read_back) == "finished":
                return
        raise TargetUnavailable(f"Epoch {window.last} could not be finished", _ANSWERS)

    def _record(self, window: Window, given_up: frozenset[int]) -> None:
        """Write the `flushed/` records: from here on the log says that the epochs are done (rule 17)."""
        self._delivery_count.finished(window, given_up)
        records = flushed_epochs(window, self._clock_us(), given_up)
        self._log.record_flushed(records)
        for record in records:
            self._say("recording", record.epoch)
            logger.info("flushed, %d rows", record.rows)

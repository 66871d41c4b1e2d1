"""Chooses the window that a flusher begins next, and gives it timestamps.

The decisions are pure: `attempts` for each epoch (rules 11, 12 and 22), `windows` for those that
share a window (rule 10). Each manifest is read once and goes with the choice. Timestamps lie above all
before, and not after the target's clock (rule 14); clocks that differ are warned of.

`LineageCheck` refuses to act on what the ledger row says of another log (rule 23). A log that was restored
from a backup, and a clone of a log, have the names of the first one: query id, log id, checkpoint, and
generations that new runs claim again. So what the row says was begun or flushed is compared by the digest
of its manifests, which no other run can make: `docs/protocol/rules.md#rule-23`.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from statistics import median_low
from typing import NamedTuple

from wal_sink import errors
from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.clock import iso
from wal_sink.errors import CorruptLog, WalSinkError
from wal_sink.flush.connection import TargetConnection
from wal_sink.flush.report import RunHistory
from wal_sink.flush.rows import plan_of
from wal_sink.log_context import line_logger
from wal_sink.model import paths
from wal_sink.model.ledger import BegunEpoch, LedgerState, Window
from wal_sink.model.manifest import Attempt, Manifest, Published
from wal_sink.model.plan import WriteDemands
from wal_sink.model.records import Chosen, Decision, WithoutSink
from wal_sink.progress.backlog import given_up_since_begun, in_force, newest_decision
from wal_sink.protocol.attempts import as_chosen, choose, doubts
from wal_sink.protocol.ledger import (
    CLOCKS_DIFFER_US,
    after_dated,
    bounded_now,
    clocks_differ,
    plan_window,
    plan_without_rows,
    refuse_dated_early,
)
from wal_sink.protocol.next_step import (
    Begin,
    Choose,
    Contender,
    Evidence,
    ManifestMissing,
    Observation,
    PassOver,
    RecordFlushed,
    RecordsBehind,
    Resume,
    refuse_foreign,
    refuse_missing_records,
)
from wal_sink.protocol.windows import Choice, fits, following, is_final, joined, named
from wal_sink.wal.log import Log
from wal_sink.wal.segment import CheckedSegments
from wal_sink.wal.trim import read_tombstones

logger = line_logger(__name__)


class WindowChooser:
    """Chooses for one query.

    :param run_history: what this process saw of the query's runs; None: nothing.
    """

    def __init__(
        self,
        log: Log,
        checkpoint: Checkpoint,
        query_id: str,
        run_history: RunHistory | None = None,
    ) -> None:
        self._log = log
        self._checkpoint = checkpoint
        self._query_id = query_id
        self._run_history = run_history or RunHistory()
        self._outdated: set[int] = set()
        self._noted: frozenset[int] | None = None
        """The epochs of which notes say that Spark made them without a sink, as listed for this window."""
        self.checked = CheckedSegments()
        """The segments of the window that was chosen last, as far as they were read."""

    def window(self, first: Choose, view: Observation) -> Choice:
        """Choose the next window; log a choice that something speaks against.

        :raises CorruptLog, Diverged: at which the flush stops.
        """
        self.checked.clear()
        self._noted = None
        first = first._replace(checkpointed=view.checkpointed)
        choice = joined(self._choices(first, view.checkpointed))
        if isinstance(choice, PassOver):
            logger.warning("epoch %d is flushed without rows: %s", choice.epoch, choice.why)
        if isinstance(choice, Begin):
            for doubt in doubts(choice, view.recorded):
                logger.warning("%s: %s", self._log.url, doubt)
        return choice

    def epoch(self, step: Choose, decided: Collection[int] | None = None) -> Choice:
        """Choose among the attempts at one epoch (rule 11); with one plain manifest, reads next to nothing.

        :param decided: the epochs about which operators have decided, if the caller has listed them; None:
            look for a decision.
        :raises CorruptLog, Diverged: the epoch cannot be flushed.
        """
        decision = None
        if decided is None:
            self._noted = None  # it is no epoch of a window
        if decided is None or step.epoch in decided:
            decision, step = self.since_decided(step)
        if decision is not None:  # its manifests may be unreadable, or gone
            return choose(Evidence(step.epoch, step.attempts, decision=decision))
        read = self._manifests(step)
        if self._log.several and (chosen := self._log.read(paths.CHOICE, step.epoch)) is not None:
            return as_chosen(chosen, read)
        evidence = self._evidence(step, read)
        choice = choose(evidence) if evidence is not None else ManifestMissing(step.epoch)
        if not isinstance(choice, Begin):
            return choice
        return replace(choice, manifests=tuple(read[attempt] for attempt in choice.attempts))

    def settle(self, step: Begin | PassOver, published: Sequence[Published]) -> bool:
        """Have a choice stand for every target of the log before any of them begins it (rule 11).

        With one target the ledger row does that. A decision of an operator is about one target.

        :param published: what is begun; nothing for an epoch that is passed over.
        :return: whether it stands; False: another target's flusher has chosen otherwise. Look again.
        """
        if not self._log.several or (isinstance(step, PassOver) and step.decided):
            return True
        chosen = [
            Chosen(
                epoch=one.manifest.epoch,
                generation=one.manifest.generation,
                digest=one.digest,
                offsets_digest=one.manifest.offsets_digest,
            )
            for one in published
        ]
        if isinstance(step, PassOver):
            chosen.append(
                Chosen(
                    epoch=step.epoch,
                    generation=step.generation,
                    digest="",
                    offsets_digest=step.offsets_digest,
                )
            )
        return self._log.settle_choices(chosen)

    def since_decided(self, step: Choose) -> tuple[Decision | None, Choose]:
        """Return the decision that gives the epoch up; or the step with what was published after it.

        What was published before a decision stays given up, although Spark computed the epoch again.
        """
        decision = newest_decision(self._log, step.epoch)
        if decision is None or in_force(self._log, decision, step.attempts, self._checkpoint):
            return decision, step
        if step.epoch not in self._outdated:
            self._outdated.add(step.epoch)
            logger.warning(
                "epoch %d was given up by %s. Spark has computed it again since, so it is flushed",
                step.epoch,
                decision.by,
            )
        covered = decision.highest
        newer = (a for a in step.attempts if a.epoch != step.epoch or a.generation > covered)
        return None, step._replace(attempts=tuple(newer))

    def _choices(self, first: Choose, checkpointed: int) -> Iterator[Choice]:
        """Choose epoch by epoch, up to the one that does not fit into the window.

        Every epoch after the first joins only when all of it can be read. Otherwise an epoch that is damaged
        would keep the mark from moving over the good ones before it, until an operator has mended it. What
        was read of small segments is kept; the bytes of others are read twice, which costs little beside
        sending them.
        """
        size = 0
        decided: Collection[int] | None = None
        for step in following(first, checkpointed):
            behind = step.epoch > first.epoch
            if decided is None and (behind or not self._log.backend.billed):
                # One listing in place of many reads; and a mount may say of a name what it said long ago.
                decided = frozenset(self._log.decided(fresh=True))
            choice = self.epoch(step, decided)
            if is_final(choice):
                (published,) = choice.manifests
                manifest = published.manifest
                if behind and not (fits(size, manifest.bytes) and self._is_whole(manifest)):
                    return
                size += manifest.bytes
            yield choice

    def _manifests(self, step: Choose) -> dict[Attempt, Published]:
        """Read the epoch's manifests; one that vanished since it was listed is trimmed by another flusher."""
        found = ((each, self._log.manifest(each)) for each in named(step.attempts, step.epoch))
        return {attempt: read for attempt, read in found if read is not None}

    def _evidence(self, step: Choose, read: Mapping[Attempt, Published]) -> Evidence | None:
        """Read offsets and notes of the epoch, as far as they can matter; None: they may be trimmed."""
        epoch, planned = step.epoch, self._checkpoint.planned
        # A batch of the state repartition has no manifest.
        followed = bool(named(step.attempts, epoch + 1))
        after = None if followed else planned(epoch + 1)
        now = planned(epoch)
        # Otherwise Spark has planned the epoch anew since it was published, perhaps without a sink.
        as_planned = any(now is None or one.manifest.offsets == now.text for one in read.values())
        before = (
            planned(epoch - 1) if after is not None or not as_planned else None,
            planned(epoch - 2) if not as_planned else None,
        )
        # Where Spark has purged one of these, what it made without a sink is noted in the log.
        followed = followed or step.checkpointed == epoch
        untold = now is None or not as_planned or (not followed and None in (after, before[0]))
        plain = Evidence(
            epoch=epoch,
            attempts=step.attempts,
            contenders=tuple(
                Contender(attempt, one.manifest.run_id, one.manifest.offsets_digest)
                for attempt, one in read.items()
            ),
            before=before,
            planned=now,
            after=after,
            without_sink=self._without_sink(epoch) if untold else None,
        )
        if len(read) < 2:
            return plain
        seen, rivals = self._run_history, [one.manifest.run_id for one in read.values()]
        told = replace(
            plain,
            kept=tuple(self._log.proofs(epoch)),
            swept=read_tombstones(self._log, {a: one.manifest.run_id for a, one in read.items()}),
            committed=seen.committed(self._query_id, epoch, rivals),
            lost=seen.lost(self._query_id, epoch, rivals),
            running=seen.running(self._query_id),
        )
        # After notes and events: a later manifest says which of them come of a `commits/N` made anew.
        there = self._log.attempts(fresh=True)
        if not read.keys() <= set(there):
            return None  # notes go after manifests
        return replace(told, attempts=tuple(sorted({*step.attempts, *there})))

    def _without_sink(self, epoch: int) -> WithoutSink | None:
        """Read the note that Spark made an epoch without a sink.

        A mount may say of a name what it said long ago; so a listing says whether there is one, which is made
        after `offsets/` was found to be purged: the run that purges notes before.
        """
        if self._log.backend.billed:  # which caches nothing
            return self._log.read(paths.WITHOUT_SINK, epoch)
        if self._noted is None:
            self._noted = frozenset(self._log.keys(paths.WITHOUT_SINK, fresh=True))
        return self._log.read(paths.WITHOUT_SINK, epoch) if epoch in self._noted else None

    def _is_whole(self, manifest: Manifest) -> bool:
        """Whether plan and segments can be read; what is wrong is raised when the epoch is the first one."""
        try:
            plan_of(self._log, manifest)
            for segment in manifest.all_segments:
                self.checked.check(self._log.backend, segment)
        except (WalSinkError, FileNotFoundError):
            return False
        return True


_ASK_AGAIN = 2
"""How often the target is asked again when its clock differs: it may be that of a single node."""

_RECKON_S = 10.0
"""For so long the target's time is reckoned on from its last answer: a question costs as much as the rows of
a small epoch."""

_SAY_EVERY_S = 60.0


def ask_for_time(ask: Callable[[], int | None], clock_us: Callable[[], int]) -> list[int]:
    """Ask a target for its time, once; some times more if it is far from this host's.

    :param ask: returns None if the target has no clock; then nothing is told.
    """
    told_us: list[int] = []
    for _ in range(1 + _ASK_AGAIN):
        if (target_us := ask()) is None:
            return []
        told_us.append(target_us)
        if not clocks_differ(clock_us(), told_us):
            break
    return told_us


class Clocks:
    """The clocks of one flusher: this host's, and that of its target, asked every ten seconds at most.

    :param clock_us: this host's, microseconds since 1970.
    :param clock_s: monotonic; by it the target's time is reckoned on.
    """

    def __init__(
        self,
        target: TargetConnection,
        clock_us: Callable[[], int],
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._target = target
        self._clock_us = clock_us
        self._clock_s = clock_s
        self._told_us: list[int] = []
        self._told_s = float("-inf")
        self._said_s: dict[str, float] = {}

    def now_us(self) -> int:
        """Return the time that `begin` uses, see `bounded_now`.

        :raises TargetUnavailable, TargetRefused: the target does not say.
        """
        told_us = self._told()
        now_us = self._clock_us()
        if clocks_differ(now_us, told_us):
            self._say(
                "differ",
                "clocks differ: this host says %s, the target %s. Rows are written as of the earlier one;"
                " set the wrong clock right (NTP)",
                iso(now_us),
                ", ".join(map(iso, told_us)),
            )
        return bounded_now(now_us, told_us)

    def _told(self) -> list[int]:
        """Return the target's time, reckoned on from an answer that agreed with this host; else ask."""
        elapsed_s = self._clock_s() - self._told_s
        if elapsed_s < _RECKON_S:
            reckoned_us = [told_us + int(elapsed_s * 1_000_000) for told_us in self._told_us]
            if not clocks_differ(self._clock_us(), reckoned_us):
                return reckoned_us
        self._told_us = ask_for_time(self._target.now_us, self._clock_us)
        self._told_s = self._clock_s()
        return self._told_us

    def target_us(self) -> int:
        """Return what the target's clock says, by which it dates rows itself; this host's where it has none.

        :raises TargetUnavailable, TargetRefused: the target does not say.
        """
        told_us = self._told()
        return median_low(told_us) if told_us else self._clock_us()

    def look_ahead(self, window: Window, now_us: int) -> None:
        """Warn of a window whose timestamps lie in the future, since those before them did.

        :param now_us: what `now_us` said.
        """
        if window.epochs[0].base_us > now_us + CLOCKS_DIFFER_US:
            self._say(
                "ahead",
                "rows are written as of %s, %.0f s ahead of the clocks: an earlier flusher used such"
                " timestamps, and each epoch's lie above those before. Until then no other writer can"
                " change these rows. To go back to the present, %s",
                iso(window.epochs[0].base_us),
                (window.epochs[0].base_us - now_us) / 1_000_000,
                errors.reset_timestamps(window.first - 1),
            )

    def _say(self, what: str, text: str, *values: object) -> None:
        """Warn, once a minute."""
        now_s = time.monotonic()
        if now_s - self._said_s.get(what, -_SAY_EVERY_S) >= _SAY_EVERY_S:
            self._said_s[what] = now_s
            logger.warning(text, *values)


class Planned(NamedTuple):
    """A window, and what it is made of."""

    window: Window
    chosen: Sequence[Published] = ()
    """The manifests of its epochs; none for an epoch that is passed over."""


class WindowPlanner:
    """Plans for one flusher."""

    def __init__(self, log: Log, clocks: Clocks) -> None:
        self._log = log
        self._clocks = clocks

    def plan(self, step: Begin | PassOver, mark: LedgerState) -> Planned:
        """Fix attempts and write timestamps of the window that is about to be begun.

        :param step: what was chosen. The window has the first of these epochs, and those after it that are
            written in the same way.
        :param mark: the ledger row as it was seen.
        :raises CorruptLog: a plan is gone.
        :raises TargetUnavailable: rows that the target dates itself might be hidden by those that are there.
        """
        begun_us, nonce = self._clocks.now_us(), uuid.uuid4().hex
        if isinstance(step, PassOver):
            dated = are_dated(self._log, mark)
            window = plan_without_rows(step, mark, begun_us, nonce, target_dated=dated)
            planned = Planned(window)
        else:
            planned = self._with_rows(step, mark, begun_us, nonce)
        self._clocks.look_ahead(planned.window, begun_us)
        return planned

    def _with_rows(self, step: Begin, mark: LedgerState, begun_us: int, nonce: str) -> Planned:
        demands = self._demands(step.manifests[0])
        chosen = [*takewhile(lambda each: self._demands(each) == demands, step.manifests)]
        if demands.target_dated:
            refuse_dated_early(mark, self._clocks.target_us())
        elif are_dated(self._log, mark):
            mark = after_dated(mark, self._clocks.target_us())
        window = plan_window(chosen, mark, begun_us, nonce, demands)
        return Planned(window, chosen)

    def _demands(self, published: Published) -> WriteDemands:
        """Return what the rows of an epoch demand; a window has epochs that demand the same."""
        return plan_of(self._log, published.manifest).demands


def are_dated(log: Log, mark: LedgerState) -> bool:
    """Whether the target may have dated rows itself, which are then newer than the ledger row says.

    A row that is new, or was made anew, does not say what was written before.
    """
    return mark.target_dated or (
        mark.last is None and any(plan.demands.target_dated for plan in log.plans())
    )


class LineageCheck:
    """What this log knows of the epochs that the ledger row names."""

    def __init__(self, log: Log, chooser: WindowChooser) -> None:
        self._log = log
        self._chooser = chooser

    def refuse_other_log(
        self, step: RecordFlushed | RecordsBehind | Resume, view: Observation
    ) -> None:
        """Refuse a step that follows from the ledger row, if that is about another log; reads manifests.

        :raises Diverged: it is.
        :raises CorruptLog: records are missing, see `refuse_missing_records`.
        """
        foreign = self.foreign_epoch(step.window, view.attempts, view.checkpointed)
        newest = self._log.newest_flushed(fresh=True) if foreign is not None else None
        if newest is not None and newest.epoch >= step.window.last:
            return  # others have flushed on since the look, and deleted what was compared
        if isinstance(step, RecordsBehind):
            newest = self._log.newest_flushed(fresh=True)
            refuse_missing_records(step.window, newest, foreign, view)
        else:
            refuse_foreign(foreign, view)

    def refuse_left(self, step: Resume, view: Observation) -> None:
        """Refuse to finish a begun window of another log, or behind which Spark went back; seldom reads.

        The flusher compares manifests as it reads them. An epoch that is passed over has none, and no attempt
        is taken at a window of another log (rule 26).

        :raises Diverged: it is, or Spark did.
        """
        window = step.window
        if window.sent_once or not window.epochs[0].manifest:
            self.refuse_other_log(step, view)
        for begun in window.epochs:
            rivals = [each for each in view.attempts if each.epoch == begun.epoch]
            left = self._is_left(begun, rivals)
            if left and begun.epoch not in given_up_since_begun(self._log, window):
                refuse_foreign(begun.epoch, view)

    def foreign_epoch(
        self, window: Window, attempts: Sequence[Attempt], checkpointed: int
    ) -> int | None:
        """Return the first epoch of a window of the ledger row that is not of this log; None when all are.

        :param attempts: the manifests there are, listed after the ledger was read.
        :param checkpointed: the highest epoch that `commits/` covers, read before.
        """
        given_up = given_up_since_begun(self._log, window)
        for begun in window.epochs:
            rivals = [attempt for attempt in attempts if attempt.epoch == begun.epoch]
            if begun.epoch in given_up or self._is_here(begun, rivals, checkpointed):
                continue
            return begun.epoch
        return None

    def _is_here(self, begun: BegunEpoch, attempts: Sequence[Attempt], checkpointed: int) -> bool:
        """Whether an epoch is of this log.

        It is if its manifest is here, to the byte, and Spark has not gone back behind it; or if a record here
        says that it was flushed, or a decision that is in force that it was given up. Without any of them, an
        epoch that Spark has not reached here is not. One that is checkpointed and has no attempt left was
        flushed and trimmed here (rule 12), though its record is lost; but not if it has a manifest in the
        ledger, and would be passed over here. Beside attempts, an epoch without manifest is of this log only
        if it would be passed over here, too.
        """
        if begun.manifest:
            published = self._log.manifest(Attempt(begun.epoch, begun.generation))
            if published is not None:
                return published.digest == begun.digest and not self._is_left(begun, attempts)
        # The record is read after the manifest: a flusher creates the one before it deletes the other.
        if self._is_recorded(begun) or self._was_given_up(begun, attempts):
            return True
        if begun.epoch > checkpointed or (attempts and begun.manifest):
            return False
        if not (attempts or begun.manifest):
            return True
        choice = self._chooser.epoch(Choose(begun.epoch, tuple(attempts)))
        if begun.manifest:
            return not isinstance(choice, PassOver)
        return isinstance(choice, PassOver) and choice.offsets_digest == begun.offsets_digest

    def _is_recorded(self, begun: BegunEpoch) -> bool:
        """Whether a record of this log says that exactly this was flushed."""
        record = self._log.flushed(begun.epoch)
        return record is not None and record.names(begun.digest, begun.offsets_digest)

    def _was_given_up(self, begun: BegunEpoch, attempts: Sequence[Attempt]) -> bool:
        """Whether an epoch was begun without rows by a decision of this log that is still in force."""
        if begun.manifest:
            return False
        decision, _ = self._chooser.since_decided(Choose(begun.epoch, tuple(attempts)))
        return decision is not None and (decision.generation, decision.offsets_digest) == (
            begun.generation,
            begun.offsets_digest,
        )

    def _is_left(self, begun: BegunEpoch, attempts: Sequence[Attempt]) -> bool:
        """Whether a later run has computed an epoch from other source offsets: Spark went back behind it.

        A replay from the same offsets is no other history. An attempt that cannot be read tells nothing.
        """
        later = (each for each in attempts if begun.manifest and each.generation > begun.generation)
        for attempt in later:
            with contextlib.suppress(CorruptLog):
                published = self._log.manifest(attempt)
                if published and published.manifest.offsets_digest != begun.offsets_digest:
                    return True
        return False

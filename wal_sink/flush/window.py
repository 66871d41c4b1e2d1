"""Chooses the window that a flusher begins next, and gives it timestamps.

The decisions are pure: `attempts` for each epoch (rules 11, 12 and 22), `windows` for those that
share a window (rule 10). Each manifest is read once and goes with the choice. Timestamps lie above all
before, and not after the target's clock (rule 14); where the clocks of this host and of the target differ,
a warning says so.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from statistics import median_low

from wal_sink import errors
from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.clock import iso
from wal_sink.errors import WalSinkError
from wal_sink.flush.connection import TargetConnection
from wal_sink.flush.rows import plan_of
from wal_sink.flush.run_history import RunHistory
from wal_sink.log_context import Seldom, line_logger
from wal_sink.model import paths
from wal_sink.model.ledger import LedgerState, Window
from wal_sink.model.manifest import Attempt, Manifest, Published, attempts_at
from wal_sink.model.plan import WriteDemands
from wal_sink.model.records import Chosen, Decision, WithoutSink
from wal_sink.progress.decisions import in_force
from wal_sink.protocol.attempts import Contender, Evidence, as_chosen, choose, doubts
from wal_sink.protocol.ledger import (
    CLOCKS_DIFFER_US,
    after_dated,
    bounded_now,
    clocks_differ,
    new_window,
    new_window_without_rows,
    refuse_dated_early,
)
from wal_sink.protocol.next_step import Begin, Choose, ManifestMissing, Observation, PassOver
from wal_sink.protocol.windows import Choice, fits, following, is_final, merged
from wal_sink.wal.log import Log
from wal_sink.wal.segment import CheckedSegments

logger = line_logger(__name__)


class WindowChooser:
    """Chooses which epochs a query's next window has, and of each the attempt (rules 10 to 12).

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
        self.checkpoint = checkpoint
        self._query_id = query_id
        self._run_history = run_history or RunHistory()
        self._outdated: set[int] = set()
        self._noted: frozenset[int] | None = None
        """The epochs of which notes say that Spark made them without a sink, as listed for this window."""
        self.checked = CheckedSegments()
        """The segments of the window that was chosen last, as far as they were read."""

    def window(self, first: Choose, observed: Observation) -> Choice:
        """Choose the next window; log a choice that something speaks against.

        :raises CorruptLog, Diverged: at which the flush stops.
        """
        self.checked.clear()
        self._noted = None
        first = first._replace(checkpointed=observed.checkpointed)
        choice = merged(self._choices(first, observed.checkpointed))
        if isinstance(choice, PassOver):
            logger.warning("epoch %d is flushed without rows: %s", choice.epoch, choice.why)
        if isinstance(choice, Begin):
            for doubt in doubts(choice, observed.recorded):
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

    def record(self, step: Begin | PassOver, published: Sequence[Published]) -> bool:
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
        return self._log.create_choices(chosen)

    def since_decided(self, step: Choose) -> tuple[Decision | None, Choose]:
        """Return the decision that gives the epoch up; or the step with what was published after it.

        What was published before a decision stays given up, although Spark computed the epoch again.
        """
        decision = self._log.decision(step.epoch)
        if decision is None or in_force(self._log, decision, step.attempts, self.checkpoint):
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
        """Read the epoch's manifests, but for those that vanished since they were listed."""
        found = (
            (each, self._log.manifest(each)) for each in attempts_at(step.attempts, step.epoch)
        )
        return {attempt: read for attempt, read in found if read is not None}

    def _evidence(self, step: Choose, read: Mapping[Attempt, Published]) -> Evidence | None:
        """Read offsets and notes of the epoch, as far as they can matter; None: others have deleted some."""
        epoch, offsets = step.epoch, self.checkpoint.offsets
        if len(read) < len(attempts_at(step.attempts, epoch)):
            return None  # the one that is gone may be the one that counts
        # One of the state repartition's has no manifest but that of an attempt from before Spark went back.
        now, after = offsets(epoch), offsets(epoch + 1)
        # If none was, Spark has planned the epoch anew since it was published, perhaps without a sink.
        unchanged = any(now is None or one.manifest.offsets == now.text for one in read.values())
        before = (
            offsets(epoch - 1) if after is not None or not unchanged else None,
            offsets(epoch - 2) if not unchanged else None,
        )
        # Where Spark has purged one of these, what it made without a sink is noted in the log.
        is_last = step.checkpointed == epoch
        is_unclear = now is None or not unchanged or (not is_last and None in (after, before[0]))
        without_notes = Evidence(
            epoch=epoch,
            attempts=step.attempts,
            contenders=tuple(
                Contender(attempt, one.manifest.run_id, one.manifest.offsets_digest)
                for attempt, one in read.items()
            ),
            before=before,
            offsets=now,
            after=after,
            without_sink=self._without_sink(epoch) if is_unclear else None,
        )
        if len(read) < 2:
            return without_notes
        seen, rivals = self._run_history, [one.manifest.run_id for one in read.values()]
        found = replace(
            without_notes,
            proofs=tuple(self._log.proofs(epoch, fresh=True)),
            tombstones=self._log.tombstones({a: one.manifest.run_id for a, one in read.items()}),
            committed=seen.committed(self._query_id, epoch, rivals),
            gave_way=seen.gave_way(self._query_id, epoch, rivals),
            running=seen.running(self._query_id),
        )
        # After notes and events: a later manifest says which of them come of a `commits/N` made anew.
        there = self._log.attempts(fresh=True)
        if not read.keys() <= set(there):
            return None  # notes go after manifests
        return replace(found, attempts=tuple(sorted({*step.attempts, *there})))

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


def make_window(
    log: Log, clocks: Clocks, step: Begin | PassOver, row: LedgerState
) -> tuple[Window, Sequence[Published]]:
    """Fix attempts and write timestamps (rule 14) of the window that is about to be begun.

    :param step: what was chosen. The window has the first of these epochs, and those after it that are
        written in the same way.
    :param row: the ledger row as it was seen.
    :return: the window, and the manifests of its epochs; none for an epoch that is passed over.
    :raises CorruptLog: a plan is gone.
    :raises TargetUnavailable: rows that the target dates itself might be hidden by those that are there.
    """
    begun_us, nonce = clocks.now_us(), uuid.uuid4().hex
    chosen: Sequence[Published] = ()
    if isinstance(step, PassOver):
        dated = are_dated(log, row)
        window = new_window_without_rows(step, row, begun_us, nonce, target_dated=dated)
    else:
        demands = _demands(log, step.manifests[0])
        chosen = [*takewhile(lambda each: _demands(log, each) == demands, step.manifests)]
        if demands.target_dated:
            refuse_dated_early(row, clocks.target_us())
        elif are_dated(log, row):
            row = after_dated(row, clocks.target_us())
        window = new_window(chosen, row, begun_us, nonce, demands)
    clocks.look_ahead(window, begun_us)
    return window, chosen


def _demands(log: Log, published: Published) -> WriteDemands:
    """Return what the rows of an epoch demand; a window has epochs that demand the same."""
    return plan_of(log, published.manifest).demands


def are_dated(log: Log, row: LedgerState) -> bool:
    """Whether the target may have dated rows itself, which are then newer than the ledger row says.

    A row that is new, or was made anew, does not say what was written before.
    """
    return row.target_dated or (
        row.last is None and any(plan.demands.target_dated for plan in log.plans())
    )


_ASK_AGAIN = 2
"""How often the target is asked again when its clock differs: it may be that of a single node."""

_RECKON_S = 10.0
"""For so long the target's time is reckoned on from its last answer: a question costs as much as the rows of
a small epoch."""


def ask_for_time(ask: Callable[[], int | None], clock_us: Callable[[], int]) -> list[int]:
    """Ask a target for its time, once; some times more if it is far from this host's.

    :param ask: returns None if the target has no clock; then nothing is told.
    """
    answers_us: list[int] = []
    for _ in range(1 + _ASK_AGAIN):
        if (target_us := ask()) is None:
            return []
        answers_us.append(target_us)
        if not clocks_differ(clock_us(), answers_us):
            break
    return answers_us


class Clocks:
    """The clocks of one flusher: this host's, and that of its target, asked every ten seconds at most.

    :param clock_us: this host's, microseconds since 1970.
    :param clock_s: monotonic; by it the target's time is reckoned on.
    """

    def __init__(
        self,
        connection: TargetConnection,
        clock_us: Callable[[], int],
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connection = connection
        self._clock_us = clock_us
        self._clock_s = clock_s
        self._answers_us: list[int] = []
        self._answered_s = float("-inf")
        self._seldom = Seldom()

    def now_us(self) -> int:
        """Return the time that `begin` uses, see `bounded_now`.

        :raises TargetUnavailable, TargetRefused: the target does not say.
        """
        answers_us = self._target_times()
        now_us = self._clock_us()
        if clocks_differ(now_us, answers_us):
            self._say(
                "differ",
                "clocks differ: this host says %s, the target %s. Rows are written as of the earlier one;"
                " set the wrong clock right (NTP)",
                iso(now_us),
                ", ".join(map(iso, answers_us)),
            )
        return bounded_now(now_us, answers_us)

    def _target_times(self) -> list[int]:
        """Return the target's time, reckoned on from an answer that agreed with this host; else ask."""
        elapsed_s = self._clock_s() - self._answered_s
        if elapsed_s < _RECKON_S:
            reckoned_us = [answer_us + int(elapsed_s * 1_000_000) for answer_us in self._answers_us]
            if not clocks_differ(self._clock_us(), reckoned_us):
                return reckoned_us
        self._answers_us = ask_for_time(self._connection.now_us, self._clock_us)
        self._answered_s = self._clock_s()
        return self._answers_us

    def target_us(self) -> int:
        """Return what the target's clock says, by which it dates rows itself; this host's where it has none.

        :raises TargetUnavailable, TargetRefused: the target does not say.
        """
        answers_us = self._target_times()
        return median_low(answers_us) if answers_us else self._clock_us()

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
        if self._seldom.is_due(what):
            logger.warning(text, *values)

"""`rewind`: sets ledger and log to an earlier epoch, so that the flush sends again what came after.

For a target that was restored from a backup, or lost rows; and, to the log's own mark, for a ledger row
that was lost, or lies behind although the rows are there. First the command records what it changes, sets
aside what is flushed again and pins the attempts that were flushed; then it replaces the ledger row, at
which every flusher stops; then it deletes the `flushed/` records, newest first.
docs/protocol/operators.md#how-far-rewind-can-go argues why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import groupby
from typing import NamedTuple

import msgspec

from wal_sink.admin.flusher_at_work import REWINDING, refuse_flusher
from wal_sink.admin.ledger import LedgerAccess, is_foreign, open_ledger
from wal_sink.admin.query import Query, user_and_host
from wal_sink.clock import iso
from wal_sink.errors import CorruptLog, Diverged, WalSinkError
from wal_sink.flush.report import Reporter
from wal_sink.flush.rows import plan_of
from wal_sink.flush.window import WindowChooser
from wal_sink.model import paths
from wal_sink.model.ledger import LedgerState
from wal_sink.model.manifest import Attempt, Manifest
from wal_sink.model.records import (
    LEFT_FIRST,
    LEFT_LAST,
    Decision,
    FlushedEpoch,
    Intervention,
)
from wal_sink.progress.backlog import read_manifests
from wal_sink.progress.decisions import in_force
from wal_sink.protocol.next_step import Choose, ManifestMissing
from wal_sink.protocol.repair import (
    LeftBehind,
    Past,
    left_behind,
    refuse_lost,
    refuse_rewind,
    rewound,
)
from wal_sink.protocol.windows import WINDOW_EPOCHS, fits
from wal_sink.targets.base import Delivery, Target
from wal_sink.text import counted
from wal_sink.wal.aside import bring_back, prove_aside, set_aside
from wal_sink.wal.log import Log
from wal_sink.wal.retention import all_records, has_manifest, put_back, retained_paths
from wal_sink.wal.segment import check_segment


def flushed_attempt(query: Query, past: Past, epoch: int) -> Attempt | None:
    """Return the attempt that was flushed; without a record, the only one there is."""
    record = past.records.get(epoch)
    if record is not None:
        attempt = Attempt(epoch, record.generation)
        return attempt if has_manifest(query.log, attempt) else None
    attempts = query.log.attempts_at(epoch)
    return attempts[0] if len(attempts) == 1 else None


def is_usable(query: Query, past: Past, epoch: int) -> bool:
    """Tell whether the log has the attempt that was flushed, with every byte of it.

    An epoch that this log has never flushed needs none: True.
    """
    if past.unflushed_here(epoch):
        return True
    attempt = flushed_attempt(query, past, epoch)
    record = past.records.get(epoch)
    try:
        found = query.log.manifest(attempt) if attempt is not None else None
        if found is None or not (record is None or record.names(found[1], found[0].offsets_digest)):
            return False
        plan_of(query.log, found[0])
        for segment in found[0].all_segments:
            check_segment(query.log.backend, segment)
    except (CorruptLog, FileNotFoundError):
        return False
    return record is None or (record.rows, record.bytes) == (found[0].rows, found[0].bytes)


def stops_flush(query: Query, chooser: WindowChooser, past: Past, epoch: int) -> bool:
    """Tell whether the flush will stop at an epoch that another log has flushed: this one has no manifest."""
    if not past.unflushed_here(epoch):
        return False
    try:
        return isinstance(chooser.epoch(Choose(epoch, query.log.attempts())), ManifestMissing)
    except (CorruptLog, Diverged):
        return True


def needed_attempts(query: Query, past: Past, again: range) -> Iterator[Manifest]:
    """Yield what a flusher that stands still could delete: what is flushed again, and a window above that.

    A flusher that has finished a window, and not recorded it, may trim it when it wakes. That window begins
    right after the log's mark. Which attempts it names is not known once the ledger row is lost or restored,
    so all of them are kept.
    """
    flushed = [epoch for epoch in again if not past.unflushed_here(epoch)]
    for epoch in flushed:
        kept = None if past.passed_over(epoch) else flushed_attempt(query, past, epoch)
        found = query.log.manifest(kept) if kept is not None else None
        if found is not None:
            yield found.manifest.without_data()
    window = range(past.floor + 1, past.floor + WINDOW_EPOCHS + 1)
    begun = set(window).difference(flushed)
    attempts = [attempt for attempt in query.log.attempts() if attempt.epoch in begun]
    size, manifests = 0, read_manifests(query.log, attempts).manifests
    for _, group in groupby(manifests.values(), lambda each: each.epoch):
        rivals = tuple(group)
        least = min(manifest.bytes for manifest in rivals)  # the window has one of them
        if not fits(size, least):
            return
        size += least
        yield from (manifest for manifest in rivals if has_files(query.log, manifest))


def has_files(log: Log, manifest: Manifest) -> bool:
    """Whether the segments of an attempt are there; what is wrong with them is found when it is flushed."""
    try:
        for segment in manifest.files:
            log.backend.size(segment.path)
    except FileNotFoundError:
        return False
    return True


def pin_attempt(query: Query, past: Past, epoch: int, us: int, now_us: int) -> None:
    """Keep only the attempt that was flushed, and prove it; of an epoch without rows, keep that it was.

    :param us: the highest write timestamp that was used before the rewind, microseconds since 1970.
    :param now_us: microseconds since 1970.
    :raises WalSinkError: the attempt is gone since the rewind was planned.
    """
    if past.unflushed_here(epoch):
        return  # this log has never begun it: rule 11 chooses
    if past.passed_over(epoch):
        if epoch not in past.given_up:
            decision = _without_rows(past.records[epoch], now_us, past.highest)
            query.log.create_decision(decision, len(query.log.decisions(epoch)))
        return
    kept = flushed_attempt(query, past, epoch)
    found = query.log.manifest(kept) if kept is not None else None
    if kept is None or found is None:
        raise WalSinkError(f"Epoch {epoch} was changed meanwhile", "Run the command again.")
    prove_aside(query.log, us, found.manifest, past.highest)
    others = [each for each in query.log.attempts_at(epoch) if each != kept]
    # One that has claimed since came after another rewind: Spark has computed the epoch again.
    lost = [paths.MANIFEST.path(each) for each in others if each.generation <= past.highest]
    set_aside(query.log, us, lost, lost=True)
    query.log.delete(lost)


def _without_rows(record: FlushedEpoch, now_us: int, highest: int) -> Decision:
    return Decision(
        verb="rewind",
        epoch=record.epoch,
        by=user_and_host(),
        at_us=now_us,
        why="it was flushed without rows before: Spark's state repartition made it",
        where="",
        files=(),
        generation=record.generation,
        offsets_digest=record.offsets_digest,
        rows=0,
        last_us=0,
        highest=highest,
    )


def read_past(query: Query, row: LedgerState | None, checkpointed: int, now_us: int) -> Past:
    """Read the past, but for what is usable of it, and whether the ledger row follows another log.

    :param row: the ledger row.
    :param checkpointed: the last epoch that `commits/` covers.
    :param now_us: microseconds since 1970.
    """
    log = query.log
    attempts = log.attempts()
    highest = max((log.highest_generation(), *(attempt.generation for attempt in attempts)))
    records = all_records(log)
    floor = log.mark()
    late = {epoch: records.pop(epoch) for epoch in list(records) if epoch > floor}
    decisions = {epoch: log.decisions(epoch) for epoch in log.decided()}
    earlier = [done.after for done in log.interventions("rewind")]
    rewound_us = [int(row["last_us"]) for row in earlier]
    rewound_us += [decision.last_us for each in decisions.values() for decision in each]
    flushed = (*records.items(), *late.items())
    published = {*attempts, *(Attempt(e, record.generation) for e, record in flushed)}
    return Past(
        query.identity(),
        row,
        records,
        late,
        frozenset(
            epoch
            for epoch, each in decisions.items()
            if each and in_force(log, each[-1], published, query.checkpoint)
        ),
        usable={},
        rewound_us=tuple(rewound_us),
        left_behind=tuple(_left(row).ahead_of(now_us) for row in earlier if LEFT_FIRST in row),
        checkpointed=checkpointed,
        highest=highest,
    )


def _left(row: dict[str, str]) -> LeftBehind:
    return LeftBehind(int(row["flushed"]), int(row[LEFT_FIRST]), int(row[LEFT_LAST]))


class Rewound(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of `rewind`."""

    query_id: str
    record: str
    """URL of the record."""
    to: int
    again: int
    """How many epochs are flushed again."""
    aside: str
    """URL of the folder with second names of what is flushed again; empty for nothing."""
    before: dict[str, str]
    after: dict[str, str]


class Rewind(NamedTuple):
    """The change that `rewind` makes."""

    query: Query
    target: Target
    past: Past
    to: int
    new: LedgerState
    rivals: tuple[Attempt, ...]
    """The attempts at the epoch after the log's mark."""
    left: LeftBehind | None = None
    """The timestamps that are left behind; None: they go on growing."""
    needed: tuple[Manifest, ...] = ()
    """What is flushed again, and what a flusher that stands still may have finished above the log's mark."""
    stopping: tuple[int, ...] = ()
    """The epochs at which the flush stops after that, since they have no manifest that can be used."""

    @property
    def again(self) -> range:
        """The epochs that are flushed again."""
        return range(self.to + 1, self.past.upper + 1)

    @property
    def consequences(self) -> str:
        """Say what the operator agrees to."""
        text = (
            f"Query {self.query.query_id}: ledger and log will say that epoch {self.to} is flushed."
        )
        known = self.past.row.flushed if self.past.row else None
        if known is None or known < self.to:
            text += (
                f" The ledger {'has no row' if known is None else f'says {known}'}: the table must hold"
                f" every epoch up to {self.to} already. What it lacks of them stays lost."
            )
        if self.again:
            twice = f"and come twice unless the table, too, is set back to epoch {self.to}"
            how = (
                twice
                if self.target.delivery is not Delivery.IDEMPOTENT
                else "with newer timestamps"
            )
            text += f" Epochs {self.again[0]} to {self.again[-1]} are flushed again, {how}."
        if self.left:
            until = iso(self.left.last_us)
            text += (
                " What is flushed from then on is written as of the present again. Rows that are in the table"
                f" as of the future stay on top until {until}: what this query or another writer writes"
                " to their keys before that is not seen, unless the table is truncated and filled again."
            )
        if given_up := [epoch for epoch in self.again if epoch in self.past.given_up]:
            listed = ", ".join(map(str, given_up))
            text += f" Without the rows of these epochs, which were given up and stay so: {listed}."
        if self.past.foreign:
            text += (
                f" The ledger follows another log and says {known}: rows of that log's epochs from"
                f" {self.past.floor + 1} on stay in the table."
            )
        if self.stopping:
            listed = ", ".join(map(str, self.stopping))
            text += (
                f" The log has no manifest that can be used of these: {listed}. The flush stops there until"
                " it is restored, or the epoch is given up."
            )
        if known is None and len(self.rivals) > 1:
            text += (
                f" Epoch {self.rivals[0].epoch} has {len(self.rivals)} attempts in the log: if it was begun"
                " in the row that is lost, rows of another one than is flushed now may be in the table."
            )
        if self.needed:
            size = sum(manifest.bytes for manifest in self.needed)
            text += (
                f" Until an hour after they are flushed, {self._aside} also has the files of"
                f" {counted(len(self.needed), 'manifest')}, {size:,} bytes: a flusher that stands still may"
                " delete the others."
            )
        return text

    @property
    def _aside(self) -> str:
        """URL of the folder with the second names."""
        return self.query.log.url_of(paths.aside(self.new.last_us, ""))

    def carry_out(self, now_us: int, why: str = "") -> Rewound:
        """Set ledger and log back; can be repeated at any point. Reports itself as a flusher does meanwhile.

        :raises FlusherAtWork: the ledger row was moved since it was read, by a flusher or another rewind.
        """
        reporter = Reporter(self.query.log)
        reporter.repeat_error()  # it stands until this is done
        reporter.say(REWINDING, None)
        try:
            done = self._carry_out(now_us, why, reporter)
            reporter.keep_error(behind=self.to)  # a `skip` that comes next gives it as its reason
            return done
        finally:
            reporter.ended()

    def _carry_out(self, now_us: int, why: str, reporter: Reporter) -> Rewound:
        query, past = self.query, self.past
        before, after = _row(past.row), _row(self.new)
        if self.left:
            after |= {LEFT_FIRST: str(self.left.first_us), LEFT_LAST: str(self.left.last_us)}
        record = query.log.record_intervention(
            Intervention(
                verb="rewind",
                by=user_and_host(),
                at_us=now_us,
                why=why,
                before=before,
                after=after,
            )
        )
        put_back(query.log, self.to)
        # Before the second names: a trim deletes a manifest before what tells it from others.
        noted, chosen = query.log.keys(paths.PROOF), self._chosen()
        try:
            for manifest in self.needed:
                files = [segment.path for segment in manifest.files]
                for path in (*files, paths.MANIFEST.path(manifest.attempt)):
                    reporter.say(REWINDING, manifest.epoch)
                    set_aside(query.log, self.new.last_us, [path])
            for epoch in self.again:
                reporter.say(REWINDING, epoch)
                pin_attempt(query, past, epoch, self.new.last_us, now_us)
            # What a flusher records until the row is moved is deleted below, and that flusher trims it.
            for manifest in chosen:
                prove_aside(query.log, self.new.last_us, manifest, past.highest)
            notes = [paths.PROOF.path(m.attempt) for m in self.needed if m.attempt in noted]
            set_aside(query.log, self.new.last_us, notes)
        except FileNotFoundError as error:
            raise WalSinkError(
                f"What is to be flushed again was changed meanwhile: {error}",
                "Run the command again.",
            ) from error
        with open_ledger(self.target, query.owner(past.identity)) as ledger:
            ledger.replace(past.row, self.new)
            query.log.cut_window(self.to)
            # Listed by now: a flusher may have recorded what it had finished before the row was moved.
            retained = retained_paths(query.log)
            for epoch, objects in query.log.recorded_above(self.to, retained):
                reporter.say(REWINDING, epoch)
                ledger.refuse_moved(self.new)  # what is there now may be about a later flush
                query.log.delete(objects)
            self._refuse_undone(ledger)
        return Rewound(
            query_id=query.query_id,
            record=query.log.url_of(record),
            to=self.to,
            again=len(self.again),
            aside=self._aside if self.needed else "",
            before=before,
            after=after,
        )

    def _chosen(self) -> list[Manifest]:
        """Return what was chosen for all of several targets, of what is kept: others may have it."""
        log = self.query.log
        if not log.targets:
            return []
        choices = {each: log.read(paths.CHOICE, each) for each in {m.epoch for m in self.needed}}
        return [
            each
            for each in self.needed
            if (chosen := choices[each.epoch]) is not None
            and chosen.digest
            and chosen.generation == each.generation
        ]

    def _refuse_undone(self, ledger: LedgerAccess) -> None:
        """Check, once the records are gone, that only a flusher can have moved the row since.

        Another rewind may have moved it to an epoch whose record this one has deleted after its last look.
        That epoch counts as flushed then, and its refused rows are in quarantine alone.

        :raises FlusherAtWork: another rewind has moved it.
        """
        row, first = ledger.read(), self.to + 1
        if row is not None and row.flushed == self.to:
            return
        before = self.past.records.get(first)
        named = (self.query.log.flushed(first), *(row.last.epochs if row and row.last else ()))
        flushed_us = {each.base_us for each in named if each is not None and each.epoch == first}
        if not flushed_us.difference({before.base_us} if before is not None else ()):
            ledger.refuse_moved(self.new)


def plan_rewind(
    query: Query,
    target: Target,
    to: int,
    now_us: int,
    *,
    restored: bool = False,
    reset_by: Callable[[], int] | None = None,
) -> Rewind:
    """Check that everything above an epoch can be flushed again; read its segments to the last byte.

    :param restored: the operator knows that checkpoint and log were restored from a backup (rule 23).
    :param reset_by: this host's clock, microseconds since 1970; the timestamps go back from the future to it.
    :raises OptionError: it cannot mean anything, see `protocol.repair`.
    :raises MissingManifest: an epoch is no longer in the log.
    :raises FlusherAtWork: a flusher is alive.
    :raises WrongOwner, LedgerShadowed, TargetUnavailable, CorruptLog: see `wal_sink.errors`.
    """
    owner = query.owner(query.identity())
    refuse_flusher(query.log, now_us, unless_stopped=False, patience=query.patience)
    with open_ledger(target, owner) as ledger:
        row = ledger.read()
        reset_us = ledger.present_us(reset_by) if reset_by else None
    # The row is older than what follows: if others act since, it cannot be replaced.
    checkpointed = query.checkpoint.last_commit()
    past = read_past(query, row, checkpointed, now_us)
    past = past._replace(foreign=restored or is_foreign(query, row, checkpointed))
    refuse_rewind(past, to, owner, reset_us=reset_us)
    above = range(to + 1, past.upper + 1)
    # What a flusher has deleted since an earlier rewind; not of epochs whose records are forgotten: those are
    # trimmed, and a manifest that came back would have nothing to be compared with.
    bring_back(query.log, range(max(to + 1, min(past.records, default=0)), past.upper + 1))
    past = past._replace(usable={epoch: is_usable(query, past, epoch) for epoch in above})
    refuse_lost(past, to)
    rivals = tuple(query.log.attempts_at(past.floor + 1))
    left = left_behind(past, to, reset_us) if reset_us is not None else None
    new = rewound(past, to, owner, reset_us=reset_us)
    needed = tuple(needed_attempts(query, past, above))
    chooser = query.chooser()
    stopping = tuple(epoch for epoch in above if stops_flush(query, chooser, past, epoch))
    return Rewind(query, target, past, to, new, rivals, left, needed, stopping)


def _row(row: LedgerState | None) -> dict[str, str]:
    """Return the ledger row as texts."""
    if row is None:
        return {}
    return {
        "flushed": str(row.flushed),
        "last_us": str(row.last_us),
        "begun": row.begun.to_text() if row.begun else "",
        "last": row.last.to_text() if row.last else "",
    }

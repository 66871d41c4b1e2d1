"""`rewind`: sets ledger and log to an earlier epoch, so that the flush sends again what came after.

For a target that was restored from a backup, or lost rows; and, to the log's own mark, for a ledger row that
was lost, or lies behind although the rows are there. First the command records what it changes, sets aside
what is flushed again and pins the attempts that were flushed; then it replaces the ledger row, at which every
flusher stops; then it deletes the `flushed/` records, newest first: docs/protocol.md#how-far-rewind-can-go.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from wal_sink.admin.flushed_again import is_usable, needed_attempts, stops_flush
from wal_sink.admin.foreign import is_foreign
from wal_sink.admin.ledger_row import ledger_row
from wal_sink.admin.pin_attempt import pin_attempt
from wal_sink.admin.query import Query, user_and_host
from wal_sink.admin.refuse_flusher import PATIENCE, REWINDING, Patience, refuse_flusher
from wal_sink.clock import iso
from wal_sink.counted import counted
from wal_sink.errors import WalSinkError
from wal_sink.flush.choose_window import WindowChooser
from wal_sink.flush.reporter import Reporter
from wal_sink.model import paths
from wal_sink.model.ledger import Mark
from wal_sink.model.manifest import Attempt, Manifest
from wal_sink.model.records import (
    LEFT_FIRST,
    LEFT_LAST,
    Intervention,
)
from wal_sink.progress.given_up import in_force
from wal_sink.protocol.rewind import (
    LeftBehind,
    Past,
    left_behind,
    refuse_lost,
    refuse_rewind,
    refuse_unsaid,
    rewound,
)
from wal_sink.targets.base import Delivery, Target
from wal_sink.wal.aside import bring_back, set_aside
from wal_sink.wal.quarantine import entries
from wal_sink.wal.retain import all_records, put_back


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
    new: Mark
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
        if self.again:
            twice = f"and come twice unless the table, too, is set back to epoch {self.to}"
            how = twice if self.target.delivery is not Delivery.CELLS else "with newer timestamps"
            text += f" Epochs {self.again[0]} to {self.again[-1]} are flushed again, {how}."
        if self.needed:
            size = sum(manifest.bytes for manifest in self.needed)
            text += (
                f" Before that, what {counted(len(self.needed), 'manifest names', 'manifests name')}"
                f" ({size:,} bytes) gets a second name in"
                f" {self._aside}, so that no flusher that stands still can delete the last copy. These names"
                " go within an hour after their epoch is flushed."
            )
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
        known = self.past.mark.flushed if self.past.mark else None
        if known is None or known < self.to:
            text += (
                f" The ledger {'has no row' if known is None else f'says {known}'}: the table must hold"
                f" every epoch up to {self.to} already. What it lacks of them stays lost."
            )
        if self.past.foreign:
            text += (
                f" The ledger follows another log and says {known}: rows of that log's epochs from"
                f" {self.past.floor + 1} on stay in the table."
            )
            if self.past.in_order:
                order = f" {self.past.in_order} must be set back to epoch {self.to}: what it has of those"
                text += f"{order} epochs counts for this log's, whose rows are passed over then."
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
        return text

    @property
    def _aside(self) -> str:
        """URL of the folder with the second names."""
        return self.query.log.where(paths.aside(self.new.last_us, ""))

    def carry_out(self, now_us: int, why: str = "") -> Rewound:
        """Set ledger and log back; can be repeated at any point. Reports itself as a flusher does meanwhile.

        :raises FlusherAtWork: the ledger row was moved since it was read, by a flusher or another rewind.
        """
        reporter = Reporter(self.query.log)
        reporter.keep_error(behind=self.to)  # a `skip` that comes next gives it as its reason
        reporter.say(REWINDING, None)
        try:
            return self._carry_out(now_us, why, reporter)
        finally:
            reporter.ended()

    def _carry_out(self, now_us: int, why: str, reporter: Reporter) -> Rewound:
        query, past = self.query, self.past
        before, after = _row(past.mark), _row(self.new)
        if self.left:
            after |= {LEFT_FIRST: str(self.left.first_us), LEFT_LAST: str(self.left.last_us)}
        record = query.log.record_intervention(
            Intervention(
                verb="rewind", by=user_and_host(), at_us=now_us, why=why, before=before, after=after
            )
        )
        query.log.cut_window(self.to)
        put_back(query.log, self.to)
        try:
            for manifest in self.needed:
                files = [segment.path for segment in manifest.files]
                for path in (*files, paths.manifest(manifest.attempt)):
                    reporter.say(REWINDING, manifest.epoch)
                    set_aside(query.log, self.new.last_us, [path])
            for epoch in self.again:
                reporter.say(REWINDING, epoch)
                pin_attempt(query, past, epoch, self.new.last_us, now_us)
        except FileNotFoundError as error:
            raise WalSinkError(
                f"What is to be flushed again was changed meanwhile: {error}",
                "Run the command again.",
            ) from error
        refused = [
            entry.path
            for entry in entries(query.log)
            if entry.epoch > self.to and entry.epoch not in past.given_up
        ]
        above = query.log.recorded_above(self.to, (*past.records, *past.late))
        with ledger_row(self.target, query.owner(past.identity)) as row:
            row.replace(past.mark, self.new)
            for epoch, objects in above:
                reporter.say(REWINDING, epoch)
                row.refuse_moved(self.new)  # what is there now may be about a later flush
                query.log.delete(objects)
        query.log.delete(refused)  # the flush keeps them again, with newer timestamps
        return Rewound(
            query_id=query.query_id,
            record=query.log.where(record),
            to=self.to,
            again=len(self.again),
            aside=self._aside if self.needed else "",
            before=before,
            after=after,
        )


def plan_rewind(
    query: Query,
    target: Target,
    to: int,
    now_us: int,
    *,
    restored: bool = False,
    reset_timestamps: bool = False,
    patience: Patience = PATIENCE,
) -> Rewind:
    """Check that everything above an epoch can be flushed again; read its segments to the last byte.

    :param restored: the operator knows that checkpoint and log were restored from a backup (rule 23).
    :param reset_timestamps: the timestamps go back from the future to the present.
    :param patience: how to wait for a flusher's sign of life.
    :raises OptionError: it cannot mean anything, see `protocol.rewind`.
    :raises MissingManifest: an epoch is no longer in the log.
    :raises FlusherAtWork: a flusher is alive.
    :raises WrongOwner, TargetUnavailable, CorruptLog: see `wal_sink.errors`.
    """
    identity = query.identity()
    owner = query.owner(identity)
    chooser = WindowChooser(query.log, query.checkpoint, query.query_id)
    checkpointed = query.checkpoint.last_commit()
    refuse_flusher(query.log, now_us, unless_stopped=False, patience=patience)
    plans = list(query.log.plans())
    once = any(plan.sent_once for plan in plans)
    with ledger_row(target, owner) as row:
        mark = row.read()
        present_us = row.present_us(now_us) if reset_timestamps or once else 0
        reset_us = present_us if reset_timestamps else None
    log = query.log
    records = all_records(log)
    floor = max(log.flushed_epochs(), default=-1)  # the flusher's mark
    late = {epoch: records.pop(epoch) for epoch in list(records) if epoch > floor}
    decisions = {epoch: log.decisions(epoch) for epoch in log.decided()}
    earlier = [done.after for done in log.interventions("rewind")]
    rewound_us = [int(row["last_us"]) for row in earlier]
    rewound_us += [decision.last_us for each in decisions.values() for decision in each]
    flushed = (*records.items(), *late.items())
    published = {*log.attempts(), *(Attempt(e, record.generation) for e, record in flushed)}
    past = Past(
        identity,
        mark,
        records,
        late,
        frozenset(
            epoch
            for epoch, each in decisions.items()
            if each and in_force(log, each[-1], published, query.checkpoint)
        ),
        usable={},
        rewound_us=tuple(rewound_us),
        left_behind=tuple(_left(row) for row in earlier if LEFT_FIRST in row),
        checkpointed=checkpointed,
        foreign=restored or is_foreign(query, chooser, mark, checkpointed),
        in_order=next((plan.table for plan in plans if plan.one_session), ""),
    )
    refuse_rewind(past, to, owner, reset_us=reset_us)
    refuse_unsaid(past, to, restored=restored)
    above = range(to + 1, past.upper + 1)
    # What a flusher has deleted since an earlier rewind; not of epochs whose records are forgotten: those are
    # trimmed, and a manifest that came back would have nothing to be compared with.
    bring_back(log, range(max(to + 1, min(records, default=0)), past.upper + 1))
    past = past._replace(usable={epoch: is_usable(query, past, epoch) for epoch in above})
    refuse_lost(past, to)
    rivals = tuple(attempt for attempt in log.attempts() if attempt.epoch == past.floor + 1)
    left = left_behind(past, to, reset_us) if reset_us is not None else None
    new = rewound(past, to, owner, reset_us=reset_us)
    # A row that is lost may have named any attempt (rule 26).
    new = msgspec.structs.replace(new, last_us=max(new.last_us, present_us)) if once else new
    needed = tuple(needed_attempts(query, past, above))
    stopping = tuple(epoch for epoch in above if stops_flush(query, chooser, past, epoch))
    return Rewind(query, target, past, to, new, rivals, left, needed, stopping)


def _left(row: dict[str, str]) -> LeftBehind:
    return LeftBehind(int(row["flushed"]), int(row[LEFT_FIRST]), int(row[LEFT_LAST]))


def _row(mark: Mark | None) -> dict[str, str]:
    """Return the ledger row as texts."""
    if mark is None:
        return {}
    return {
        "flushed": str(mark.flushed),
        "last_us": str(mark.last_us),
        "begun": mark.begun.to_text() if mark.begun else "",
        "last": mark.last.to_text() if mark.last else "",
    }

"""`detach` and `attach`: a target holds back nothing any more, or gets epochs again (rule 18).

A target that is attached again begins as a new one does: announced, then attached with a first epoch. Its
ledger row is made anew right before that epoch, whatever it said, with timestamps above all that were used.
So a database that was replaced needs nothing else, and a flusher that stood still finishes nothing. Of what
the target lacks it gets what the log holds. Another flusher may be about to delete that, so it gets a second
name first: docs/protocol/targets.md#a-target-that-is-attached-again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from wal_sink.admin.ledger import is_foreign, open_ledger
from wal_sink.admin.query import Query, user_and_host
from wal_sink.admin.rewind import has_files, read_past
from wal_sink.configuration import target_names
from wal_sink.errors import CorruptLog, Diverged, FlusherAtWork, OptionError
from wal_sink.flush.rows import plan_of
from wal_sink.model import paths
from wal_sink.model.manifest import Attempt, Published, attempts_at
from wal_sink.model.records import TargetState
from wal_sink.progress.decisions import given_up_since_begun
from wal_sink.protocol.ledger import flushed_records
from wal_sink.protocol.next_step import refuse_other_owner
from wal_sink.protocol.repair import Past, rewound
from wal_sink.targets.base import Target
from wal_sink.text import counted
from wal_sink.wal.aside import prove_aside, set_aside
from wal_sink.wal.log import Log
from wal_sink.wal.quarantine import forget, kept_again
from wal_sink.wal.targets import (
    Trimmable,
    announce,
    attach,
    detach,
    flushed_limits,
    options_of_newest_run,
    record_anywhere,
    state_of,
    trimmable_unseen,
)

_ANNOUNCED = (
    " The target is announced: until then, or until it is detached, no epoch leaves the log."
)


class Attached(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of `attach` and `detach`."""

    query_id: str
    target: str
    state: TargetState
    missing: tuple[int, int] | tuple[()] = ()
    """First and last of the epochs that the target lacks since it was detached; empty for none."""
    missing_rows: int = 0
    """How many rows these have; -1: the log does not say any more."""


class Detachment(NamedTuple):
    """The change that `detach` makes."""

    query: Query
    seen: int
    """How many states of the target this was decided from."""

    @property
    def consequences(self) -> str:
        """Say what the operator agrees to."""
        return (
            f"Target {self.query.log.target} gets no further epochs, and the log keeps none for it: those"
            " that it lacks go as soon as the other targets have them. `wal-sink attach` brings it back, and"
            " it then gets what the log still has."
        )

    def carry_out(self, now_us: int, why: str = "") -> Attached:
        """Detach it.

        :raises FlusherAtWork: it was attached or detached meanwhile, or all others were detached.
        """
        log = self.query.log
        state = detach(log, self.seen, now_us, user_and_host(), why or "by an operator")
        return Attached(query_id=self.query.query_id, target=log.target, state=_added(log, state))


class _Standing(NamedTuple):
    """What the target has."""

    past: Past
    has: int
    """The last epoch that it has."""


class Attachment(NamedTuple):
    """The change that `attach` makes."""

    query: Query
    target: Target
    restored: bool = False

    @property
    def consequences(self) -> str:
        """Say what the operator agrees to.

        :raises WrongOwner, Diverged: the ledger row is not of this log, see `_look`.
        """
        log = self.query.log
        standing = self._look(0)
        first = self._first(standing.has, trimmable_unseen(log), None)
        text = f"Target {log.target} gets epochs from {first} on."
        if missing := _missing(standing.has, first):
            said = missing_epochs_text(*missing, self._rows(missing))
            text += f" It lacks these epochs, which the log does not hold for it: {said}."
        if self.restored and standing.past.foreign:
            text += (
                f" Its ledger row follows another log: what the table has of that log's epochs from"
                f" {standing.has + 1} on stays there."
            )
            if table := standing.past.in_order:
                text += (
                    f" {table} must be set back to epoch {standing.has}: what it has of those epochs counts"
                    " for this log's, whose rows are passed over then."
                )
        if (row := standing.past.row) is not None and row.begun is not None:
            text += f" Rows of epochs {row.begun.first} to {row.begun.last} may be in the table."
        return text

    def carry_out(self, now_us: int, why: str = "") -> Attached:
        """Attach it; can be repeated at any point.

        :raises FlusherAtWork: the ledger row was moved meanwhile, or the target attached or detached.
        :raises WrongOwner, Diverged: it is not of this log, see `_look`.
        :raises OptionError: a run has started meanwhile that does not name the target.
        """
        log, by = self.query.log, user_and_host()
        why = why or "by an operator"
        self.query.list_afresh()
        states = log.states()
        seen = len(states)
        standing = self._look(now_us)
        if not states or (states[-1].verb, states[-1].epoch) != ("announced", standing.has):
            # From here on nothing more is trimmed.
            _added(log, announce(log, seen, now_us, by, why, standing.has))
            seen += 1
        _refuse_without_plan(log, _ANNOUNCED)
        owner = self.query.owner(self.query.identity())
        new = rewound(standing.past, -1, owner)
        first = self._first(standing.has, trimmable_unseen(log), new.last_us)
        missing = _missing(standing.has, first)
        rows = self._rows(missing)
        above = _records_above(log, first)
        refused = kept_again(log, first - 1, standing.past.given_up)
        with open_ledger(self.target, owner) as ledger:
            new = rewound(standing.past, first - 1, owner)
            ledger.replace(standing.past.row, new)
            for objects in above:
                log.delete(objects)
            # Another attach may have begun behind what these entries are of.
            ledger.refuse_moved(new)
        forget(log, refused, new.last_us, by, now_us)
        state = _added(log, attach(log, seen, first, now_us, by, why, rows))
        return Attached(
            query_id=self.query.query_id,
            target=log.target,
            state=state,
            missing=missing,
            missing_rows=rows,
        )

    def _look(self, now_us: int) -> _Standing:
        """See what the target has.

        :param now_us: to record what the ledger row says was flushed; 0 to record nothing.
        :raises WrongOwner: the ledger row belongs to another log or checkpoint (rule 1).
        :raises Diverged: it follows another log (rule 23).
        """
        query, log = self.query, self.query.log
        checkpointed = query.checkpoint.last_commit()
        owner = query.owner(query.identity())
        with open_ledger(self.target, owner) as ledger:
            row = ledger.read()
        refuse_other_owner(row, owner)
        foreign = is_foreign(query, row, checkpointed)
        recorded = log.mark()
        if foreign and not self.restored:
            raise Diverged(
                f"The ledger row of target {log.target} follows another log than this one, which is flushed"
                f" there up to {recorded}",
                "If checkpoint and log were restored from a backup, pass --restored: what the table has of"
                " the other log's epochs stays there, unless you set it back before. If they are a copy:"
                " start the copy with a new checkpoint.",
            )
        if now_us and not foreign and row and row.last and row.flushed not in log.flushed_epochs():
            # A flusher died before its record (rule 17), or it is forgotten: the database was restored.
            given_up = given_up_since_begun(log, row.last)
            log.record_flushed(flushed_records(row.last, now_us, given_up))
        past = read_past(query, row, checkpointed, now_us)._replace(foreign=foreign)
        return _Standing(past, self._has(past, recorded))

    def _has(self, past: Past, recorded: int) -> int:
        """Return the last epoch that the target has.

        The ledger row says it. One that was made anew, of which no window is known, may lie above what the
        target lacks: then the newest state says what it had.
        """
        states = self.query.log.states()
        attached = (state.epoch for state in states if state.verb == "attached")
        # It may have been attached before the log had a first epoch: another sink may have gone on then.
        whole = self.query.log.of("").identity()
        before = max(next(attached, 0), whole.first_epoch if whole else 0) - 1
        if (row := past.row) is None:
            return before
        if past.foreign:
            return max(before, recorded)
        if row.last or not states:  # who only looks may have an old listing
            return max(before, row.flushed)
        return max(before, min(row.flushed, states[-1].epoch))

    def _first(self, has: int, unseen: Trimmable, us: int | None) -> int:
        """Return the first epoch from which on the log holds all that is checkpointed, above what it has.

        :param us: the highest write timestamp so far, to keep what is held under second names; None: only
            look.
        """
        epoch = max(self.query.checkpoint.last_commit(fresh=True), unseen.flushed)
        attempts = self.query.log.attempts(fresh=True)
        while epoch > has and self._holds(epoch, attempts_at(attempts, epoch), unseen, us):
            epoch -= 1
        return max(epoch, has) + 1

    def _holds(
        self, epoch: int, attempts: Sequence[Attempt], unseen: Trimmable, us: int | None
    ) -> bool:
        """Whether the log has all of an epoch, for this target; keep it.

        It gets the attempt that was chosen for all targets. While that is there, so is other evidence.
        Another target may have it, and a flusher may be about to trim it.
        """
        log = self.query.log
        chosen = log.read(paths.CHOICE, epoch)
        if chosen is None and epoch <= unseen.upto:
            return False
        if chosen is not None:
            # Of an epoch that all pass over, what is there is of a run that failed.
            attempts = [a for a in attempts if chosen.digest and a.generation == chosen.generation]
            if len(attempts) < bool(chosen.digest):
                return False
        for attempt in attempts:
            try:
                found = log.manifest(attempt)
                if found is None or (chosen is not None and found.digest != chosen.digest):
                    return False
                plan_of(log, found.manifest)
            except CorruptLog:
                return False
            if chosen is not None and not self._keep(found, us):
                return False
        return True

    def _keep(self, found: Published, us: int | None) -> bool:
        """Give an attempt a second name and a proof, which no flusher deletes that is about to trim it."""
        log, manifest = self.query.log, found.manifest
        if us is None:
            return has_files(log, manifest)
        files = [segment.path for segment in manifest.files]
        try:
            set_aside(log, us, [*files, paths.MANIFEST.path(manifest.attempt)])
        except FileNotFoundError:
            return False
        # Listed since `commits/`: a run may have claimed after the look, beside an older one that Spark kept.
        prove_aside(log, us, manifest, log.highest_generation())
        return True

    def _rows(self, missing: tuple[int, int] | tuple[()]) -> int:
        """Return how many rows some epochs have; -1: the log does not say any more."""
        if not missing:
            return 0
        found = [_rows_of(self.query.log, epoch) for epoch in range(missing[0], missing[1] + 1)]
        known = [rows for rows in found if rows is not None]
        return sum(known) if len(known) == len(found) else -1


def plan_detach(query: Query) -> Detachment:
    """Check that a target can be detached.

    :raises OptionError: it is detached, or the only one that is attached, or has no name.
    """
    _refuse_unnamed(query)
    query.list_afresh()
    states = query.log.states()
    if states and (state := states[-1]).verb == "detached":
        raise OptionError(
            f"Target {query.log.target} is detached already, by {state.by}: {state.why}.",
            f"`wal-sink attach CHECKPOINT --target {query.log.target}` brings it back.",
        )
    if len(list(flushed_limits(query.log))) < 2:
        raise OptionError(
            f"Target {query.log.target} is the only one that is attached.",
            "Stop the query instead: without a target its rows have nowhere to go.",
        )
    return Detachment(query, len(states))


def plan_attach(query: Query, target: Target, *, restored: bool = False) -> Attachment:
    """Check that a target can be attached again.

    :param restored: the operator knows that checkpoint and log were restored from a backup (rule 23).
    :raises OptionError: it is attached, or has no name, or the newest run does not name it.
    """
    _refuse_unnamed(query)
    query.list_afresh()
    name, state = query.log.target, state_of(query.log)
    if state is not None and state.verb == "attached":
        raise OptionError(
            f"Target {name} is attached, from epoch {state.epoch} on.",
            "See how far it is: `wal-sink status CHECKPOINT`.",
        )
    _refuse_without_plan(
        query.log, _ANNOUNCED if state is not None and state.verb == "announced" else ""
    )
    return Attachment(query, target, restored)


def _refuse_without_plan(log: Log, meanwhile: str = "") -> None:
    """Refuse to attach a target that the newest run does not name: it makes no plan of it.

    A run that claims after the target was announced finds it so, see `Publisher`.

    :param meanwhile: what is so until the operator has done as the error says.
    """
    newest = max(log.keys(paths.CLAIM, fresh=True), default=0)
    claim = log.read(paths.CLAIM, newest)
    of_runs = [options_of_newest_run(log), *([claim.options] if claim else [])]
    if any(log.target not in target_names(options) for options in of_runs):
        raise OptionError(
            f"The newest run does not name target {log.target}: its epochs cannot be written to it.",
            f"Start the query with it, and run the command again after its first micro-batch.{meanwhile}",
        )


def _added(log: Log, state: TargetState | None) -> TargetState:
    """Return a state that was added.

    :raises FlusherAtWork: another process had added one, or has detached all other targets.
    """
    if state is None:
        raise FlusherAtWork(
            f"Another process has attached or detached target {log.target} meanwhile, or detached all others",
            "See with `wal-sink status CHECKPOINT`; run the command again if it is still wanted.",
        )
    return state


def _refuse_unnamed(query: Query) -> None:
    if not query.log.target:
        raise OptionError(
            f"{query.log.url} has one target, without a name.",
            "Only one of several targets can be detached and attached. See how far this one is:"
            " `wal-sink status CHECKPOINT`.",
        )


def _records_above(log: Log, first: int) -> list[list[str]]:
    """List the records of what the target gets again, for it may lack that: its database was replaced.

    Listed before the ledger row is made anew, so that a command which stands still after that deletes no
    record of what was flushed since. These have later timestamps in their names.
    """
    above = [objects for _, objects in log.recorded_above(first - 1, {})]
    if above:
        log.cut_window(first - 1)
    return above


def _missing(has: int, first: int) -> tuple[int, int] | tuple[()]:
    return (has + 1, first - 1) if first > has + 1 else ()


def missing_epochs_text(first: int, last: int | None, rows: int) -> str:
    """Say which epochs a target lacks."""
    if last is None:
        return f"all from {first} on"
    return f"{first} to {last}" + (f" ({counted(rows, 'row')})" if rows >= 0 else "")


def _rows_of(log: Log, epoch: int) -> int | None:
    """Return how many rows an epoch has; None: the log does not say any more."""
    if (record := record_anywhere(log, epoch)) is not None:
        return record.rows
    try:
        found = [log.manifest(each) for each in attempts_at(log.attempts(), epoch)]
    except CorruptLog:
        return None
    rows = [each.manifest.rows for each in found if each is not None]
    return rows[-1] if rows else None

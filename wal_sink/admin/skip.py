"""`skip`: gives up the epoch at which the flush has stopped, so that the flush goes on with the next one.

First it copies the epoch's objects and reads each copy back, then it creates the decision, which names
them, and last it deletes what was copied. So each object is in the log or in the copy at any instant.
Without a place to copy to, the decision is all that changes.
docs/protocol/operators.md#why-skip-refuses-what-it-refuses has the argument.
"""

from __future__ import annotations

import contextlib
import shutil
from typing import NamedTuple
from uuid import uuid4

import msgspec

from state_backends import StateBackend
from wal_sink import errors
from wal_sink.admin.flusher_at_work import refuse_flusher
from wal_sink.admin.ledger import LedgerAccess, open_ledger
from wal_sink.admin.query import Query, user_and_host
from wal_sink.errors import CorruptLog, Diverged, FlusherAtWork, OptionError
from wal_sink.model import paths
from wal_sink.model.ledger import LedgerState
from wal_sink.model.manifest import Manifest
from wal_sink.model.records import Decision, FileCopy
from wal_sink.progress.backlog import read_manifests
from wal_sink.progress.decisions import in_force
from wal_sink.protocol.repair import Situation, refuse_to_skip, refuse_wrong_copy
from wal_sink.targets.base import Delivery, Target
from wal_sink.text import counted
from wal_sink.wal.log import Log
from wal_sink.wal.segment import measure

_CHUNK = 1 << 20


def refuse_inside(query: Query, to: StateBackend) -> None:
    """Refuse a place inside of the log or the checkpoint, also under another name.

    :raises OptionError: copies there would be trimmed, or deleted with the checkpoint.
    """
    for inside in (query.log.url, query.checkpoint.url):
        if f"{to.url}/".startswith(f"{inside}/"):
            raise OptionError(
                f"{to.url} is inside of {inside}",
                "Name a place outside of the checkpoint and of the log.",
            )
    marker = f"probe/{uuid4().hex}"
    to.create(marker, b"see whether the log has this file, too\n")
    try:
        if marker in query.log.backend.list("probe/"):
            raise OptionError(f"{to.url} is another name of {query.log.url}", "Name another place.")
    finally:
        to.delete([marker])


def copy_file(log: Log, path: str, to: StateBackend) -> FileCopy:
    """Copy one object under its own path, unless an earlier call has, and compare the copy.

    An empty file, as a crash can leave behind, is only recorded: no store holds one.

    :raises CorruptLog: the copy has other contents.
    """
    with contextlib.closing(log.backend.open_input(path)) as source:
        size, digest = measure(source)
    if not size:
        return FileCopy(path=path, bytes=size, digest=digest)
    with contextlib.suppress(FileExistsError), contextlib.ExitStack() as stack:
        source = stack.enter_context(contextlib.closing(log.backend.open_input(path)))
        output = stack.enter_context(to.open_output(path))
        shutil.copyfileobj(source, output, _CHUNK)
    with contextlib.closing(to.open_input(path)) as copy:
        found = measure(copy)
    if found != (size, digest):
        raise CorruptLog(
            f"{to.url}/{path} has other contents than {log.url}/{path}",
            "Name an empty place. Nothing was changed in the log.",
        )
    return FileCopy(path=path, bytes=size, digest=digest)


class Skipped(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of `skip`."""

    query_id: str
    record: str
    """URL of the decision's record."""
    decision: Decision
    rows_possibly_in_target: bool
    """Whether the epoch was begun: then rows of it may be in the table, and stay."""


class Skip(NamedTuple):
    """The change that `skip` makes."""

    query: Query
    target: Target
    seen: Situation
    to: StateBackend | None
    """The place that gets the files."""
    present: Decision | None
    """A decision that an interrupted command has left: only deleting remains."""
    outdated: int = 0
    """How many decisions about the epoch there are that no longer cover it: Spark computed it again."""

    @property
    def files(self) -> tuple[str, ...]:
        """Paths of what the log holds of the epoch."""
        return (*self.seen.segments, *map(paths.MANIFEST.path, self.seen.attempts))

    @property
    def consequences(self) -> str:
        """Say what the operator agrees to."""
        text = f"Epoch {self.seen.epoch} of query {self.query.query_id} will not be flushed. "
        if self.to is not None:
            text += counted(len(self.files), "file of it", "files of it")
            text += " will be copied" if self.query.log.targets else " will move"
            text += f" from {self.query.log.url} to {self.to.url}."
        else:
            text += f"It has no manifest in {self.query.log.url}: its rows are lost."
            if self.seen.segments:
                text += (
                    f" What is left of it, {counted(len(self.seen.segments), 'segment')}, is deleted with it;"
                    " --to URL would keep that."
                )
        text += " The epochs after it go on."
        if self.seen.begun is not None:
            rows = self.seen.begun.rows
            text += (
                f" It is begun: some of its {counted(rows, 'row')} are possibly in the table, and stay."
                if _counts_in_part(self.target)
                else " It is begun, but its rows count with their whole window alone: none is in the table."
            )
        return text

    def carry_out(self, now_us: int, why: str = "") -> Skipped:
        """Give the epoch up; can be repeated at any point.

        :raises CorruptLog: a copy cannot be read back as it was written; nothing was changed.
        :raises OptionError, FlusherAtWork: the epoch was flushed or changed meanwhile; nothing was changed.
        """
        decision = self.present or self._decide(now_us, why)
        if decision.where != self._where:
            raise OptionError(
                f"Epoch {self.seen.epoch} was given up by {decision.by} meanwhile",
                f"The log is as {decision.by} left it; what this command has copied is not needed.",
            )
        copied = {copy.path for copy in decision.files}
        # Another target may need them: of several, they are trimmed with the epoch.
        if not self.query.log.targets:
            self.query.log.delete(path for path in self.files if path in copied)
        with open_ledger(self.target, self.query.owner(self.query.identity())) as ledger:
            return Skipped(
                query_id=self.query.query_id,
                record=self.query.log.url_of(
                    paths.DECISION.path(paths.DecisionName(decision.epoch, self.outdated))
                ),
                decision=decision,
                # Read after the decision is durable: a flusher may have begun the epoch before.
                rows_possibly_in_target=_may_count(decision.epoch, ledger.read(), self.target),
            )

    @property
    def _where(self) -> str:
        return self.to.url if self.to is not None else ""

    def _decide(self, now_us: int, why: str) -> Decision:
        """Copy the files, see that nothing has changed since the operator was asked, and decide.

        :raises FlusherAtWork: something has.
        """
        query, seen, to = self.query, self.seen, self.to
        files = (
            tuple(copy_file(query.log, path, to) for path in self.files) if to is not None else ()
        )
        # Before the look: the decision does not cover a run that comes later.
        highest = query.log.highest_generation()
        with open_ledger(self.target, query.owner(query.identity())) as ledger:
            now = _look(query, ledger, seen.epoch, begun=seen.begun is not None)
        if now._replace(checkpointed=seen.checkpointed) != seen:
            raise FlusherAtWork(
                f"Epoch {seen.epoch} was changed since it was looked at",
                "Look at `wal-sink verify CHECKPOINT`, and decide again.",
            )
        begun = seen.begun
        manifests = tuple(read_manifests(query.log, seen.attempts).manifests.values())
        generations = [attempt.generation for attempt in seen.attempts]
        return query.log.create_decision(
            Decision(
                verb="skip",
                epoch=seen.epoch,
                by=user_and_host(),
                at_us=now_us,
                why=why or _error_of_flusher(query, seen.epoch),
                where=self._where,
                files=files,
                generation=max(generations, default=begun.generation if begun else 0),
                offsets_digest=_offsets_digest(query, seen),
                rows=_rows(seen, manifests),
                last_us=begun.last_us if begun else 0,
                highest=highest,
            ),
            self.outdated,
        )


def plan_skip(
    query: Query,
    target: Target,
    epoch: int,
    to: StateBackend | None,
    now_us: int,
    *,
    begun: bool,
) -> Skip:
    """Check that the epoch can be given up.

    :param to: the files go there under the paths that they have in the log; None: nothing is kept. Then a
        flusher may be alive, since there is nothing that it could flush.
    :param begun: the operator knows that rows of it may be in the table; asked only where they may.
    :raises OptionError: it is not the next epoch, or is given up already; or there is nothing to copy, or
        something that is not to be copied; or `to` is no place for it.
    :raises FlusherAtWork: a flusher is alive and has not stopped at an error.
    :raises WrongOwner, LedgerBehindLog, TargetUnavailable, Diverged: see `_look`.
    """
    with open_ledger(target, query.owner(query.identity())) as ledger:
        seen = _look(query, ledger, epoch, begun=begun or not _counts_in_part(target))
    decisions, present = query.log.decisions(epoch), None
    if decisions and in_force(query.log, decisions[-1], seen.attempts, query.checkpoint):
        present = decisions.pop()
    plan = Skip(query, target, seen, to, present, len(decisions))
    if (present := plan.present) is None:
        refuse_wrong_copy(seen, copied=to is not None)
    elif to is None or present.where != to.url:
        copies = f", with copies in {present.where}" if present.where else ""
        finish = f" To finish a command that was interrupted, pass --to {present.where}"
        raise OptionError(
            f"Epoch {epoch} is given up already, by {present.by}{copies}",
            "Start the query, or a flusher; it passes over the epoch."
            + (finish if present.where else ""),
        )
    if to is not None:
        refuse_flusher(query.log, now_us, unless_stopped=True, patience=query.patience)
        refuse_inside(query, to)
    return plan


def _look(query: Query, ledger: LedgerAccess, epoch: int, *, begun: bool) -> Situation:
    """Look at an epoch, in the order of rule 9, and refuse one that may not be given up.

    :raises OptionError, WrongOwner, LedgerBehindLog: see `protocol.repair`.
    :raises Diverged: the ledger row has begun the epoch of another log, from other source offsets (rule 23).
    :raises FlusherAtWork: a flusher has moved the ledger meanwhile.
    """
    checkpointed = query.checkpoint.last_commit()
    identity = query.identity()
    recorded = identity.mark(query.log.mark())
    row = ledger.read()
    seen = Situation(
        epoch=epoch,
        checkpointed=checkpointed,
        floor=recorded,
        row=row,
        attempts=tuple(query.log.attempts_at(epoch)),
        segments=tuple(query.log.backend.list(paths.segment_folder(epoch))),
    )
    refuse_to_skip(seen, query.owner(identity), identity.first_epoch, begun=begun)
    here = _offsets_digests(query, seen) if seen.begun is not None else set()
    if here and _offsets_digest(query, seen) not in here:
        raise Diverged(
            f"The ledger row follows another log than this one, which is flushed up to {recorded}",
            errors.rewind_if_restored(recorded),
        )
    if ledger.read() != row:  # else what was trimmed meanwhile would look like lost
        raise FlusherAtWork(
            f"The ledger moved while epoch {epoch} was looked at",
            "A flusher is at work; run the command again if the flush stops at the same epoch.",
        )
    return seen


def _offsets_digests(query: Query, seen: Situation) -> set[str]:
    """Return the digest of an epoch's source offsets, as the checkpoint has it; else those of its manifests.

    Empty for none: what is given up may be damaged, and Spark purges what it has planned.
    """
    if (digest := query.checkpoint.offsets_digest(seen.epoch)) is not None:
        return {digest}
    found = read_manifests(query.log, seen.attempts).manifests
    return {manifest.offsets_digest for manifest in found.values()}


def _offsets_digest(query: Query, seen: Situation) -> str:
    """Return the digest of the source offsets as ledger, checkpoint or manifests know it; empty for none."""
    if seen.begun is not None:
        return seen.begun.offsets_digest
    found = _offsets_digests(query, seen)
    return found.pop() if len(found) == 1 else ""


def _rows(seen: Situation, manifests: tuple[Manifest, ...]) -> int:
    """Return how many rows are given up, -1 when several attempts, or none, can tell."""
    if seen.begun is not None:
        return seen.begun.rows
    return manifests[0].rows if len(manifests) == len(seen.attempts) == 1 else -1


def _error_of_flusher(query: Query, epoch: int) -> str:
    """Return the error with which the flush has stopped, as the reason of a decision."""
    report = query.log.last_report()
    if report and report.error and report.error.epoch in (None, epoch):
        return report.error.summary
    return "no reason was given"


def _counts_in_part(target: Target) -> bool:
    """Whether readers may see some rows of a window that is begun."""
    return target.delivery is Delivery.IDEMPOTENT


def _may_count(epoch: int, row: LedgerState | None, target: Target) -> bool:
    """Whether readers may see rows of an epoch: a flusher has begun it, or finished it meanwhile."""
    if row is None:
        return False
    begun_now = row.begun if _counts_in_part(target) else None
    windows = (begun_now, row.last if row.flushed >= epoch else None)
    begun = [each for window in windows if window for each in window.epochs]
    return any(each.epoch == epoch and each.manifest for each in begun)

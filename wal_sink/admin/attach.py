"""`detach` and `attach`: a target holds back nothing any more, or gets epochs again (rule 18).

A target that is detached lacks what comes after. It is attached again at the first epoch from which on the
log has everything: right behind what it has, if nothing was trimmed meanwhile. Otherwise the epochs between
are missing there for good; `verify` lists them, and its ledger row moves over them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from wal_sink.admin.flushed_again import has_files
from wal_sink.admin.ledger_row import ledger_row
from wal_sink.admin.query import Query, user_and_host
from wal_sink.errors import CorruptLog, OptionError
from wal_sink.flush.plan_window import are_dated
from wal_sink.model.ledger import Mark
from wal_sink.model.manifest import Attempt
from wal_sink.model.records import TargetState
from wal_sink.protocol.ledger_updates import flush_records, plan_without_rows
from wal_sink.protocol.steps import PassOver
from wal_sink.protocol.windows import named
from wal_sink.targets.base import Target
from wal_sink.wal.attached import (
    announce,
    attach,
    detach,
    flushed_limits,
    record_anywhere,
    state_of,
)
from wal_sink.wal.log import Log


class Attached(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of `attach` and `detach`."""

    query_id: str
    target: str
    state: TargetState
    missing: tuple[int, ...] = ()
    """First and last of the epochs that the target lacks for good; empty for none."""


class Detachment(NamedTuple):
    """The change that `detach` makes."""

    query: Query

    @property
    def consequences(self) -> str:
        """Say what the operator agrees to."""
        return (
            f"Target {self.query.log.target} gets no further epochs, and the log keeps none for it: those"
            " that it lacks go as soon as the other targets have them. `wal-sink attach` brings it back, from"
            " where the log still has everything."
        )

    def carry_out(self, now_us: int, why: str = "") -> Attached:
        """Detach it; can be repeated."""
        log = self.query.log
        state = detach(log, now_us, user_and_host(), why or "by an operator")
        return Attached(query_id=self.query.query_id, target=log.target, state=state)


class Attachment(NamedTuple):
    """The change that `attach` makes."""

    query: Query
    target: Target

    @property
    def consequences(self) -> str:
        """Say what the operator agrees to."""
        first, mark = _first(self.query, self.target)
        flushed = mark.flushed if mark else -1
        text = f"Target {self.query.log.target} gets epochs from {first} on. "
        if mark is None or first == flushed + 1:
            return text + "What it has joins them."
        return text + (
            f"It has those up to {flushed}: epochs {flushed + 1} to {first - 1} are no longer in the log, and"
            " stay missing there. Its ledger row moves over them."
        )

    def carry_out(self, now_us: int, why: str = "") -> Attached:
        """Attach it; can be repeated at any point.

        :raises FlusherAtWork: the ledger row was moved meanwhile.
        """
        log, by = self.query.log, user_and_host()
        why = why or "by an operator"
        before = state_of(log)
        if before is None or before.verb == "detached":
            announce(log, now_us, by, why)  # from here on nothing is trimmed
        first, mark = _first(self.query, self.target)
        missing: tuple[int, ...] = ()
        if mark is not None and first > mark.flushed + 1:
            missing = mark.flushed + 1, first - 1
            moved = _moved(log, mark, first - 1, now_us)
            with ledger_row(self.target, self.query.owner(self.query.identity())) as row:
                row.replace(mark, moved)
            mark = moved
        if mark is not None and mark.last is not None and mark.last.last == mark.flushed:
            log.record_flushed(flush_records(mark.last, now_us, frozenset()))
        attach(log, first, now_us, by, why)
        state = state_of(log)
        assert state is not None
        return Attached(
            query_id=self.query.query_id, target=log.target, state=state, missing=missing
        )


def plan_detach(query: Query) -> Detachment:
    """Check that a target can be detached.

    :raises OptionError: it is detached, or the only one that is attached, or has no name.
    """
    _refuse_unnamed(query)
    state = state_of(query.log)
    if state is not None and state.verb == "detached":
        raise OptionError(
            f"Target {query.log.target} is detached already, by {state.by}: {state.why}.",
            f"`wal-sink attach CHECKPOINT --target {query.log.target}` brings it back.",
        )
    if len(list(flushed_limits(query.log))) < 2:
        raise OptionError(
            f"Target {query.log.target} is the only one that is attached.",
            "Stop the query instead: without a target its rows have nowhere to go.",
        )
    return Detachment(query)


def plan_attach(query: Query, target: Target) -> Attachment:
    """Check that a target can be attached again.

    :raises OptionError: it is attached, or has no name.
    """
    _refuse_unnamed(query)
    state = state_of(query.log)
    if state is not None and state.verb == "attached":
        raise OptionError(
            f"Target {query.log.target} is attached, from epoch {state.epoch} on.",
            "See how far it is: `wal-sink status CHECKPOINT`.",
        )
    return Attachment(query, target)


def _refuse_unnamed(query: Query) -> None:
    if not query.log.target:
        raise OptionError(
            f"{query.log.url} has one target, without a name.",
            "Only one of several targets can be detached and attached. See how far this one is:"
            " `wal-sink status CHECKPOINT`.",
        )


def _first(query: Query, target: Target) -> tuple[int, Mark | None]:
    """Return the first epoch that the target can get, and its ledger row.

    That is the one behind what it has; or the one behind the last that is checkpointed and is not whole in
    the log.
    """
    identity = query.identity()
    with ledger_row(target, query.owner(identity)) as row:
        mark = row.read()
    checkpointed = query.checkpoint.last_commit(fresh=True)
    following = mark.flushed + 1 if mark else identity.first_epoch
    attempts = query.log.attempts(fresh=True)
    needed = range(checkpointed, following - 1, -1)
    gone = (e for e in needed if not _is_whole(query.log, e, named(attempts, e)))
    return next(gone, following - 1) + 1, mark


def _is_whole(log: Log, epoch: int, attempts: Sequence[Attempt]) -> bool:
    """Whether nothing of an epoch was trimmed: a flusher that died may have deleted a part of it.

    Of one that another target has, the attempt that was chosen for all of them has to be there. What cannot
    be read was not trimmed; the flush stops there, and says so.

    :param attempts: those at the epoch that are there.
    """
    record = record_anywhere(log, epoch)
    if record is None:
        return bool(attempts)  # no target has it, so no flusher trims it
    try:
        if record.manifest:
            if log.chosen(epoch) is None:
                return False
            attempts = [each for each in attempts if each.generation == record.generation]
        found = [log.manifest(each) for each in attempts]
        return bool(found) and all(
            each is not None and has_files(log, each.manifest) for each in found
        )
    except CorruptLog:
        return True


def _moved(log: Log, mark: Mark, flushed: int, now_us: int) -> Mark:
    """Return the ledger row after it was moved over epochs that are missing, up to `flushed`.

    It says of the last of them what the log does, as another target has it.
    """
    record = record_anywhere(log, flushed)
    last = PassOver(
        epoch=flushed,
        generation=record.generation if record else 0,
        offsets_digest=record.offsets_digest if record else "",
    )
    dated = are_dated(log, mark)
    if mark.begun is not None:
        mark = mark.finished(mark.begun)  # its timestamps are used, and no flusher finishes it
    return mark.finished(plan_without_rows(last, mark, now_us, "attach", target_dated=dated))

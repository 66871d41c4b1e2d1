"""What `set-aside` and `accept-gap` have in common: look at an epoch, and write the decision down."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from wal_sink.admin.ledger import LedgerRow
from wal_sink.admin.query import Query
from wal_sink.errors import FlusherAtWork, UnknownOffsetsFormat
from wal_sink.model import paths
from wal_sink.model.ledger import Mark
from wal_sink.model.manifest import Manifest
from wal_sink.model.records import Decision
from wal_sink.progress.heartbeat import last_report
from wal_sink.progress.readable import read_manifests
from wal_sink.protocol.skip import Situation, refuse_to_give_up


class GivenUp(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of `set-aside` and `accept-gap`."""

    query_id: str
    record: str
    """URL of the decision's record."""
    decision: Decision
    rows_possibly_in_target: bool
    """Whether the epoch was begun: then rows of it may be in the table, and stay."""


def situation(query: Query, row: LedgerRow, epoch: int, *, begun: bool) -> Situation:
    """Look at an epoch, in the order of rule 9, and see that it may be given up.

    :param begun: the operator knows that rows of it may be in the table.
    :raises OptionError, WrongOwner, LedgerBehindLog: see `giving_up`.
    :raises FlusherAtWork: a flusher was quicker.
    """
    checkpointed = query.checkpoint.last_commit()
    identity = query.identity()
    recorded = max(query.log.flushed_epochs(), default=identity.first_epoch - 1)
    mark = row.read()
    seen = Situation(
        epoch=epoch,
        checkpointed=checkpointed,
        floor=recorded,
        mark=mark,
        attempts=tuple(a for a in query.log.attempts() if a.epoch == epoch),
        segments=tuple(query.log.backend.list(paths.segment_folder(epoch))),
    )
    refuse_to_give_up(seen, query.owner(identity), identity.first_epoch, begun=begun)
    if row.read() != mark:  # else what was trimmed meanwhile would look like lost
        raise FlusherAtWork(
            f"The ledger moved while epoch {epoch} was looked at",
            "Somebody flushes; run the command again if the line still stands.",
        )
    return seen


def refuse_changed(query: Query, row: LedgerRow, seen: Situation) -> None:
    """See that all is as it was when the operator was asked: the answer may come hours later.

    :raises OptionError, WrongOwner, LedgerBehindLog: the epoch may not be given up any more.
    :raises FlusherAtWork: something of the epoch was added, or went.
    """
    now = situation(query, row, seen.epoch, begun=seen.begun is not None)
    if now._replace(checkpointed=seen.checkpointed) != seen:
        raise FlusherAtWork(
            f"Epoch {seen.epoch} was changed since it was looked at",
            "Look at `wal-sink verify CHECKPOINT`, and decide again.",
        )


def offsets_digest(query: Query, seen: Situation) -> str:
    """Return the digest of the epoch's source offsets, from whoever still knows it; else empty."""
    if seen.begun is not None:
        return seen.begun.offsets_digest
    try:
        planned = query.checkpoint.planned(seen.epoch)
    except UnknownOffsetsFormat:
        planned = None
    if planned is not None:
        return planned.digest
    digests = {manifest.offsets_digest for manifest in readable(query, seen)}
    return digests.pop() if len(digests) == 1 else ""


def rows_of(query: Query, seen: Situation) -> int:
    """Return how many rows are given up, -1 when several attempts, or none, can tell."""
    if seen.begun is not None:
        return seen.begun.rows
    counts = {manifest.rows for manifest in readable(query, seen)}
    return counts.pop() if len(counts) == 1 and len(seen.attempts) == 1 else -1


def readable(query: Query, seen: Situation) -> Sequence[Manifest]:
    """Read the manifests of the epoch, as far as they can be."""
    return tuple(read_manifests(query.log, seen.attempts).manifests.values())


def reason(query: Query, epoch: int, given: str) -> str:
    """Return why: as the operator says, or else the error with which the line stopped."""
    report = last_report(query.log)
    if not given and report and report.error and report.error.epoch in (None, epoch):
        return f"{report.error.kind}: {report.error.what}"
    return given or "no reason was given"


def outcome(query: Query, decision: Decision, mark: Mark | None) -> GivenUp:
    """Say what came of it.

    :param mark: the ledger row, read after the decision was durable: whoever began the epoch before
        may have sent rows of it.
    """
    begun = mark.begun if mark else None
    flushed = mark is not None and mark.flushed >= decision.epoch
    last = mark.last if flushed and mark else None
    windows = [window for window in (begun, last) if window is not None]
    sent = any(
        epoch.epoch == decision.epoch and epoch.manifest
        for window in windows
        for epoch in window.epochs
    )
    return GivenUp(
        query_id=query.query_id,
        record=f"{query.log.url}/{paths.decision(decision.epoch)}",
        decision=decision,
        rows_possibly_in_target=sent,
    )

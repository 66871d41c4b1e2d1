"""`accept-gap`: lets the line go on over a checkpointed epoch whose manifest is lost (rule 12).

The decision is the only thing that changes. Segments that are left of the epoch are not looked into: of
which attempt they are, and whether they are all, only the manifest knew. The flusher trims them.
"""

from __future__ import annotations

from typing import NamedTuple

from wal_sink.admin.decide import (
    GivenUp,
    offsets_digest,
    outcome,
    reason,
    refuse_changed,
    situation,
)
from wal_sink.admin.ledger import ledger
from wal_sink.admin.query import Query, who
from wal_sink.errors import OptionError
from wal_sink.model.records import Decision
from wal_sink.protocol.skip import Situation, refuse_gap
from wal_sink.targets.base import Target


class AcceptingGap(NamedTuple):
    """What `accept_gap` is going to do; nothing is changed yet."""

    query: Query
    target: Target
    seen: Situation

    @property
    def consequences(self) -> str:
        """Say what the operator agrees to."""
        epoch = self.seen.epoch
        text = (
            f"Epoch {epoch} of query {self.query.query_id} has no manifest in {self.query.log.url}. It will"
            " be passed over: its rows are lost; the epochs after it go on."
        )
        if self.seen.segments:
            text += (
                f" {len(self.seen.segments)} segments of it are left, and are deleted with it;"
                " set-aside would keep them."
            )
        if self.seen.begun is not None:
            text += (
                f" It is begun: some of its {self.seen.begun.rows} rows are possibly in the table."
            )
        return text


def plan_accept_gap(query: Query, target: Target, epoch: int, *, begun: bool) -> AcceptingGap:
    """Look whether the epoch is a gap. A flusher may be alive: there is nothing that it could flush.

    :param begun: the operator knows that rows of it may be in the table.
    :raises OptionError: it is not the next epoch, or has a manifest, or is given up already.
    :raises WrongOwner, LedgerBehindLog, TargetUnavailable: see `giving_up`.
    """
    with ledger(target, query.owner(query.identity())) as row:
        seen = situation(query, row, epoch, begun=begun)
    if (present := query.log.decision(epoch)) is not None:
        raise OptionError(
            f"Epoch {epoch} is given up already, by {present.by}: {present.verb}",
            "Start the query, or a flusher; it passes over the epoch.",
        )
    refuse_gap(seen)
    return AcceptingGap(query, target, seen)


def accept_gap(plan: AcceptingGap, now_us: int, why: str = "") -> GivenUp:
    """Carry it out.

    :raises OptionError, FlusherAtWork: the epoch is no such gap any more; nothing was changed.
    """
    query, seen = plan.query, plan.seen
    with ledger(plan.target, query.owner(query.identity())) as row:
        refuse_changed(query, row, seen)
    decision = query.log.create_decision(
        Decision(
            verb="accept-gap",
            epoch=seen.epoch,
            by=who(),
            at_us=now_us,
            why=reason(query, seen.epoch, why),
            where="",
            files=(),
            generation=seen.begun.generation if seen.begun else 0,
            offsets_digest=offsets_digest(query, seen),
            rows=seen.begun.rows if seen.begun else -1,
            last_us=seen.begun.last_us if seen.begun else 0,
        )
    )
    with ledger(plan.target, query.owner(query.identity())) as row:
        return outcome(query, decision, row.read())

"""Fences a run off from a newer one: its ticket, its generation, and the proof that it leaves.

Rules 2, 3, 7 and the proof of rule 11.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import NamedTuple

from wal_sink.errors import AlreadyPublished, Fenced, NotRegistered, WalSinkError
from wal_sink.model import paths
from wal_sink.model.manifest import Attempt, Execution
from wal_sink.model.records import Claim, CommitProof, Ticket
from wal_sink.text import counted
from wal_sink.wal.log import Log
from wal_sink.wal.runs import RUNS_KEPT

logger = logging.getLogger(__name__)


def take_ticket(log: Log, run_id: str) -> Ticket:
    """Write down the highest generation claimed by now, before Spark reads the checkpoint (rule 2).

    The run will claim the next one. Taken any later, two runs that read the same checkpoint could pass
    each other: the model finds uncommitted rows after 21 steps when the planner takes it.
    """
    ticket = Ticket(run_id=run_id, generation=log.highest_generation())
    log.create(paths.TICKET, run_id, ticket)
    return ticket


class Claimed(NamedTuple):
    """The generation of a run."""

    generation: int
    is_new: bool
    """Whether the run has claimed it just now."""
    early: bool
    """Whether it had as it started, which says of no look at the log since."""


def claim_generation(
    log: Log,
    run_id: str,
    options: Mapping[str, str],
    epoch: int,
    *,
    early: bool = False,
    before: Callable[[], None] = lambda: None,
) -> Claimed:
    """Return the run's generation: one above its ticket, claimed once, and still the highest (rule 3).

    It claims first, then looks for a higher claim. The claim of a run that was overtaken long ago may have
    been deleted, and can be made again; a higher one is there then.

    :param options: the sink's options without secrets, kept with the claim.
    :param epoch: the first one that the run computes, kept with the claim.
    :param early: the run starts, and has nothing to publish yet.
    :param before: called where the run has no claim yet. What it raises leaves an older run as it is.
    :raises NotRegistered: the run has no ticket, or no longer.
    :raises Fenced: a newer run has claimed a generation.
    """
    ticket = log.read(paths.TICKET, run_id)
    if ticket is None:
        raise _without_ticket(log, run_id)
    mine = ticket.claims
    present = log.read(paths.CLAIM, mine)
    if present is None:
        before()
        made = Claim(run_id=run_id, options=dict(options), early=early, epoch=epoch)
        log.create(paths.CLAIM, mine, made)
    claim = present or log.read(paths.CLAIM, mine)
    if claim is not None and claim.run_id != run_id:
        raise fenced(f"Generation {mine} is claimed by run {claim.run_id}")
    if claim is None or log.highest_generation() > mine:  # None: it was deleted below a higher one
        raise fenced(f"Generation {mine} was overtaken")
    return Claimed(mine, is_new=present is None, early=present is not None and present.early)


def refuse_overtaken(log: Log, attempt: Attempt) -> None:
    """Look again before Spark may write `commits/<epoch>` (rule 7).

    :raises Fenced: a newer run has claimed a generation.
    """
    if log.highest_generation() > attempt.generation:
        raise fenced(f"Generation {attempt.generation} was overtaken at epoch {attempt.epoch}")


def refuse_published(log: Log, execution: Execution) -> None:
    """Refuse an epoch that this very run has published; whatever else speaks against it, the publisher sees.

    :raises AlreadyPublished: its manifest is there.
    :raises NotRegistered: the run has no ticket, or no longer.
    """
    ticket = log.read(paths.TICKET, execution.run_id)
    if ticket is None:
        raise _without_ticket(log, execution.run_id)
    found = log.manifest(Attempt(execution.epoch, ticket.claims))
    if found is not None and found.manifest.run_id == execution.run_id:
        rows = counted(found.manifest.rows, "row was", "rows were")
        raise AlreadyPublished(
            f"Epoch {execution.epoch} is written a second time by one run; {rows}"
            " published the first time",
            "Write each batch once: join what belongs to it with df.union(…) before. A batch that was written"
            " is not written again after an error; let the function raise, and start the query again.",
        )


def _without_ticket(log: Log, run_id: str) -> NotRegistered:
    """Return the error of a run without a ticket: it never had one, or was overtaken long ago."""
    what, newest = f"Run {run_id} has no ticket in {log.url}", log.highest_generation()
    if newest > RUNS_KEPT:
        what += (
            f": it was never given one, or at least {RUNS_KEPT} newer runs have published since, up to"
            f" generation {newest}"
        )
    elif newest:
        what += (
            f": it was never given one, or a newer run has claimed generation {newest} in its place"
        )
    return NotRegistered(
        what,
        "Call wal_sink.register(spark) before start(), on the same SparkSession, and start"
        " the query again. If it was called, look for its error in the driver's log.",
    )


def fenced(what: str) -> Fenced:
    """Return the error with which a run ends where another one was first, be it newer or older."""
    return Fenced(
        what,
        "Another run of this query was first. See that one goes on, and only one: if both have ended, start"
        " one again. Nothing is lost; what this one computed of the epoch is not flushed.",
    )


def leave_proof(log: Log, epoch: int, run_id: str) -> None:
    """Leave a proof that Spark kept the last epoch of a run that ends here, or waits (rule 11).

    Spark lets a run come to an epoch only after `commits/` of the one before. The run that fenced this one
    may have published that epoch as well.
    """
    try:
        ticket = log.read(paths.TICKET, run_id)
        found = log.manifest(Attempt(epoch, ticket.claims)) if ticket else None
        if found is None or found[0].run_id != run_id:
            return  # not published by this run, or flushed and trimmed
        mine, highest = found[0].generation, log.highest_generation()
        log.create_proof(CommitProof(epoch=epoch, generation=mine, run_id=run_id, highest=highest))
    except (OSError, WalSinkError):  # what is raised is that it is fenced
        logger.warning(
            "the note that Spark kept epoch %d could not be written to the log",
            epoch,
            exc_info=True,
        )

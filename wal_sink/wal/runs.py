"""Deletes old tickets and claims of runs (rule 3).

Each start of a query leaves a ticket and perhaps a claim. The highest claim always stays, so a listing of
`runs/` says what it said before. A run that comes back has no ticket any more, or finds a higher claim, and
stops. A run may still have to prove that Spark kept its last epoch (rule 11), for which it needs its
ticket: so the tickets stay as long as a manifest of that generation, or of a lower one, is pending. A start
that fails before its first `commit()` leaves a ticket and no claim. Once another run has claimed the
generation of that ticket, its run can neither publish nor have anything to prove.
"""

from __future__ import annotations

from collections.abc import Iterable

from wal_sink.log_context import line_logger
from wal_sink.model import paths
from wal_sink.model.records import Ticket
from wal_sink.wal.log import Log, read_many

logger = line_logger(__name__)

RUNS_KEPT = 100
"""So many of the newest claims stay, with the tickets of their runs. A listing of `runs/` that takes its time
finds the highest claim of its beginning, unless so many runs claim a generation meanwhile."""

_FORGOTTEN_TOGETHER = 100
"""Tickets are read to tell whose they are: once for so many starts."""

VOID_KEPT = 1_000
"""So many tickets without a claim stay: as many as one page of a bucket's listing."""

_READ_AT_ONCE = 2_000
"""So many tickets are read at the most: who reads them has a query to start, or to flush."""


def sweep_runs(log: Log, flushed: int) -> int:
    """Delete what runs have left that can neither publish nor prove anything; return how many claims.

    :param flushed: the log's mark: what is published above it waits.
    """
    claimed = log.keys(paths.CLAIM, fresh=True)
    if len(claimed) < RUNS_KEPT + _FORGOTTEN_TOGETHER:
        return 0
    waiting = [each.generation for each in log.attempts(fresh=True) if each.epoch > flushed]
    oldest = min([claimed[-RUNS_KEPT], *waiting])
    gone = [generation for generation in claimed if generation < oldest]
    if gone:
        runs = [run for run, made in _tickets(log).items() if made.claims < oldest]
        _delete_tickets(log, runs)
        log.delete(map(paths.CLAIM.path, gone))
        logger.debug("deleted %d claims and %d tickets of old runs", len(gone), len(runs))
    return len(gone)


def ticketed(log: Log) -> list[str]:
    """List the runs that have a ticket."""
    found = map(paths.TICKET.parse, log.backend.list(paths.TICKET.folder))
    return [run_id for run_id in found if run_id is not None]


def is_crowded(log: Log) -> bool:
    """Whether starts that claimed nothing have left too many tickets; one listing while there are few."""
    tickets = len(ticketed(log))
    return tickets >= VOID_KEPT and tickets - len(log.keys(paths.CLAIM)) >= VOID_KEPT


def sweep_void_tickets(log: Log) -> int:
    """Delete the tickets of runs whose generation another run has claimed; return how many."""
    tickets = _tickets(log)
    generations = sorted({ticket.claims for ticket in tickets.values()})
    claims = read_many(log, lambda each: log.readable(paths.CLAIM, each), generations)
    owners = {
        generation: claim.run_id
        for generation, claim in zip(generations, claims, strict=True)
        if claim is not None
    }
    void = [run for run, ticket in tickets.items() if owners.get(ticket.claims, run) != run]
    _delete_tickets(log, void)
    return len(void)


def _tickets(log: Log) -> dict[str, Ticket]:
    """Read some tickets, by run; one that is damaged is left alone."""
    runs = ticketed(log)[:_READ_AT_ONCE]
    read = read_many(log, lambda run: log.readable(paths.TICKET, run), runs)
    return {run: ticket for run, ticket in zip(runs, read, strict=True) if ticket is not None}


def _delete_tickets(log: Log, runs: Iterable[str]) -> None:
    log.delete(path for run in runs for path in (paths.TICKET.path(run), paths.STOP.path(run)))

"""The ticket of a run: which generations it may be sure to have seen (rule 2)."""

from __future__ import annotations

from wal_sink.model.records import Ticket
from wal_sink.wal.log import Log


def take_ticket(log: Log, run_id: str) -> Ticket:
    """Write down the highest generation claimed by now, before Spark reads the checkpoint.

    The run will claim the next one. Taken any later, two runs that read the same checkpoint could pass
    each other: the model finds uncommitted rows after 21 steps when the planner takes it.
    """
    ticket = Ticket(run_id=run_id, generation=log.highest_generation())
    log.create_ticket(ticket)
    return ticket

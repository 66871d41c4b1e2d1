"""A pipeline: one query with its log and one of its targets; and the plans that its log has."""

from __future__ import annotations

from dataclasses import dataclass

from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.errors import CorruptLog
from wal_sink.model import paths
from wal_sink.model.ledger import ledger_key
from wal_sink.model.plan import Plan
from wal_sink.protocol.retention import Retention
from wal_sink.targets.base import Target
from wal_sink.wal.store import LogStore, read_record


@dataclass(frozen=True)
class Pipeline:
    """One query, its log, and one of its targets. Picklable if the target is picklable.

    The pickle has the secrets of all stores.
    """

    query_id: str
    store: LogStore
    checkpoint: Checkpoint
    target: Target
    target_name: str
    """Name of the target in the log."""
    several: bool
    """True if the query names several targets. Rows for several targets are cast in the flush, not in the
    tasks."""
    retention: Retention
    quarantine: bool = False
    """True if refused rows are kept in the log, and the flush continues without them."""

    @property
    def label(self) -> str:
        """Return the name of the target if there are several; empty for a single target."""
        return self.target_name if self.several else ""

    @property
    def ledger_key(self) -> str:
        """Return the key of the ledger row in the target."""
        return ledger_key(self.query_id, self.label)

    @property
    def billed(self) -> bool:
        """Return True if each request to log or checkpoint costs money and a round trip."""
        return self.store.billed or self.checkpoint.billed


def plan_of(store: LogStore, target: str, key: str, epoch: int) -> Plan:
    """Read the plan by which the rows of an epoch were checked.

    :raises CorruptLog: the plan is gone, cannot be read, or has another digest.
    """
    path = paths.PLAN.path(paths.PlanName(target, key))
    problem = "is gone"
    try:
        plan = read_record(store, Plan, path)
        if plan is not None:
            if plan == plan.for_log(key):
                return plan
            problem = "was changed: its digest is another one"
    except CorruptLog as error:
        problem = f"cannot be used: {error.what.rstrip('.')}"
    raise CorruptLog(
        f"The plan {store.url}/{path} of epoch {epoch} {problem}.",
        "Restore the file from a copy of the log. Or delete the rest of it, and start the query once with the"
        " former schema and options: the start writes the same plan again. If neither is possible, give the"
        f" epoch up: `wal-sink give-up CHECKPOINT --epoch {epoch}`.",
    )

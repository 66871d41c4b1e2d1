"""The work of a flusher: one query, its log, and one target."""

from __future__ import annotations

from dataclasses import dataclass

from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.errors import CorruptLog
from wal_sink.model import paths
from wal_sink.model.ledger import ledger_key
from wal_sink.model.plan import Plan
from wal_sink.protocol.retention import Retention
from wal_sink.targets.base import Target
from wal_sink.wal.store import LogStore


@dataclass(frozen=True)
class Pipeline:
    """One query, its log, and one of its targets. Picklable if the target is.

    The pickle has the secrets of all stores.
    """

    query_id: str
    store: LogStore
    checkpoint: Checkpoint
    target: Target
    target_name: str
    """Name of the target in the log."""
    several: bool
    """True if the query names several targets. Their rows are cast in the flush, not in the tasks."""
    retention: Retention
    quarantine: bool = False
    """True if refused rows are kept in the log, and the flush continues without them."""

    @property
    def label(self) -> str:
        """Return the name of the target if there are several; empty for a single one."""
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

    :raises CorruptLog: the plan is gone, or cannot be read.
    """
    path = paths.PLAN.path(paths.PlanName(target, key))
    plan = store.read_record(Plan, path)
    if plan is None:
        raise CorruptLog(
            f"The plan {store.url_of(path)} of epoch {epoch} is gone.",
            "Restore the file from a copy of the log. Or start the query once with the former schema and"
            " options: the start writes the same plan again.",
        )
    return plan

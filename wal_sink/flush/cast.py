"""Casts rows of a log of several targets for one of them: such a log keeps Spark's own types."""

from __future__ import annotations

from wal_sink.model.plan import Plan
from wal_sink.targets.base import Slice, Target
from wal_sink.wal.log import Log


def as_written(log: Log, target: Target, plan: Plan, rows: Slice) -> Slice:
    """Return rows as the target's session takes them; where there is one target, its tasks have cast them.

    :raises InvalidRow: the target would refuse a row. The tasks have refused such rows by the same plan.
    """
    if not log.several or not rows.batch.num_rows:
        return rows
    return rows._replace(batch=target.check(rows.batch, plan))

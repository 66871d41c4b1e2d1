"""A target whose check finds a bad row late, after the other tasks of the batch have ended."""

from __future__ import annotations

import time

import pyarrow as pa
import pyarrow.compute as pc

from wal_sink.errors import InvalidRow
from wal_sink.model.plan import Plan
from wal_sink.targets.cassandra.target import CassandraTarget

LATE_POISON_TARGET = f"{__name__}:LatePoisonTarget"

POISON = 3
"""The id of the bad row."""


class LatePoisonTarget(CassandraTarget):
    """Cassandra, with a check that refuses one row."""

    def check(self, batch: pa.RecordBatch, plan: Plan) -> pa.RecordBatch:
        """See `Target.check`."""
        checked = super().check(batch, plan)
        if pc.any(pc.equal(checked.column("id"), POISON)).as_py():
            time.sleep(4)  # the Python workers of the other tasks have started by then
            raise InvalidRow("id 3 is poison", "This is a test.")
        return checked

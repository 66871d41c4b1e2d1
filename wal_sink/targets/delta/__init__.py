"""The target Delta Lake: tasks stage Parquet files, and one commit adds them with the ledger row.

Imports inside of methods keep delta-rs out of tasks that publish.
"""

from __future__ import annotations

import pyarrow as pa

from wal_sink.model.plan import Plan
from wal_sink.options import Options
from wal_sink.targets.client import Client, ClientTarget
from wal_sink.targets.delta.options import DeltaOptions


class DeltaTarget(ClientTarget):
    """A Delta table in a folder or a bucket. Readers see whole windows of epochs."""

    name = "delta"
    options_type: type[Options] = DeltaOptions
    parallel_writes = True

    noun = "The Delta table"
    to_correct = "Correct delta.path or delta.storageOptions, or the rights on the table."
    to_reach = "Check that the table's store can be reached from this host."

    options: DeltaOptions

    @property
    def writes_to(self) -> str:
        """The path of the table."""
        return self.options.path

    def client(self) -> Client:
        """Import delta-rs."""
        from wal_sink.targets.delta import plan, session, table  # noqa: PLC0415

        return Client(plan.agree, session.DeltaSession, table.classify)

    def check(self, batch: pa.RecordBatch, plan: Plan) -> pa.RecordBatch:
        """Cast `batch` to the table's types, and refuse values that do not fit."""
        from wal_sink.targets.delta.columns import check  # noqa: PLC0415 -- pyarrow.compute

        return check(batch, plan)

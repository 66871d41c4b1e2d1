"""The Delta target. Each method imports what it needs, so that tasks which publish never load delta-rs."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from wal_sink.model.ledger import Owner
from wal_sink.model.plan import Plan
from wal_sink.options import Options
from wal_sink.targets.base import Delivery, Kind, Session, Target
from wal_sink.targets.delta.options import DeltaOptions
from wal_sink.targets.registry import importing

_WHERE = "the driver of Spark, its executors and every flusher run"


class DeltaTarget(Target):
    """A Delta table in a folder or a bucket. Readers see whole windows of epochs.

    :param options: see `DeltaOptions`.
    """

    name = "delta"
    options_type: type[Options] = DeltaOptions
    delivery = Delivery.STAGED
    parallel_writes = True

    options: DeltaOptions

    @property
    def shape(self) -> Mapping[str, str]:
        """Return the table, its key for upserts, and whether columns are added."""
        options = self.options
        shape = {"delta.path": options.path}
        if options.keys:
            shape |= {"delta.mode": options.mode, "keyColumns": ",".join(options.keys)}
        if options.operation_column:
            shape |= {"operationColumn": options.operation_column, "operations": options.operations}
        if options.merge_schema:
            shape["delta.mergeSchema"] = "true"
        return shape

    @property
    def writes_to(self) -> str:
        """Return the table."""
        return self.options.path

    def plan(self, schema: pa.Schema, key: str) -> Plan:
        """Compare the DataFrame with the table; make it or add columns to it, where options say so."""
        with importing("delta", _WHERE):
            from wal_sink.targets.delta.plan import agree  # noqa: PLC0415 -- delta-rs

        return agree(self.options, schema, key, changes=True)

    def dry_plan(self, schema: pa.Schema, key: str) -> Plan:
        """Do as `plan` does, and change nothing."""
        with importing("delta", _WHERE):
            from wal_sink.targets.delta.plan import agree  # noqa: PLC0415 -- delta-rs

        return agree(self.options, schema, key, changes=False)

    def check(self, batch: pa.RecordBatch, plan: Plan) -> pa.RecordBatch:
        """Cast `batch` to the table's types, and refuse what would not be the same there."""
        from wal_sink.targets.delta.columns import check  # noqa: PLC0415 -- pyarrow.compute

        return check(batch, plan)

    def load(self) -> None:
        """Import delta-rs."""
        with importing("delta", _WHERE):
            import wal_sink.targets.delta.session  # noqa: F401, PLC0415 -- delta-rs

    def connect(self, owner: Owner) -> Session:
        """Make a session; it looks at the table when it is used."""
        with importing("delta", _WHERE):
            from wal_sink.targets.delta.session import DeltaSession  # noqa: PLC0415 -- delta-rs

        return DeltaSession(self.options, owner)

    def classify(self, error: Exception) -> Kind:
        """Take a store that does not answer, and a commit that met another one, for errors that pass."""
        from wal_sink.targets.delta.table import classify  # noqa: PLC0415 -- delta-rs

        return classify(error)

"""The Delta target. Its modules are loaded late, so that tasks which publish never load delta-rs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import pyarrow as pa

from wal_sink.model.plan import Plan
from wal_sink.options import Options
from wal_sink.targets.base import ErrorClass
from wal_sink.targets.client import ClientTarget
from wal_sink.targets.delta.options import EVENT_COLUMN, DeltaOptions

if TYPE_CHECKING:
    from wal_sink.targets.delta.session import DeltaSession


class DeltaTarget(ClientTarget):
    """A Delta table in a folder or a bucket. Readers see whole windows of epochs.

    :param options: see `DeltaOptions`.
    """

    interface = 2
    name = "delta"
    options_type: type[Options] = DeltaOptions
    parallel_writes = True

    to_correct = "Correct delta.path or delta.storageOptions, or the rights on the table."
    to_reach = "See that its store can be reached from here."

    options: DeltaOptions

    @property
    def place(self) -> str:
        """The table."""
        return f"The Delta table {self.options.path}"

    @property
    def shape(self) -> Mapping[str, str]:
        """Return the table, its key and time for upserts, and whether columns are added."""
        options = self.options
        shape = {"delta.path": options.path}
        if options.keys:
            shape |= {"delta.mode": options.mode, "keyColumns": ",".join(options.keys)}
        if options.operation_column:
            shape |= {"operationColumn": options.operation_column, "operations": options.operations}
        if options.unavailable_value:
            shape["unavailableValue"] = options.unavailable_value
        if options.timestamp_column:
            shape[EVENT_COLUMN] = options.timestamp_column
        if options.merge_schema:
            shape["delta.mergeSchema"] = "true"
        return shape

    @property
    def writes_to(self) -> str:
        """Return the table."""
        return self.options.path

    def agree(self, schema: pa.Schema, key: str, *, changes: bool) -> Plan:
        """Compare the DataFrame with the table."""
        from wal_sink.targets.delta.plan import agree  # noqa: PLC0415 -- the client

        return agree(self.options, schema, key, changes=changes)

    def check(self, batch: pa.RecordBatch, plan: Plan) -> pa.RecordBatch:
        """Cast `batch` to the target's types, and refuse what would not be the same there."""
        from wal_sink.targets.delta.columns import check  # noqa: PLC0415 -- pyarrow.compute

        return check(batch, plan)

    def session_type(self) -> type[DeltaSession]:
        """Import the client."""
        from wal_sink.targets.delta.session import DeltaSession  # noqa: PLC0415 -- the client

        return DeltaSession

    def classify(self, error: Exception) -> ErrorClass:
        """Return what an exception of the client means."""
        from wal_sink.targets.delta.table import classify  # noqa: PLC0415 -- the client

        return classify(error)

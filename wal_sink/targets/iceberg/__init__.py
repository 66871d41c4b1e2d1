"""The target Apache Iceberg: tasks stage Parquet files, and one commit adds them with the ledger row.

Imports inside of methods keep pyiceberg out of tasks that publish.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa

from wal_sink.model.plan import Plan
from wal_sink.options import Options
from wal_sink.targets.client import Client, ClientTarget, importing
from wal_sink.targets.iceberg.options import IcebergOptions


class IcebergTarget(ClientTarget):
    """An Iceberg table of a catalog, to which rows are added. Readers see whole windows of epochs."""

    name = "iceberg"
    options_type: type[Options] = IcebergOptions
    parallel_writes = True

    noun = "The catalog of the Iceberg table"
    to_correct = (
        "Correct table, or iceberg.catalog.type, .uri and .warehouse; or the rights on the table."
    )
    to_reach = (
        "Check that catalog and store can be reached from this host. The folder of an SQLite catalog must"
        " exist."
    )

    options: IcebergOptions

    @property
    def writes_to(self) -> str:
        """The name of the table."""
        return self.options.table

    def for_tasks(self) -> IcebergTarget:
        """Copy the catalog's properties from pyiceberg's configuration of this process into the options."""
        with importing(self):
            from pyiceberg.utils.config import Config, merge_config  # noqa: PLC0415

        configured: Any = Config().get_catalog_config(self.options.catalog) or {}
        # `merge_config` keeps nested properties, such as auth.
        merged = merge_config(configured, self.options.properties)
        return type(self)(msgspec.structs.replace(self.options, properties=merged))

    def client(self) -> Client:
        """Import pyiceberg."""
        from wal_sink.targets.iceberg import catalog, plan, session  # noqa: PLC0415

        return Client(plan.agree, session.IcebergSession, catalog.classify)

    def check(self, batch: pa.RecordBatch, plan: Plan) -> pa.RecordBatch:
        """Cast `batch` to the table's types, and refuse values that do not fit."""
        from wal_sink.targets.iceberg.check import check  # noqa: PLC0415 -- pyarrow.compute

        return check(batch, plan)

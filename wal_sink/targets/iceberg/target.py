"""The Iceberg target. Its modules are loaded late, so that tasks which publish never load pyiceberg."""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa

from wal_sink.model.plan import Plan
from wal_sink.options import Options
from wal_sink.targets.client import Client, ClientTarget, importing
from wal_sink.targets.iceberg.options import IcebergOptions


class IcebergTarget(ClientTarget):
    """An Iceberg table of a catalog; rows are added to it. Readers see whole windows of epochs.

    :param options: see `IcebergOptions`.
    """

    interface = 2
    name = "iceberg"
    options_type: type[Options] = IcebergOptions
    parallel_writes = True

    to_correct = (
        "Correct table, or iceberg.catalog.type, .uri and .warehouse; or the rights on the table."
    )
    to_reach = (
        "See that catalog and store can be reached from here; the folder of an SQLite catalog has to be"
        " there."
    )

    options: IcebergOptions

    @property
    def place(self) -> str:
        """The catalog, by the table."""
        return f"The catalog of the Iceberg table {self.options.table}"

    @property
    def writes_to(self) -> str:
        """Return the table."""
        return self.options.table

    def for_tasks(self) -> IcebergTarget:
        """Fill in what pyiceberg's configuration says of the catalog in this process."""
        with importing(self):
            from pyiceberg.utils.config import Config, merge_config  # noqa: PLC0415

        configured: Any = Config().get_catalog_config(self.options.catalog) or {}
        # What is nested there, such as auth, stays so.
        merged = merge_config(configured, self.options.properties)
        return type(self)(msgspec.structs.replace(self.options, properties=merged))

    def client(self) -> Client:
        """Import the client."""
        from wal_sink.targets.iceberg import plan, session, table  # noqa: PLC0415

        return Client(plan.agree, session.IcebergSession, table.classify)

    def check(self, batch: pa.RecordBatch, plan: Plan) -> pa.RecordBatch:
        """Cast `batch` to the target's types, and refuse what does not fit."""
        from wal_sink.targets.iceberg.check import check  # noqa: PLC0415 -- pyarrow.compute

        return check(batch, plan)

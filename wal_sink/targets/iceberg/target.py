"""The Iceberg target. Each method imports what it needs, so that tasks which publish never load pyiceberg."""

from __future__ import annotations

import msgspec
import pyarrow as pa

from wal_sink.model.ledger import Owner
from wal_sink.model.plan import Plan
from wal_sink.options import Options
from wal_sink.targets.base import Delivery, Kind, Session, Target
from wal_sink.targets.iceberg.options import IcebergOptions
from wal_sink.targets.registry import importing

_WHERE = "the driver of Spark, its executors and every flusher run"


class IcebergTarget(Target):
    """An Iceberg table of a catalog; rows are added to it. Readers see whole windows of epochs.

    :param options: see `IcebergOptions`.
    """

    name = "iceberg"
    options_type: type[Options] = IcebergOptions
    delivery = Delivery.STAGED
    parallel_writes = True

    options: IcebergOptions

    @property
    def writes_to(self) -> str:
        """Return the table."""
        return self.options.table

    def plan(self, schema: pa.Schema, key: str) -> Plan:
        """Compare the DataFrame with the table; make it or add columns to it, where options say so."""
        with importing("iceberg", _WHERE):
            from wal_sink.targets.iceberg.plan import agree_on  # noqa: PLC0415 -- pyiceberg

        return agree_on(self.options, schema, key, changes=True)

    def dry_plan(self, schema: pa.Schema, key: str) -> Plan:
        """Do as `plan` does, and change nothing."""
        with importing("iceberg", _WHERE):
            from wal_sink.targets.iceberg.plan import agree_on  # noqa: PLC0415 -- pyiceberg

        return agree_on(self.options, schema, key, changes=False)

    def check(self, batch: pa.RecordBatch, plan: Plan) -> pa.RecordBatch:
        """Cast `batch` to the table's types, and refuse what would not be the same there."""
        from wal_sink.targets.iceberg.check import check  # noqa: PLC0415 -- pyarrow.compute

        return check(batch, plan)

    def load(self) -> None:
        """Import pyiceberg."""
        with importing("iceberg", _WHERE):
            import wal_sink.targets.iceberg.session  # noqa: F401, PLC0415 -- pyiceberg

    def for_tasks(self) -> IcebergTarget:
        """Fill in what pyiceberg's configuration says of the catalog in this process."""
        with importing("iceberg", _WHERE):
            from pyiceberg.utils.config import Config  # noqa: PLC0415

        found = Config().get_catalog_config(self.options.catalog) or {}
        properties = {key: str(value) for key, value in found.items()} | self.options.properties
        return type(self)(msgspec.structs.replace(self.options, properties=properties))

    def connect(self, owner: Owner) -> Session:
        """Make a session; it looks at the table when it is used."""
        with importing("iceberg", _WHERE):
            from wal_sink.targets.iceberg.session import IcebergSession  # noqa: PLC0415 -- pyiceberg

        return IcebergSession(self.options, owner)

    def classify(self, error: Exception) -> Kind:
        """Take a catalog that does not answer, and a commit that met another one, for errors that pass."""
        from wal_sink.targets.iceberg.table import classify  # noqa: PLC0415 -- pyiceberg

        return classify(error)

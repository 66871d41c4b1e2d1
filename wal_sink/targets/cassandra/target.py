"""The class `CassandraTarget`. Its methods import modules late, so tasks never load the driver."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

import pyarrow as pa

from wal_sink.model.plan import Plan
from wal_sink.options import Options
from wal_sink.targets.base import ErrorClass, IdempotentSession, Target
from wal_sink.targets.cassandra.options import CassandraOptions, with_environment
from wal_sink.targets.cassandra.row_plan import CassandraPlan
from wal_sink.targets.operations import BY_POSITION


class CassandraTarget(Target):
    """Apache Cassandra 4.0 and later, and compatible databases."""

    interface = 2
    name = "cassandra"
    options_type: type[Options] = CassandraOptions
    parallel_writes = True  # only timestamps decide between versions of a row

    options: CassandraOptions

    @property
    def writes_to(self) -> str:
        """The name of the table, with its keyspace."""
        return ".".join(self.options.data)

    @property
    def description(self) -> Mapping[str, str]:
        """The texts about cluster, table and rows that a start logs, by heading."""
        from wal_sink.targets.cassandra.rows import describe  # noqa: PLC0415 -- pyarrow.compute

        options = self.options
        nulls = {"unset": "a null keeps the older value", "write": "a null clears the older value"}
        ledger = f"{options.ledger.keyspace}.{options.ledger.table}"
        where = (
            options.where
            if options.secure_connect_bundle
            else f"{options.where}, port {options.port}"
        )
        renamed = ", ".join(f"{name} as {column}" for name, column in options.column_names.items())
        update = "by UPDATE: a row exists as long as one of its values does (cassandra.writeMode)"
        return {
            "target": f"{self.name} at {where}, {options.consistency_level}",
            "table": f"{self.writes_to}, ledger in {ledger}",
            **({"columns": f"{renamed} (cassandra.columns)"} if renamed else {}),
            "nulls": f"{options.nulls}: {nulls[options.nulls]} (cassandra.nulls)",
            "newest": f"{BY_POSITION} (see cassandra.timestampColumn)",
            **({"write": update} if options.write_mode == "update" else {}),
            **describe(options),
        }

    def plan(self, schema: pa.Schema, key: str) -> Plan:
        """Compare the DataFrame with the table, and create missing tables."""
        from wal_sink.targets.cassandra.plan import make_plan  # noqa: PLC0415 -- the driver

        return make_plan(self.options, schema, key)

    def dry_plan(self, schema: pa.Schema, key: str) -> Plan:
        """Compare the DataFrame with the table, and create nothing."""
        from wal_sink.targets.cassandra.plan import make_plan  # noqa: PLC0415 -- the driver

        return make_plan(self.options, schema, key, create=False)

    def check(self, batch: pa.RecordBatch, plan: Plan) -> pa.RecordBatch:
        """Cast `batch` to the log's types, and refuse rows that the server would refuse."""
        from wal_sink.targets.cassandra.rows import check  # noqa: PLC0415 -- pyarrow.compute

        return check(batch, CassandraPlan.of(plan))

    def load(self) -> None:
        """Import the driver."""
        import wal_sink.targets.cassandra.session  # noqa: F401, PLC0415 -- the driver

    def for_tasks(self) -> Self:
        """Return the target with the secrets of this process. A worker may have older secrets."""
        return type(self)(with_environment(self.options))

    def connect(self, query_id: str) -> IdempotentSession:
        """Open a session for a flusher."""
        from wal_sink.targets.cassandra.session import open_session  # noqa: PLC0415 -- the driver

        return open_session(self.options, query_id)

    def classify(self, error: Exception) -> ErrorClass:
        """Return the error class of an exception of the driver."""
        from wal_sink.targets.cassandra.driver.errors import classify  # noqa: PLC0415 -- the driver

        return classify(error)

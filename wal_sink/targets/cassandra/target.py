"""The class `CassandraTarget`. Its methods import modules late, so tasks never load the driver."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

import pyarrow as pa

from wal_sink.model.plan import Plan
from wal_sink.options import Options
from wal_sink.targets.base import IdempotentSession
from wal_sink.targets.cassandra.options import (
    EXPIRES_AT_COLUMN,
    TIMESTAMP_COLUMN,
    TO_CORRECT,
    TO_REACH,
    TTL,
    TTL_COLUMN,
    CassandraOptions,
    with_environment,
)
from wal_sink.targets.cassandra.row_plan import CassandraPlan
from wal_sink.targets.client import Client, ClientTarget
from wal_sink.targets.operation_options import BY_POSITION, described


class CassandraTarget(ClientTarget):
    """Apache Cassandra 4.0 and later, and compatible databases."""

    name = "cassandra"
    options_type: type[Options] = CassandraOptions
    parallel_writes = True  # only timestamps decide between versions of a row

    to_correct = TO_CORRECT
    to_reach = TO_REACH

    options: CassandraOptions

    @property
    def writes_to(self) -> str:
        """The name of the table, with its keyspace."""
        return ".".join(self.options.data)

    @property
    def description(self) -> Mapping[str, str]:
        """The texts about cluster, table and rows that a start logs, by heading."""
        options = self.options
        nulls = {"unset": "a null keeps the older value", "write": "a null clears the older value"}
        ledger = f"{options.ledger.keyspace}.{options.ledger.table}"
        where = (
            options.where
            if options.secure_connect_bundle
            else f"{options.where}, port {options.port}"
        )
        ttl, newest = "", f"{BY_POSITION} (see {TIMESTAMP_COLUMN})"
        if options.ttl is not None:
            ttl = f"{options.ttl} s from when the row was published ({TTL})"
        if column := options.ttl_column:
            ttl = f"seconds in {column}, from when the row was published ({TTL_COLUMN})"
        if column := options.expires_at_column:
            ttl = f"until {column} ({EXPIRES_AT_COLUMN})"
        if column := options.timestamp_column:
            newest = (
                f"of two versions of a row the one with the later {column} ({TIMESTAMP_COLUMN})"
            )
        renamed = ", ".join(f"{name} as {column}" for name, column in options.column_names.items())
        update = "by UPDATE: a row exists as long as one of its values does (cassandra.writeMode)"
        texts = {
            "target": f"{self.name} at {where}, {options.consistency_level}",
            "table": f"{self.writes_to}, ledger in {ledger}",
            "columns": f"{renamed} (cassandra.columns)" if renamed else "",
            "nulls": f"{options.nulls}: {nulls[options.nulls]} (cassandra.nulls)",
            "newest": newest,
            "write": update if options.write_mode == "update" else "",
            "ttl": ttl,
            **described(options),
        }
        return {heading: text for heading, text in texts.items() if text}

    @property
    def place(self) -> str:
        """The cluster, as errors name it."""
        return f"Cassandra at {self.options.where}"

    def client(self) -> Client:
        """Import the modules that need the driver."""
        from wal_sink.targets.cassandra.driver.errors import classify  # noqa: PLC0415 -- the driver
        from wal_sink.targets.cassandra.plan import make_plan  # noqa: PLC0415 -- the driver
        from wal_sink.targets.cassandra.session import open_session  # noqa: PLC0415 -- the driver

        return Client(make_plan, open_session, classify)

    def check(self, batch: pa.RecordBatch, plan: Plan) -> pa.RecordBatch:
        """Cast `batch` to the log's types, and refuse rows that the server would refuse."""
        from wal_sink.targets.cassandra.rows import check  # noqa: PLC0415 -- pyarrow.compute

        return check(batch, CassandraPlan.of(plan))

    def for_tasks(self) -> Self:
        """Return the target with the secrets of this process. A worker may have older secrets."""
        return type(self)(with_environment(self.options))

    def connect(self, query_id: str) -> IdempotentSession:
        """Open a session for a flusher."""
        session = super().connect(query_id)
        assert isinstance(session, IdempotentSession), "by `client`"
        return session

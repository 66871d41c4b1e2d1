"""The PostgreSQL target. Each method imports what it needs, so that tasks never load the driver."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from wal_sink.model.plan import Column, Plan
from wal_sink.options import Options
from wal_sink.targets.casts import key_of
from wal_sink.targets.columns import TableColumn
from wal_sink.targets.names import listed
from wal_sink.targets.postgresql.options import LONGEST, PostgresqlOptions
from wal_sink.targets.postgresql.server import ERRORS
from wal_sink.targets.postgresql.types import (
    is_staged,
    log_type,
    postgresql_type,
    refuse_wide_row,
    stored_type,
)
from wal_sink.targets.refusals import RELEASED
from wal_sink.targets.sql.database import LockHolder
from wal_sink.targets.sql.keyed import KeyedTarget
from wal_sink.targets.sql.names import TableName
from wal_sink.targets.sql.unique import changes_of_key

logger = logging.getLogger(__name__)


class PostgresqlTarget(KeyedTarget):
    """PostgreSQL 12 and later: each window in one transaction with its ledger row, its rows by COPY.

    :param options: see `PostgresqlOptions`.
    """

    name = "postgresql"
    client = "wal_sink.targets.postgresql.connection"
    options_type: type[Options] = PostgresqlOptions
    parameter = "%s"
    errors = ERRORS
    savepoints = RELEASED
    title = "PostgreSQL"
    options: PostgresqlOptions

    @property
    def description(self) -> Mapping[str, str]:
        """Return server, tables and mode."""
        return self.described(self.options.uri)

    def columns(self, connection: Any) -> Sequence[TableColumn]:
        """Ask the catalogue for the table's columns.

        :raises SchemaMismatch: the table, a partition or the ledger is no longer what survives a crash; or
            another server, a view or row-level security came in.
        """
        from wal_sink.targets.postgresql import schema  # noqa: PLC0415 -- not in tasks

        live = schema.find(connection, self.options.data)
        schema.refuse(connection, live, schema.STORAGE)
        schema.refuse(connection, schema.find(connection, self.options.ledger), [schema.UNLOGGED])
        return schema.read_columns(connection, live)

    def other_changes(self, connection: Any, plan: Plan) -> Sequence[str]:
        """Ask the catalogue whether an upsert still finds the index of its key."""
        from wal_sink.targets.postgresql import schema  # noqa: PLC0415 -- not in tasks

        if not (key := key_of(plan)):
            return ()
        live = schema.find(connection, self.options.data)
        return changes_of_key(key, schema.read_unique(connection, live))

    def lock_holders(self, connection: Any) -> Sequence[LockHolder]:
        """Ask the server who holds locks on the tables."""
        from wal_sink.targets.postgresql import schema  # noqa: PLC0415 -- not in tasks

        return schema.lock_holders(connection, self.options.data, self.options.ledger)

    def arrow_type(self, type_: str) -> pa.DataType | None:  # pragma: no cover
        """Not asked: what the log holds depends on the DataFrame's type, too (`types.log_type`)."""
        raise NotImplementedError

    def new_type(self, source: pa.DataType, *, key: bool) -> str:  # noqa: ARG002 -- a text needs no bound
        """Return the type of a new column for one of the DataFrame's types."""
        return postgresql_type(source)

    def table_end(self, partition: Sequence[str]) -> str:
        """Return how a new table is partitioned: one partition takes all rows, until others are made."""
        if not partition:
            return ""
        name = LONGEST.cut(self.options.data.table, "_default")
        rest = TableName(self.options.data.schema, name)
        by_range = f"PARTITION BY RANGE ({listed(partition)})"
        return f"{by_range};\nCREATE TABLE {rest} PARTITION OF {self.table_name} DEFAULT"

    def refuse_row(self, types: Iterable[str]) -> None:
        """Refuse a row that is wider than a page."""
        refuse_wide_row(types, self.options.table)

    def lacks_table(self, connection: Any) -> bool:
        """Return True if there is no table of the name, in a schema that is there."""
        from wal_sink.targets.postgresql.schema import read_relation  # noqa: PLC0415 -- not in tasks

        live = read_relation(connection, self.options.data)
        return not live.kind and live.name.schema in live.schemas

    def agree(self, connection: Any, schema: pa.Schema, key: str) -> Plan:
        """Compare the DataFrame with the table, and see that the ledger's can be used if it is there."""
        from wal_sink.targets.postgresql import plan  # noqa: PLC0415 -- not in tasks
        from wal_sink.targets.postgresql import schema as table  # noqa: PLC0415 -- as above

        options = self.options
        wanted = {"upserts": options.mode == "upsert", "deletes": bool(options.operation_column)}
        live = table.read_relation(connection, options.data)
        if not live.kind:
            raise self.missing_table(schema, plan.suggestion(live))
        table.refuse(connection, live, table.REFUSED, **wanted)
        agreed = self.match(
            *(schema, key, live.columns, live.unique), rules=plan.PostgresqlRules(live)
        )
        none = [pa.nulls(0, field.type) for field in schema]
        with plan.needing(connection, live.name, plan.rights(agreed), staged=is_staged(agreed)):
            # What the server refuses of no rows, it would refuse of any.
            rows = pa.RecordBatch.from_arrays(none, schema=schema)
            self.insert(connection, agreed, self.check(rows, agreed))
        for warning in table.warnings(connection, live, **wanted):
            logger.warning("%s", warning)
        if (ledger := table.find(connection, options.ledger)).kind:
            table.refuse(connection, ledger, [table.NO_LEDGER])
            with plan.needing(connection, ledger.name, "INSERT, SELECT, UPDATE"):
                self._try_ledger(connection)
        connection.rollback()
        return agreed

    def check(self, batch: pa.RecordBatch, plan: Plan) -> pa.RecordBatch:
        """Cast `batch` to the log's types and refuse rows that the server would refuse."""
        from wal_sink.targets.postgresql.check import check  # noqa: PLC0415 -- pyarrow.compute

        return check(batch, plan)

    def holds(self, now: TableColumn, planned: Column) -> bool:
        """Return True if an altered column takes what the log holds for it."""
        stored = stored_type(planned.type)
        return stored is not None and log_type(now.type, stored) is not None

    def recast(self, batch: pa.RecordBatch, plan: Plan) -> pa.RecordBatch:
        """Cast rows of the log to the types of an altered table."""
        from wal_sink.targets.postgresql.check import recast  # noqa: PLC0415 -- pyarrow.compute

        return recast(batch, plan)

    def insert(self, connection: Any, plan: Plan, batch: pa.RecordBatch) -> None:
        """Copy rows in the open transaction."""
        from wal_sink.targets.postgresql.connection import write as copy_rows  # noqa: PLC0415 -- the driver's encoder

        copy_rows(connection, self.options.data, plan, batch)

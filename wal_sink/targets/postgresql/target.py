"""The PostgreSQL target. Each method imports what it needs, so that tasks never load the driver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from wal_sink.model.plan import Plan
from wal_sink.options import Options
from wal_sink.targets.base import Kind
from wal_sink.targets.columns import TableColumn
from wal_sink.targets.operations import BY_POSITION, described
from wal_sink.targets.postgresql.options import PostgresqlOptions
from wal_sink.targets.registry import importing
from wal_sink.targets.sql import SqlTarget


class PostgresqlTarget(SqlTarget):
    """PostgreSQL 12 and later: each window in one transaction with its ledger row, its rows by COPY.

    :param options: see `PostgresqlOptions`.
    """

    name = "postgresql"
    options_type: type[Options] = PostgresqlOptions
    parameter = "%s"
    check_at_once = "SET CONSTRAINTS ALL IMMEDIATE"
    options: PostgresqlOptions

    @property
    def table_name(self) -> str:
        """The table, quoted."""
        return str(self.options.data)

    @property
    def ledger_name(self) -> str:
        """The ledger's table, quoted."""
        return str(self.options.ledger)

    @property
    def description(self) -> Mapping[str, str]:
        """Return server, tables and mode."""
        modes = {"append": "each row is added", "upsert": "a row replaces the one with its key"}
        mode = self.options.mode
        return {
            "target": f"{self.name} at {self.options.uri}",
            "table": f"{self.table_name}, ledger in {self.ledger_name}",
            "mode": f"{mode}: {modes[mode]} (postgresql.mode)",
            **({"newest": BY_POSITION} if mode == "upsert" else {}),
            **described(self.options.operation_column, self.options.words),
        }

    def open(self) -> Any:
        """Connect to the server that takes writes."""
        return _connection().connect(self.options)

    def columns(self, connection: Any) -> Sequence[TableColumn]:
        """Ask the catalogue for the table's columns.

        :raises SchemaMismatch: the table, a partition or the ledger is no longer what survives a crash.
        """
        from wal_sink.targets.postgresql.plan import refuse_unlogged, table_column  # noqa: PLC0415
        from wal_sink.targets.postgresql.schema import read_columns, read_unlogged  # noqa: PLC0415 -- not in tasks

        for name in (self.options.data, self.options.ledger):
            refuse_unlogged(read_unlogged(connection, name))
        return [table_column(column) for column in read_columns(connection, self.options.data)]

    def arrow_type(self, type_: str) -> pa.DataType | None:  # pragma: no cover
        """Not asked: what the log holds depends on the DataFrame's type, too (`types.log_type`)."""
        raise NotImplementedError

    def make_table(self, connection: Any, schema: pa.Schema) -> str:
        """Make the table where createTable asks for it."""
        from wal_sink.targets.postgresql.plan import make_table  # noqa: PLC0415 -- not in tasks

        return make_table(connection, self.options, schema)

    def compare(self, connection: Any, schema: pa.Schema, key: str) -> Plan:
        """Compare the DataFrame with the table, and see that the ledger's can be used if it is there."""
        from wal_sink.targets.postgresql.plan import make_plan  # noqa: PLC0415 -- not in tasks

        return make_plan(connection, self.options, schema, key)

    def check(self, batch: pa.RecordBatch, plan: Plan) -> pa.RecordBatch:
        """Cast `batch` to the log's types and refuse rows that the server would refuse."""
        from wal_sink.targets.postgresql.check import check  # noqa: PLC0415 -- pyarrow.compute

        return check(batch, plan)

    def insert(self, connection: Any, plan: Plan, batch: pa.RecordBatch) -> None:
        """Copy rows in the open transaction."""
        from wal_sink.targets.postgresql.connection import write as copy_rows  # noqa: PLC0415 -- the driver's encoder

        copy_rows(connection, self.options.data, plan, batch)

    def refuses(self, error: Exception) -> bool:
        """Whether the server says that a row is wrong."""
        return bool(_connection().refuses(error))

    def load(self) -> None:
        """Import driver and encoder."""
        _connection()

    def for_tasks(self) -> PostgresqlTarget:
        """Fill in the password from this process's environment."""
        return type(self)(_connection().with_password(self.options))

    def classify(self, error: Exception) -> Kind:
        """Return what an exception of the driver means."""
        kind: Kind = _connection().classify(error)
        return kind


def _connection() -> Any:
    """Import the driver.

    :raises OptionError: it is not installed.
    """
    with importing("postgresql", "the driver of Spark and every flusher run"):
        from wal_sink.targets.postgresql import connection  # noqa: PLC0415 -- the driver
    return connection

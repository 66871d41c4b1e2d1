"""The class of the target `postgresql`. Tasks import it without the driver."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from wal_sink.model.plan import Column, Plan
from wal_sink.options import Options
from wal_sink.targets.ddl import Layout, listed
from wal_sink.targets.postgresql.catalogue import (
    PostgresqlCatalogue,
    find,
    lock_holders,
    warn_of_triggers,
)
from wal_sink.targets.postgresql.options import LONGEST, PostgresqlOptions
from wal_sink.targets.postgresql.types import NEW, TYPES, refuse_wide_row, stored_values, takes
from wal_sink.targets.refusals import RELEASED
from wal_sink.targets.sql.database import run
from wal_sink.targets.sql.errors import Code, ErrorCodes, LockHolder, matches, texts
from wal_sink.targets.sql.keyed_target import KeyedTarget

# Connection, serialization and deadlock, resources, locks, an operator, the system, a replica. Other codes of
# class 55 do not pass, such as that of an upsert by a deferrable key.
_PASSING = texts("08 25006 25P03 40 53 55006 55P03 57 58")


def _sqlstate(error: BaseException) -> Code:
    """Return the SQLSTATE of an error.

    A trigger's RAISE can have any SQLSTATE. It refuses a row, as P0001 does, unless `_PASSING` has its code.
    """
    code = getattr(error, "sqlstate", None)
    source = getattr(getattr(error, "diag", None), "source_function", None)
    if not isinstance(code, str):
        return None
    return "P0001" if source == "exec_stmt_raise" and not matches(code, _PASSING) else code


ERROR_CODES = ErrorCodes(
    _sqlstate,
    _PASSING,
    locked=texts("55P03"),
    # Values, constraints, WITH CHECK OPTION, RAISE and ASSERT, a value that is too long for an index.
    refusing=texts("22 23 44 P0 54000"),
)
"""The meaning of SQLSTATEs from PostgreSQL's appendix A."""


class PostgresqlTarget(KeyedTarget):
    """Writes to PostgreSQL 12 and later by COPY, each window in one transaction with its ledger row."""

    name = "postgresql"
    options_type: type[Options] = PostgresqlOptions
    parameter = "%s"
    error_codes = ERROR_CODES
    savepoints = RELEASED
    title = "PostgreSQL"
    catalogue = PostgresqlCatalogue
    types, new = TYPES, NEW
    options: PostgresqlOptions
    longest = LONGEST, "bytes"

    def connector(self) -> Callable[[Any], Any]:
        """Import the driver. Return the function that connects."""
        from wal_sink.targets.postgresql.connection import connect  # noqa: PLC0415 -- loads the driver

        return connect

    def lock_table(self, connection: Any) -> None:
        """Let no client alter the table until the transaction ends.

        EXPLAIN locks the table as INSERT does, and runs no trigger. LOCK TABLE would fail for a user who has
        only the privilege to insert some columns.
        """
        run(connection, f"EXPLAIN INSERT INTO {self.table_name} DEFAULT VALUES")

    # --- types ---

    def takes(self, source: pa.DataType, type_: str, held: pa.DataType) -> bool:
        """Return True if a cast of the DataFrame's type keeps each value unchanged, or refuses the value."""
        return takes(source, type_, held)

    def stored(self, column: Column, values: pa.Array) -> pa.Array:
        """Cast the values of a column to the type in the log."""
        return stored_values(column, values)

    def new_table(self, schema: pa.Schema, layout: Layout) -> str:
        """Return the CREATE TABLE. Refuse a table whose rows are longer than a page."""
        statement = super().new_table(schema, layout)
        types = (self.type_of(field, layout) for field in self._written(schema))
        refuse_wide_row(types, self.options.table)
        return statement

    def table_end(self, partition: Sequence[str]) -> str:
        """Return PARTITION BY, and the statement that creates a default partition, which takes all rows."""
        if not partition:
            return ""
        name = self.options.destination
        end = "_default"
        most_bytes = self.longest[0] - len(end)
        begin = name.table.encode()[:most_bytes].decode(errors="ignore")
        rest = name._replace(table=begin + end)
        by_range = f"PARTITION BY RANGE ({listed(partition)})"
        return f"{by_range};\nCREATE TABLE {rest} PARTITION OF {self.table_name} DEFAULT"

    # --- at a start ---

    def agree(self, connection: Any, schema: pa.Schema, key: str) -> Plan:
        """Compare the DataFrame with the table. Check privileges by a flush without rows.

        A table that another session has locked is not checked: the flush waits for the lock, and names its
        holder.
        """
        plan = super().agree(connection, schema, key)
        warn_of_triggers(connection, self.options.destination)
        refuse_wide_row((column.type for column in plan.of_table().columns), self.options.table)
        none = [pa.nulls(0, field.type) for field in schema]
        rows = pa.RecordBatch.from_arrays(none, schema=schema)
        try:
            self.insert(connection, plan, self.check(rows, plan))
        except Exception as error:
            if not self.is_locked(error):
                raise
            connection.rollback()
        if self._has_ledger(connection):
            self._try_ledger(connection)
        return plan

    def _has_ledger(self, connection: Any) -> bool:
        return bool(find(connection, self.options.ledger).oid)

    # --- in the flush ---

    def insert(self, connection: Any, plan: Plan, batch: pa.RecordBatch) -> None:
        """Copy rows in the open transaction."""
        from wal_sink.targets.postgresql.write import write  # noqa: PLC0415 -- loads the driver

        write(connection, self.options.destination, plan, batch)

    def lock_holders(self, connection: Any) -> Sequence[LockHolder]:
        """Return the sessions that hold locks on the table, its partitions or the ledger."""
        return lock_holders(connection, self.options.destination, self.options.ledger)

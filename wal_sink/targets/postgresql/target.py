"""The PostgreSQL target. Only `connection` loads the driver, and methods import it late: tasks never do."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from wal_sink.errors import SchemaMismatch
from wal_sink.model.plan import Column, Plan
from wal_sink.options import Options
from wal_sink.targets.casts import key_of
from wal_sink.targets.client import shortly
from wal_sink.targets.columns import TableColumn
from wal_sink.targets.create_table import Layout
from wal_sink.targets.names import listed, quote
from wal_sink.targets.postgresql import schema as catalogue
from wal_sink.targets.postgresql.options import PostgresqlOptions
from wal_sink.targets.postgresql.types import NEW, TYPES, is_staged, takes
from wal_sink.targets.refusals import RELEASED
from wal_sink.targets.sql.errors import Code, Errors, LockHolder, is_among, texts
from wal_sink.targets.sql.keyed import KeyedTarget
from wal_sink.targets.sql.options import TableName
from wal_sink.targets.sql.unique import Unique

_LACKS_PRIVILEGE, _IS_LOCKED = "42501", "55P03"
"""Of the SQLSTATEs in PostgreSQL's appendix A."""
# Connection, serialization and deadlock, resources, locks, an operator, the system, a replica. Of class 55
# two alone: an upsert by a deferrable key, for one, would be refused for ever.
_PASSING = texts("08 25006 25P03 40 53 55006 55P03 57 58")


def _sqlstate(error: BaseException) -> Code:
    """Return the SQLSTATE. A RAISE may have any, and refuses a row unless that one passes."""
    code = getattr(error, "sqlstate", None)
    source = getattr(getattr(error, "diag", None), "source_function", None)
    if not isinstance(code, str):
        return None
    return "P0001" if source == "exec_stmt_raise" and not is_among(code, _PASSING) else code


ERRORS = Errors(
    _sqlstate,
    _PASSING,
    locked=texts(_IS_LOCKED),
    # Values, constraints, WITH CHECK OPTION, RAISE and ASSERT, what is too long for an index.
    refusing=texts("22 23 44 P0 54000"),
)


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
    types, new = TYPES, NEW
    options: PostgresqlOptions

    # --- the catalogue ---

    def columns(self, connection: Any) -> Sequence[TableColumn]:
        """Ask the catalogue for the table's columns.

        :raises SchemaMismatch: the table, a partition or the ledger is no longer what survives a crash; or
            another server, a view or row-level security came in.
        """
        live = catalogue.find(connection, self.options.data)
        catalogue.refuse(connection, live, catalogue.STORAGE)
        ledger = catalogue.find(connection, self.options.ledger)
        catalogue.refuse(connection, ledger, [catalogue.UNLOGGED])
        return catalogue.read_columns(connection, live)

    def unique(self, connection: Any) -> Sequence[Unique]:
        """Ask the catalogue for the unique indexes of the table and its partitions."""
        return catalogue.read_unique(connection, catalogue.find(connection, self.options.data))

    def other_tables(self, connection: Any) -> Iterable[str]:
        """Ask the catalogue for all tables."""
        return catalogue.read_tables(connection)

    def warnings(self, connection: Any) -> Iterable[str]:
        """Ask the catalogue for triggers, and the server for its settings."""
        return catalogue.warnings(connection, catalogue.find(connection, self.options.data))

    def lock_holders(self, connection: Any) -> Sequence[LockHolder]:
        """Ask the server who holds locks on the tables."""
        return catalogue.lock_holders(connection, self.options.data, self.options.ledger)

    # --- types ---

    def takes(self, source: pa.DataType, type_: str, held: pa.DataType) -> bool:
        """Return True if a column takes a type of the DataFrame: each value is kept, or refused."""
        return takes(source, type_, held)

    def stored(self, column: Column, values: pa.Array) -> pa.Array:
        """Cast the values of a column to what the log holds."""
        from wal_sink.targets.postgresql.check import stored  # noqa: PLC0415 -- pyarrow.compute

        return stored(column, values)

    def altered(self, column: TableColumn, type_: str | None) -> str:
        """Return the statement; values go through their texts."""
        using = f" USING {quote(column.name)}::text::{type_}" if type_ else ""
        return f"{super().altered(column, type_).removesuffix(';')}{using};"

    def new_table(self, schema: pa.Schema, layout: Layout) -> str:
        """Return what makes a table for the DataFrame; refuse names that the server would cut."""
        longest = self.options.longest
        if cut := [name for name in schema.names if len(name.encode()) > longest]:
            raise SchemaMismatch(
                f"{', '.join(cut)}: a name of more than {longest} bytes, which PostgreSQL cuts. Two columns"
                " may then have one name.",
                f'Rename it, .withColumnRenamed("{cut[0]}", …).',
            )
        return super().new_table(schema, layout)

    def table_end(self, partition: Sequence[str]) -> str:
        """Return how a new table is partitioned: one partition takes all rows, until others are made."""
        if not partition:
            return ""
        data = self.options.data
        rest = data._replace(table=f"{data.table[: self.options.longest - 8]}_default")
        by_range = f"PARTITION BY RANGE ({listed(partition)})"
        return f"{by_range};\nCREATE TABLE {rest} PARTITION OF {self.table_name} DEFAULT"

    # --- at a start ---

    def agree(self, connection: Any, schema: pa.Schema, key: str) -> Plan:
        """Compare the DataFrame with the table, and try what the user may do.

        What the server refuses of no rows, it would refuse of any.
        """
        plan = super().agree(connection, schema, key)
        rights = "INSERT, SELECT, UPDATE" if key_of(plan) else "INSERT"
        rights += ", DELETE" if plan.operation else ""
        with self._needing(connection, self.options.data, rights, staged=is_staged(plan)):
            none = [pa.nulls(0, field.type) for field in schema]
            rows = pa.RecordBatch.from_arrays(none, schema=schema)
            self.insert(connection, plan, self.check(rows, plan))
        if self._has_ledger(connection):
            self._try_ledger(connection)
        return plan

    def _has_ledger(self, connection: Any) -> bool:
        return bool(catalogue.find(connection, self.options.ledger).oid)

    def _try_ledger(self, connection: Any) -> None:
        with self._needing(connection, self.options.ledger, "INSERT, SELECT, UPDATE"):
            super()._try_ledger(connection)

    @contextlib.contextmanager
    def _needing(
        self, connection: Any, name: TableName, rights: str, *, staged: bool = False
    ) -> Iterator[None]:
        """Say which privileges a user needs, where the server refuses what the block does.

        :param rights: on the table.
        :param staged: whether rows go through a temporary table.
        :raises SchemaMismatch: the remedy has the statements that give them.
        """
        try:
            yield
        except Exception as error:
            code = getattr(error, "sqlstate", None)
            if code not in (_LACKS_PRIVILEGE, _IS_LOCKED):
                raise
            connection.rollback()
            if code == _IS_LOCKED:
                return  # as by CREATE INDEX: the flush waits for that, and no start has to
            grants = [f"USAGE ON SCHEMA {quote(name.schema)}", f"{rights} ON {name}"]
            if staged:
                grants.append(f"TEMPORARY ON DATABASE {quote(connection.info.dbname)}")
            user = quote(connection.info.user)
            raise SchemaMismatch(
                f"User {user} lacks privileges for {name}: {shortly(error)}.",
                f"Run as the owner: {' '.join(f'GRANT {grant} TO {user};' for grant in grants)}",
            ) from error

    # --- in the flush ---

    def insert(self, connection: Any, plan: Plan, batch: pa.RecordBatch) -> None:
        """Copy rows in the open transaction."""
        from wal_sink.targets.postgresql.connection import write  # noqa: PLC0415 -- the driver's encoder

        write(connection, self.options.data, plan, batch)

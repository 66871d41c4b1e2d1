"""The ledger of the Cassandra target: its table, and the row of one query.

Only conditional statements write the row. An unconditional write by another program could hide later
updates, so no other program may write to the table.
"""

from __future__ import annotations

import functools
import logging
import re
from typing import Any
from uuid import UUID, uuid5

from cassandra import InvalidRequest

from wal_sink.errors import SchemaMismatch, TargetUnavailable
from wal_sink.model.ledger import LedgerRow, Outcome
from wal_sink.targets.cassandra.driver.connection import LEDGER_READ, ROWS
from wal_sink.targets.cassandra.driver.errors import classify, effect_unknown
from wal_sink.targets.cassandra.driver.internals import ConfigurationException, SyntaxException
from wal_sink.targets.cassandra.driver.requests import execute, retrying
from wal_sink.targets.cassandra.row_plan import TableName
from wal_sink.targets.cassandra.table import (
    TableMetadata,
    create_table,
    keyspace_statement,
    read_table,
    refuse_not_durable,
)

logger = logging.getLogger(__name__)

LEDGER_COLUMNS = {"query_id": "text", "log_id": "text", "epoch": "bigint", "digest": "text"}
"""The columns and their types in the order of `LedgerRow`. The first is the primary key."""
_COLUMNS = ("log_id", "epoch", "digest")
"""All columns except the key."""

_IDS = UUID("6d1c0f0a-5b3e-4c55-9d0e-0c8f4c3a7f21")
"""The namespace from which the ids of ledger tables are made (RFC 9562, UUIDs of version 5)."""
_PROPERTY = "id"
_KIND = "The ledger table"


class Ledger:
    """The ledger row of one query.

    :param session: the driver's session.
    :param timeout_s: seconds after which the driver ends a request without an answer.
    """

    def __init__(self, session: Any, table: TableName, query_id: str, timeout_s: float) -> None:
        self._session = session
        self._timeout_s = timeout_s
        self._table = str(table)
        self._query_id = query_id
        self._prepare = functools.cache(session.prepare)

    def read(self) -> LedgerRow | None:
        """Read the row at the serial consistency level. Repeat a failed read.

        :raises TargetUnavailable: the cluster does not answer.
        :raises CorruptLog: the row is not a ledger row of this version.
        """
        query = f"SELECT {', '.join(_COLUMNS)} FROM {self._table} WHERE query_id = ?"  # noqa: S608 -- quoted name
        try:
            row = retrying()(self._execute, query, (self._query_id,), LEDGER_READ).one()
        except Exception as error:
            if classify(error) == "fatal":
                raise
            raise TargetUnavailable(
                f"The ledger {self._table} cannot be read: {error}", "Repair the cluster."
            ) from error
        if row is None:
            return None
        return LedgerRow.from_cells((self._query_id, *row), f"the ledger {self._table}")

    def compare_and_set(self, expected: LedgerRow | None, new: LedgerRow) -> Outcome:
        """Write the new row if the present row equals the expected row.

        :param expected: the row that was read; None if the query has no row yet.
        """
        if expected is None:
            insert = (
                f"INSERT INTO {self._table} ({', '.join(LEDGER_COLUMNS)}) "  # noqa: S608 -- quoted name
                "VALUES (?, ?, ?, ?) IF NOT EXISTS USING TTL 0"
            )
            return self._conditional(insert, (self._query_id, *new.cells[1:]))
        update = (
            f"UPDATE {self._table} USING TTL 0 "  # noqa: S608 -- quoted name
            f"SET {', '.join(f'{name} = ?' for name in _COLUMNS)} "
            f"WHERE query_id = ? IF {' AND '.join(f'{name} = ?' for name in _COLUMNS)}"
        )
        return self._conditional(update, (*new.cells[1:], self._query_id, *expected.cells[1:]))

    def _conditional(self, statement: str, values: tuple[object, ...]) -> Outcome:
        """Send a conditional statement once. Return `UNKNOWN` if an error leaves its effect open.

        :raises Exception: an error of the driver, after which the statement has no effect.
        """
        self._prepare(statement)  # outside `try`: an error of prepare has no effect on the row
        try:
            result = self._execute(statement, values, ROWS)
        except Exception as error:
            if effect_unknown(error):
                return Outcome.UNKNOWN
            raise
        return Outcome.APPLIED if result.was_applied else Outcome.CONFLICT

    def _execute(self, statement: str, values: tuple[object, ...], profile: str) -> Any:
        prepared, timeout_s = self._prepare(statement), self._timeout_s
        return execute(self._session, prepared, values, profile=profile, timeout_s=timeout_s)


def create_ledger(name: TableName, *, with_id: bool = True) -> str:
    """Return the CREATE TABLE of the ledger, with an id that depends only on the table's name.

    Without an id in the statement, each node before Cassandra 6 would choose a random id. If two queries
    created the table at the same time, one table would replace the other, and a ledger row would be lost.

    :param with_id: False for a server that refuses an id in CREATE TABLE.
    """
    columns = ", ".join(
        f"{column} {cql}" + (" PRIMARY KEY" if column == "query_id" else "")
        for column, cql in LEDGER_COLUMNS.items()
    )
    create = f"CREATE TABLE IF NOT EXISTS {name} ({columns})"
    return f"{create} WITH {_PROPERTY} = {ledger_id(name)}" if with_id else create


def ledger_id(name: TableName) -> UUID:
    """Return the id of the ledger's table, a digest of the table's name."""
    return uuid5(_IDS, str(name))


def ensure_ledger_table(session: Any, name: TableName, *, create: bool = True) -> None:
    """Create the ledger's table if it is missing.

    :param session: the driver's session.
    :param create: False to create nothing, and to accept a missing table.
    :raises SchemaMismatch: the role may not create the table, or a table of that name has other columns.
    :raises TargetUnavailable: not all nodes have the new table yet.
    """
    metadata = read_table(session, name)
    if name.keyspace not in metadata.keyspaces:
        raise SchemaMismatch(
            f"Keyspace {name.keyspace} of cassandra.ledgerTable does not exist.",
            f"Correct the option, or create it:\n{keyspace_statement(name.keyspace)}",
        )
    if not metadata.exists and create:
        _create(session, name)
        metadata = read_table(session, name)
    if metadata.exists or create:
        refuse_other_ledger(metadata)


def refuse_other_ledger(metadata: TableMetadata) -> None:
    """Refuse a table that is missing or not a ledger, and a keyspace with `durable_writes = false`.

    :raises SchemaMismatch: the error names the problem.
    """
    refuse_not_durable(metadata)
    if not metadata.exists:
        raise SchemaMismatch(
            f"The ledger table {metadata.name} does not exist. It holds how far each query is flushed.",
            "If it was dropped, restore it from a backup. For the first query, create it:\n"
            f"{create_ledger(metadata.name)};",
        )
    columns = {column.name: column.type for column in metadata.columns}
    key = [column.name for column in metadata.key]
    if key != ["query_id"] or not LEDGER_COLUMNS.items() <= columns.items():
        raise SchemaMismatch(
            f"{metadata.name} is not a ledger of wal_sink: it has the columns "
            f"{', '.join(f'{name} {cql}' for name, cql in columns.items())}.",
            "Name another table in cassandra.ledgerTable. A ledger is created by:\n"
            f"{create_ledger(metadata.name)};",
        )


def _create(session: Any, name: TableName) -> None:
    try:
        create_table(session, create_ledger(name), name, _KIND)
    except (InvalidRequest, SyntaxException, ConfigurationException) as error:
        if not re.search(rf"\b{_PROPERTY}\b", str(error)):
            raise
        logger.warning(
            "the server refuses an id for the ledger table (%s), so %s is created without one. Start one"
            " query first: if two queries create the table at the same time, the ledger row of one query"
            " can be lost",
            error,
            name,
        )
        create_table(session, create_ledger(name, with_id=False), name, _KIND)

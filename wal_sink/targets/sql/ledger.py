"""The ledger row of one query in a table of the database, by statements that every database accepts.

The statements are part of the caller's transaction, which the caller commits.
"""

from __future__ import annotations

from contextlib import closing
from typing import Any

from wal_sink.model.ledger import LedgerRow

COLUMNS = ("log_id", "epoch", "digest")
"""All columns but the key."""

_EMPTY = "-"
"""Stands in the table for an empty text, which some databases store as null."""

_HELD = ":"
"""The first character of `digest` in the transaction that holds the row."""

DDL = (
    "CREATE TABLE {table} (query_id {text} PRIMARY KEY, log_id {text} NOT NULL,"
    " epoch {number} NOT NULL, digest {text} NOT NULL) {suffix}"
)
"""The statement that creates the ledger's table."""


def with_values(name: str, parameter: str) -> str:
    """Return a quoted name for a statement with values.

    A driver with the placeholder `%s` reads `%%` as `%` if a statement has values, and only then.
    """
    return name.replace("%", "%%") if parameter.startswith("%") else name


class Ledger:
    """The ledger row of one query.

    :param connection: of PEP 249.
    :param table: the name of the ledger's table, quoted.
    :param parameter: the placeholder of a value in a statement, such as `?`.
    :param query_id: the key of the row.
    """

    def __init__(self, connection: Any, table: str, parameter: str, query_id: str) -> None:
        self._connection = connection
        self._name = table
        self._table = with_values(table, parameter)
        self._parameter = parameter
        self._query_id = query_id

    def read(self) -> LedgerRow | None:
        """Read the row. None if the query has no row.

        :raises CorruptLog: another version or another program wrote the row.
        """
        statement = (
            f"SELECT {', '.join(COLUMNS)} FROM {self._table} WHERE query_id = {self._parameter}"  # noqa: S608
        )
        with closing(self._connection.cursor()) as cursor:
            cursor.execute(statement, (self._query_id,))
            # Read the result to its end: an open result may block the next statement.
            rows = cursor.fetchall()
        if not rows:
            return None
        log_id, epoch, digest = rows[0]
        cells = (self._query_id, log_id, epoch, "" if digest == _EMPTY else digest)
        return LedgerRow.from_cells(cells, f"the ledger {self._name}")

    def insert(self, new: LedgerRow) -> bool:
        """Create the row. Return True if the driver reports one inserted row."""
        values = ", ".join([self._parameter] * (1 + len(COLUMNS)))
        statement = f"INSERT INTO {self._table} (query_id, {', '.join(COLUMNS)}) VALUES ({values})"  # noqa: S608
        return self._execute(statement, (self._query_id, *_cells(new))) == 1

    def hold(self, row: LedgerRow) -> bool:
        """Lock the row until the transaction ends. Return False if the table's row differs from `row`.

        The UPDATE puts a sign before `digest`. No other transaction reads the sign, because the sign is never
        committed.
        """
        return self._update(_held(row), _cells(row)) == 1

    def move(self, row: LedgerRow, new: LedgerRow) -> bool:
        """Replace the held row by `new`. Return False if this transaction does not hold `row`.

        Then the driver has lost the transaction with its rows, and has connected again without an error.
        """
        return self._update(_cells(new), _held(row)) == 1

    def delete(self) -> None:
        """Delete the row."""
        self._execute(
            f"DELETE FROM {self._table} WHERE query_id = {self._parameter}",  # noqa: S608
            (self._query_id,),
        )

    def touch(self, row: LedgerRow) -> int:
        """Write the row as it is. Return the number of rows that the driver reports."""
        return self._update(_cells(row), _cells(row))

    def _update(self, cells: tuple[object, ...], present: tuple[object, ...]) -> int:
        sets = ", ".join(f"{name} = {self._parameter}" for name in COLUMNS)
        conditions = " AND ".join(f"{name} = {self._parameter}" for name in ("query_id", *COLUMNS))
        return self._execute(
            f"UPDATE {self._table} SET {sets} WHERE {conditions}",  # noqa: S608 -- quoted name
            (*cells, self._query_id, *present),
        )

    def _execute(self, statement: str, values: tuple[object, ...]) -> int:
        with closing(self._connection.cursor()) as cursor:
            cursor.execute(statement, values)
            return int(cursor.rowcount)


def _cells(row: LedgerRow) -> tuple[object, ...]:
    return tuple(cell if isinstance(cell, int) else cell or _EMPTY for cell in row.cells[1:])


def _held(row: LedgerRow) -> tuple[object, ...]:
    """Return the cells of `COLUMNS` while a transaction holds the row."""
    *cells, digest = _cells(row)
    return *cells, f"{_HELD}{digest}"

"""The ledger row of one query in a table of the database, in SQL that every database accepts.

The statements commit nothing: the session's transaction does.
"""

from __future__ import annotations

from contextlib import closing
from typing import Any

from wal_sink.model.ledger import LedgerRow

COLUMNS = ("log_id", "epoch", "digest")
"""All but the key."""

_NOTHING = "-"
"""What the table has for an empty text, which some databases take for null."""

_HELD = ":"
"""What `digest` begins with in the transaction that holds the row."""

DDL = (
    "CREATE TABLE {table} (query_id {text} PRIMARY KEY, log_id {text} NOT NULL,"
    " epoch {number} NOT NULL, digest {text} NOT NULL) {suffix}"
)
"""Makes the ledger's table."""


def with_values(name: str, parameter: str) -> str:
    """Return a quoted name for a statement that is executed with values.

    A driver whose parameter is `%s` reads each `%` there, and `%%` as one; without values it reads none.
    """
    return name.replace("%", "%%") if parameter.startswith("%") else name


class Ledger:
    """The ledger row of one query.

    :param connection: of PEP 249, in whose transaction the statements are.
    :param table: of the ledger, quoted.
    :param parameter: what stands for a value in a statement, such as `?`.
    :param query_id: the key of the row.
    """

    def __init__(self, connection: Any, table: str, parameter: str, query_id: str) -> None:
        self._connection = connection
        self._name = table
        self._table = with_values(table, parameter)
        self._p = parameter
        self._query_id = query_id

    def read(self) -> LedgerRow | None:
        """Read the row; None if there is none.

        :raises CorruptLog: it is not one that this version wrote.
        """
        statement = f"SELECT {', '.join(COLUMNS)} FROM {self._table} WHERE query_id = {self._p}"  # noqa: S608
        with closing(self._connection.cursor()) as cursor:
            cursor.execute(statement, (self._query_id,))
            # To the end: a result that is left open may block the next statement.
            rows = cursor.fetchall()
        if not rows:
            return None
        log_id, epoch, digest = rows[0]
        digest = "" if digest == _NOTHING else digest
        cells = (self._query_id, log_id, epoch, digest)
        return LedgerRow.from_cells(cells, f"the ledger {self._name}")

    def insert(self, new: LedgerRow) -> bool:
        """Create the row; return True if the driver counts one.

        :raises Exception: of the driver; also if there is a row.
        """
        values = ", ".join([self._p] * (1 + len(COLUMNS)))
        return (
            self._execute(
                f"INSERT INTO {self._table} (query_id, {', '.join(COLUMNS)}) VALUES ({values})",  # noqa: S608
                (self._query_id, *_cells(new)),
            )
            == 1
        )

    def hold(self, row: LedgerRow) -> bool:
        """Hold the row until the transaction ends, if it is exactly `row`; return True if it is.

        A sign is put before `digest`. It is never committed, so only this transaction reads it there.
        """
        return self._update(_held(row), _cells(row)) == 1

    def move(self, row: LedgerRow, new: LedgerRow) -> bool:
        """Write the whole row if this transaction holds it as `row`; return True if it does.

        Else the driver has lost the transaction, with its rows, and has connected again without an error.
        """
        return self._update(_cells(new), _held(row)) == 1

    def delete(self) -> None:
        """Remove the row."""
        self._execute(
            f"DELETE FROM {self._table} WHERE query_id = {self._p}",  # noqa: S608
            (self._query_id,),
        )

    def touch(self, row: LedgerRow) -> int:
        """Write the row as it is; return how many rows the driver counts, where it should be one."""
        return self._update(_cells(row), _cells(row))

    def _update(self, cells: tuple[object, ...], present: tuple[object, ...]) -> int:
        """Update the row if its cells are the present ones; return how many rows the driver counts."""
        sets = ", ".join(f"{name} = {self._p}" for name in COLUMNS)
        conditions = " AND ".join(f"{name} = {self._p}" for name in ("query_id", *COLUMNS))
        return self._execute(
            f"UPDATE {self._table} SET {sets} WHERE {conditions}",  # noqa: S608 -- quoted name
            (*cells, self._query_id, *present),
        )

    def _execute(self, statement: str, values: tuple[object, ...]) -> int:
        with closing(self._connection.cursor()) as cursor:
            cursor.execute(statement, values)
            return int(cursor.rowcount)


def _cells(row: LedgerRow) -> tuple[object, ...]:
    """Return the cells of the columns."""
    return tuple(cell if isinstance(cell, int) else cell or _NOTHING for cell in row.cells[1:])


def _held(row: LedgerRow) -> tuple[object, ...]:
    """Return the cells while a transaction holds the row."""
    *cells, digest = _cells(row)
    return *cells, f"{_HELD}{digest}"

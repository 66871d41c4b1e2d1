"""The ledger row of one query in a table of the database, in SQL that every database accepts.

The statements commit nothing: the session's transaction does.
"""

from __future__ import annotations

from contextlib import closing
from typing import Any

from wal_sink.model.ledger import LedgerRow, LedgerState, Owner, Window

COLUMNS = LedgerRow._fields
"""All but the key."""

_NOTHING = "-"
"""What the table has for an empty text, which Oracle would take for null."""

_HEX = "0123456789abcdef"

DDL = (
    "CREATE TABLE {table} (query_id {key} PRIMARY KEY, log_id {key} NOT NULL,"
    " checkpoint {text} NOT NULL, flushed {number} NOT NULL, last_us {number} NOT NULL,"
    " begun {text} NOT NULL, last {text} NOT NULL) {suffix}"
)
"""Makes the ledger's table; `begun` and `last` take up to 64 epochs of 500 bytes."""


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
    """

    def __init__(self, connection: Any, table: str, parameter: str, owner: Owner) -> None:
        self._connection = connection
        self._name = table
        self._table = with_values(table, parameter)
        self._p = parameter
        self._owner = owner

    def read(self) -> LedgerState | None:
        """Read the row; None when there is none.

        :raises CorruptLog: it is not one that this version wrote.
        """
        statement = f"SELECT {', '.join(COLUMNS)} FROM {self._table} WHERE query_id = {self._p}"  # noqa: S608
        with closing(self._connection.cursor()) as cursor:
            cursor.execute(statement, (self._owner.query_id,))
            rows = (
                cursor.fetchall()
            )  # to the end: a result that is left open may block the next statement
        if not rows:
            return None
        *others, begun, last = ("" if cell == _NOTHING else cell for cell in rows[0])
        begun = begun and begun.lstrip(_HEX)  # without the id of `lock`
        where = f"query {self._owner.query_id} in the ledger {self._name}"
        return LedgerState.from_row((*others, begun, last), where)

    def insert(self, new: LedgerState) -> bool:
        """Create the row; return whether the driver counts one.

        :raises Exception: of the driver; also when there is a row.
        """
        values = ", ".join([self._p] * (1 + len(COLUMNS)))
        return (
            self._execute(
                f"INSERT INTO {self._table} (query_id, {', '.join(COLUMNS)}) VALUES ({values})",  # noqa: S608
                (self._owner.query_id, *_cells(new).values()),
            )
            == 1
        )

    def lock(self, window: Window, lock_id: str) -> bool:
        """Hold the row, if exactly this window is begun, until the transaction ends.

        :param lock_id: hexadecimal digits that no other transaction has; put before `begun`, where the
            transaction alone reads them, since it never commits them.
        """
        text = window.to_text()
        return self._update({"begun": lock_id + text}, {"begun": text}) == 1

    def replace(self, seen: LedgerState, new: LedgerState, lock_id: str = "") -> bool:
        """Write the whole row, if it is exactly the one that was seen (rule 13).

        :param lock_id: of the transaction that holds the row, if it is to be the open one: a driver may have
            lost that one, with its rows, and have connected again without a word.
        """
        there = _cells(seen)
        there["begun"] = f"{lock_id}{there['begun']}"
        return self._update(_cells(new), there) == 1

    def delete(self) -> None:
        """Remove the row."""
        self._execute(
            f"DELETE FROM {self._table} WHERE query_id = {self._p}",  # noqa: S608
            (self._owner.query_id,),
        )

    def touch(self, state: LedgerState) -> int:
        """Write the row as it is; return how many rows the driver counts, where it should be one."""
        cells = _cells(state)
        return self._update(cells, cells)

    def _update(self, changes: dict[str, object], seen: dict[str, object]) -> int:
        """Update the row if it has these values; return how many rows the driver counts."""
        sets = ", ".join(f"{name} = {self._p}" for name in changes)
        conditions = " AND ".join(f"{name} = {self._p}" for name in ("query_id", *seen))
        return self._execute(
            f"UPDATE {self._table} SET {sets} WHERE {conditions}",  # noqa: S608 -- quoted name
            (*changes.values(), self._owner.query_id, *seen.values()),
        )

    def _execute(self, statement: str, values: tuple[object, ...]) -> int:
        with closing(self._connection.cursor()) as cursor:
            cursor.execute(statement, values)
            return int(cursor.rowcount)


def _cells(state: LedgerState) -> dict[str, object]:
    return {
        name: cell or _NOTHING if isinstance(cell, str) else cell
        for name, cell in state.to_row()._asdict().items()
    }

"""The statements upon the ledger row of a query, in SQL that every database knows. They commit nothing."""

from __future__ import annotations

from typing import Any

import msgspec

from wal_sink.errors import CorruptLog
from wal_sink.model.ledger import Mark, Owner, Window

COLUMNS = ("log_id", "checkpoint", "flushed", "last_us", "begun", "last")
"""All but the key, in the order of `Mark`."""

NOTHING = ""
"""What `begun` and `last` hold for none."""

DDL = (
    "CREATE TABLE {table} (query_id VARCHAR(64) PRIMARY KEY, log_id VARCHAR(64) NOT NULL,"
    " checkpoint TEXT NOT NULL, flushed BIGINT NOT NULL, last_us BIGINT NOT NULL,"
    " begun TEXT NOT NULL, last TEXT NOT NULL) {suffix}"
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

    def read(self) -> Mark | None:
        """Read the row; None when there is none.

        :raises CorruptLog: it is not one that this version wrote.
        """
        statement = f"SELECT {', '.join(COLUMNS)} FROM {self._table} WHERE query_id = {self._p}"  # noqa: S608
        cursor = self._connection.cursor()
        try:
            cursor.execute(statement, (self._owner.query_id,))
            row = cursor.fetchone()
        finally:
            cursor.close()
        return None if row is None else self._mark(row)

    def insert(self, mark: Mark) -> bool:
        """Create the row; return True.

        :raises Exception: of the driver; also when there is a row.
        """
        values = ", ".join([self._p] * (1 + len(COLUMNS)))
        return (
            self._execute(
                f"INSERT INTO {self._table} (query_id, {', '.join(COLUMNS)}) VALUES ({values})",  # noqa: S608
                (self._owner.query_id, *_cells(mark)),
            )
            == 1
        )

    def begin(self, window: Window) -> bool:
        """Set `begun`, if everything before the window is flushed and nothing is begun."""
        return self._update(
            {"begun": window.to_text()}, {"flushed": window.first - 1, "begun": NOTHING}
        )

    def lock(self, window: Window) -> bool:
        """Hold the row, if exactly this window is begun, until the transaction ends."""
        begun = window.to_text()
        return self._update({"begun": begun}, {"flushed": window.first - 1, "begun": begun})

    def finish(self, window: Window) -> bool:
        """Set `flushed`, move `begun` to `last`, if exactly this window is begun."""
        text = window.to_text()
        return self._update(
            {"flushed": window.last, "last_us": window.last_us, "last": text, "begun": NOTHING},
            {"flushed": window.first - 1, "begun": text},
        )

    def delete(self) -> None:
        """Remove the row."""
        self._execute(
            f"DELETE FROM {self._table} WHERE query_id = {self._p}",  # noqa: S608
            (self._owner.query_id,),
        )

    def replace(self, seen: Mark, new: Mark) -> bool:
        """Write the whole row, if it is exactly the one that was seen (rule 22)."""
        return self._update(
            dict(zip(COLUMNS, _cells(new), strict=True)),
            dict(zip(COLUMNS, _cells(seen), strict=True)),
        )

    def touch(self, mark: Mark) -> int:
        """Write the row as it is; return how many rows the driver counts, where it should be one."""
        cells = dict(zip(COLUMNS, _cells(mark), strict=True))
        return self._updated(cells, cells)

    def _update(self, changes: dict[str, object], seen: dict[str, object]) -> bool:
        """Update the row if it has these values; return whether it had."""
        return self._updated(changes, seen) == 1

    def _updated(self, changes: dict[str, object], seen: dict[str, object]) -> int:
        sets = ", ".join(f"{name} = {self._p}" for name in changes)
        conditions = " AND ".join(f"{name} = {self._p}" for name in ("query_id", *seen))
        return self._execute(
            f"UPDATE {self._table} SET {sets} WHERE {conditions}",  # noqa: S608 -- quoted name
            (*changes.values(), self._owner.query_id, *seen.values()),
        )

    def _execute(self, statement: str, values: tuple[object, ...]) -> int:
        cursor = self._connection.cursor()
        try:
            cursor.execute(statement, values)
            return int(cursor.rowcount)
        finally:
            cursor.close()

    def _mark(self, row: Any) -> Mark:
        log_id, checkpoint, flushed, last_us, begun, last = row
        return Mark(
            log_id=log_id,
            checkpoint=checkpoint,
            flushed=flushed,
            last_us=last_us,
            begun=self._window("begun", begun),
            last=self._window("last", last),
        )

    def _window(self, column: str, text: str) -> Window | None:
        if text == NOTHING:
            return None
        try:
            return Window.from_text(text)
        except msgspec.DecodeError as error:
            raise CorruptLog(
                f"The row of query {self._owner.query_id} in the ledger {self._name} is not what this"
                f" version of wal_sink writes: {column} cannot be read ({error}): {text[:200]}",
                "Flush with the newer version that wrote it, or restore the row from a backup. Do not"
                " delete it: it says what is in the table already.",
            ) from error


def _cells(mark: Mark) -> tuple[object, ...]:
    begun, last = (NOTHING if w is None else w.to_text() for w in (mark.begun, mark.last))
    return (mark.log_id, mark.checkpoint, mark.flushed, mark.last_us, begun, last)

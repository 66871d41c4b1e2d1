"""Reads and moves the ledger row of a query, by conditional updates only (rules 13, 14 and 16)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from wal_sink.errors import CorruptLog, TargetUnavailable
from wal_sink.model.ledger import LedgerState, Outcome, Owner, Window
from wal_sink.targets.cassandra.driver.connection import LEDGER, LEDGER_READ
from wal_sink.targets.cassandra.driver.errors import classify, effect_unknown, execute, retrying
from wal_sink.targets.cassandra.names import TableName
from wal_sink.targets.cassandra.schema.ledger_table import LEDGER_COLUMNS

NOTHING = ""
"""What `begun` and `last` hold for none: a condition on null would match a cell that was never written."""

_COLUMNS = tuple(LEDGER_COLUMNS)[1:]
"""All but the key, in the order of `LedgerState`."""

Meanwhile = Callable[[], None]
"""Is called while an update is on its way; raises nothing."""


def _nothing() -> None:
    """Do nothing meanwhile."""


class Ledger:
    """The ledger row of one query.

    :param session: the driver's session.
    :param timeout_s: after which an answer counts as lost.
    """

    def __init__(self, session: Any, table: TableName, owner: Owner, timeout_s: float) -> None:
        self._session = session
        self._timeout_s = timeout_s
        self._table = str(table)
        self._owner = owner
        self._prepared: dict[str, Any] = {}

    def read(self) -> LedgerState | None:
        """Read the row at the serial consistency level; a read has no effect, so it is retried.

        :raises TargetUnavailable: no answer for a while.
        :raises CorruptLog: the row is not one that this version wrote.
        """
        row = self._row(", ".join(_COLUMNS))
        return None if row is None else self._mark(row)

    def written_us(self) -> int | None:
        """Read when the newest cell of the row was written, in its own timestamps.

        :raises TargetUnavailable: no answer for a while.
        """
        row = self._row(", ".join(f"writetime({name}) AS {name}" for name in _COLUMNS))
        written = [us for us in row or () if us is not None]
        return max(written, default=None)

    def create(self, flushed: int) -> None:
        """Create the row unless there is one; a read tells whose it is."""
        self._insert(LedgerState.new(self._owner, flushed))

    def begin(self, window: Window, meanwhile: Meanwhile = _nothing) -> Outcome:
        """Set `begun`, if everything before the window is flushed and nothing is begun."""
        update = (
            f"UPDATE {self._table} USING TTL 0 SET begun = ? "  # noqa: S608 -- quoted name
            "WHERE query_id = ? IF flushed = ? AND begun = ?"
        )
        values = (window.to_text(), self._owner.query_id, window.first - 1, NOTHING)
        return self._conditional(update, values, meanwhile)

    def finish(self, window: Window) -> Outcome:
        """Set `flushed`, move `begun` to `last`, if exactly this window is begun."""
        update = (
            f"UPDATE {self._table} USING TTL 0 "  # noqa: S608 -- quoted name
            "SET flushed = ?, last_us = ?, last = ?, begun = ? "
            "WHERE query_id = ? IF flushed = ? AND begun = ?"
        )
        text = window.to_text()
        values = (
            *(window.last, window.last_us, text, NOTHING),
            *(self._owner.query_id, window.first - 1, text),
        )
        return self._conditional(update, values)

    def compare_and_set(
        self, seen: LedgerState | None, new: LedgerState, meanwhile: Meanwhile = _nothing
    ) -> Outcome:
        """Write the whole row, if it is exactly the one that was seen (rule 22)."""
        if seen is None:
            return self._insert(new)
        update = (
            f"UPDATE {self._table} USING TTL 0 "  # noqa: S608 -- quoted name
            f"SET {', '.join(f'{name} = ?' for name in _COLUMNS)} "
            f"WHERE query_id = ? IF {' AND '.join(f'{name} = ?' for name in _COLUMNS)}"
        )
        values = (*_cells(new), self._owner.query_id, *_cells(seen))
        return self._conditional(update, values, meanwhile)

    def _insert(self, mark: LedgerState) -> Outcome:
        insert = (
            f"INSERT INTO {self._table} ({', '.join(LEDGER_COLUMNS)}) "  # noqa: S608 -- quoted name
            "VALUES (?, ?, ?, ?, ?, ?, ?) IF NOT EXISTS USING TTL 0"
        )
        return self._conditional(insert, (self._owner.query_id, *_cells(mark)))

    def _row(self, columns: str) -> Any:
        query = f"SELECT {columns} FROM {self._table} WHERE query_id = ?"  # noqa: S608 -- quoted name
        try:
            return retrying()(self._read, query).one()
        except Exception as error:
            if classify(error) == "fatal":
                raise
            raise TargetUnavailable(
                f"The ledger {self._table} cannot be read: {error}", "See to the cluster."
            ) from error

    def _read(self, query: str) -> Any:
        values = (self._owner.query_id,)
        return self._execute(query, values, LEDGER_READ)

    def _conditional(
        self, statement: str, values: tuple[object, ...], meanwhile: Meanwhile = _nothing
    ) -> Outcome:
        """Send one conditional statement, once.

        :raises Exception: of the driver, when it certainly had no effect.
        """
        self._prepare(statement)  # here, as an error of this has no effect
        try:
            result = self._execute(statement, values, LEDGER, meanwhile)
        except Exception as error:
            if effect_unknown(error):
                return Outcome.UNKNOWN
            raise
        return Outcome.APPLIED if result.was_applied else Outcome.CONFLICT

    def _execute(
        self,
        statement: str,
        values: tuple[object, ...],
        profile: str,
        meanwhile: Meanwhile = _nothing,
    ) -> Any:
        return execute(
            self._session,
            self._prepare(statement),
            values,
            profile=profile,
            timeout_s=self._timeout_s,
            meanwhile=meanwhile,
        )

    def _prepare(self, statement: str) -> Any:
        if statement not in self._prepared:
            self._prepared[statement] = self._session.prepare(statement)
        return self._prepared[statement]

    def _mark(self, row: Any) -> LedgerState:
        if any(value is None for value in row):
            raise self._corrupt(f"it has nulls: {row._asdict()}")
        return LedgerState(
            log_id=row.log_id,
            checkpoint=row.checkpoint,
            flushed=row.flushed,
            last_us=row.last_us,
            begun=self._window("begun", row.begun),
            last=self._window("last", row.last),
        )

    def _window(self, column: str, text: str) -> Window | None:
        if text == NOTHING:
            return None
        try:
            return Window.from_text(text)
        except msgspec.DecodeError as error:
            raise self._corrupt(f"{column} cannot be read ({error}): {text[:200]}") from error

    def _corrupt(self, why: str) -> CorruptLog:
        return CorruptLog(
            f"The row of query {self._owner.query_id} in the ledger {self._table} is not what this "
            f"version of wal_sink writes: {why}",
            "Flush with the newer version that wrote it, or restore the row from a backup. Do not "
            "delete it: it says what is in the table already.",
        )


def _cells(mark: LedgerState) -> tuple[object, ...]:
    """Return the row's values in the order of `_COLUMNS`; equal windows have equal texts."""
    begun, last = (NOTHING if w is None else w.to_text() for w in (mark.begun, mark.last))
    return (mark.log_id, mark.checkpoint, mark.flushed, mark.last_us, begun, last)

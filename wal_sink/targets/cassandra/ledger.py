"""Reads and replaces the ledger row of a query, by conditional updates of the whole row only (rule 13).

A cell that a plain write has dated in the future hides what an update writes to it, and to it alone (rule
16). So a condition upon some cells would not tell that others are not what they were.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from wal_sink.errors import TargetUnavailable
from wal_sink.model.ledger import LedgerRow, LedgerState, Outcome, Owner
from wal_sink.targets.cassandra.driver.connection import LEDGER, LEDGER_READ
from wal_sink.targets.cassandra.driver.errors import classify, effect_unknown, execute, retrying
from wal_sink.targets.cassandra.names import TableName
from wal_sink.targets.cassandra.schema.ledger_table import LEDGER_COLUMNS

_COLUMNS = LedgerRow._fields
"""All but the key."""

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
        if row is None:
            return None
        return LedgerState.from_row(
            row, f"query {self._owner.query_id} in the ledger {self._table}"
        )

    def written_us(self) -> int | None:
        """Read when the newest cell of the row was written, in its own timestamps.

        :raises TargetUnavailable: no answer for a while.
        """
        row = self._row(", ".join(f"writetime({name}) AS {name}" for name in _COLUMNS))
        written = [us for us in row or () if us is not None]
        return max(written, default=None)

    def compare_and_set(
        self, seen: LedgerState | None, new: LedgerState, meanwhile: Meanwhile = _nothing
    ) -> Outcome:
        """Write the whole row, if it is exactly the one that was seen (rule 13)."""
        if seen is None:
            return self._insert(new)
        update = (
            f"UPDATE {self._table} USING TTL 0 "  # noqa: S608 -- quoted name
            f"SET {', '.join(f'{name} = ?' for name in _COLUMNS)} "
            f"WHERE query_id = ? IF {' AND '.join(f'{name} = ?' for name in _COLUMNS)}"
        )
        values = (*new.to_row(), self._owner.query_id, *seen.to_row())
        return self._conditional(update, values, meanwhile)

    def _insert(self, new: LedgerState) -> Outcome:
        insert = (
            f"INSERT INTO {self._table} ({', '.join(LEDGER_COLUMNS)}) "  # noqa: S608 -- quoted name
            "VALUES (?, ?, ?, ?, ?, ?, ?) IF NOT EXISTS USING TTL 0"
        )
        return self._conditional(insert, (self._owner.query_id, *new.to_row()))

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

"""Reads what the table holds, and makes of rows the totals that are written in their place."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from typing import Any

from cassandra.query import BoundStatement

from wal_sink.errors import TargetUnavailable
from wal_sink.model.ledger import Window
from wal_sink.model.plan import Plan
from wal_sink.targets.cassandra.driver.answers import execute, longest_s, result
from wal_sink.targets.cassandra.driver.classify import classify
from wal_sink.targets.cassandra.driver.connection import TOTALS
from wal_sink.targets.cassandra.driver.retry import retrying
from wal_sink.targets.cassandra.encode.keys import distinct_keys
from wal_sink.targets.cassandra.names import quote
from wal_sink.targets.cassandra.options import CassandraOptions
from wal_sink.targets.cassandra.totals.added import Places
from wal_sink.targets.cassandra.totals.given import (
    ADDED_COLUMN,
    added_columns,
    read_level,
)
from wal_sink.targets.cassandra.totals.sums import NOTHING, Adding, Current, totals
from wal_sink.targets.cassandra.write.slice_buffer import SliceBuffer, Stamped

MOST_ROWS = 65_536
MOST_BYTES = 32 * 1024 * 1024
"""Of the rows that wait to be added together: the more of them have one key, the fewer reads and writes."""

_IN_FLIGHT = 128
_KEY = ("partition", "clustering")


class TotalsReader:
    """Makes totals of rows, over one session of the driver.

    :param session: the driver's.
    """

    def __init__(self, session: Any, options: CassandraOptions) -> None:
        self._session = session
        self._level = options.consistency_level
        self._after = options.after
        self._timeout_s = longest_s(options.request_timeout)
        self._selects: dict[str, Any] = {}
        self._query = ""
        self._places: Places | None = None

    def start(self, query: str, window: Window) -> None:
        """Expect the rows of a begun window.

        :param query: the key of the query's ledger row.
        """
        self._query, self._places = query, Places(window)

    def totals(self, plan: Plan, rows: Stamped) -> Stamped:
        """Return what is to be written in place of rows: one row of each key that has something to add.

        What was written to these keys before has to be acknowledged.

        :param plan: without columns that the table has not.
        :raises OptionError: the consistency level does not promise to read what was written.
        :raises TargetRefused: see `sums.totals`.
        :raises TargetUnavailable: the session was not there when the window was started.
        :raises Exception: of the driver.
        """
        read_level(self._level)
        if self._places is None:
            raise TargetUnavailable(
                f"Rows that are added to totals of {plan.table} came over a session that has not begun with"
                " their window",
                "The flush begins the window's rows again, by itself.",
            )
        adding = Adding(plan, self._query, self._after, self._places)
        keys = distinct_keys(rows.batch, plan)
        current = self._read(plan, keys.values())
        return Stamped(*totals(rows.batch, rows.stamps, keys.numbers, current, adding))

    def _read(self, plan: Plan, keys: Iterable[list[bytes]]) -> list[Current]:
        """Return what the table holds of rows."""
        if plan.key not in self._selects:
            self._selects[plan.key] = self._session.prepare(select(plan))
        statement, columns = self._selects[plan.key], len(added_columns(plan))
        found: list[Current] = []
        sent: deque[tuple[Any, Any]] = deque()
        for key in keys:
            if len(sent) == _IN_FLIGHT:
                found.append(_current(self._answer(*sent.popleft()), columns))
            bound = BoundStatement(statement)
            bound.values = key
            sent.append((bound, self._session.execute_async(bound, execution_profile=TOTALS)))
        found += [_current(self._answer(*each), columns) for each in sent]
        return found

    def _answer(self, bound: Any, future: Any) -> Any:
        try:
            return result(future, self._timeout_s).one()
        except Exception as error:
            if classify(error) == "fatal":
                raise
        send = {"profile": TOTALS, "timeout_s": self._timeout_s}
        return retrying()(execute, self._session, bound, None, **send).one()


def waiting_for_totals() -> SliceBuffer:
    """Return a buffer that lets rows wait for others of their keys, within a window."""
    return SliceBuffer(most_rows=MOST_ROWS, most_bytes=MOST_BYTES, most_s=math.inf)


def select(plan: Plan) -> str:
    """Return the statement that reads a row: its totals, what is in them, and when they were written."""
    by_name = {column.name: column.in_table for column in plan.columns}
    columns = [quote(by_name[name]) for name in added_columns(plan)] + [quote(ADDED_COLUMN)]
    written = [f"WRITETIME({column})" for column in columns]
    key = [quote(column.in_table) for column in plan.columns if column.role in _KEY]
    where = " AND ".join(f"{column} = ?" for column in key)
    return f"SELECT {', '.join(columns + written)} FROM {plan.table} WHERE {where}"  # noqa: S608 -- quoted names


def _current(row: Any, columns: int) -> Current:
    if row is None:
        return NOTHING
    written = [us for us in row[columns + 1 :] if us is not None]
    return Current(tuple(row[:columns]), row[columns], max(written, default=-1))

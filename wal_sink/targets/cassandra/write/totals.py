"""Reads what the table holds, and makes of rows the totals that are written in their place (rule 27)."""

from __future__ import annotations

import math
import struct
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
from cassandra.query import BoundStatement

from wal_sink.errors import TargetUnavailable
from wal_sink.model.ledger import Window
from wal_sink.model.plan import Column
from wal_sink.targets.cassandra.driver.connection import TOTALS
from wal_sink.targets.cassandra.driver.errors import classify, execute, longest_s, result, retrying
from wal_sink.targets.cassandra.encode import distinct_keys
from wal_sink.targets.cassandra.feature import Stamped
from wal_sink.targets.cassandra.features.totals import NOTHING, Adding, Current, Places, totals
from wal_sink.targets.cassandra.options import CassandraOptions, read_level
from wal_sink.targets.cassandra.row_plan import ADDED_COLUMN, KEY, CassandraPlan
from wal_sink.targets.cassandra.write.batches import SliceBuffer
from wal_sink.targets.names import quote

MOST_ROWS = 65_536
MOST_BYTES = 32 * 1024 * 1024
"""Of the rows that wait to be added together: the more of them have one key, the fewer reads and writes."""

_IN_FLIGHT = 128
_IN_ONE = 20
"""Rows of a partition that one request reads; some servers refuse more than 25."""
_LISTED = (
    *("ascii", "text", "blob", "tinyint", "smallint", "int", "bigint"),
    *("timestamp", "date", "time", "uuid", "timeuuid"),
)
"""The types of values that are found by their bytes: each value has one encoding."""
_LENGTH = struct.Struct(">i")

Numbers = dict[bytes | None, int]
"""The numbers of keys that one request reads, by the value that it lists; of one alone by None."""


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

    def buffer(self) -> SliceBuffer:
        """Let rows wait for others of their keys, within a window."""
        return SliceBuffer(most_rows=MOST_ROWS, most_bytes=MOST_BYTES, most_s=math.inf)

    def complete(self, plan: CassandraPlan, rows: Stamped) -> Stamped:
        """Return what is to be written in place of rows: one row of each key that has something to add.

        What was written to these keys before has to be acknowledged.

        :param plan: without columns that the table has not.
        :raises OptionError: the consistency level does not promise to read what was written.
        :raises TargetRefused: see `features.totals.totals`.
        :raises TargetUnavailable: the session was not there when the window was started.
        :raises Exception: of the driver.
        """
        read_level(self._level)
        if self._places is None:
            raise TargetUnavailable(
                f"Rows for totals of {plan.table} came over a connection that has not begun their"
                " window",
                "The flush begins the window's rows again, by itself.",
            )
        adding = Adding(plan, self._query, self._after, self._places)
        keys = distinct_keys(rows.batch, plan)
        current = self._read(plan, keys.values())
        return Stamped(*totals(rows.batch, rows.stamps, keys.numbers, current, adding))

    def _read(self, plan: CassandraPlan, keys: Iterable[list[bytes]]) -> list[Current]:
        """Return what the table holds of rows."""
        if plan.key not in self._selects:
            self._selects[plan.key] = self._session.prepare(select(plan))
        statement, listed = self._selects[plan.key], listed_at(plan)
        found: dict[int, Current] = {}
        sent: deque[tuple[Numbers, Any, Any]] = deque()
        total = 0
        for numbers, values in requests(keys, listed):
            if len(sent) == _IN_FLIGHT:
                self._take(plan, found, *sent.popleft())
            bound = BoundStatement(statement)
            bound.values = values
            future = self._session.execute_async(bound, execution_profile=TOTALS)
            sent.append((numbers, bound, future))
            total += len(numbers)
        for each in sent:
            self._take(plan, found, *each)
        return [found.get(number, NOTHING) for number in range(total)]

    def _take(
        self,
        plan: CassandraPlan,
        found: dict[int, Current],
        numbers: Numbers,
        bound: Any,
        future: Any,
    ) -> None:
        columns = len(plan.details.added)
        for row in self._answer(bound, future):
            which = bytes(row[-1]) if listed_at(plan) is not None else None
            found[numbers[which]] = _current(row[: 2 * columns + 2], columns)

    def _answer(self, bound: Any, future: Any) -> Any:
        try:
            return result(future, self._timeout_s)
        except Exception as error:
            if classify(error) == "fatal":
                raise
        send = {"profile": TOTALS, "timeout_s": self._timeout_s}
        return retrying()(execute, self._session, bound, None, **send)


def with_added_column(plan: CassandraPlan) -> CassandraPlan:
    """Return the plan of a table with the column that says what is in its totals, where it has some."""
    if not plan.details.added:
        return plan
    column = Column(name=ADDED_COLUMN, source="string", type="text", role="regular")
    return msgspec.structs.replace(plan, columns=(*plan.columns, column))


def listed_at(plan: CassandraPlan) -> int | None:
    """Return which value of a key a read lists, so that it is of several rows of a partition; None: none.

    It is matched by its bytes, so its type has one encoding of each value.
    """
    key = [column for column in plan.columns if column.role in KEY]
    places = [
        place
        for place, column in enumerate(key)
        if column.role == "clustering" and column.type in _LISTED
    ]
    return places[-1] if places else None


def requests(
    keys: Iterable[list[bytes]], listed: int | None
) -> Iterator[tuple[Numbers, list[bytes]]]:
    """Yield, for each read, the numbers of its keys by the value that it lists, and what its statement takes.

    :param keys: numbered from 0; see `Keys.values`.
    :param listed: see `listed_at`.
    """
    if listed is None:
        for number, key in enumerate(keys):
            yield {None: number}, key
        return
    waiting: dict[tuple[bytes, ...], Numbers] = {}
    for number, key in enumerate(keys):
        value, others = key[listed], (*key[:listed], *key[listed + 1 :])
        numbers = waiting.setdefault(others, {})
        numbers[value] = number
        if len(numbers) == _IN_ONE:
            yield waiting.pop(others), [*others, _list(numbers)]
    for others, numbers in waiting.items():
        yield numbers, [*others, _list(numbers)]


def _list(values: Numbers) -> bytes:
    """Encode a list: the number of its elements, then each with its length."""
    parts = [_LENGTH.pack(len(value)) + value for value in values if value is not None]
    return _LENGTH.pack(len(parts)) + b"".join(parts)


def select(plan: CassandraPlan) -> str:
    """Return the statement that reads rows: totals, what is in them, their times, and the value listed."""
    by_name = {column.name: column.in_table for column in plan.columns}
    columns = [quote(by_name[name]) for name in plan.details.added] + [quote(ADDED_COLUMN)]
    read = columns + [f"WRITETIME({column})" for column in columns]
    key = [column for column in plan.columns if column.role in KEY]
    where = [f"{quote(column.in_table)} = ?" for column in key]
    if (at := listed_at(plan)) is not None:
        name, kind = quote(key[at].in_table), key[at].type
        where.append(f"{name} IN ?")
        del where[at]
        read.append(name if kind == "blob" else f"{kind}asblob({name})")
    return f"SELECT {', '.join(read)} FROM {plan.table} WHERE {' AND '.join(where)}"  # noqa: S608 -- quoted names


def _current(row: Sequence[Any], columns: int) -> Current:
    written = [-1 if us is None else us for us in row[columns + 1 :]]
    return Current(tuple(row[:columns]), row[columns], max(written), written[-1])

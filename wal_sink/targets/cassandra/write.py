"""Write rows with their fixed timestamps: INSERT, so that a row of keys alone exists too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cassandra import InvalidRequest
from cassandra.query import BatchStatement, BatchType

from wal_sink.errors import CorruptLog
from wal_sink.targets.base import Plan, Slice
from wal_sink.targets.cassandra.bind import Rows, bind
from wal_sink.targets.cassandra.compare import refuse_changed
from wal_sink.targets.cassandra.group import group
from wal_sink.targets.cassandra.live import read_table
from wal_sink.targets.cassandra.names import qualified, quote
from wal_sink.targets.cassandra.options import TableName
from wal_sink.targets.cassandra.send import send_all


class Writer:
    """Writes slices over one connection.

    :param session: the driver's session.
    """

    def __init__(self, session: Any) -> None:
        self._session = session
        self._prepared: dict[str, Any] = {}

    def write(self, plan: Plan, rows: Slice) -> None:
        """Write rows; return when all of them are acknowledged.

        :raises SchemaMismatch: the table is no longer what the plan says.
        :raises TargetUnavailable: no acknowledgement for a while.
        :raises Exception: of the driver, when trying again cannot help.
        """
        prepared = self._prepare(plan)
        if not rows.batch.num_rows:
            return
        bound = bind(rows.batch, plan, rows.first_us)
        try:
            send_all(self._session, _statements(prepared, bound))
        except InvalidRequest:
            self._refuse_changed(plan)  # the better reason, when the table was altered meanwhile
            raise

    def _prepare(self, plan: Plan) -> Any:
        if plan.key not in self._prepared:
            self._refuse_changed(plan)
            prepared = self._session.prepare(insert(plan))
            prepared.is_idempotent = True
            self._prepared[plan.key] = prepared
        return self._prepared[plan.key]

    def _refuse_changed(self, plan: Plan) -> None:
        name = TableName(plan.details["keyspace"], plan.details["table"])
        if plan.table != qualified(*name):  # plans come from a shared folder, and become statements
            raise CorruptLog(
                f"Plan {plan.key} writes to {plan.table} and was agreed for {qualified(*name)}",
                "Somebody has edited it. Restore the file in the log's plans/ folder from a copy.",
            )
        refuse_changed(plan, read_table(self._session, name))


def insert(plan: Plan) -> str:
    """Return the statement for one row: a value for each column of the plan, then the timestamp."""
    columns = ", ".join(quote(column.name) for column in plan.columns)
    marks = ", ".join("?" for _ in plan.columns)
    return f"INSERT INTO {plan.table} ({columns}) VALUES ({marks}) USING TIMESTAMP ?"  # noqa: S608 -- quoted names


def _statements(prepared: Any, rows: Rows) -> Iterator[Any]:
    """One statement for a lone row, an unlogged batch for several of one partition.

    The batch gets routing key and keyspace from its first row. It carries no timestamp of its own:
    that would be the same for all its rows.
    """
    for positions in group(rows.keys, rows.sizes):
        if len(positions) == 1:
            yield prepared.bind(rows.values[positions[0]])
        else:
            batch = BatchStatement(BatchType.UNLOGGED)
            batch.is_idempotent = True
            for position in positions:
                batch.add(prepared, rows.values[position])
            yield batch

"""A flusher's session: `write` sends rows without waiting for answers, `drain` waits for all answers."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator

from cassandra import InvalidRequest, Unauthorized

from wal_sink.errors import TargetRefused
from wal_sink.model.ledger import LedgerRow, Outcome
from wal_sink.model.plan import Plan
from wal_sink.targets.base import IdempotentSession, RefusedRow, RowSlice, RowsRefused
from wal_sink.targets.cassandra.batches import BYTES, ROWS, PlanRequests
from wal_sink.targets.cassandra.driver.concurrency import MOST, Concurrency
from wal_sink.targets.cassandra.driver.connection import Connection, connect
from wal_sink.targets.cassandra.driver.errors import classify
from wal_sink.targets.cassandra.ledger import Ledger, refuse_other_ledger
from wal_sink.targets.cassandra.options import TO_CORRECT, TO_REACH, CassandraOptions
from wal_sink.targets.cassandra.row_plan import CassandraPlan
from wal_sink.targets.cassandra.sender import Sender
from wal_sink.targets.cassandra.server import missing_permission
from wal_sink.targets.cassandra.table import read_table
from wal_sink.targets.cassandra.table_changes import TableWatch
from wal_sink.targets.client import explained
from wal_sink.telemetry import line_logger, session_metrics

logger = line_logger(__name__)

MOST_REFUSED = 1_000
"""The number of refused rows at which `write` raises `RowsRefused`. For fewer rows `drain` raises it."""


class CassandraSession(IdempotentSession):
    """Writes rows and moves the ledger row of one query over one connection, which the session closes."""

    def __init__(self, connection: Connection, options: CassandraOptions, query_id: str) -> None:
        self._connection = connection
        self._options = options
        session = connection.session
        self._ledger = Ledger(session, options.ledger, query_id, options.request_timeout)
        self._table = TableWatch(session, options.data)
        self._batch_bytes = BYTES if options.batch_bytes == "auto" else options.batch_bytes
        self._batch_rows = ROWS if options.batch_rows == "auto" else options.batch_rows
        self._concurrency = (
            Concurrency(MOST, by_size=True)
            if options.concurrency == "auto"
            else Concurrency(options.concurrency)
        )
        self._plans: dict[str, PlanRequests] = {}
        self._has_logged = False
        self._metrics = session_metrics()

    @functools.cached_property
    def _sender(self) -> Sender:
        timeout_s = self._options.request_timeout
        return Sender(self._connection, self._concurrency, self._metrics, timeout_s=timeout_s)

    def read(self) -> LedgerRow | None:
        """Read the ledger row at the serial consistency level."""
        with self._with_cause():
            return self._ledger.read()

    def write(self, plan: Plan, rows: RowSlice) -> None:
        """Buffer rows, and send the buffered rows when the buffer is full.

        :raises SchemaMismatch: the table has changed since the plan was made.
        :raises RowsRefused: the server refuses rows. The error has the rows.
        :raises TargetRefused: the server refuses rows and accepts none, or refuses a row with an event time.
        :raises TargetUnavailable: the cluster acknowledges nothing, or the table was created again.
        :raises Exception: an error of the driver that another try cannot cure.
        """
        with self._with_cause():
            self._table.check_if_due()
            requests = self.prepare(plan)
            if not rows.batch.num_rows:
                return
            if requests.buffer.add(rows):
                self._send(requests)
                if len(self._sender.refused) >= MOST_REFUSED:
                    self._refuse(self._sender.refused)

    def drain(self) -> None:
        """Send all buffered rows, and wait until all rows are acknowledged.

        :raises Exception: the same errors as `write`.
        """
        with self._with_cause():
            for requests in self._plans.values():
                self._send(requests)
            self._refuse(self._sender.drain())
        if self._plans and not self._has_logged:
            self._has_logged = True
            logger.info(
                "a batch has at most %d rows, and at most %d bytes of one partition. At most %d requests"
                " are in flight now. The limit rises to %d while the cluster answers quickly",
                self._batch_rows,
                self._batch_bytes,
                self._concurrency.limit,
                self._concurrency.most,
            )

    def finish(self, expected: LedgerRow | None, new: LedgerRow) -> Outcome:
        """Drain, then move the ledger row by one conditional statement."""
        self.drain()
        with self._with_cause():
            return self._ledger.compare_and_set(expected, new)

    def compare(self, plan: Plan) -> None:
        """Compare a plan with the table, unless an earlier call has compared this plan."""
        with self._with_cause():
            self.prepare(plan)

    def close(self) -> None:
        """Disconnect. Idempotent."""
        self._connection.close()

    def prepare(self, plan: Plan) -> PlanRequests:
        """Return the `PlanRequests` of a plan. The first call compares the plan with the table."""
        if plan.key not in self._plans:
            typed = CassandraPlan.of(plan)
            self._table.add(typed.of_table())
            self._plans[plan.key] = PlanRequests(
                typed,
                self._connection.session,
                self._connection.datacenter,
                batch_bytes=self._batch_bytes,
                batch_rows=self._batch_rows,
            )
        return self._plans[plan.key]

    def _send(self, requests: PlanRequests) -> None:
        self._sender.send(requests.take(self._table.default_ttl_s))

    def _refuse(self, refused: list[RefusedRow]) -> None:
        """Raise an error if the table has changed, or else if there are refused rows."""
        self._table.check()
        if refused:
            raise RowsRefused(refused)

    @contextlib.contextmanager
    def _with_cause(self) -> Iterator[None]:
        """Replace an error of the driver by the error of a missing permission or of a changed table."""
        try:
            yield
        except Unauthorized as error:
            raise missing_permission(error, options=self._options) from error
        except (InvalidRequest, TargetRefused):
            self._table.check()
            raise


def open_session(options: CassandraOptions, query_id: str) -> CassandraSession:
    """Connect, and check that the ledger's table exists.

    :raises TargetUnavailable: no node answers.
    :raises OptionError: the login is refused, or the option for the datacenter is missing.
    :raises SchemaMismatch: the ledger's table is missing, or is not a ledger.
    """
    connection = connect(options)
    try:
        place = f"Cassandra at {options.where}"
        with explained(classify, place, TO_CORRECT, TO_REACH, TargetRefused):
            refuse_other_ledger(read_table(connection.session, options.ledger))
    except BaseException:
        connection.close()
        raise
    return CassandraSession(connection, options, query_id)

"""Writes rows with their fixed timestamps: those to insert, and those to delete."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

import numpy as np
from cassandra import InvalidRequest

from wal_sink.clock import now_us
from wal_sink.errors import TargetRefused
from wal_sink.flush_metrics import FlushMetrics
from wal_sink.log_context import line_logger
from wal_sink.model.plan import Plan
from wal_sink.targets.base import RefusedRow, RowSlice, RowsRefused
from wal_sink.targets.cassandra.driver.connection import Connection
from wal_sink.targets.cassandra.driver.errors import longest_s, server_now_us
from wal_sink.targets.cassandra.driver.pipeline import Failed, pipelined_requests
from wal_sink.targets.cassandra.options import CassandraOptions
from wal_sink.targets.cassandra.row_plan import CassandraPlan
from wal_sink.targets.cassandra.rows import (
    Ints,
    TimestampedRows,
    remaining_ttls,
    with_event_times,
)
from wal_sink.targets.cassandra.write.batches import (
    BYTES,
    ROWS,
    PreparedPlan,
    SliceBuffer,
    limits,
    requests,
)
from wal_sink.targets.cassandra.write.concurrency import MOST, Concurrency
from wal_sink.targets.cassandra.write.drift import DriftWatch
from wal_sink.targets.cassandra.write.in_flight import InFlight
from wal_sink.targets.cassandra.write.refusals import ledger_us, refusal
from wal_sink.targets.cassandra.write.replicas import Replicas
from wal_sink.targets.cassandra.write.sender import Sender
from wal_sink.targets.cassandra.write.statements import Statements

log = line_logger(__name__)

MOST_REFUSED = 1_000
"""The number of refused rows at which they are raised before the window is written."""

ASK_EVERY_S = 30.0
"""Seconds after which a node is asked for its time again."""


class Writer:
    """Writes slices over one connection; requests are in flight from one slice to the next."""

    def __init__(
        self, connection: Connection, options: CassandraOptions, metrics: FlushMetrics
    ) -> None:
        session, timeout_s = connection.session, longest_s(options.request_timeout)
        self._session = session
        self._datacenter = connection.datacenter
        self._batch_bytes = BYTES if options.batch_bytes == "auto" else options.batch_bytes
        self._batch_rows = ROWS if options.batch_rows == "auto" else options.batch_rows
        self._concurrency = (
            Concurrency(MOST, by_size=True)
            if options.concurrency == "auto"
            else Concurrency(options.concurrency)
        )
        pipelined = pipelined_requests(session, connection.datacenter, options.request_timeout)
        in_flight = InFlight(session, self._concurrency, pipelined, timeout_s, metrics)
        self._sender = Sender(session, in_flight, timeout_s=timeout_s)
        self._drift = DriftWatch(session, options.data)
        self._clock = WriteClock(lambda: server_now_us(session))
        self._plans: dict[str, PreparedPlan] = {}
        self._reported = False
        self._refused: list[RefusedRow] = []

    def write(self, plan: Plan, rows: RowSlice) -> None:
        """Write rows, at once or with those of later calls; `drain` writes the last of them.

        :raises SchemaMismatch: the table is no longer what the plan says, or hides what is written.
        :raises RowsRefused: the server refuses rows, which are named.
        :raises TargetRefused: the server refuses rows of which nobody can say which ones.
        :raises TargetUnavailable: no acknowledgement for a while, or the table was created again.
        :raises Exception: of the driver, when trying again cannot help.
        """
        self._drift.check(now=False)
        prepared = self.prepare(plan)
        first_us = _lowest_us(prepared, rows)
        self._drift.expect_rows(prepared.plan, first_us)
        if not rows.batch.num_rows:
            return
        prepared.buffer.add(rows)
        if prepared.buffer.is_due():
            with self._explaining_drift():
                self._send(prepared)
            if len(self._refused) >= MOST_REFUSED:
                self._raise_refused()

    def drain(self) -> None:
        """Wait until all rows are acknowledged.

        :raises Exception: what `write` raises.
        """
        with self._explaining_drift():
            for prepared in self._plans.values():
                self._send(prepared)
            self._keep(self._sender.drain())
        self._drift.check(now=True)
        self._drift.clear_rows()
        self._raise_refused()
        if self._plans and not self._reported:
            self._reported = True
            log.info(
                "a batch has at most %d rows, and at most %d bytes of one partition. %d requests"
                " were in flight; the number rises to at most %d while the cluster answers quickly",
                self._batch_rows,
                self._batch_bytes,
                self._concurrency.limit,
                self._concurrency.most,
            )

    def _send(self, prepared: PreparedPlan) -> None:
        for rows in prepared.buffer.take():
            ttls = self._ttls(prepared.plan, rows)
            self._keep(self._sender.send(requests(prepared, rows, ttls)))

    def _ttls(self, plan: CassandraPlan, rows: TimestampedRows) -> Ints | None:
        """Return the seconds of TTL that the rows have left now; None: they never expire."""
        default_ttl_s = self._drift.default_ttl_s(plan)
        return remaining_ttls(rows, plan.details.ttl, self._clock.now_s, default_ttl_s)

    def prepare(self, plan: Plan) -> PreparedPlan:
        """Compare a plan with its table, once, as `write` does before the first rows."""
        if plan.key not in self._plans:
            typed = CassandraPlan.of(plan)
            table = typed.of_table()
            self._drift.add(table)
            self._plans[plan.key] = PreparedPlan(
                typed,
                Statements(typed, self._session.prepare),
                limits(table, self._batch_bytes, self._batch_rows),
                Replicas(self._session.cluster.metadata, typed.details.keyspace, self._datacenter),
                SliceBuffer(),
            )
        return self._plans[plan.key]

    @contextlib.contextmanager
    def _explaining_drift(self) -> Iterator[None]:
        """Raise what has changed where the server refuses a statement because its table was altered."""
        try:
            yield
        except (InvalidRequest, TargetRefused):
            self._drift.check(now=True)
            raise

    def _keep(self, refused: list[Failed]) -> None:
        """Keep rows that the server refuses. If the table was altered, raise that instead.

        :param refused: the requests of one row each.
        :raises TargetRefused: nobody can say which row of the log it is.
        """
        if refused:
            self._drift.check(now=True)
        for failed in refused:
            error, us = refusal(failed), ledger_us(failed.request)
            if us is None:
                raise error
            self._refused.append(RefusedRow(us, error))

    def _raise_refused(self) -> None:
        """Raise what the server has refused since the last call."""
        refused, self._refused = self._refused, []
        if refused:
            raise RowsRefused(refused)


def _lowest_us(prepared: PreparedPlan, rows: RowSlice) -> int:
    """Return the lowest write timestamp of a slice."""
    if not rows.batch.num_rows:
        return rows.first_us
    # One number for all rows: those after the first have higher ones, and most slices keep these.
    same = TimestampedRows(
        rows.batch, np.broadcast_to(np.int64(rows.first_us), rows.batch.num_rows)
    )
    timestamped = with_event_times(same, prepared.plan)
    return rows.first_us if timestamped is same else int(timestamped.timestamps_us.min())


class WriteClock:
    """The second from which TTLs are counted: the earlier one of this host's and of a node's.

    A row that expires too early is lost: so one clock that is ahead expires none.

    :param ask: returns a node's time, microseconds since 1970; None: the server has no such function.
    :param clock_us: this host's, microseconds since 1970.
    """

    def __init__(
        self,
        ask: Callable[[], int | None],
        clock_us: Callable[[], int] = now_us,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ask = ask
        self._clock_us = clock_us
        self._monotonic = monotonic
        self._asked_s = float("-inf")
        self._answer_us: int | None = None

    def now_s(self) -> int:
        """Return the second, since 1970.

        :raises Exception: of the driver, when no node answers.
        """
        since_s = self._monotonic() - self._asked_s
        if since_s > ASK_EVERY_S:
            self._answer_us, self._asked_s, since_s = self._ask(), self._monotonic(), 0.0
        times_us = [self._clock_us()]
        if self._answer_us is not None:
            times_us.append(self._answer_us + int(since_s * 1_000_000))
        return min(times_us) // 1_000_000

"""Writes rows with their fixed timestamps: those to insert, and those to delete."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from cassandra import InvalidRequest

from wal_sink.clock import now_us
from wal_sink.errors import TargetRefused
from wal_sink.log_context import line_logger
from wal_sink.model.ledger import Window
from wal_sink.model.plan import Plan
from wal_sink.observer import Observer
from wal_sink.targets.base import OnRefused, Slice
from wal_sink.targets.cassandra.driver.connection import Connection
from wal_sink.targets.cassandra.driver.errors import longest_s, server_now_us
from wal_sink.targets.cassandra.driver.frames import EncodedBatch
from wal_sink.targets.cassandra.driver.pipeline import PipelinedRequests
from wal_sink.targets.cassandra.feature import Ints, Stamped
from wal_sink.targets.cassandra.features import FEATURES
from wal_sink.targets.cassandra.options import CassandraOptions
from wal_sink.targets.cassandra.row_plan import CassandraPlan
from wal_sink.targets.cassandra.write.batches import (
    BYTES,
    ROWS,
    PreparedPlan,
    PreparedTable,
    Replicas,
    SliceBuffer,
    by_table,
    conditional_requests,
    limits,
    requests,
)
from wal_sink.targets.cassandra.write.drift import DriftWatch
from wal_sink.targets.cassandra.write.in_flight import MOST, Concurrency
from wal_sink.targets.cassandra.write.refusals import described, ledger_us, row_of
from wal_sink.targets.cassandra.write.sender import Sender
from wal_sink.targets.cassandra.write.statements import Statements, bound
from wal_sink.targets.cassandra.write.totals import TotalsReader, with_added_column

log = line_logger(__name__)

ASK_EVERY_S = 30.0
"""Seconds after which a node is asked for its time again."""


class Writer:
    """Writes slices over one connection; requests are in flight from one slice to the next."""

    def __init__(self, connection: Connection, options: CassandraOptions) -> None:
        self._session = connection.session
        self._datacenter = connection.datacenter
        self._batch_bytes = BYTES if options.batch_bytes == "auto" else options.batch_bytes
        self._batch_rows = ROWS if options.batch_rows == "auto" else options.batch_rows
        self._concurrency = (
            Concurrency(MOST, by_size=True)
            if options.concurrency == "auto"
            else Concurrency(options.concurrency)
        )
        self._sender = Sender(
            connection.session,
            self._concurrency,
            self._bound,
            describe=self._describe,
            timeout_s=longest_s(options.request_timeout),
            pipelined=PipelinedRequests(
                connection.session, connection.datacenter, options.request_timeout
            ),
        )
        self._drift = DriftWatch(connection.session, options.data)
        self._totals = TotalsReader(connection.session, options)
        self._clock = WriteClock(lambda: server_now_us(connection.session))
        self._plans: dict[str, PreparedPlan] = {}
        self._last: PreparedPlan | None = None
        self._reported = False
        self._on_refused: OnRefused | None = None

    def read_ahead(self, rows: Iterator[tuple[Plan, Slice]]) -> None:
        """Read the first rows that `write` may bring next, as many as a buffer takes; raises nothing.

        The version of the schema, too, so that `write` need not wait for it. What is wrong with either,
        `write` finds again, and raises.
        """
        try:
            buffer = SliceBuffer()
            for _, each in rows:
                buffer.add(each)
                if buffer.is_due():
                    break
            self._drift.look_ahead()
        except Exception:
            log.debug("rows could not be read before they are written", exc_info=True)

    def start(self, query: str, window: Window) -> None:
        """Expect the rows of a begun window, from the first one on.

        :param query: the key of the query's ledger row.
        """
        self.abandon()
        self._totals.start(query, window)

    def pass_over(self, refused: OnRefused | None) -> None:
        """Tell of each row that the server refuses, and send the others; None: raise it."""
        self._on_refused = refused
        self._sender.refusals.on_refused = None if refused is None else self._pass_over

    def report_to(self, observer: Observer) -> None:
        """Report requests to an observer."""
        self._sender.in_flight.observer = observer

    def write(self, plan: Plan, rows: Slice) -> None:
        """Write rows, at once or with those of later calls; `drain` writes the last of them.

        :raises SchemaMismatch: the table is no longer what the plan says, or hides what is written.
        :raises TargetRefused: the server refuses a row, which is named.
        :raises TargetUnavailable: no acknowledgement for a while, or the table was created anew.
        :raises Exception: of the driver, when trying again cannot help.
        """
        self._drift.check(now=False)
        prepared = self.prepare(plan)
        first_us = _lowest_us(prepared, rows)
        for table in prepared.tables:
            # What the server dates is later than any change of the table.
            if not plan.demands.target_dated:
                self._drift.expect_rows(table.plan, first_us)
        if not rows.batch.num_rows:
            return
        self._drain_others(prepared)
        prepared.buffer.add(rows)
        if prepared.buffer.is_due():
            with self._explaining_drift():
                self._send(prepared)

    def drain(self) -> None:
        """Wait until all rows are acknowledged, by each of their tables.

        :raises Exception: what `write` raises.
        """
        with self._explaining_drift():
            for prepared in self._plans.values():
                self._send(prepared)
            self._sender.drain()
        if present := self._sender.take_present():
            log.info(
                "%d rows were not written, because the table has a row of their key: of an earlier"
                " try, or of another writer (cassandra.ifNotExists)",
                present,
            )
        self._drift.check(now=True)
        self._drift.clear_rows()
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

    def abandon(self) -> None:
        """Forget the rows that are not acknowledged yet."""
        for prepared in self._plans.values():
            prepared.buffer.take()
        self._sender.abandon()
        self._drift.clear_rows()

    def _drain_others(self, prepared: PreparedPlan) -> None:
        """Let the rows of all other plans be acknowledged, where what is there decides about those of one."""
        last, self._last = self._last, prepared
        if last not in (None, prepared) and (
            last.plan.demands.one_session or prepared.plan.demands.one_session
        ):
            with self._explaining_drift():
                for other in self._plans.values():
                    self._send(other)
                self._sender.drain()

    def _send(self, prepared: PreparedPlan) -> None:
        for waiting in prepared.buffer.take():
            if prepared.plan.demands.one_session:
                self._sender.drain()  # what earlier rows have left decides
            added = prepared.plan.details.added
            rows = self._totals.complete(prepared.plan, waiting) if added else waiting
            for table, part in self._by_table(prepared, rows):
                lives = self._lives(table.plan, part)
                if not table.statements.are_conditional:
                    self._sender.send(requests(table, part, lives))
                    continue
                for each in conditional_requests(table, part, lives):
                    self._sender.send(each)
                    self._sender.drain()

    def _by_table(
        self, prepared: PreparedPlan, rows: Stamped
    ) -> Iterator[tuple[PreparedTable, Stamped]]:
        """Yield the rows of each table; a row that goes to several has the same timestamp in each."""
        for table, part in zip(prepared.tables, by_table(rows, prepared.plan), strict=True):
            if part.batch.num_rows:
                yield table, part

    def _bound(self, request: EncodedBatch) -> Any:
        """Return a request as the driver takes it."""
        tables = (table for prepared in self._plans.values() for table in prepared.tables)
        return bound(request, (each.prepared for of in tables for each in of.statements.known()))

    def _lives(self, plan: CassandraPlan, rows: Stamped) -> Ints | None:
        """Return the seconds that are left of the rows' lives now; None: they live for ever."""
        default_ttl_s, now_s = self._drift.default_ttl_s(plan), self._clock.now_s
        found = (each.seconds_left(rows, plan, now_s, default_ttl_s) for each in FEATURES)
        return next((lives for lives in found if lives is not None), None)

    def prepare(self, plan: Plan) -> PreparedPlan:
        """Compare a plan with its tables, once, as `write` does before the first rows."""
        if plan.key not in self._plans:
            typed = CassandraPlan.of(plan)
            if plan.demands.sent_once:
                self._sender.repeats = False
            tables = tuple(map(self._prepare_table, typed.tables))
            buffer = self._totals.buffer() if typed.details.added else SliceBuffer()
            self._plans[plan.key] = PreparedPlan(typed, tables, buffer)
        return self._plans[plan.key]

    def _prepare_table(self, plan: CassandraPlan) -> PreparedTable:
        written = with_added_column(plan)
        table = written.of_table()
        self._drift.add(table)
        return PreparedTable(
            plan,
            Statements(written, self._session.prepare),
            limits(table, self._batch_bytes, self._batch_rows),
            Replicas(self._session.cluster.metadata, plan.details.keyspace, self._datacenter),
        )

    @contextlib.contextmanager
    def _explaining_drift(self) -> Iterator[None]:
        """Raise what has changed where the server refuses a statement because its table was altered."""
        try:
            yield
        except (InvalidRequest, TargetRefused):
            self._drift.check(now=True)
            raise

    def _pass_over(self, request: EncodedBatch, error: TargetRefused) -> None:
        """Tell of a request of one row that is refused, unless the table was altered: that refuses all."""
        self._drift.check(now=True)
        us = ledger_us(request, self._plans.values())
        if us is None:
            raise error
        assert self._on_refused is not None
        self._on_refused(us, error)

    def _describe(self, request: EncodedBatch) -> str:
        """Name the first row of a request by its key."""
        row = row_of(request, self._plans.values())
        return described(row, self._session.cluster.protocol_version)


def _lowest_us(prepared: PreparedPlan, rows: Slice) -> int:
    """Return the lowest write timestamp of a slice."""
    if not rows.batch.num_rows:
        return rows.first_us
    # One number for all rows: those behind the first have higher ones, and most slices keep these.
    stamps = np.broadcast_to(np.int64(rows.first_us), rows.batch.num_rows)
    dated = prepared.tables[0].statements.dated(Stamped(rows.batch, stamps)).stamps
    return rows.first_us if dated is stamps else int(dated.min())


class WriteClock:
    """The second from which lives are counted: the earlier one of this host's and of a node's.

    A life that ends too early is a loss, and stays one: so one clock that is ahead does not end any.

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

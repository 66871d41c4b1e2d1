"""Write rows with their fixed timestamps: INSERT, so that a row of keys alone exists too."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from cassandra import InvalidRequest

from wal_sink.log_context import line_logger
from wal_sink.model.plan import Plan
from wal_sink.observer import Observer
from wal_sink.targets.base import Slice
from wal_sink.targets.cassandra.driver.connection import Connection
from wal_sink.targets.cassandra.driver.frames import hook, statement_head
from wal_sink.targets.cassandra.encode import encode, routing_keys
from wal_sink.targets.cassandra.names import quote
from wal_sink.targets.cassandra.options import CassandraOptions
from wal_sink.targets.cassandra.schema.watch import Watch
from wal_sink.targets.cassandra.write.batches import BYTES, Limits, limits
from wal_sink.targets.cassandra.write.bind import bind
from wal_sink.targets.cassandra.write.concurrency import MOST, Concurrency
from wal_sink.targets.cassandra.write.gather import Gathered, Stamped
from wal_sink.targets.cassandra.write.replicas import Replicas
from wal_sink.targets.cassandra.write.requests import bound_requests, encoded_requests, in_batches
from wal_sink.targets.cassandra.write.send import Sender

log = line_logger(__name__)

_LENGTH, _STAMP = 4, 8
"""Bytes on the wire: before each value, and of a write timestamp."""


class Prepared(NamedTuple):
    """What writing by a plan takes."""

    plan: Plan
    statement: Any
    """The driver's; while it is held, the driver prepares it anew where a server has forgotten it."""
    head: bytes
    limits: Limits
    replicas: Replicas
    waiting: Gathered


class Writer:
    """Writes slices over one connection; requests are in flight from one slice to the next."""

    def __init__(self, connection: Connection, options: CassandraOptions) -> None:
        self._session = connection.session
        self._datacenter = connection.datacenter
        self._encodes = hook(connection.session)
        self._batch_bytes = BYTES if options.batch_bytes == "auto" else options.batch_bytes
        self._concurrency = Concurrency(
            MOST if options.concurrency == "auto" else options.concurrency
        )
        self._sender = Sender(connection.session, self._concurrency)
        self._watch = Watch(connection.session)
        self._prepared: dict[str, Prepared] = {}
        self._said = False

    def report_to(self, observer: Observer) -> None:
        """Tell of requests."""
        self._sender.observer = observer

    def write(self, plan: Plan, rows: Slice) -> None:
        """Write rows, now or with those that come next, `drain` at the latest.

        :raises SchemaMismatch: the table is no longer what the plan says, or hides what is written.
        :raises TargetUnavailable: no acknowledgement for a while, or the table was made anew.
        :raises Exception: of the driver, when trying again cannot help.
        """
        self._watch.look(now=False)
        prepared = self._prepare(plan)
        self._watch.write(plan, rows.first_us)
        if not rows.batch.num_rows:
            return
        prepared.waiting.add(rows)
        if prepared.waiting.is_due():
            with self._better_reason():
                self._send(prepared)

    def drain(self) -> None:
        """Wait until all rows are acknowledged.

        :raises Exception: what `write` raises.
        """
        with self._better_reason():
            for prepared in self._prepared.values():
                self._send(prepared)
            self._sender.drain()
        self._watch.look(now=True)
        self._watch.forget()
        if self._prepared and not self._said:
            self._said = True
            log.info(
                "batches of one partition have at most %d bytes; %d requests were in flight, and as the"
                " cluster answers there will be up to %d",
                self._batch_bytes,
                self._concurrency.limit,
                self._concurrency.most,
            )

    def abandon(self) -> None:
        """Forget what was written and is not acknowledged yet."""
        for prepared in self._prepared.values():
            prepared.waiting.take()
        self._sender.abandon()
        self._watch.forget()

    def _send(self, prepared: Prepared) -> None:
        for rows in prepared.waiting.take():
            self._sender.send(self._requests(prepared, rows))

    def _requests(self, prepared: Prepared, rows: Stamped) -> Iterator[Any]:
        if self._encodes:
            return self._encoded(prepared, rows)
        return self._bound(prepared, rows)

    def _encoded(self, prepared: Prepared, rows: Stamped) -> Iterator[Any]:
        plan, statement = prepared.plan, prepared.statement
        encoded = encode(rows.batch, plan, rows.stamps, prepared.head)
        keys = routing_keys(rows.batch, plan, statement.routing_key_indexes)
        sizes = np.diff(encoded.offsets)
        batches = in_batches(keys, sizes, prepared.limits, prepared.replicas)
        return encoded_requests(encoded, keys, batches, plan.details["keyspace"])

    def _bound(self, prepared: Prepared, rows: Stamped) -> Iterator[Any]:
        """Take the way of a driver that `frames` does not know."""
        bound = bind(rows.batch, prepared.plan, rows.stamps.tolist())
        statements = [prepared.statement.bind(values) for values in bound.values]
        keys = pa.array([statement.routing_key for statement in statements], pa.binary())
        around = len(prepared.head) + _LENGTH * (len(prepared.plan.columns) + 1) + _STAMP
        sizes = np.array(bound.sizes, np.int64) + around
        batches = in_batches(keys, sizes, prepared.limits, prepared.replicas)
        return bound_requests(statements, batches)

    def _prepare(self, plan: Plan) -> Prepared:
        if plan.key not in self._prepared:
            self._watch.add(plan)
            statement = self._session.prepare(insert(plan))
            statement.is_idempotent = True
            self._prepared[plan.key] = Prepared(
                plan,
                statement,
                statement_head(statement.query_id, len(plan.columns) + 1),
                limits(plan, self._batch_bytes),
                Replicas(
                    self._session.cluster.metadata, plan.details["keyspace"], self._datacenter
                ),
                Gathered(),
            )
        return self._prepared[plan.key]

    @contextlib.contextmanager
    def _better_reason(self) -> Iterator[None]:
        """Say what has changed, when a table was altered meanwhile."""
        try:
            yield
        except InvalidRequest:
            self._watch.look(now=True)
            raise


def insert(plan: Plan) -> str:
    """Return the statement for one row: a value for each column of the plan, then the timestamp."""
    columns = ", ".join(quote(column.name) for column in plan.columns)
    marks = ", ".join("?" for _ in plan.columns)
    return f"INSERT INTO {plan.table} ({columns}) VALUES ({marks}) USING TIMESTAMP ?"  # noqa: S608 -- quoted names

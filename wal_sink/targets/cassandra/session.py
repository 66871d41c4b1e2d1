"""The session of the Cassandra target: rows and ledger of one query over one connection."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator

from cassandra import InvalidRequest, Unauthorized

from wal_sink.errors import TargetUnavailable
from wal_sink.flush_metrics import FlushMetrics
from wal_sink.model.ledger import LedgerRow, Outcome
from wal_sink.model.plan import Plan
from wal_sink.targets.base import IdempotentSession, RowSlice
from wal_sink.targets.cassandra.driver.connection import (
    Connection,
    connect,
    explained,
)
from wal_sink.targets.cassandra.driver.errors import (
    is_out_of_space,
    lacks_schema,
    lagging_node,
    longest_s,
)
from wal_sink.targets.cassandra.fitness import inspect_server
from wal_sink.targets.cassandra.ledger import Ledger, refuse_other_ledger
from wal_sink.targets.cassandra.options import CassandraOptions
from wal_sink.targets.cassandra.permissions import missing_permission
from wal_sink.targets.cassandra.table import read_table
from wal_sink.targets.cassandra.write.writer import Writer


class CassandraSession(IdempotentSession):
    """Writes rows and moves the ledger over one connection, which it owns."""

    def __init__(self, connection: Connection, options: CassandraOptions, query_id: str) -> None:
        self._connection = connection
        self._options = options
        timeout_s = longest_s(options.request_timeout)
        self._ledger = Ledger(connection.session, options.ledger, query_id, timeout_s)
        self._metrics = FlushMetrics()

    @functools.cached_property
    def _writer(self) -> Writer:
        """What writes rows; it is made at its first use, after `report_to`."""
        return Writer(self._connection, self._options, self._metrics)

    def read(self) -> LedgerRow | None:
        """Read the ledger row at the serial consistency level."""
        with _permitted(self._options):
            return self._ledger.read()

    def write(self, plan: Plan, rows: RowSlice) -> None:
        """Send rows; some of their requests are still in flight when this returns."""
        with _permitted(self._options):
            self._writer.write(plan, rows)

    def drain(self) -> None:
        """Wait until all rows are acknowledged at the data's consistency level."""
        with _permitted(self._options):
            self._writer.drain()

    def finish(self, expected: LedgerRow | None, new: LedgerRow) -> Outcome:
        """Wait for all rows, then send one conditional update or insert."""
        with _permitted(self._options):
            self._writer.drain()
            return self._ledger.compare_and_set(expected, new)

    def compare(self, plan: Plan) -> None:
        """Compare it with its table."""
        with _permitted(self._options):
            self._writer.prepare(plan)

    def report_to(self, metrics: FlushMetrics) -> None:
        """Report the requests with rows; called before all other methods."""
        self._metrics = metrics

    def close(self) -> None:
        """Disconnect. Idempotent."""
        self._connection.close()


@contextlib.contextmanager
def _permitted(options: CassandraOptions) -> Iterator[None]:
    """Turn a missing permission into an error that says what to grant, and a missing ledger into an outage.

    :raises TargetRefused: a permission is missing.
    :raises TargetUnavailable: a node lacks the ledger's table. Where it is gone, the next connection says so.
    """
    try:
        yield
    except InvalidRequest as error:
        if lacks_schema(error):
            raise lagging_node(f"what the schema of the cluster has: {error}") from error
        if is_out_of_space(error):
            raise TargetUnavailable(
                f"Cassandra at {options.where} has a node without space: {error}",
                "Make space on its disk, or add nodes. The rows are safe in the log, and are written again.",
            ) from error
        raise
    except Unauthorized as error:
        raise missing_permission(error, options=options) from error


def open_session(options: CassandraOptions, query_id: str) -> CassandraSession:
    """Connect, and check that the ledger's table exists.

    :raises TargetUnavailable: no connection.
    :raises OptionError: login refused, or the datacenter has to be named.
    :raises SchemaMismatch: the ledger's table is gone, or is something else; or nothing can be written
        exactly once to this server.
    """
    connection = connect(options)
    try:
        with explained(options):
            inspect_server(connection.session, options)
            refuse_other_ledger(read_table(connection.session, options.ledger))
    except BaseException:
        connection.close()
        raise
    return CassandraSession(connection, options, query_id)

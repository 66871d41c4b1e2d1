"""The session of the Cassandra target: rows and ledger of one query over one connection."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from cassandra import InvalidRequest, Unauthorized

from wal_sink.errors import TargetRefused
from wal_sink.model.ledger import LedgerState, Outcome, Owner, PassedRow, Window
from wal_sink.model.plan import Plan
from wal_sink.observer import Observer
from wal_sink.targets.base import IdempotentSession, OnRefused, Slice
from wal_sink.targets.cassandra.driver.connection import Connection, connect, explained
from wal_sink.targets.cassandra.driver.errors import (
    lacks_schema,
    lagging_node,
    longest_s,
    server_now_us,
)
from wal_sink.targets.cassandra.fitness import inspect_server
from wal_sink.targets.cassandra.ledger import Ledger, refuse_other_ledger
from wal_sink.targets.cassandra.options import CassandraOptions, login
from wal_sink.targets.cassandra.schema.table import TermLimits, read_table, term_limits
from wal_sink.targets.cassandra.write.writer import Writer
from wal_sink.targets.names import quote


class CassandraSession(IdempotentSession):
    """Writes rows and moves the ledger over one connection, which it owns.

    :param limits: of the server's indexes.
    """

    def __init__(
        self, connection: Connection, options: CassandraOptions, owner: Owner, limits: TermLimits
    ) -> None:
        self._connection = connection
        self._options = options
        self._owner = owner
        timeout_s = longest_s(options.request_timeout)
        self._ledger = Ledger(connection.session, options.ledger, owner, timeout_s)
        self._writer = Writer(connection, options, limits)
        self._offered: Iterator[tuple[Plan, Slice]] = iter(())

    def read_ledger(self) -> LedgerState | None:
        """Read the ledger row at the serial consistency level."""
        with _permitted(self._options):
            return self._ledger.read()

    def offer(self, rows: Iterator[tuple[Plan, Slice]]) -> None:
        """Encode the first of them while the next `compare_and_set` is on its way."""
        self._offered = rows

    def start(self, window: Window) -> None:
        """Forget what an interrupted flush has left; totals are added by the places of the window's rows."""
        self._writer.start(self._owner.query_id, window)

    def write(self, plan: Plan, rows: Slice) -> None:
        """Send rows; some of their requests are still in flight when this returns."""
        with _permitted(self._options):
            self._writer.write(plan, rows)

    def drain(self) -> None:
        """Wait until all rows are acknowledged at the data's consistency level."""
        with _permitted(self._options):
            self._writer.drain()

    def compare_and_set(self, seen: LedgerState | None, new: LedgerState) -> Outcome:
        """Send one conditional update or insert, after what an interrupted flush left in flight has ended."""
        self._writer.abandon()
        with _permitted(self._options):
            outcome = self._ledger.compare_and_set(seen, new, self._encode_offered)
        if outcome is Outcome.CONFLICT:
            self._writer.abandon()  # what was encoded meanwhile
        return outcome

    def _encode_offered(self) -> None:
        offered, self._offered = self._offered, iter(())
        self._writer.encode_ahead(offered)

    def compare(self, plan: Plan) -> None:
        """Compare it with each of its tables."""
        with _permitted(self._options):
            self._writer.prepare(plan)

    def written_us(self) -> int | None:
        """Read the write times of the row's cells."""
        with _permitted(self._options):
            return self._ledger.written_us()

    def now_us(self) -> int | None:
        """Ask a node for its time, each call another node."""
        return server_now_us(self._connection.session)

    def pass_over(self, refused: OnRefused | None, passed: Sequence[PassedRow] = ()) -> None:  # noqa: ARG002 -- rows are sent again as they are
        """Let the writer tell of rows that the server refuses, and send the others."""
        self._writer.pass_over(refused)

    def report_to(self, observer: Observer) -> None:
        """Report the requests with rows."""
        self._writer.report_to(observer)

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
        raise
    except Unauthorized as error:
        role = login(options)
        name = quote(role.username) if role else "the role"
        read = options.data if options.add_columns or options.if_not_exists else ()
        raise TargetRefused(
            f"Cassandra at {options.where} now refuses what it allowed before: {error}",
            "".join(f"GRANT MODIFY ON TABLE {table} TO {name}; " for table in options.data)
            + "".join(f"GRANT SELECT ON TABLE {table} TO {name}; " for table in read)
            + f"GRANT SELECT ON TABLE {options.ledger} TO {name}; GRANT MODIFY ON TABLE"
            f" {options.ledger} TO {name};",
        ) from error


def open_session(options: CassandraOptions, owner: Owner) -> CassandraSession:
    """Connect, and check that the ledger's table exists.

    :raises TargetUnavailable: no connection.
    :raises OptionError: login refused, or the datacenter has to be named.
    :raises SchemaMismatch: the ledger's table is gone, or is something else; or nothing can be written
        exactly once to this server.
    """
    connection = connect(options)
    try:
        with explained(options):
            server = inspect_server(connection.session, options)
            refuse_other_ledger(read_table(connection.session, options.ledger))
    except BaseException:
        connection.close()
        raise
    return CassandraSession(connection, options, owner, term_limits(server.settings))

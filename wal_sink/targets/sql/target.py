"""The base class of targets for SQL databases: options, ledger, comparison with the table, a transaction."""

from __future__ import annotations

import contextlib
import logging
import uuid
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Protocol

import msgspec
import pyarrow as pa

from wal_sink.errors import (
    OptionError,
    SchemaMismatch,
    TargetRefused,
    TargetUnavailable,
    WalSinkError,
)
from wal_sink.model.ledger import LedgerState, Owner
from wal_sink.model.plan import Plan
from wal_sink.options import SHAPES, Options, about
from wal_sink.targets.base import Delivery, Session, Target
from wal_sink.targets.casts import CastRules, cast, stored_by
from wal_sink.targets.client import explained
from wal_sink.targets.columns import TableColumn, match_columns
from wal_sink.targets.names import quote
from wal_sink.targets.refusals import Savepoints
from wal_sink.targets.sql.ledger import DDL, Ledger, with_values
from wal_sink.targets.sql.session import SqlSession

logger = logging.getLogger(__name__)


_TO_CORRECT = (
    "Correct the options that say where the database is and who connects, or the password, or give that user"
    " the rights that are missing. A start takes the password's variable as it was when the Spark session was"
    " made."
)
_TO_REACH = (
    "See that the database runs, that this host reaches it under the address in its options, and that no"
    " other client has locked it. A flush then goes on by itself."
)


class SqlOptions(Options, frozen=True, kw_only=True):
    """The base of a SQL target's options, which add where to connect."""

    table: Annotated[
        str,
        about("table that rows are added to, such as orders or shop.orders", SHAPES, min_length=1),
    ]
    # A target declares it again under its own name, such as postgresql.ledgerTable.
    ledger_table: Annotated[
        str,
        about(
            "table with one row for each query, in the same database; created if it is missing",
            min_length=1,
        ),
    ] = msgspec.field(name="ledgerTable", default="wal_sink_ledger")


class NamesTables(Protocol):
    """What `SqlTarget` reads of its options."""

    @property
    def table(self) -> str:
        """Where rows go."""

    @property
    def ledger_table(self) -> str:
        """Where the ledger is."""


def refuse_pooler(place: str, told: int, serving: int) -> None:
    """Refuse a pooler between this process and a PostgreSQL server.

    One that lends a server for a transaction loses what is set for the session: that COMMIT is durable, above
    all. It cannot be told from one that lends for a session, but a server says its own process id at a login.

    :param place: what the options name, such as `sql.url postgresql://…`.
    :param told: the process id that was said at the login.
    :param serving: that of the server, by `pg_backend_pid()`.
    :raises OptionError: they differ.
    """
    if told != serving:
        raise OptionError(
            f"{place} leads to a pooler, such as PgBouncer, and not to the server: the settings of a session"
            " could be lost between its transactions.",
            "Name the server itself, by its own port. A flusher keeps one connection: a pooler spares none.",
        )


class SqlTarget(Target):
    """Adds rows to a table of a SQL database, each window in one transaction with its ledger row.

    A database needs four things: `open`, `columns`, `arrow_type`, and the errors that pass (`transient`, or
    `classify`); `fits` where it refuses values that the Arrow type holds.
    It has to be one where a conditional UPDATE waits for an open transaction upon its row, and then sees
    what that has committed: PostgreSQL's READ COMMITTED, or any that is serialized.

    :param options: a struct of `options_type`, such as one derived from `SqlOptions`.
    """

    delivery = Delivery.TRANSACTIONAL
    options_type: type[Options] = SqlOptions
    parameter = "?"
    """What stands for a value in a statement, by the driver's `paramstyle`; set on the class."""
    key_type, text_type, number_type = "VARCHAR(64)", "TEXT", "BIGINT"
    """Types of the ledger's columns: of the key, of texts of up to 32 kB that can be compared, of numbers."""
    ledger_suffix = ""
    """What ends the statement that creates the ledger's table, such as `ENGINE=InnoDB`; set on the class."""

    resends = True
    savepoints: Savepoints | None = Savepoints()
    """Statements of the database; None: it has none, and rows are written again instead; set on the class."""
    check_at_once = ""
    """The statement that lets a transaction check deferred constraints at once; set on the class."""
    checks_at_once = False
    """Whether the next transaction does that, since the last COMMIT was refused."""

    options: NamesTables

    # --- what a database has of its own ---

    @abstractmethod
    def open(self) -> Any:
        """Connect: a connection of PEP 249 that commits nothing by itself, for one thread at a time.

        :raises Exception: of the driver.
        """

    @abstractmethod
    def columns(self, connection: Any) -> Sequence[TableColumn]:
        """Look the table's columns up in the database's catalogue; none when there is no such table."""

    def other_changes(self, connection: Any, plan: Plan) -> Sequence[str]:  # noqa: ARG002 -- as below
        """Look up what else of a table that exists is no longer as planned, in an error's words."""
        return ()

    @abstractmethod
    def arrow_type(self, type_: str) -> pa.DataType | None:
        """Return the Arrow type that holds a type of the catalogue exactly; None: it cannot be written.

        Called in tasks, without a connection.
        """

    def fits(self, type_: str, values: pa.Array) -> pa.BooleanArray | None:  # noqa: ARG002
        """Return which values the database takes in a column of a type of the catalogue; None: all.

        For what Arrow's type holds and the database's does not, such as a text that is too long. A null in
        the answer is a value that is taken. Called in tasks, without a connection.

        :param values: of the type that `arrow_type` returned.
        """
        return None

    def refuses(self, error: Exception) -> bool:  # noqa: ARG002 -- as above
        """Whether an error of `insert` or COMMIT says that a row is wrong, and would again (rule 24)."""
        return False

    def make_table(self, connection: Any, schema: pa.Schema) -> str:  # noqa: ARG002 -- for those that do
        """Make the table in the open transaction, where option createTable asks for it.

        :returns: the statement that made it; empty where there is such a table, or none is to be made.
        :raises OptionError, SchemaMismatch: it cannot be made by these options, or for this DataFrame.
        """
        return ""

    def insert(self, connection: Any, plan: Plan, batch: pa.RecordBatch) -> int | None:
        """Add rows in the open transaction; in bulk where the driver knows how.

        :param batch: columns as `arrow_type` has them, at least one row.
        :returns: how many rows the server says it has added; None where it does not say, or replaces rows.
        """
        names = ", ".join(self.quote(column.name) for column in plan.columns)
        into = with_values(f"{self.table_name} ({names})", self.parameter)
        values = ", ".join([self.parameter] * len(plan.columns))
        rows = zip(*(column.to_pylist() for column in batch.columns), strict=True)
        statement = f"INSERT INTO {into} VALUES ({values})"  # noqa: S608 -- quoted names
        with contextlib.closing(connection.cursor()) as cursor:
            cursor.executemany(statement, list(rows))
            return int(cursor.rowcount)

    def quote(self, name: str) -> str:
        """Quote a name as it is, by the SQL standard. A `%` stays one: the class knows when to double it."""
        return quote(name)

    # --- the target ---

    @property
    def table_name(self) -> str:
        """The table, as statements without values write it."""
        return ".".join(map(self.quote, self.options.table.split(".")))

    @property
    def ledger_name(self) -> str:
        """The ledger's table, as statements without values write it."""
        return ".".join(map(self.quote, self.options.ledger_table.split(".")))

    @property
    def writes_to(self) -> str:
        """Return the table."""
        return self.options.table

    def plan(self, schema: pa.Schema, key: str) -> Plan:
        """Compare the DataFrame with the table; create the ledger's table if it is missing."""
        return self._agreed(schema, key, create=True)

    def dry_plan(self, schema: pa.Schema, key: str) -> Plan:
        """Compare the DataFrame with the table."""
        return self._agreed(schema, key, create=False)

    def compare(self, connection: Any, schema: pa.Schema, key: str) -> Plan:
        """Compare the DataFrame with the table.

        :raises SchemaMismatch: it does not fit.
        """
        columns = self.columns(connection)
        if not columns:
            raise SchemaMismatch(
                f"There is no table {self.options.table}.",
                "Create it, or correct option table.",
            )
        rules = CastRules(self.arrow_type, self.options.table)
        agreed = match_columns(schema, columns, self.options.table, rules)
        return Plan(key=key, target=self.name, table=self.table_name, columns=agreed)

    def check(self, batch: pa.RecordBatch, plan: Plan) -> pa.RecordBatch:
        """Cast `batch` to the table's types, and refuse rows that the database would refuse."""
        return cast(batch, plan, stored_by(self.arrow_type, self.fits))

    def connect(self, owner: Owner) -> Session:
        """Connect for flushing."""
        return SqlSession(self, self._open(), owner)

    def _agreed(self, schema: pa.Schema, key: str, *, create: bool) -> Plan:
        with self._connected() as connection:
            made = self.make_table(connection, schema)
            if create and made:
                connection.commit()
                logger.info("made the table: %s", made)
            plan = self.compare(connection, schema, key)
            if not create:
                connection.rollback()
                return plan.that_creates(made) if made else plan
            self._make_ledger(connection)
            self._try_ledger(connection)
        return plan

    @contextlib.contextmanager
    def _connected(self) -> Iterator[Any]:
        """Connect for the block, and say what the driver's errors in it mean."""
        connection = self._open()
        try:
            with self._explained(TargetRefused):
                yield connection
        finally:
            connection.close()

    def _open(self) -> Any:
        """Connect.

        :raises TargetUnavailable: no connection.
        :raises OptionError: the database refuses it, and would refuse it again.
        """
        with self._explained(OptionError):
            return self.open()

    def _explained(self, fatal: type[WalSinkError]) -> contextlib.AbstractContextManager[None]:
        return explained(self.classify, self.name, _TO_CORRECT, _TO_REACH, fatal)

    def _make_ledger(self, connection: Any) -> None:
        """Create the ledger's table unless there is one.

        :raises SchemaMismatch: it is missing, and must not be created.
        :raises TargetUnavailable: so it is, by an error that may pass.
        """
        if self._has_ledger(connection):
            return
        statement = DDL.format(
            table=self.ledger_name,
            key=self.key_type,
            text=self.text_type,
            number=self.number_type,
            suffix=self.ledger_suffix,
        ).rstrip()
        try:
            _run(connection, statement)
            connection.commit()
        except Exception as error:
            if self._has_ledger(connection):  # another process was quicker
                return
            fatal = self.classify(error) == "fatal"
            raise (SchemaMismatch if fatal else TargetUnavailable)(
                f"The ledger's table {self.options.ledger_table} is missing, and cannot be created: {error}",
                f"Create it: {statement};",
            ) from error

    def _has_ledger(self, connection: Any) -> bool:
        try:
            _run(connection, f"SELECT query_id FROM {self.ledger_name} WHERE 1 = 0")  # noqa: S608
        except Exception:  # noqa: BLE001 -- the next statement tells what is wrong
            return False
        finally:
            with contextlib.suppress(Exception):
                connection.rollback()
        return True

    def _try_ledger(self, connection: Any) -> None:
        """See that a change of the ledger is rolled back, and that an update finds the row that it names.

        The row that is tried belongs to no query.

        :raises SchemaMismatch: the change stays, or an update finds another row: rows could be lost or come
            twice.
        :raises TargetRefused: the update counts the rows that it changes.
        """
        owner = Owner(uuid.uuid4().hex, "log", "checkpoint")
        ledger = Ledger(connection, self.ledger_name, self.parameter, owner)
        tried = LedgerState(
            log_id="log", checkpoint="checkpoint", flushed=-1, last_us=0, begun=None, last=None
        )
        ledger.insert(tried)
        counted = ledger.touch(tried)
        finds_other = ledger.touch(msgspec.structs.replace(tried, checkpoint="CHECKPOINT")) > 0
        connection.rollback()
        stays = ledger.read() is not None
        if stays:
            ledger.delete()
            connection.commit()
        connection.rollback()
        if stays:
            raise SchemaMismatch(
                f"A change of the ledger's table {self.options.ledger_table} stays after ROLLBACK: the"
                " table has no transactions, or the connection commits by itself.",
                "Make it a table with transactions (in MariaDB and MySQL: ALTER TABLE … ENGINE=InnoDB), and"
                " let the target open connections without autocommit.",
            )
        if finds_other:
            raise SchemaMismatch(
                f"Texts of the ledger's table {self.options.ledger_table} are equal without upper"
                " and lower case: a flusher could mistake another one's window for its own.",
                "Give its columns a collation that compares bytes (in MariaDB and MySQL: ALTER TABLE …"
                " CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_bin).",
            )
        if counted != 1:
            raise TargetRefused(
                f"An UPDATE that finds its one row, and changes nothing, has the rowcount {counted}: a"
                " flusher could not tell that from a refusal.",
                "Let the driver count the rows that are found, not those that change (MariaDB and MySQL:"
                " CLIENT.FOUND_ROWS); where it counts none (-1), let `open` return a connection whose cursors"
                " do.",
            )


def _run(connection: Any, statement: str) -> None:
    with contextlib.closing(connection.cursor()) as cursor:
        cursor.execute(statement)

"""The base class of targets for SQL databases: the ledger's table, and the comparison with the table."""

from __future__ import annotations

import contextlib
import logging
import uuid
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from wal_sink.errors import (
    OptionError,
    SchemaMismatch,
    TargetRefused,
    TargetUnavailable,
    WalSinkError,
)
from wal_sink.model.ledger import LedgerRow
from wal_sink.model.plan import Plan
from wal_sink.options import VARIABLE_IS_READ, connecting
from wal_sink.targets.base import Session
from wal_sink.targets.casts import CastRules
from wal_sink.targets.client import explained
from wal_sink.targets.columns import match_columns
from wal_sink.targets.sql.database import Database
from wal_sink.targets.sql.ledger import Ledger
from wal_sink.targets.sql.session import SqlSession, run

logger = logging.getLogger(__name__)


_TO_REACH = (
    "See that the database runs, that this host reaches it under the address in its options, and that no"
    " other client has locked it."
)


class SqlTarget(Database):
    """Adds rows to a table of a SQL database, each window in one transaction with its ledger row.

    A database needs four things: `open`, `columns`, `arrow_type`, and the errors that pass (`transient`, or
    `classify`); `fits` where it refuses values that the Arrow type holds. `Database` has all of them.
    It has to be one where a conditional UPDATE waits for an open transaction on its row, and then sees
    what that has committed: PostgreSQL's READ COMMITTED, or any that is serialized.

    :param options: a struct of `options_type`, such as one derived from `SqlOptions`.
    """

    def connect(self, query_id: str) -> Session:
        """Connect for flushing."""
        return SqlSession(self, self._open(), query_id)

    def plan(self, schema: pa.Schema, key: str) -> Plan:
        """Compare the DataFrame with the table; create the ledger's table if it is missing."""
        with self._connected() as connection:
            plan = self.agree(connection, schema, key)
            self._make_ledger(connection)
            self._try_ledger(connection)
        return plan

    def dry_plan(self, schema: pa.Schema, key: str) -> Plan:
        """Compare the DataFrame with the table."""
        with self._connected() as connection:
            plan = self.agree(connection, schema, key)
            connection.rollback()
        return plan

    def agree(self, connection: Any, schema: pa.Schema, key: str) -> Plan:
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

    @contextlib.contextmanager
    def _connected(self) -> Iterator[Any]:
        """Connect for the block, and say what the driver's errors in it mean."""
        connection = self._open()
        try:
            with self._explained(TargetRefused, connection):
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

    def _explained(
        self, fatal: type[WalSinkError], connection: Any = None
    ) -> contextlib.AbstractContextManager[None]:
        options = " or ".join(connecting(self.options_type)) or "its options"
        to_correct = (
            f"Correct {options}, or in the database what the answer names, such as a right of that user."
            f" {VARIABLE_IS_READ}"
        )
        place = self.description.get("target", self.name)

        def remedy(error: Exception) -> str:
            return self.remedy(connection, error) or to_correct

        return explained(self.classify, place, remedy, _TO_REACH, fatal)

    def _make_ledger(self, connection: Any) -> None:
        """Create the ledger's table unless there is one.

        :raises SchemaMismatch: it is missing, and must not be created.
        :raises TargetUnavailable: so it is, by an error that may pass.
        """
        if self._has_ledger(connection):
            return
        try:
            run(connection, self.ledger_statement)
            connection.commit()
        except Exception as error:
            connection.rollback()
            if self._has_ledger(connection):  # another process was quicker
                return
            fatal = self.classify(error) == "fatal"
            raise (SchemaMismatch if fatal else TargetUnavailable)(
                f"The ledger's table {self.ledger_name} is missing, and cannot be created: {error}",
                f"Create it: {self.ledger_statement};",
            ) from error

    def _has_ledger(self, connection: Any) -> bool:
        try:
            run(connection, f"SELECT query_id FROM {self.ledger_name} WHERE 1 = 0")  # noqa: S608
        except Exception:  # noqa: BLE001 -- the next statement tells what is wrong
            return False
        finally:
            with contextlib.suppress(Exception):
                connection.rollback()
        return True

    def _try_ledger(self, connection: Any) -> None:
        """Check that a change of the ledger is rolled back, and that an update finds the row that it names.

        The row that is tried belongs to no query.

        :raises SchemaMismatch: the change stays, or an update finds another row: rows could be lost or come
            twice.
        :raises TargetRefused: the update counts the rows that it changes.
        """
        tried = LedgerRow(uuid.uuid4().hex, "log", -1, "digest")
        ledger = Ledger(connection, self.ledger_name, self.parameter, tried.query_id)
        ledger.insert(tried)
        counted = ledger.touch(tried)
        finds_other = ledger.touch(tried._replace(digest="DIGEST")) > 0
        connection.rollback()
        stays = ledger.read() is not None
        if stays:
            ledger.delete()
            connection.commit()
        connection.rollback()
        if stays:
            raise SchemaMismatch(
                f"A change of the ledger's table {self.ledger_name} stays after ROLLBACK: the"
                " table has no transactions, or the connection commits by itself.",
                "Make it a table with transactions (in MariaDB and MySQL: ALTER TABLE … ENGINE=InnoDB), and"
                " let the target open connections without autocommit.",
            )
        if finds_other:
            raise SchemaMismatch(
                f"Texts of the ledger's table {self.ledger_name} are equal without upper"
                " and lower case: a flusher could mistake another row for its own.",
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

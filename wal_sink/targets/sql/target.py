"""The base class of targets for SQL databases: the start of a query, and the ledger's table."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pyarrow as pa

from wal_sink.errors import OptionError, TargetRefused, WalSinkError
from wal_sink.model.ledger import LedgerRow
from wal_sink.model.plan import Plan
from wal_sink.options import VARIABLE_IS_READ, connecting
from wal_sink.targets.base import Session
from wal_sink.targets.casts import CastRules
from wal_sink.targets.client import explained
from wal_sink.targets.columns import match_columns
from wal_sink.targets.sql import errors
from wal_sink.targets.sql.database import Database, run
from wal_sink.targets.sql.ledger import Ledger
from wal_sink.targets.sql.session import SqlSession

_TO_REACH = (
    "See that the database runs, that this host reaches it under the address in its options, and that no"
    " other client has locked it."
)


class SqlTarget(Database):
    """Adds rows to a table of a SQL database, each window in one transaction with its ledger row.

    A target for a database needs four members of `Database`: `open`, `columns`, `arrow_type`, and `transient`
    or `classify`. It also needs `fits` if the database refuses values that the Arrow type holds.

    The database has to let an UPDATE wait while another transaction has changed the row. After the wait the
    UPDATE has to check the WHERE clause against the committed row. PostgreSQL does so at READ COMMITTED.

    :param options: a struct of `options_type`, such as one derived from `SqlOptions`.
    """

    def connect(self, query_id: str) -> Session:
        """Open a session for a flusher."""
        return SqlSession(self, self._open(), query_id)

    def plan(self, schema: pa.Schema, key: str) -> Plan:
        """Compare the DataFrame with the table. Create the ledger's table if it is missing."""
        with self._connected() as connection:
            plan = self.agree(connection, schema, key)
            self._make_ledger(connection)
            self._try_ledger(connection)
        return plan

    def dry_plan(self, schema: pa.Schema, key: str) -> Plan:
        """Compare the DataFrame with the table."""
        with self._connected() as connection:
            return self.agree(connection, schema, key)

    def agree(self, connection: Any, schema: pa.Schema, key: str) -> Plan:
        """Compare the DataFrame with the table, over an open connection."""
        table = self.options.table
        columns = self.columns(connection)
        if not columns:
            raise errors.missing_table(table)
        agreed = match_columns(schema, columns, table, CastRules(self.arrow_type, table))
        return Plan(key=key, target=self.name, table=self.table_name, columns=agreed)

    @contextlib.contextmanager
    def _connected(self) -> Iterator[Any]:
        connection = self._open()
        try:
            with self._explained(TargetRefused):
                try:
                    yield connection
                except Exception as error:
                    # An error of SQLAlchemy has the driver's error, and beside it a statement and a link.
                    if (inner := errors.driver_error(error)) is error:
                        raise
                    raise inner from error
        finally:
            connection.close()

    def _open(self) -> Any:
        """Connect. Raise the driver's errors as errors of wal_sink with a remedy."""
        with self._explained(OptionError):
            return self.open()

    def _explained(self, fatal: type[WalSinkError]) -> contextlib.AbstractContextManager[None]:
        """Return a context in which the driver's errors become errors of wal_sink with a remedy.

        :param fatal: the class of an error that does not pass by itself.
        """
        options = " or ".join(connecting(self.options_type)) or "its options"
        to_correct = (
            f"Correct {options}, or in the database what the answer names, such as a right of that user."
            f" {VARIABLE_IS_READ}"
        )
        place = self.description.get("target", self.name)

        def remedy(error: Exception) -> str:
            return self.remedy(error) or to_correct

        return explained(self.classify, place, remedy, _TO_REACH, fatal)

    # --- the ledger's table ---

    def _make_ledger(self, connection: Any) -> None:
        """Create the ledger's table unless it exists."""
        has_ledger = partial(self._has_ledger, connection)
        if not has_ledger():
            what = f"The ledger's table {self.ledger_name}"
            self._create(connection, what, self.ledger_statement, has_ledger)

    def _create(
        self, connection: Any, what: str, statement: str, exists: Callable[[], bool]
    ) -> None:
        """Create a table or a schema, unless another process is faster.

        :param what: the table or schema, as errors name it.
        """
        try:
            run(connection, statement)
            connection.commit()
        except Exception as error:
            connection.rollback()
            if exists():
                return
            if self.remedy(error):
                raise
            is_fatal = self.classify(error) == "fatal"
            raise errors.not_created(what, error, statement, fatal=is_fatal) from error

    def _has_ledger(self, connection: Any) -> bool:
        try:
            run(connection, f"SELECT query_id FROM {self.ledger_name} WHERE 1 = 0")  # noqa: S608
        except Exception:  # noqa: BLE001 -- CREATE TABLE fails with the same error, unless the table is missing
            return False
        finally:
            with contextlib.suppress(Exception):
                connection.rollback()
        return True

    def _try_ledger(self, connection: Any) -> None:
        """Check that ROLLBACK undoes a change, and that an UPDATE finds its row by exact texts."""
        row = LedgerRow(uuid.uuid4().hex, "log", -1, "digest")
        ledger = Ledger(connection, self.ledger_name, self.parameter, row.query_id)
        ledger.insert(row)
        count = ledger.touch(row)
        ignores_case = ledger.touch(row._replace(digest="DIGEST")) > 0
        connection.rollback()
        stays = ledger.read() is not None
        if stays:
            ledger.delete()
            connection.commit()
        connection.rollback()
        if stays:
            raise errors.ledger_without_rollback(self.ledger_name)
        if ignores_case:
            raise errors.ledger_that_ignores_case(self.ledger_name)
        if count != 1:
            raise errors.count_of_changed_rows(count)

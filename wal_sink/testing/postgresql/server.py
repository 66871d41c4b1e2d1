"""Starts, kills, pauses and asks a PostgreSQL server, wherever that runs."""

from __future__ import annotations

import secrets
import threading
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from wal_sink.testing.servers.any_server import AnyServer, DidNotStart

if TYPE_CHECKING:
    from collections.abc import Sequence

USER = "postgres"
DATABASE = "postgres"
"""What every new server has; the user may do everything."""


class PostgresqlDidNotStart(DidNotStart):
    """The server did not come up; where it got that far, the text ends with the last lines of its log."""


class Server(AnyServer):
    """One PostgreSQL server with durable data, for tests. `execute` may be called by any thread."""

    did_not_start = PostgresqlDidNotStart
    patience_s = 60.0

    def __init__(self, title: str, host: str, port: int) -> None:
        super().__init__(title, host, port)
        self.password = secrets.token_urlsafe(16)
        self._connection: Any = None
        self._connection_lock = threading.Lock()

    @property
    def uri(self) -> str:
        """Where libpq reaches the database, with user and password."""
        return self.uri_of(USER, self.password)

    def uri_of(self, user: str, password: str = "", database: str = DATABASE) -> str:
        """Return the URI by which a user reaches a database."""
        login = f"{quote(user)}:{quote(password)}" if password else quote(user)
        return f"postgresql://{login}@{self.host}:{self.port}/{quote(database)}"

    def execute(self, sql: str, parameters: Sequence[object] | None = None) -> list[Any]:
        """Run statements, each in a transaction of its own, and return the rows of the last one.

        :param parameters: fill the `%s` of a single statement.
        """
        self._require_running()
        with self._connection_lock:
            if self._connection is None or self._connection.closed:
                self._connection = self._connect()
            done = self._connection.execute(sql, parameters)
            while done.nextset():
                pass
            return [] if done.description is None else done.fetchall()

    def _connect(self) -> Any:
        import psycopg  # noqa: PLC0415 - a server needs no driver

        # Statements that are prepared by the driver would hold on to a table's old columns.
        return psycopg.connect(
            self.uri, autocommit=True, prepare_threshold=None, connect_timeout=10
        )

    def _disconnect(self) -> None:
        with self._connection_lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _unanswered(self) -> str | None:
        import psycopg  # noqa: PLC0415 - as above

        try:
            self._connect().close()
        except psycopg.OperationalError as error:
            return str(error)
        return None

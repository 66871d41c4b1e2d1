"""Starts, kills, pauses and asks a PostgreSQL server, wherever that runs."""

from __future__ import annotations

import secrets
import threading
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote

from wal_sink.errors import WalSinkError

if TYPE_CHECKING:
    from collections.abc import Sequence

USER = "postgres"
DATABASE = "postgres"
"""What every new server has; the user may do everything."""


class PostgresqlDidNotStart(WalSinkError):
    """The server did not come up; where it got that far, the text ends with the last lines of its log."""

    exit_code = 4


class Server(ABC):
    """One PostgreSQL server with durable data, for tests.

    One thread starts, stops and closes the server; `execute` may be called by any.

    :param title: what messages call it, such as "PostgreSQL 17".
    :param host: where its port is reached.
    :param port: the same after each start.
    """

    def __init__(self, title: str, host: str, port: int) -> None:
        self.title = title
        self.host = host
        self.port = port
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

    @property
    @abstractmethod
    def running(self) -> bool:
        """Whether the process is there, be it paused."""

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> Self:
        """Start the server unless it runs, and return when it answers.

        :raises PostgresqlDidNotStart: it ended, or gave no answer within 60 seconds, or its port was
            taken while it was down.
        """
        if self.running:
            return self
        try:
            self._launch()
            self._await_answer()
        except BaseException:
            self.kill()
            raise
        return self

    @abstractmethod
    def stop(self) -> None:
        """Shut the server down as an operator would; kill it if that takes over 30 seconds."""

    @abstractmethod
    def kill(self) -> None:
        """End all its processes at once, as a crash does; what was committed must survive."""

    @abstractmethod
    def pause(self) -> None:
        """Freeze all its processes: connections stay open and nothing answers."""

    @abstractmethod
    def resume(self) -> None:
        """Go on after `pause`."""

    @abstractmethod
    def close(self) -> None:
        """End the server for good, and remove its data."""

    @abstractmethod
    def _launch(self) -> None:
        """Start the process and return at once."""

    @abstractmethod
    def _printed(self) -> str:
        """Return what it printed since it was launched, or the end of that."""

    def execute(self, sql: str, parameters: Sequence[object] | None = None) -> list[Any]:
        """Run statements, each in a transaction of its own, and return the rows of the last one.

        :param parameters: fill the `%s` of a single statement.
        """
        if not self.running:
            raise RuntimeError(f"{self.title} is not running: call start().")
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

    def _await_answer(self) -> None:
        import psycopg  # noqa: PLC0415 - as above

        deadline = time.monotonic() + 60
        while True:
            try:
                self._connect().close()
            except psycopg.OperationalError as error:
                if self.running and time.monotonic() < deadline:
                    time.sleep(0.02)
                    continue
                how = (
                    f"gave no answer: {error}" if self.running else "ended before it gave an answer"
                )
            else:
                return
            tail = "\n".join(self._printed().splitlines()[-40:])
            what = f"{self.title}, port {self.port}, {how}. Its log ends:\n{tail}"
            raise PostgresqlDidNotStart(what, "Look for the first error in the lines above.")

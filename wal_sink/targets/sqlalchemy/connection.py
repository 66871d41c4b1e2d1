"""Opens connections by SQLAlchemy's URL, and says what the errors of their drivers mean."""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.pool import NullPool

from wal_sink.errors import OptionError, TargetUnavailable
from wal_sink.targets.sql.database import driver_error
from wal_sink.targets.sqlalchemy.dialects import GENERIC, Dialect
from wal_sink.targets.sqlalchemy.options import PASSWORD_VARIABLE, SqlAlchemyOptions

_CONNECT_S = 10
_LOCKED_S = 0.02
"""Between two looks at a file of DuckDB that another process has open."""
_NETWORK = {"pymysql", "mysqldb"}
"""Drivers of MySQL that take the same names of arguments."""
_PARAMETERS = {"qmark": "?", "numeric": ":1", "named": ":1"}
"""What stands for a value, by the driver's `paramstyle` of PEP 249; `%s` by others."""


class Connection:
    """A connection of PEP 249, and SQLAlchemy's over the same one, by which the catalogue is read.

    SQLAlchemy neither begins nor ends a transaction of it: a second connection for the catalogue would wait
    for the rows that this one has written, or not see them.

    :param raw: the driver's.
    :param file: the database, where it is a file.
    """

    def __init__(
        self, raw: Any, dialect: Dialect, over: sa.Connection | None, file: str = ""
    ) -> None:
        self.raw = raw
        self.dialect = dialect
        self.over = over
        self._file = file
        self._opened = _identity(file)

    def cursor(self) -> Any:
        """Return a cursor of the driver.

        :raises TargetUnavailable: the file was replaced: what is committed to the open one, no reader finds.
        """
        if _identity(self._file) != self._opened:
            raise TargetUnavailable(
                f"{self._file} is gone, or another file than the one that was opened.",
                "If a backup was put in its place: nothing, the flush goes on with that. Else put it back.",
            )
        return self._cursor()

    def _cursor(self) -> Any:
        return self.raw.cursor()

    def query(
        self, statement: str, values: tuple[object, ...] | Mapping[str, object] = ()
    ) -> list[Any]:
        """Return the rows of a query."""
        cursor = self.cursor()
        try:
            cursor.execute(statement, values)
            return list(cursor.fetchall())
        finally:
            cursor.close()

    @functools.cached_property
    def most_bytes(self) -> int:
        """How many bytes of a statement the server takes, of MySQL and MariaDB."""
        ((most,),) = self.query("SELECT @@max_allowed_packet")
        return int(most) - 1024  # for what the protocol adds

    def commit(self) -> None:
        """Commit."""
        self.raw.commit()

    def rollback(self) -> None:
        """Roll back."""
        self.raw.rollback()

    def close(self) -> None:
        """Disconnect; what is open is rolled back."""
        self.raw.close()
        if self.over is not None:
            with contextlib.suppress(sa.exc.SQLAlchemyError):
                self.over.invalidate()
            self.over.close()
            self.over.engine.dispose()


class _DuckDbCursor:
    """DuckDB's connection as a cursor: `cursor()` of the driver would be another connection.

    Each result is read to its end at once: while a row of one is left, the driver registers no batch.
    """

    def __init__(self, raw: Any) -> None:
        self._raw = raw
        self._rows: list[Any] = []
        self.rowcount = -1

    def execute(self, statement: str, values: Any = ()) -> None:
        """Run a statement; DuckDB answers a change with a row that has the count."""
        self._rows = self._raw.execute(statement, values or None).fetchall()
        changes = statement.split(None, 1)[0] in {"UPDATE", "INSERT", "DELETE"}
        self.rowcount = self._rows[0][0] if changes else -1

    def fetchall(self) -> list[Any]:
        """Return all rows."""
        return self._rows

    def close(self) -> None:
        """Leave the connection open."""


class DuckDbConnection(Connection):
    """DuckDB's file, which is open from the beginning of a transaction to its end, and no longer.

    No other process can open it meanwhile, not even the one in which Spark makes the plan. Its driver commits
    each statement unless a transaction was begun.

    :param opens: opens the file.
    """

    def __init__(self, opens: Callable[[], Any], dialect: Dialect, file: str) -> None:
        opens().close()  # which makes the file
        super().__init__(None, dialect, None, file)
        self._opens = opens

    def _cursor(self) -> Any:
        if self.raw is None:
            self.raw = self._opens()
            _DuckDbCursor(self.raw).execute("BEGIN TRANSACTION")
        return _DuckDbCursor(self.raw)

    def commit(self) -> None:
        """Commit what is open."""
        self._end("COMMIT")

    def rollback(self) -> None:
        """Roll back what is open."""
        self._end("ROLLBACK")

    def close(self) -> None:
        """Close the file, if it is open; what is not committed is rolled back."""
        raw, self.raw = self.raw, None
        if raw is not None:
            raw.close()

    def _end(self, statement: str) -> None:
        if self.raw is not None:
            try:
                _DuckDbCursor(self.raw).execute(statement)
            finally:
                self.close()


def _identity(file: str) -> tuple[int, int] | None:
    """Return what tells a file from another one of its name; None: there is none."""
    if not file:
        return None
    try:
        status = os.stat(file)  # noqa: PTH116 -- for each statement
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def connect(options: SqlAlchemyOptions) -> Connection:
    """Connect, with the settings of the dialect.

    The password is that of the options, or else that of the environment now.

    :raises OptionError: the URL names a driver that is not installed, or cannot be used.
    :raises Exception: of the driver.
    """
    dialect = options.dialect
    if options.url.startswith("duckdb"):
        return _duckdb(options)
    url = _url(options)
    # An UPDATE of the ledger row has to wait for an open one, and see what that has committed.
    isolation: Any = {"isolation_level": "SERIALIZABLE"} if dialect is GENERIC else {}
    arguments = _arguments(options, url)
    engine = sa.create_engine(url, poolclass=NullPool, connect_args=arguments, **isolation)
    try:
        over = engine.connect()
        over.detach()
    except sa.exc.DBAPIError as error:
        raise driver_error(error) from error
    file = str(url.database) if dialect.is_file else ""
    connection = Connection(over.connection.dbapi_connection, dialect, over, file)
    try:
        _set(connection, options)
    except BaseException:
        connection.close()
        raise
    return connection


def _set(connection: Connection, options: SqlAlchemyOptions) -> None:
    lock_s = max(1, round(options.lock_timeout))
    cursor = connection.cursor()
    try:
        for statement in options.dialect.settings:
            cursor.execute(statement.format(lock_s=lock_s))
            if cursor.description is not None:  # a row that is left may block the next statement
                cursor.fetchall()
    finally:
        cursor.close()
    connection.commit()


def _duckdb(options: SqlAlchemyOptions) -> Connection:
    try:
        import duckdb  # noqa: PLC0415 -- one of several drivers
    except ModuleNotFoundError as error:
        raise _missing(options, error) from error
    url = sa.make_url(options.url)
    config: Any = {name: value for name, value in url.query.items() if isinstance(value, str)}
    file = str(url.database)

    def opens() -> Any:
        until = time.monotonic() + options.lock_timeout
        while True:
            try:
                return duckdb.connect(file, config=config)
            except duckdb.IOException as error:
                if "Could not set lock" not in str(error) or time.monotonic() > until:
                    raise
                time.sleep(_LOCKED_S)

    return DuckDbConnection(opens, options.dialect, file)


def _url(options: SqlAlchemyOptions) -> sa.URL:
    """Read the URL, with its password.

    :raises OptionError: it cannot be read; its driver is not installed, or is asynchronous.
    """
    try:
        url = sa.make_url(options.url)
        dialect = url.get_dialect()
        dialect.import_dbapi()
    except ModuleNotFoundError as error:
        raise _missing(options, error) from error
    except (sa.exc.ArgumentError, ValueError) as error:
        raise OptionError(f"Option sql.url {options.url}: {error}", "Correct it.") from error
    if dialect.is_async:
        raise OptionError(
            f"Option sql.url {options.url} names an asynchronous driver.",
            "Name one that is not, such as pymysql.",
        )
    if options.dialect.is_file:  # it has no login: the variable is of another target
        return url
    password = options.password or os.environ.get(PASSWORD_VARIABLE, "")
    return url.set(password=password) if password else url


def _missing(options: SqlAlchemyOptions, error: ModuleNotFoundError) -> OptionError:
    package, begin = str(error.name), ""
    if options.dialect.is_mysql:
        package, begin = "pymysql", f"Begin the URL with {options.backend}+pymysql://. "
    return OptionError(
        f"Option sql.url is {options.url}, and its driver {error.name} is not installed.",
        f"{begin}Run, where Spark's driver and every flusher run:\npip install '{package}'",
    )


def parameter(options: SqlAlchemyOptions) -> str:
    """Return what stands for a value in a statement of the URL's driver.

    :raises OptionError: the driver is not installed, or cannot be used.
    """
    style = _url(options).get_dialect().import_dbapi().paramstyle
    return _PARAMETERS.get(style, "%s")


def _arguments(options: SqlAlchemyOptions, url: sa.URL) -> dict[str, object]:
    """Return the arguments by which the driver bounds how long it waits."""
    seconds = max(1, round(options.request_timeout))
    backend, driver = url.get_backend_name(), url.get_driver_name()
    if backend == "sqlite":
        return {"timeout": options.lock_timeout, "check_same_thread": False}
    if driver in _NETWORK:
        timeouts = {"read_timeout": seconds, "write_timeout": seconds}
        return {"charset": "utf8mb4", "connect_timeout": _CONNECT_S, **timeouts}
    return {}

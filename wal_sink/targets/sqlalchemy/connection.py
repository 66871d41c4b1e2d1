"""Opens connections by SQLAlchemy's URL, each bounded in how long it waits."""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.pool import NullPool

from wal_sink.errors import OptionError
from wal_sink.targets.sql.errors import driver_error
from wal_sink.targets.sqlalchemy.dialects import GENERIC, Dialect
from wal_sink.targets.sqlalchemy.options import PASSWORD_VARIABLE, SqlAlchemyOptions

_CONNECT_S = 10
_LOCKED_S = 0.02
"""Between two tries at a file of DuckDB that another process has open."""
_NETWORK = {"pymysql", "mysqldb"}
"""Drivers of MySQL that take the same names of arguments."""
_UNKNOWN_DATABASE = 1049
"""A code of MySQL."""


class Opened(NamedTuple):
    """A connection of PEP 249, and SQLAlchemy's over the same one, by which the catalogue is read.

    SQLAlchemy neither begins nor ends a transaction of it: a second connection for the catalogue would wait
    for the rows that this one has written, or not see them.
    """

    raw: Any
    over: sa.Connection | None = None
    """None of DuckDB."""


class Connection:
    """A connection of PEP 249 that commits nothing by itself.

    A file is open from the beginning of a transaction to its end, and no longer: DuckDB lets no other process
    open it meanwhile, not even the one in which Spark makes the plan; and rows go into the file that has the
    name now, such as a restored backup.

    :param opens: opens the database.
    """

    def __init__(self, dialect: Dialect, opens: Callable[[], Opened]) -> None:
        self.dialect = dialect
        self._opens = opens
        self._opened: Opened | None = opens()

    def _open(self) -> Opened:
        if self._opened is None:
            self._opened = self._opens()
        return self._opened

    @property
    def raw(self) -> Any:
        """The driver's connection."""
        return self._open().raw

    @property
    def over(self) -> sa.Connection | None:
        """SQLAlchemy's connection; DuckDB has none."""
        return self._open().over

    def cursor(self) -> Any:
        """Return a cursor of the driver."""
        return self.raw.cursor() if self.over is not None else _DuckDbCursor(self.raw)

    def query(
        self, statement: str, values: tuple[object, ...] | Mapping[str, object] = ()
    ) -> list[Any]:
        """Return the rows of a query."""
        with contextlib.closing(self.cursor()) as cursor:
            cursor.execute(statement, values)
            return list(cursor.fetchall())

    @functools.cached_property
    def most_bytes(self) -> int:
        """How many bytes of a statement the server takes, of MySQL and MariaDB."""
        ((most,),) = self.query("SELECT @@max_allowed_packet")
        return int(most) - 1024  # for what the protocol adds

    def commit(self) -> None:
        """Commit."""
        self._end("commit")

    def rollback(self) -> None:
        """Roll back."""
        self._end("rollback")

    def _end(self, end: str) -> None:
        if self._opened is not None:
            try:
                getattr(self._opened.raw, end)()
            finally:
                if self.dialect.is_file:
                    self.close()

    def close(self) -> None:
        """Disconnect; what is open is rolled back."""
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.raw.close()
            if opened.over is not None:
                with contextlib.suppress(sa.exc.SQLAlchemyError):
                    opened.over.invalidate()
                opened.over.close()


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


def connect(options: SqlAlchemyOptions) -> Connection:
    """Connect, with the settings of the dialect.

    The password is that of the options, or else that of the environment now.

    :raises OptionError: the URL names a driver that is not installed, or cannot be used; or a database that
        the server does not have.
    :raises Exception: of the driver.
    """
    if options.backend == "duckdb":
        return Connection(options.dialect, _duckdb(options))
    url = _url(options)
    # An UPDATE of the ledger row has to wait for an open one, and see what that has committed.
    isolation: Any = {"isolation_level": "SERIALIZABLE"} if options.dialect is GENERIC else {}
    arguments = _arguments(options, url)
    engine = sa.create_engine(url, poolclass=NullPool, connect_args=arguments, **isolation)
    return Connection(options.dialect, functools.partial(_opened, engine, options))


def _opened(engine: sa.Engine, options: SqlAlchemyOptions) -> Opened:
    try:
        over = engine.connect()
    except sa.exc.DBAPIError as error:
        inner = driver_error(error)
        if options.dialect.is_mysql and inner.args[:1] == (_UNKNOWN_DATABASE,):
            database = engine.dialect.identifier_preparer.quote(str(engine.url.database))
            raise OptionError(
                f"The server of sql.url {options.url} has no such database: {inner}",
                f"Run: CREATE DATABASE {database}; Or correct the name, the last part of sql.url.",
            ) from error
        raise inner from error
    over.detach()
    opened = Opened(over.connection.dbapi_connection, over)
    lock_s = max(1, round(options.lock_timeout))
    try:
        with contextlib.closing(opened.raw.cursor()) as cursor:
            for statement in options.dialect.settings:
                cursor.execute(statement.format(lock_s=lock_s))
                if (
                    cursor.description is not None
                ):  # a row that is left may block the next statement
                    cursor.fetchall()
        opened.raw.commit()
    except BaseException:
        opened.raw.close()
        raise
    return opened


def _duckdb(options: SqlAlchemyOptions) -> Callable[[], Opened]:
    try:
        import duckdb  # noqa: PLC0415 -- one of several drivers
    except ModuleNotFoundError as error:
        raise _missing(options, error) from error
    url = sa.make_url(options.url)
    config: Any = {name: value for name, value in url.query.items() if isinstance(value, str)}

    def opens() -> Opened:
        until = time.monotonic() + options.lock_timeout
        while True:
            try:
                raw = duckdb.connect(str(url.database), config=config)
            except duckdb.IOException as error:
                if "Could not set lock" not in str(error) or time.monotonic() > until:
                    raise
                time.sleep(_LOCKED_S)
            else:
                raw.begin()  # else the driver commits each statement
                return Opened(raw)

    return opens


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


def dialect_of(options: SqlAlchemyOptions) -> sa.Dialect:
    """Return what SQLAlchemy knows of the URL's database and driver.

    :raises OptionError: the driver is not installed, or cannot be used.
    """
    dialect: Any = _url(options).get_dialect()
    return dialect(dbapi=dialect.import_dbapi())


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

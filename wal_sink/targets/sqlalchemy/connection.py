"""Opens connections by a SQLAlchemy URL, with time-outs for statements and locks."""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.pool import NullPool

from wal_sink.errors import OptionError
from wal_sink.targets.sql.errors import driver_error
from wal_sink.targets.sqlalchemy.dialects import DUCKDB, GENERIC, Dialect
from wal_sink.targets.sqlalchemy.options import PASSWORD_VARIABLE, SqlAlchemyOptions

_CONNECT_S = 10
_LOCKED_S = 0.02
"""The pause between two tries to open a file of DuckDB that another process has open."""
_MYSQL_DRIVERS = {"pymysql", "mysqldb"}
"""Drivers that have the same names of arguments."""


class Opened(NamedTuple):
    """A driver's connection, and SQLAlchemy's object for the same connection.

    SQLAlchemy reads the catalogue, and neither begins nor ends a transaction. With a connection of its own it
    would wait for uncommitted changes of the driver's connection, or not see them.
    """

    raw: Any
    """The driver's connection."""
    reader: sa.Connection | None = None
    """SQLAlchemy's object. None for DuckDB, which SQLAlchemy does not know."""


class Connection:
    """A connection of PEP 249 without autocommit.

    A database in a file is closed after each transaction, and opened before the next one. So another process,
    such as the process that makes the plan, can open a file of DuckDB between transactions. If a backup has
    replaced the file, the next rows go into the new file.
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

    def inspector(self) -> sa.Inspector:
        """Return SQLAlchemy's reader of the catalogue. Not for DuckDB, which SQLAlchemy does not know."""
        return sa.inspect(self._reader())

    def type_text(self, type_: sa.types.TypeEngine[Any]) -> str:
        """Return a type of the inspector as the database writes it."""
        try:
            return str(type_.compile(dialect=self._reader().dialect))
        except (sa.exc.CompileError, NotImplementedError):  # SQLAlchemy does not know the type
            return str(type_)

    def _reader(self) -> sa.Connection:
        reader = self._open().reader
        assert reader is not None, "only DuckDB has none"
        return reader

    def cursor(self) -> Any:
        """Return a cursor of the driver."""
        return _DuckDbCursor(self.raw) if self.dialect is DUCKDB else self.raw.cursor()

    def query(
        self, statement: str, values: tuple[object, ...] | Mapping[str, object] = ()
    ) -> list[Any]:
        """Return the rows of a query."""
        with contextlib.closing(self.cursor()) as cursor:
            cursor.execute(statement, values)
            return list(cursor.fetchall())

    @functools.cached_property
    def most_bytes(self) -> int:
        """The most bytes of a statement that MySQL or MariaDB accepts."""
        ((most,),) = self.query("SELECT @@max_allowed_packet")
        return int(most) - 1024  # the protocol adds some bytes

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
        """Disconnect, which rolls back an open transaction."""
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.raw.close()
            if opened.reader is not None:
                with contextlib.suppress(sa.exc.SQLAlchemyError):
                    opened.reader.invalidate()
                opened.reader.close()


class _DuckDbCursor:
    """Uses DuckDB's connection as a cursor: `cursor()` of the driver opens another connection.

    It reads each result to its end at once. The driver registers no batch while a result has unread rows.
    """

    def __init__(self, raw: Any) -> None:
        self._raw = raw
        self._rows: list[Any] = []
        self.rowcount = -1

    def execute(self, statement: str, values: Any = ()) -> None:
        """Run a statement. For a change DuckDB returns one row, which has the number of changed rows."""
        self._rows = self._raw.execute(statement, values or None).fetchall()
        is_change = statement.split(None, 1)[0] in {"UPDATE", "INSERT", "DELETE"}
        self.rowcount = self._rows[0][0] if is_change else -1

    def fetchall(self) -> list[Any]:
        """Return all rows."""
        return self._rows

    def close(self) -> None:
        """Leave the connection open."""


def connect(options: SqlAlchemyOptions) -> Connection:
    """Connect, and run the settings of the dialect.

    If the options have no password, the environment variable is read at each connect.

    :raises OptionError: the driver of the URL is not installed, or the folder of the file does not exist.
    :raises Exception: of the driver.
    """
    if options.dialect.is_file:
        _refuse_missing_folder(options)
    if options.backend == "duckdb":
        return Connection(options.dialect, _duckdb(options))
    url = _url(options)
    # An UPDATE of the ledger row has to wait for an open transaction, and to see what it commits.
    isolation: Any = {"isolation_level": "SERIALIZABLE"} if options.dialect is GENERIC else {}
    arguments = _arguments(options, url)
    engine = sa.create_engine(url, poolclass=NullPool, connect_args=arguments, **isolation)
    # The settings have to come before SQLAlchemy reads the SQL mode. With the server's ANSI_QUOTES SQLAlchemy
    # would quote names by ".
    sa.event.listen(engine, "connect", functools.partial(_set_session, options), insert=True)
    return Connection(options.dialect, functools.partial(_opened, engine))


def _refuse_missing_folder(options: SqlAlchemyOptions) -> None:
    folder = Path(str(sa.make_url(options.url).database)).parent
    if not folder.is_dir():
        raise OptionError(
            f"Option sql.url is {options.url}, and the folder {folder} does not exist on this host.",
            "Create the folder, mount its disk, or correct the option.",
        )


def _set_session(options: SqlAlchemyOptions, raw: Any, _: object) -> None:
    lock_s = max(1, round(options.lock_timeout))
    with contextlib.closing(raw.cursor()) as cursor:
        for statement in options.dialect.settings:
            cursor.execute(statement.format(lock_s=lock_s))
            if cursor.description is not None:
                cursor.fetchall()  # an unread row may block the next statement
    raw.commit()


def _opened(engine: sa.Engine) -> Opened:
    try:
        reader = engine.connect()
    except sa.exc.DBAPIError as error:
        raise driver_error(error) from error
    reader.detach()
    return Opened(reader.connection.dbapi_connection, reader)


def _duckdb(options: SqlAlchemyOptions) -> Callable[[], Opened]:
    """Return a function that opens a file of DuckDB. It waits while another process has the file open."""
    try:
        import duckdb  # noqa: PLC0415 -- one of several drivers
    except ModuleNotFoundError as error:
        raise _missing(options, error) from error
    url = sa.make_url(options.url)
    config: Any = {name: value for name, value in url.query.items() if isinstance(value, str)}

    def opens() -> Opened:
        deadline_s = time.monotonic() + options.lock_timeout
        while True:
            try:
                raw = duckdb.connect(str(url.database), config=config)
            except duckdb.IOException as error:
                if "Could not set lock" not in str(error) or time.monotonic() > deadline_s:
                    raise
                time.sleep(_LOCKED_S)
            else:
                raw.begin()  # without it the driver commits each statement
                return Opened(raw)

    return opens


def _url(options: SqlAlchemyOptions) -> sa.URL:
    """Parse the URL, and add the password."""
    try:
        url = sa.make_url(options.url)
        dialect = url.get_dialect()
        dialect.import_dbapi()
    except ModuleNotFoundError as error:
        raise _missing(options, error) from error
    if options.dialect.is_file:  # a file has no login, so the variable is for another target
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
    """Return SQLAlchemy's dialect for the URL's database and driver."""
    dialect: Any = _url(options).get_dialect()
    return dialect(dbapi=dialect.import_dbapi())


def _arguments(options: SqlAlchemyOptions, url: sa.URL) -> dict[str, object]:
    seconds = max(1, round(options.request_timeout))
    backend, driver = url.get_backend_name(), url.get_driver_name()
    if backend == "sqlite":
        return {"timeout": options.lock_timeout, "check_same_thread": False}
    if driver in _MYSQL_DRIVERS:
        timeouts = {"read_timeout": seconds, "write_timeout": seconds}
        return {"charset": "utf8mb4", "connect_timeout": _CONNECT_S, **timeouts}
    return {}

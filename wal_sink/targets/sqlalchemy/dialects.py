"""The dialects of the target `sql`: types, statements, connection settings and error codes. Pure.

`GENERIC` is for all other databases: rows are added by standard SQL.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

import pyarrow as pa

from wal_sink.targets.sql.error_codes import Code, ErrorCodes, numbers, texts
from wal_sink.targets.sql.types import NEW_STANDARD, NewTypes, Types
from wal_sink.targets.sqlalchemy import types


class Dialect(NamedTuple):
    """The properties of a database that the target needs."""

    title: str
    """The name of the database in errors."""
    upsert: Literal["conflict", "duplicate key", ""]
    """The clause of INSERT that replaces a row; empty: none is known."""
    error_codes: ErrorCodes
    types: Types
    new: NewTypes
    fits: Callable[[str, pa.Array], pa.BooleanArray | None]
    """Returns which values a column of a type accepts."""
    instants: frozenset[str] = frozenset()
    """Types without a time zone that also accept instants, as their time in UTC. The database has no type for
    instants, or none beyond 2038."""
    settings: tuple[str, ...] = ()
    """Statements that each new connection runs; `{lock_s}` stands for `sql.lockTimeout`."""
    ledger_suffix: str = ""
    longest: int = 2**31
    """The most characters of a name."""
    ignores_case: bool = True
    """True if the names of two columns may not differ by case only."""
    is_file: bool = False
    """True if the database is a file, and this process its server."""

    @property
    def is_mysql(self) -> bool:
        """Return True for MySQL and MariaDB."""
        return self.upsert == "duplicate key"


def _sqlite_code(error: BaseException) -> Code:
    code = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF  # the primary code, without the extended part


def _class_name(error: BaseException) -> Code:
    return type(error).__name__


_SIGNAL = 1644


def _mysql_code(error: BaseException) -> Code:
    if getattr(error, "sqlstate", None) == "45000":  # a SIGNAL may have any number
        return _SIGNAL
    code = getattr(error, "errno", None) or (error.args[0] if error.args else None)
    return code if isinstance(code, int) and code else None


def _standard_class(error: BaseException) -> Code:
    """Return the name of an error's class in PEP 249, for any driver."""
    names = (base.__name__ for base in type(error).__mro__)
    return next((name for name in names if name in _STANDARD_CLASSES), None)


_STANDARD_CLASSES = texts(
    "IntegrityError DataError ProgrammingError NotSupportedError OperationalError InternalError"
    " InterfaceError"
)

SQLITE = Dialect(
    title="SQLite",
    upsert="conflict",
    types=types.SQLITE_TYPES,
    new=types.NEW_SQLITE,
    fits=types.sqlite_fits,
    instants=frozenset({"datetime", "timestamp"}),
    error_codes=ErrorCodes(
        _sqlite_code,
        # BUSY, LOCKED, NOMEM, INTERRUPT, IOERR, FULL, CANTOPEN, PROTOCOL
        passing=frozenset({5, 6, 7, 9, 10, 13, 14, 15}),
        refusing=frozenset({18, 19, 20}),  # TOOBIG, CONSTRAINT, MISMATCH
        locked=frozenset({5}),
    ),
    # With FULL, a power loss may bring back the journal that a COMMIT has deleted, and so undo the COMMIT.
    settings=("PRAGMA synchronous = EXTRA",),
    is_file=True,
)

DUCKDB = Dialect(
    title="DuckDB",
    upsert="conflict",
    types=types.DUCKDB_TYPES,
    new=types.NEW_DUCKDB,
    fits=types.duckdb_fits,
    error_codes=ErrorCodes(
        _class_name,
        passing=texts(
            "TransactionException IOException ConnectionException InterruptException"
            " OutOfMemoryException"
        ),
        refusing=frozenset({"ConstraintException", "ConversionException", "OutOfRangeException"}),
    ),
    is_file=True,
)

_SQL_MODE = (
    "STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION,ERROR_FOR_DIVISION_BY_ZERO,NO_AUTO_VALUE_ON_ZERO"
)
"""Without NO_AUTO_VALUE_ON_ZERO the server replaces a 0 in an AUTO_INCREMENT column by another number."""

_MARIADB_WAITS = " /*M!100300 , idle_transaction_timeout = 60, max_statement_time = 0 */"
_MYSQL_WAITS = " /*!80000 , wait_timeout = 600 */"
"""Other servers read these as comments. The URL of a MariaDB may begin with mysql."""

_TOO_WIDE = (
    "A row takes 8,126 bytes and 1,017 columns; a long text or binary counts 40 bytes at most. Put columns"
    ' together into one, .withColumn("v", F.to_json(F.struct("a", "b", …))), and drop them; or write to two'
    " tables."
)
_TOO_LONG = (
    "A key takes 16 columns and 3,072 bytes, four for each character of its texts, and no blob. Name fewer"
    " columns in keyColumns, or make the table yourself, with shorter ones, such as varbinary(255)."
)
_MYSQL_REMEDIES: Mapping[Code, str] = {
    1005: f"Make the table as the server takes it, and leave out createTable. {_TOO_WIDE}",
    1049: "Create the database that the answer names, by CREATE DATABASE, or correct it in option table.",
    **dict.fromkeys((1070, 1071, 1170), _TOO_LONG),
    1117: _TOO_WIDE,
    1118: _TOO_WIDE,
    1665: "Run: SET GLOBAL binlog_format = 'MIXED'; Set it in the server's configuration, too.",
}

MYSQL = Dialect(
    title="MySQL",
    upsert="duplicate key",
    types=types.MYSQL_TYPES,
    new=types.NEW_MYSQL,
    fits=types.mysql_fits,
    instants=frozenset({"datetime"}),
    error_codes=ErrorCodes(
        _mysql_code,
        # Disk and memory, connections, shutdown, network, locks, deadlock, read-only, killed, lost.
        passing=numbers(
            "1021 1030 1037 1038 1040 1042 1053 1077 1079 1080 1105 1114 1152 1158 1159 1160 1161 1184 1203"
            " 1205 1213 1226 1290 1317 1792 1836 1927 1969 3024 3572 4031 2002 2003 2006 2012"
            " 2013 2014 2027 2055"
        ),
        # Null, duplicate, size of a row, foreign key, range, length, value, partition, SIGNAL, CHECK, JSON.
        refusing=numbers(
            "1048 1062 1118 1169 1216 1217 1264 1265 1292 1364 1366 1406 1411 1416 1451 1452 1526 1557"
            " 1582 1586 1644 1690 1748 3140 3156 3819 4025"
        ),
        locked=numbers("1205"),
        remedies=_MYSQL_REMEDIES,
    ),
    settings=(
        f"SET SESSION sql_mode = '{_SQL_MODE}'",
        "SET SESSION time_zone = '+00:00'",
        "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
        "SET SESSION innodb_lock_wait_timeout = {lock_s}",
        f"SET SESSION lock_wait_timeout = {{lock_s}}{_MARIADB_WAITS}{_MYSQL_WAITS}",
    ),
    ledger_suffix="ENGINE=InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
    longest=64,
)

MARIADB = MYSQL._replace(title="MariaDB")

GENERIC = Dialect(
    title="The database",
    upsert="",
    ignores_case=False,
    types=types.GENERIC_TYPES,
    new=NEW_STANDARD,
    fits=types.standard_fits,
    error_codes=ErrorCodes(
        _standard_class,
        passing=texts("OperationalError InternalError InterfaceError"),
        refusing=texts("IntegrityError DataError"),
    ),
)

DIALECTS: Mapping[str, Dialect] = {
    "sqlite": SQLITE,
    "duckdb": DUCKDB,
    "mysql": MYSQL,
    "mariadb": MARIADB,
}
"""Dialects by the name of the database in a URL."""

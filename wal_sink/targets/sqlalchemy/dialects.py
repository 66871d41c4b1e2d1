"""What is particular to each database: statements, settings of a connection, and what its errors mean. Pure.

SQL Server and Oracle are written after their documentation, and were never run: docs/sql.md says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from wal_sink.targets.refusals import RELEASED, Savepoints
from wal_sink.targets.sql.database import (
    POSTGRESQL_ERRORS,
    POSTGRESQL_SETTINGS,
    Code,
    Errors,
    numbers,
    texts,
)
from wal_sink.targets.sql.limits import Longest


class Dialect(NamedTuple):
    """What is particular to a database."""

    title: str
    parameter: str
    """What stands for a value in a statement that the driver itself executes."""
    upsert: Literal["conflict", "duplicate key", "merge"]
    errors: Errors
    settings: tuple[str, ...] = ()
    """Statements of each new connection; `{lock_ms}` and `{lock_s}` stand for `sql.lockTimeout`."""
    text_type: str = "VARCHAR(128)"
    number_type: str = "BIGINT"
    """Of the ledger's columns: texts, which are compared as bytes, and a number."""
    ledger_suffix: str = ""
    longest: Longest = Longest()
    transactional_ddl: bool = False
    """Whether CREATE TABLE can be rolled back."""
    begin: str = ""
    """What begins a transaction before CREATE TABLE, where the driver does not."""
    is_file: bool = False
    """Whether the database is a file, and its server this process."""
    partitions: bool = False
    """Whether createTable can partition."""
    savepoints: Savepoints | None = Savepoints()
    """None: it has none."""
    check_at_once: str = ""
    """What lets a transaction check deferred constraints at once; empty: nothing does."""


def _sqlite_code(error: BaseException) -> Code:
    code = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF  # without the extended part


def _class_name(error: BaseException) -> Code:
    return type(error).__name__


_SIGNAL = 1644


def _mysql_code(error: BaseException) -> Code:
    if getattr(error, "sqlstate", None) == "45000":  # of pymysql: a SIGNAL may have any number
        return _SIGNAL
    code = getattr(error, "errno", None) or (error.args[0] if error.args else None)
    return code if isinstance(code, int) and code else None


def _odbc_state(error: BaseException) -> Code:
    """Of pyodbc a SQLSTATE, of pymssql the server's number."""
    code = error.args[0] if error.args else None
    return code if isinstance(code, int | str) else None


def _oracle_code(error: BaseException) -> Code:
    first = error.args[0] if error.args else None
    return getattr(first, "full_code", None) or None  # ORA-00001, DPY-4011


SQLITE = Dialect(
    title="SQLite",
    parameter="?",
    upsert="conflict",
    errors=Errors(
        _sqlite_code,
        # BUSY, LOCKED, NOMEM, INTERRUPT, IOERR, FULL, CANTOPEN, PROTOCOL
        passing=frozenset({5, 6, 7, 9, 10, 13, 14, 15}),
        refusing=frozenset({18, 19, 20}),  # TOOBIG, CONSTRAINT, MISMATCH
    ),
    # With FULL, a journal that a COMMIT has deleted comes back after a power loss, and undoes the COMMIT.
    settings=("PRAGMA synchronous = EXTRA",),
    transactional_ddl=True,
    begin="BEGIN IMMEDIATE",
    is_file=True,
)

DUCKDB = Dialect(
    title="DuckDB",
    parameter="?",
    upsert="conflict",
    errors=Errors(
        _class_name,
        passing=texts(
            "TransactionException IOException ConnectionException InterruptException"
            " OutOfMemoryException"
        ),
        refusing=frozenset({"ConstraintException", "ConversionException", "OutOfRangeException"}),
    ),
    savepoints=None,
    transactional_ddl=True,
    is_file=True,
)

_SQL_MODE = (
    "STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION,ERROR_FOR_DIVISION_BY_ZERO,NO_AUTO_VALUE_ON_ZERO"
)
"""Without the last one AUTO_INCREMENT makes another number of a 0."""

_MARIADB_WAITS = " /*M!100300 , idle_transaction_timeout = 60, max_statement_time = 0 */"
_MYSQL_WAITS = " /*!80000 , wait_timeout = 600 */"
"""Comments for all other servers: a URL may begin with mysql, and be MariaDB's."""

_TOO_WIDE = (
    "A row takes 8,126 bytes and 1,017 columns; a long text or binary counts 40 bytes at most. Put columns"
    ' together into one, .withColumn("v", F.to_json(F.struct("a", "b", …))), and drop them; or write to two'
    " tables."
)
_MYSQL_REMEDIES: dict[int | str, str] = {
    1005: f"Make the table as the server takes it, and leave out createTable. {_TOO_WIDE}",
    1049: "Create the database, CREATE DATABASE …;, or correct its name, the last part of sql.url.",
    1071: (
        "An index takes 3,072 bytes, four for each character of its texts. Name fewer columns in keyColumns,"
        " or make the table yourself, with shorter ones."
    ),
    1117: _TOO_WIDE,
    1118: _TOO_WIDE,
}

MYSQL = Dialect(
    title="MySQL",
    parameter="%s",
    upsert="duplicate key",
    errors=Errors(
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
        remedies=_MYSQL_REMEDIES,
        locked=numbers("1205"),
    ),
    settings=(
        f"SET SESSION sql_mode = '{_SQL_MODE}'",
        "SET SESSION time_zone = '+00:00'",
        "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
        "SET SESSION innodb_lock_wait_timeout = {lock_s}",
        f"SET SESSION lock_wait_timeout = {{lock_s}}{_MARIADB_WAITS}{_MYSQL_WAITS}",
    ),
    ledger_suffix="ENGINE=InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
    longest=Longest(64),
    partitions=True,
)

MARIADB = MYSQL._replace(title="MariaDB")

POSTGRESQL = Dialect(
    title="PostgreSQL",
    parameter="%s",
    upsert="conflict",
    errors=POSTGRESQL_ERRORS,
    savepoints=RELEASED,
    check_at_once="SET CONSTRAINTS ALL IMMEDIATE",
    settings=(
        "SET client_encoding = 'UTF8'",
        POSTGRESQL_SETTINGS.replace("{idle_ms}", "60000"),
    ),
    longest=Longest(63, "bytes"),
    transactional_ddl=True,
    partitions=True,
)

SQL_SERVER = Dialect(
    title="SQL Server",
    parameter="?",
    upsert="merge",
    errors=Errors(
        _odbc_state,
        # Connection, deadlock and update conflict, timeouts; numbers of pymssql: deadlock, lock, snapshot.
        passing=frozenset({"08", "40001", "HYT", 1205, 1222, 3960, 20003, 20009, 20047}),
        # Constraints, lengths, ranges; numbers: unique, null, check and key, truncated, overflow.
        refusing=frozenset({"23", "22", 2627, 2601, 515, 547, 8152, 2628, 8115, 241}),
    ),
    savepoints=Savepoints("SAVE TRANSACTION wal_sink_rows", "ROLLBACK TRANSACTION wal_sink_rows"),
    settings=(
        "SET TRANSACTION ISOLATION LEVEL READ COMMITTED",
        "SET LOCK_TIMEOUT {lock_ms}",
        "SET IMPLICIT_TRANSACTIONS OFF",
    ),
    text_type="NVARCHAR(128) COLLATE Latin1_General_BIN2",
    longest=Longest(128),
    transactional_ddl=True,
)

ORACLE = Dialect(
    title="Oracle",
    parameter=":1",
    upsert="merge",
    errors=Errors(
        _oracle_code,
        # Deadlock, busy, serialization, sessions, shutdown, network; DPY-: the driver's own.
        passing=texts(
            "ORA-00060 ORA-00054 ORA-08177 ORA-00028 ORA-01012 ORA-01033 ORA-01034 ORA-01089"
            " ORA-03113 ORA-03114 ORA-03135 ORA-121 ORA-125 ORA-126 DPY-4 DPY-6"
        ),
        refusing=texts(
            "ORA-00001 ORA-01400 ORA-01407 ORA-02290 ORA-02291 ORA-02292 ORA-12899 ORA-01438"
            " ORA-01461 ORA-14400 ORA-20"
        ),
    ),
    settings=("ALTER SESSION SET TIME_ZONE = 'UTC'",),
    check_at_once="SET CONSTRAINTS ALL IMMEDIATE",
    text_type="VARCHAR2(128 CHAR)",
    number_type="NUMBER(19)",
    longest=Longest(128, "bytes"),
)


DIALECTS: Mapping[str, Dialect] = {
    "sqlite": SQLITE,
    "duckdb": DUCKDB,
    "mysql": MYSQL,
    "mariadb": MARIADB,
    "postgresql": POSTGRESQL,
    "mssql": SQL_SERVER,
    "oracle": ORACLE,
}
"""By the name that a URL begins with."""

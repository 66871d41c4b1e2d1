"""The dialects of the target `sql`: types and their values, connection settings and error codes. No I/O.

`GENERIC` is for all other databases: rows are added by standard SQL. Tasks import this module, so it does
not import SQLAlchemy. docs/sql.md has the same types.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from wal_sink.targets.arrow_values import int64
from wal_sink.targets.sql.errors import Code, ErrorCodes, texts
from wal_sink.targets.sql.types import (
    COMMON,
    INTEGERS,
    LISTS,
    NEW_STANDARD,
    NewTypes,
    SqlType,
    Types,
    at_most,
    by_elements,
    parse,
    text_fits,
    time,
)
from wal_sink.targets.sqlalchemy.mysql_errors import MYSQL_CODES

_COLLATION = re.compile(r" (character set|charset|collate) \S+")


def words_of(text: str) -> str:
    """Return a type as a plan has it: in lower case, without collation, and without blanks at brackets."""
    text = re.sub(r"\s*([(),])\s*", r"\1", _COLLATION.sub("", text.lower()))
    return text.replace(")", ") ").replace(" [", "[").strip()


def _unrounded(held_by: pa.DataType) -> Callable[[SqlType], pa.DataType | None]:
    """Return an entry of `Types` that refuses MySQL's `float(7,4)` and `double(10,2)`, since they round."""
    return lambda type_: held_by if type_.second is None else None


SQLITE_TYPES: Types = {
    **dict.fromkeys((*INTEGERS, "int", "tinyint"), pa.int64()),
    **dict.fromkeys(("varchar", "char", "text"), pa.string()),
    **dict.fromkeys(("real", "float", "double", "double precision"), pa.float64()),
    "blob": pa.binary(),
    "boolean": pa.bool_(),
    "date": pa.date32(),
    **dict.fromkeys(("datetime", "timestamp"), time(6)),
}
MYSQL_TYPES: Types = {
    **COMMON,
    "tinyint": pa.int8(),
    "mediumint": pa.int32(),
    "tinyint unsigned": pa.uint8(),
    "smallint unsigned": pa.uint16(),
    "mediumint unsigned": pa.uint32(),
    **dict.fromkeys(("integer unsigned", "int unsigned"), pa.uint32()),
    "bigint unsigned": pa.uint64(),
    "float": _unrounded(pa.float32()),
    **dict.fromkeys(("double", "double precision"), _unrounded(pa.float64())),
    **dict.fromkeys(("tinytext", "mediumtext", "longtext", "json", "uuid"), pa.string()),
    **dict.fromkeys(
        ("tinyblob", "blob", "mediumblob", "longblob", "varbinary", "binary"), pa.binary()
    ),
    "datetime": time(0),
    "timestamp": time(0, "UTC"),
}
DUCKDB_TYPES: Types = {
    **COMMON,
    LISTS: None,
    "tinyint": pa.int8(),
    "utinyint": pa.uint8(),
    "usmallint": pa.uint16(),
    "uinteger": pa.uint32(),
    "ubigint": pa.uint64(),
    "hugeint": pa.decimal128(38, 0),
    "float": pa.float32(),
    "blob": pa.binary(),
    **dict.fromkeys(("uuid", "json"), pa.string()),
    "timestamp": time(6),
    "timestamp_s": time(0),
    "timestamp_ms": time(3),
    "timestamp with time zone": time(6, "UTC"),
}
GENERIC_TYPES: Types = {
    **COMMON,
    "real": pa.float32(),
    **dict.fromkeys(("blob", "bytea", "varbinary"), pa.binary()),
    **dict.fromkeys(("timestamp", "timestamp without time zone"), time(6)),
    "timestamp with time zone": time(6, "UTC"),
}
"""The types of standard SQL, for all other databases."""

# --- new columns ---

NEW_SQLITE = {name: words for name, words in NEW_STANDARD.items() if name != "decimal"} | {
    "timestamp": "datetime",
    "timestamp_ntz": "datetime",
}
NEW_DUCKDB = {
    **NEW_STANDARD,
    "int8": "tinyint",
    "float": "float",
    "key": "varchar",
    "string": "varchar",
    LISTS: "{}[]",
}
NEW_MYSQL = {
    **NEW_STANDARD,
    "int8": "tinyint",
    "float": "float",
    "double": "double",
    "string": "longtext",
    "binary": "longblob",
    "timestamp": "datetime(6)",
    "timestamp_ntz": "datetime(6)",
}

# --- values ---

_BYTES = {
    "tinytext": 255,
    "text": 65_535,
    "mediumtext": 16_777_215,
    "tinyblob": 255,
    "blob": 65_535,
    "mediumblob": 16_777_215,
}
"""The most bytes of a value in MySQL and MariaDB."""
_TIMESTAMP_S = 1, 2_147_483_647
"""The first and last second since 1970 that MySQL's `timestamp` accepts."""
_MEDIUM = {"mediumint": (-(2**23), 2**23 - 1), "mediumint unsigned": (0, 2**24 - 1)}


def mysql_fits(words: str, values: pa.Array) -> pa.BooleanArray | None:  # noqa: PLR0911 -- a case each
    """Return which values MySQL and MariaDB accept."""
    type_ = parse(words)
    if pt.is_floating(values.type):
        return pc.is_finite(values)
    if type_.base == "binary":  # the server pads shorter values
        return pc.equal(pc.binary_length(values).cast(pa.int64()), int64(type_.first or 1))
    if type_.base in _BYTES or pt.is_binary(values.type):
        most = _BYTES.get(type_.base, type_.first)
        return None if most is None else at_most(pc.binary_length(values), most)
    if pt.is_string(values.type):
        return _char_fits(type_, values)
    if (bounds := _MEDIUM.get(type_.base)) is not None:
        return _between(values.cast(pa.int64()), *bounds)
    if type_.base == "timestamp":
        seconds = pc.floor_temporal(values, unit="second").cast(pa.timestamp("s", "UTC"))
        return _between(seconds.cast(pa.int64()), *_TIMESTAMP_S)
    return None


def sqlite_fits(words: str, values: pa.Array) -> pa.BooleanArray | None:  # noqa: ARG001 -- for every type
    """Return which values SQLite accepts. It would store NaN as null."""
    return pc.invert(pc.is_nan(values)) if pt.is_floating(values.type) else None


def duckdb_fits(words: str, values: pa.Array) -> pa.BooleanArray | None:
    """Return which values DuckDB accepts."""
    if words.endswith(LISTS):
        return by_elements(duckdb_fits, words, values)
    return text_fits(parse(words), values) if pt.is_string(values.type) else None


def standard_fits(words: str, values: pa.Array) -> pa.BooleanArray | None:
    """Return which values a type of standard SQL accepts."""
    return _char_fits(parse(words), values) if pt.is_string(values.type) else None


def _char_fits(type_: SqlType, values: pa.Array) -> pa.BooleanArray | None:
    """Return which texts fit. A `char` would cut a blank at the end."""
    fits = text_fits(type_, values)
    if type_.base != "char":
        return fits
    without_blank = pc.invert(pc.ends_with(values, " "))
    return without_blank if fits is None else pc.and_(without_blank, fits)


def _between(values: pa.Array, first: int, last: int) -> pa.BooleanArray:
    return pc.and_(pc.greater_equal(values, int64(first)), pc.less_equal(values, int64(last)))


# --- the dialects ---


class Dialect(NamedTuple):
    """The properties of a database that the target needs."""

    title: str
    """The name of the database in errors."""
    upsert: bool
    """True if wal_sink knows the database's clause of INSERT that replaces a row."""
    error_codes: ErrorCodes
    types: Types
    """The Arrow type that holds the values of each type of the database."""
    new: NewTypes
    """The types of new columns, by the name of the DataFrame's type."""
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
    is_file: bool = False
    """True if the database is a file that this process opens, without a server."""
    is_mysql: bool = False
    """True for MySQL and MariaDB."""


def _sqlite_code(error: BaseException) -> Code:
    code = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF  # the primary code, without the extended part


_PASSING, _REFUSING = (
    texts("OperationalError InternalError InterfaceError"),
    texts("IntegrityError DataError"),
)


def _standard_class(error: BaseException) -> Code:
    """Return the name of an error's class in PEP 249."""
    names = (base.__name__ for base in type(error).__mro__)
    return next((name for name in names if name in _PASSING | _REFUSING), None)


STANDARD_CODES = ErrorCodes(_standard_class, passing=_PASSING, refusing=_REFUSING)
"""The meaning of errors by their classes. For drivers whose own codes mean no more, or are unknown."""

SQLITE = Dialect(
    title="SQLite",
    upsert=True,
    types=SQLITE_TYPES,
    new=NEW_SQLITE,
    fits=sqlite_fits,
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
    upsert=True,
    types=DUCKDB_TYPES,
    new=NEW_DUCKDB,
    fits=duckdb_fits,
    error_codes=STANDARD_CODES,
    is_file=True,
)

SQL_MODE = (
    "STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION,ERROR_FOR_DIVISION_BY_ZERO,NO_AUTO_VALUE_ON_ZERO"
)
"""The SQL mode of each connection to MariaDB or MySQL: the server refuses a value that it would change.

Without NO_AUTO_VALUE_ON_ZERO it would replace a 0 in an AUTO_INCREMENT column by another number.
"""

_WAITS = (
    " /*M!100300 , idle_transaction_timeout = 60, max_statement_time = 0 */"
    " /*!80000 , wait_timeout = 600 */"
)
"""Settings that only MariaDB reads, then a setting that only MySQL reads. The other server reads each as a
comment. Both are sent, because the URL of a MariaDB server can begin with mysql."""

MYSQL = Dialect(
    title="MySQL",
    upsert=True,
    types=MYSQL_TYPES,
    new=NEW_MYSQL,
    fits=mysql_fits,
    instants=frozenset({"datetime"}),
    error_codes=MYSQL_CODES,
    settings=(
        f"SET SESSION sql_mode = '{SQL_MODE}'",
        "SET SESSION time_zone = '+00:00'",
        "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
        "SET SESSION innodb_lock_wait_timeout = {lock_s}",
        f"SET SESSION lock_wait_timeout = {{lock_s}}{_WAITS}",
    ),
    ledger_suffix="ENGINE=InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
    longest=64,
    is_mysql=True,
)

MARIADB = MYSQL._replace(title="MariaDB")

GENERIC = Dialect(
    title="The database",
    upsert=False,
    types=GENERIC_TYPES,
    new=NEW_STANDARD,
    fits=standard_fits,
    error_codes=STANDARD_CODES,
)

DIALECTS: Mapping[str, Dialect] = {
    "sqlite": SQLITE,
    "duckdb": DUCKDB,
    "mysql": MYSQL,
    "mariadb": MARIADB,
}
"""Dialects by the name of the database in a URL."""

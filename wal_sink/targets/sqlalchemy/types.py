"""The types of each database: which Arrow type holds one exactly, which values it takes, what a driver gets.

A type stands in a plan in the database's own words, in lower case: `varchar(50)`, `bigint unsigned`. Pure,
and without SQLAlchemy: tasks check rows by it. docs/sql.md has the same table.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from wal_sink.model.plan import is_array, is_blob, is_text
from wal_sink.targets.arrow_values import UUID_PATTERN, int64
from wal_sink.targets.casts import CastRules, is_castable


class SqlType(NamedTuple):
    """A type in parts: `decimal(10,2)` has the base decimal, and the numbers 10 and 2."""

    base: str
    first: int | None = None
    second: int | None = None


_FORM = re.compile(
    r"(?P<base>[a-z][a-z0-9_ ]*?) ?(?:\((?P<first>\d+|max)(?:,(?P<second>-?\d+))?\))?(?P<rest> .+)?"
)

_COLLATION = re.compile(r" (character set|charset|collate) \S+")


def words_of(text: str) -> str:
    """Return a type as plans have it: in lower case, without collation, and without blanks among numbers."""
    text = re.sub(r"(\d) (char|byte)\)", r"\1)", text, flags=re.IGNORECASE)  # Oracle's lengths
    text = re.sub(r"\s*([(),])\s*", r"\1", _COLLATION.sub("", text.lower()))
    return text.replace(")", ") ").replace(" [", "[").strip()


def parse(words: str) -> SqlType:
    """Take a type apart; `timestamp(3) with time zone` has the base `timestamp with time zone`."""
    found = _FORM.fullmatch(words)
    if found is None:
        return SqlType(words)
    first = found["first"]
    return SqlType(
        found["base"] + (found["rest"] or ""),
        None if first in (None, "max") else int(first),
        None if found["second"] is None else int(found["second"]),
    )


def _unrounded(held_by: pa.DataType) -> Callable[[SqlType], pa.DataType | None]:
    """Return what refuses MySQL's `float(7,4)` and `double(10,2)`, which round to so many digits."""
    return lambda type_: held_by if type_.second is None else None


_Arrow = dict[str, Any]
"""By base: an Arrow type, or what returns one for a type."""


def _decimal(type_: SqlType) -> pa.DataType | None:
    digits, scale = type_.first, type_.second or 0
    return pa.decimal128(digits, scale) if digits is not None and 0 < digits <= 38 else None


def _time(digits: int, zone: str | None = None) -> Callable[[SqlType], pa.DataType | None]:
    """Return the type of a date with time.

    :param digits: of a second, where the type says none. With other numbers of digits than Arrow's the
        server would round.
    """

    def arrow(type_: SqlType) -> pa.DataType | None:
        said = digits if type_.first is None else type_.first
        unit = {0: "s", 3: "ms", 6: "us", 7: "us", 9: "us"}.get(said)
        return None if unit is None else pa.timestamp(unit, zone)

    return arrow


_INTEGERS = {"smallint": pa.int16(), "integer": pa.int32(), "int": pa.int32(), "bigint": pa.int64()}
_TEXTS = dict.fromkeys(("varchar", "char", "text"), pa.string())
_COMMON: _Arrow = {
    **_INTEGERS,
    **_TEXTS,
    **dict.fromkeys(("decimal", "numeric"), _decimal),
    "boolean": pa.bool_(),
    "date": pa.date32(),
    "double precision": pa.float64(),
    "double": pa.float64(),
}
_SQLITE: _Arrow = {
    **dict.fromkeys((*_INTEGERS, "tinyint"), pa.int64()),
    **_TEXTS,
    **dict.fromkeys(("real", "float", "double", "double precision"), pa.float64()),
    "blob": pa.binary(),
    "boolean": pa.bool_(),
    "date": pa.date32(),
    **dict.fromkeys(("datetime", "timestamp"), _time(6)),
}
_MYSQL: _Arrow = {
    **_COMMON,
    "tinyint": pa.int8(),
    "mediumint": pa.int32(),
    "tinyint unsigned": pa.uint8(),
    "smallint unsigned": pa.uint16(),
    "mediumint unsigned": pa.uint32(),
    **dict.fromkeys(("integer unsigned", "int unsigned"), pa.uint32()),
    "bigint unsigned": pa.uint64(),
    "float": _unrounded(pa.float32()),
    **dict.fromkeys(("double", "double precision"), _unrounded(pa.float64())),
    **dict.fromkeys(("tinytext", "mediumtext", "longtext"), pa.string()),
    **dict.fromkeys(
        ("tinyblob", "blob", "mediumblob", "longblob", "varbinary", "binary"), pa.binary()
    ),
    "json": pa.string(),
    "datetime": _time(0),
    "timestamp": _time(0, "UTC"),
}
_DUCKDB: _Arrow = {
    **_COMMON,
    "tinyint": pa.int8(),
    "utinyint": pa.uint8(),
    "usmallint": pa.uint16(),
    "uinteger": pa.uint32(),
    "ubigint": pa.uint64(),
    "hugeint": pa.decimal128(38, 0),
    "float": pa.float32(),
    "blob": pa.binary(),
    "uuid": pa.string(),
    "json": pa.string(),
    "timestamp": _time(6),
    "timestamp_s": _time(0),
    "timestamp_ms": _time(3),
    "timestamp with time zone": _time(6, "UTC"),
}
_POSTGRESQL: _Arrow = {
    **_COMMON,
    "real": pa.float32(),
    "float": pa.float64(),
    "bytea": pa.binary(),
    "uuid": pa.string(),
    **dict.fromkeys(("json", "jsonb"), pa.string()),
    **dict.fromkeys(("timestamp", "timestamp without time zone"), _time(6)),
    "timestamp with time zone": _time(6, "UTC"),
}
_SQL_SERVER: _Arrow = {
    **_INTEGERS,
    **dict.fromkeys(("decimal", "numeric"), _decimal),
    "tinyint": pa.uint8(),
    "bit": pa.bool_(),
    "real": pa.float32(),
    "float": pa.float64(),
    **dict.fromkeys(("nvarchar", "nchar"), pa.string()),  # the others have a code page
    "varbinary": pa.binary(),
    "uniqueidentifier": pa.string(),
    "date": pa.date32(),
    "datetime2": _time(7),
    "datetimeoffset": _time(7, "UTC"),
}
_ORACLE: _Arrow = {
    "number": _decimal,
    "binary_float": pa.float32(),
    "binary_double": pa.float64(),
    **dict.fromkeys(("varchar2", "nvarchar2", "clob", "nclob"), pa.string()),
    **dict.fromkeys(("raw", "blob"), pa.binary()),
    "date": pa.timestamp("s"),
    "timestamp": _time(6),
    "timestamp with time zone": _time(6, "UTC"),
}
TYPES: Mapping[str, _Arrow] = {
    "sqlite": _SQLITE,
    "duckdb": _DUCKDB,
    "mysql": _MYSQL,
    "mariadb": _MYSQL,
    "postgresql": _POSTGRESQL,
    "mssql": _SQL_SERVER,
    "oracle": _ORACLE,
}
"""By the name that a URL begins with, then by base."""

_UTC_TIMES = {
    ("sqlite", "datetime"),
    ("sqlite", "timestamp"),
    ("mysql", "datetime"),
    ("mariadb", "datetime"),
    ("mssql", "datetime2"),
    ("oracle", "timestamp"),
    ("oracle", "date"),
}
"""Types without a zone that take an instant, too, as its time in UTC: where there is no other, or none that
reaches beyond 2038."""


def arrow_type(backend: str, words: str) -> pa.DataType | None:
    """Return the Arrow type that holds a type exactly; None: it cannot be written."""
    if backend == "duckdb" and words.endswith("[]"):
        element = arrow_type(backend, words.removesuffix("[]"))
        return None if element is None else pa.list_(element)
    type_ = parse(words)
    found = TYPES[backend].get(type_.base)
    return found(type_) if callable(found) else found


class Rules(CastRules):
    """What a database says of types, by the name that its URL begins with."""

    def __init__(self, backend: str, table: str) -> None:
        super().__init__(lambda words: arrow_type(backend, words), table)
        self._backend = backend

    def is_castable(self, source: pa.DataType, words: str, holds: pa.DataType) -> bool:
        """Take an instant where a column without a zone is the only one for it, too."""
        if pt.is_timestamp(source) and source.tz:
            return (self._backend, parse(words).base) in _UTC_TIMES or is_castable(source, holds)
        return is_castable(source, holds)


# --- values ---

_BYTES = {
    "tinytext": 255,
    "text": 65_535,
    "mediumtext": 16_777_215,
    "tinyblob": 255,
    "blob": 65_535,
    "mediumblob": 16_777_215,
}
"""Most bytes, in MySQL and MariaDB."""
_TIMESTAMP_S = 1, 2_147_483_647
"""The seconds since 1970 that MySQL's `timestamp` takes."""
_MEDIUM = {"mediumint": (-(2**23), 2**23 - 1), "mediumint unsigned": (0, 2**24 - 1)}
_FINITE = ("mysql", "mariadb", "mssql")
"""Have neither NaN nor infinities."""
_UUIDS = ("uuid", "uniqueidentifier")


def fits(backend: str, words: str, values: pa.Array) -> pa.BooleanArray | None:
    """Return which values the database takes in a column, of those that the Arrow type holds; None: all.

    :param values: of the type that `arrow_type` returned.
    """
    type_ = parse(words)
    found = [each for rule in _RULES if (each := rule(backend, type_, values)) is not None]
    if not found:
        return None
    result = found[0]
    for each in found[1:]:
        result = pc.and_(result, each)
    return result


def _text_fits(backend: str, type_: SqlType, values: pa.Array) -> pa.BooleanArray | None:
    if not pt.is_string(values.type):
        return None
    if type_.base in _UUIDS:
        return pc.match_substring_regex(values, UUID_PATTERN)
    if backend in ("mysql", "mariadb") and type_.base in _BYTES:
        return _at_most(pc.binary_length(values), _BYTES[type_.base])
    if backend == "oracle":  # keeps no empty text, and may count bytes
        sized = _at_most(pc.binary_length(values), type_.first or 2**31)
        return pc.and_(sized, pc.greater(pc.binary_length(values), pa.scalar(0, pa.int32())))
    if type_.first is None or backend == "sqlite":
        return None
    lengths = pc.utf8_length(values)
    if backend == "mssql":  # counts pairs of bytes
        lengths = pc.add(lengths, pc.count_substring_regex(values, "[\U00010000-\U0010ffff]"))
    return _at_most(lengths, type_.first)


def _blanks_fit(backend: str, type_: SqlType, values: pa.Array) -> pa.BooleanArray | None:
    """Refuse what a type of fixed length does not keep: blanks at the end, or other lengths."""
    if type_.base in ("char", "nchar") and backend != "sqlite":
        return pc.invert(pc.ends_with(values, " "))
    if type_.base == "binary":
        return pc.equal(pc.binary_length(values).cast(pa.int64()), int64(type_.first or 1))
    return None


def _bytes_fit(backend: str, type_: SqlType, values: pa.Array) -> pa.BooleanArray | None:
    if not pt.is_binary(values.type) or type_.base == "binary":
        return None
    most = type_.first
    if most is None and backend in ("mysql", "mariadb"):
        most = _BYTES.get(type_.base)
    return None if most is None else _at_most(pc.binary_length(values), most)


def _nul_fits(backend: str, type_: SqlType, values: pa.Array) -> pa.BooleanArray | None:  # noqa: ARG001
    if backend == "postgresql" and pt.is_string(values.type):
        return pc.invert(pc.match_substring(values, "\0"))
    return None


def _number_fits(backend: str, type_: SqlType, values: pa.Array) -> pa.BooleanArray | None:
    if pt.is_floating(values.type):
        if backend in _FINITE:
            return pc.is_finite(values)
        return (
            pc.invert(pc.is_nan(values)) if backend == "sqlite" else None
        )  # which would store null
    if (bounds := _MEDIUM.get(type_.base)) is not None:
        return _between(values.cast(pa.int64()), *bounds)
    return None


def _time_fits(backend: str, type_: SqlType, values: pa.Array) -> pa.BooleanArray | None:
    if backend in ("mysql", "mariadb") and type_.base == "timestamp":
        seconds = pc.floor_temporal(values, unit="second").cast(pa.timestamp("s", "UTC"))
        return _between(seconds.cast(pa.int64()), *_TIMESTAMP_S)
    return None


_RULES = (_text_fits, _blanks_fit, _bytes_fit, _nul_fits, _number_fits, _time_fits)


def _at_most(lengths: pa.Array, most: int) -> pa.BooleanArray:
    return pc.less_equal(lengths.cast(pa.int64()), int64(most))


def _between(values: pa.Array, first: int, last: int) -> pa.BooleanArray:
    return pc.and_(pc.greater_equal(values, int64(first)), pc.less_equal(values, int64(last)))


def driver_values(backend: str, values: pa.Array) -> list[object]:
    """Return a column as the driver's `executemany` takes it.

    Instants are naive, in UTC, where the connection's zone is UTC. SQLite has dates and times as texts, in
    the form of SQLAlchemy.
    """
    if pt.is_timestamp(values.type) and backend in ("mysql", "mariadb", "sqlite"):
        values = values.cast(pa.timestamp("us"))
    found: list[Any] = values.to_pylist()
    if backend == "sqlite" and pt.is_timestamp(values.type):
        return [None if each is None else each.isoformat(" ", "microseconds") for each in found]
    if backend == "sqlite" and pt.is_date(values.type):
        return [None if each is None else each.isoformat() for each in found]
    return found


# --- new tables ---

_NEW = {
    "bool": "boolean",
    "int8": "smallint",
    "int16": "smallint",
    "int32": "integer",
    "int64": "bigint",
    "float": "real",
    "double": "double precision",
    "string": "text",
    "key": "varchar(255)",
    "binary": "blob",
    "date32[day]": "date",
    "instant": "timestamp with time zone",
    "time": "timestamp",
    "decimal": "decimal({},{})",
}
_NEW_MYSQL = _NEW | {
    "int8": "tinyint",
    "float": "float",
    "double": "double",
    "string": "longtext",
    "binary": "longblob",
    "instant": "datetime(6)",
    "time": "datetime(6)",
}
NEW: Mapping[str, Mapping[str, str]] = {
    "sqlite": _NEW | {"instant": "datetime", "time": "datetime"},
    "duckdb": _NEW | {"int8": "tinyint", "float": "float", "key": "varchar", "string": "varchar"},
    "mysql": _NEW_MYSQL,
    "mariadb": _NEW_MYSQL,
    "postgresql": _NEW | {"binary": "bytea", "key": "text"},
    "mssql": _NEW
    | {"bool": "bit", "double": "float", "string": "nvarchar(max)", "key": "nvarchar(255)"}
    | {"binary": "varbinary(max)", "instant": "datetimeoffset(7)", "time": "datetime2(7)"},
    "oracle": _NEW
    | {
        "bool": "number(1,0)",
        "int8": "number(3,0)",
        "int16": "number(5,0)",
        "int32": "number(10,0)",
    }
    | {"int64": "number(19,0)", "float": "binary_float", "double": "binary_double"}
    | {"string": "clob", "key": "varchar2(255 char)", "decimal": "number({},{})"}
    | {"instant": "timestamp(6) with time zone", "time": "timestamp(6)"},
}
"""The type of a new column, by backend and by `_kind`."""


def new_type(backend: str, source: pa.DataType, *, key: bool) -> str | None:
    """Return the type of a new column for a type of the DataFrame; None: the database has none.

    :param key: whether the column is part of the key, of which a text needs a bound in some databases.
    """
    if pt.is_dictionary(source):
        source = source.value_type
    if backend == "duckdb" and is_array(source):
        element = new_type(backend, source.value_type, key=False)
        return None if element is None else f"{element}[]"
    words = NEW[backend].get(_kind(source, key=key))
    if words is None or (pt.is_decimal(source) and backend == "sqlite"):
        return None
    return words.format(source.precision, source.scale) if pt.is_decimal(source) else words


def _kind(source: pa.DataType, *, key: bool) -> str:
    if is_text(source):
        return "key" if key else "string"
    if is_blob(source):
        return "binary"
    if pt.is_timestamp(source):
        return "instant" if source.tz else "time"
    return "decimal" if pt.is_decimal(source) else str(source)

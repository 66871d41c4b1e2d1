"""The types of each database: which Arrow type holds one exactly, which values it takes, what a driver gets.

A type stands in a plan in the database's own words, in lower case: `varchar(50)`, `bigint unsigned`. Pure,
and without SQLAlchemy: tasks check rows by it. docs/sql.md has the same table.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from wal_sink.model.plan import is_array, is_blob, is_text
from wal_sink.targets.arrow_values import UUID_PATTERN, int64
from wal_sink.targets.casts import CastRules, is_castable
from wal_sink.targets.columns import TableColumn


class SqlType(NamedTuple):
    """A type in parts: `decimal(10,2)` has the base decimal, and the numbers 10 and 2."""

    base: str
    first: int | None = None
    second: int | None = None


_FORM = re.compile(
    r"(?P<base>[a-z][a-z0-9_ ]*?) ?(?:\((?P<first>\d+)(?:,(?P<second>-?\d+))?\))?(?P<rest> .+)?"
)

_COLLATION = re.compile(r" (character set|charset|collate) \S+")


def words_of(text: str) -> str:
    """Return a type as plans have it: in lower case, without collation, and without blanks among numbers."""
    text = re.sub(r"\s*([(),])\s*", r"\1", _COLLATION.sub("", text.lower()))
    return text.replace(")", ") ").replace(" [", "[").strip()


def parse(words: str) -> SqlType:
    """Take a type apart; `timestamp(3) with time zone` has the base `timestamp with time zone`."""
    parts = _FORM.fullmatch(words)
    if parts is None:
        return SqlType(words)
    first, second = (None if text is None else int(text) for text in parts.group("first", "second"))
    return SqlType(parts["base"] + (parts["rest"] or ""), first, second)


def _unrounded(held_by: pa.DataType) -> Callable[[SqlType], pa.DataType | None]:
    """Return what refuses MySQL's `float(7,4)` and `double(10,2)`, which round."""
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
        unit = {0: "s", 3: "ms", 6: "us", 9: "us"}.get(
            digits if type_.first is None else type_.first
        )
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
_GENERIC: _Arrow = {
    **_COMMON,
    "real": pa.float32(),
    **dict.fromkeys(("blob", "bytea", "varbinary"), pa.binary()),
    **dict.fromkeys(("timestamp", "timestamp without time zone"), _time(6)),
    "timestamp with time zone": _time(6, "UTC"),
}
"""Of any other database: types of standard SQL, whatever its words for further ones mean."""
TYPES: Mapping[str, _Arrow] = {
    "sqlite": _SQLITE,
    "duckdb": _DUCKDB,
    "mysql": _MYSQL,
    "mariadb": _MYSQL,
}
"""By the name that a URL begins with, then by base; others have `_GENERIC`."""

_MYSQLS = ("mysql", "mariadb")
_UTC_TIMES = {
    ("sqlite", "datetime"),
    ("sqlite", "timestamp"),
    ("mysql", "datetime"),
    ("mariadb", "datetime"),
}
"""Types without a zone that take an instant, too, as its time in UTC: where there is no other, or none that
reaches beyond 2038."""


def arrow_type(backend: str, words: str) -> pa.DataType | None:
    """Return the Arrow type that holds a type exactly; None: it cannot be written."""
    if backend == "duckdb" and words.endswith("[]"):
        element = arrow_type(backend, words.removesuffix("[]"))
        return None if element is None else pa.list_(element)
    type_ = parse(words)
    held = TYPES.get(backend, _GENERIC).get(type_.base)
    return held(type_) if callable(held) else held


OF_CHARSET = " of character set "
"""What a type of MySQL ends with, before the name of a character set that does not hold every text."""


class Rules(CastRules):
    """What a database says of types, and its statements that alter a table.

    :param backend: with which the URL begins.
    :param table: its name, as statements write it.
    :param quote: a name of a column.
    """

    def __init__(self, backend: str, table: str, quote: Callable[[str], str]) -> None:
        super().__init__(lambda words: arrow_type(backend, words), table)
        self._backend, self._quote = backend, quote

    def about_type(self, field: pa.Field, column: TableColumn) -> Sequence[str]:
        """Say how a column gets a type that can be written, where no cast leads to its own."""
        type_ = new_type(self._backend, field.type, key=False)
        words, other_charset, _ = column.type.partition(OF_CHARSET)
        if other_charset:
            type_ = f"{words} CHARACTER SET utf8mb4"
        statement = self._alter(field.name, f"TYPE {type_}", f"{type_}")
        if type_ is None or not statement or arrow_type(self._backend, column.type) is not None:
            return super().about_type(field, column)
        remedy = f"No cast leads to that type. Run: {statement} Or drop it from the DataFrame."
        return [self.types_differ(field, column.type, remedy)]

    def is_castable(self, source: pa.DataType, words: str, holds: pa.DataType) -> bool:
        """Take an instant where a column without a zone is the only one for it, too."""
        if pt.is_timestamp(source) and source.tz:
            return (self._backend, parse(words).base) in _UTC_TIMES or is_castable(source, holds)
        return is_castable(source, holds)

    def to_add(self, field: pa.Field) -> str:
        """Return the statement."""
        type_ = new_type(self._backend, field.type, key=False)
        add = f"ALTER TABLE {self._table} ADD COLUMN {self._quote(field.name)} {type_}"
        return f"run: {add};" if type_ else ""

    def to_allow_null(self, column: TableColumn) -> str:
        """Return the statement."""
        words = column.type.partition(OF_CHARSET)[0]
        statement = self._alter(column.name, "DROP NOT NULL", f"{words} NULL")
        return f"run: {statement}" if statement else super().to_allow_null(column)

    def _alter(self, name: str, standard: str, mysql: str) -> str:
        """Return the statement that alters a column; empty for a database in which none does."""
        table, column = self._table, self._quote(name)
        if self._backend in _MYSQLS:
            return f"ALTER TABLE {table} MODIFY {column} {mysql};"
        if self._backend == "sqlite":
            return ""
        return f"ALTER TABLE {table} ALTER COLUMN {column} {standard};"


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


def fits(backend: str, words: str, values: pa.Array) -> pa.BooleanArray | None:
    """Return which values the database takes in a column, of those that the Arrow type holds; None: all.

    :param values: of the type that `arrow_type` returned.
    """
    type_ = parse(words)
    flags = [rule(backend, type_, values) for rule in _RULES]
    taken = [flag for flag in flags if flag is not None]
    return functools.reduce(pc.and_, taken) if taken else None


def _text_fits(backend: str, type_: SqlType, values: pa.Array) -> pa.BooleanArray | None:
    if not pt.is_string(values.type):
        return None
    if type_.base == "uuid":
        return pc.match_substring_regex(values, UUID_PATTERN)
    if backend in _MYSQLS and type_.base in _BYTES:
        return _at_most(pc.binary_length(values), _BYTES[type_.base])
    if type_.first is None or backend == "sqlite":
        return None
    in_bytes = backend not in TYPES  # as some databases count
    return _at_most((pc.binary_length if in_bytes else pc.utf8_length)(values), type_.first)


def _blanks_fit(backend: str, type_: SqlType, values: pa.Array) -> pa.BooleanArray | None:
    """Refuse what a type of fixed length does not keep: blanks at the end, or other lengths."""
    if type_.base == "char" and backend != "sqlite":
        return pc.invert(pc.ends_with(values, " "))
    if type_.base == "binary":
        return pc.equal(pc.binary_length(values).cast(pa.int64()), int64(type_.first or 1))
    return None


def _bytes_fit(backend: str, type_: SqlType, values: pa.Array) -> pa.BooleanArray | None:
    if not pt.is_binary(values.type) or type_.base == "binary":
        return None
    most = type_.first
    if most is None and backend in _MYSQLS:
        most = _BYTES.get(type_.base)
    return None if most is None else _at_most(pc.binary_length(values), most)


def _number_fits(backend: str, type_: SqlType, values: pa.Array) -> pa.BooleanArray | None:
    if pt.is_floating(values.type):
        if backend in _MYSQLS:
            return pc.is_finite(values)
        return (
            pc.invert(pc.is_nan(values)) if backend == "sqlite" else None
        )  # which would store null
    if (bounds := _MEDIUM.get(type_.base)) is not None:
        return _between(values.cast(pa.int64()), *bounds)
    return None


def _time_fits(backend: str, type_: SqlType, values: pa.Array) -> pa.BooleanArray | None:
    if backend in _MYSQLS and type_.base == "timestamp":
        seconds = pc.floor_temporal(values, unit="second").cast(pa.timestamp("s", "UTC"))
        return _between(seconds.cast(pa.int64()), *_TIMESTAMP_S)
    return None


_RULES = (_text_fits, _blanks_fit, _bytes_fit, _number_fits, _time_fits)


def _at_most(lengths: pa.Array, most: int) -> pa.BooleanArray:
    return pc.less_equal(lengths.cast(pa.int64()), int64(most))


def _between(values: pa.Array, first: int, last: int) -> pa.BooleanArray:
    return pc.and_(pc.greater_equal(values, int64(first)), pc.less_equal(values, int64(last)))


def driver_values(backend: str, values: pa.Array) -> list[object]:
    """Return a column as the driver's `executemany` takes it.

    Instants are naive, in UTC, where the connection's zone is UTC. SQLite has dates and times as texts, in
    the form of SQLAlchemy.
    """
    if pt.is_timestamp(values.type) and backend in (*_MYSQLS, "sqlite"):
        values = values.cast(pa.timestamp("us"))
    objects: list[Any] = values.to_pylist()
    if backend == "sqlite" and pt.is_timestamp(values.type):
        return [None if o is None else o.isoformat(" ", "microseconds") for o in objects]
    if backend == "sqlite" and pt.is_date(values.type):
        return [None if o is None else o.isoformat() for o in objects]
    return objects


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
}
"""The type of a new column, by backend and by `_kind`; others have `_NEW`."""


def new_type(backend: str, source: pa.DataType, *, key: bool) -> str | None:
    """Return the type of a new column for a type of the DataFrame; None: the database has none.

    :param key: whether the column is part of the key, of which a text needs a bound in some databases.
    """
    if pt.is_dictionary(source):
        source = source.value_type
    if backend == "duckdb" and is_array(source):
        element = new_type(backend, source.value_type, key=False)
        return None if element is None else f"{element}[]"
    words = NEW.get(backend, _NEW).get(_kind(source, key=key))
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

"""PostgreSQL's types as `format_type` prints them: what the log holds for each, and which Spark types fit.

Pure. docs/postgresql.md has the same table; a test compares them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import pyarrow as pa
import pyarrow.types as pt

from wal_sink.errors import SchemaMismatch
from wal_sink.model.plan import Plan, is_array, is_blob, is_text
from wal_sink.targets.casts import key_of

_FORM = re.compile(
    r"(?P<base>[a-z][a-z ]*?)(?:\((?P<first>\d+)(?:,(?P<second>-?\d+))?\))?(?P<rest> with(?:out)? time zone)?"
    r"(?P<array>\[\])?"
)
MAX_DIGITS = 38
"""Of a decimal, in Spark and in Arrow."""
MAX_INT_DIGITS = 19
"""Of a bigint."""

_INTEGERS = {"smallint": pa.int16(), "integer": pa.int32(), "bigint": pa.int64()}
_TEXTS = ("text", "character varying", "character", "citext")
_UNITS = {None: "us", 6: "us", 3: "ms", 0: "s"}
"""Arrow's unit for digits of a second; the server would round values of any other number of digits."""


class PgType(NamedTuple):
    """A type in parts: `numeric(10,2)[]` is an array of base numeric, with the numbers 10 and 2."""

    base: str
    """Such as `timestamp with time zone`, without numbers."""
    first: int | None = None
    """Length of a string, or digits of a numeric, or of a second; None: not bounded."""
    second: int | None = None
    """Digits after the point."""
    is_array: bool = False

    @property
    def element(self) -> PgType:
        """The type of an array's elements."""
        return self._replace(is_array=False)


def parse(words: str) -> PgType | None:
    """Take PostgreSQL's words for a type apart; None for words of another form."""
    parts = _FORM.fullmatch(words)
    if parts is None:
        return None
    first, second = (None if text is None else int(text) for text in parts.group("first", "second"))
    base = parts["base"] + (parts["rest"] or "")
    if base == "numeric" and first is not None and second is None:
        second = 0
    return PgType(base, first, second, bool(parts["array"]))


def log_type(words: str, source: pa.DataType) -> pa.DataType | None:
    """Return the Arrow type that the log holds for a column; None: the DataFrame's type does not fit.

    A cast to it keeps every value of `source`, or refuses it; none is changed. The server takes it as it is,
    or by the cast that `staged_type` says.

    :param words: the column's type, as PostgreSQL prints it.
    :param source: the DataFrame's type.
    """
    type_ = parse(words)
    if type_ is None:
        return None
    if pt.is_dictionary(source):
        source = source.value_type
    if type_.is_array:
        if not is_array(source) or is_document(source.value_type):
            return None
        element = _scalar(type_.element, source.value_type, nested=True)
        return None if element is None else pa.list_(element)
    return _scalar(type_, source, nested=False)


_SOURCES = (
    *(pa.bool_(), pa.int64(), pa.float32(), pa.string(), pa.binary(), pa.date32()),
    *(pa.timestamp("us", "UTC"), pa.timestamp("us"), pa.time64("us"), pa.duration("us")),
)


def stored_type(words: str) -> pa.DataType | None:
    """Return a type that the log holds for a column, whatever the DataFrame's is; None: it cannot be written.

    Of a numeric without bounds, whose values the log holds as the DataFrame has them, it is one of several.
    """
    of_lists = map(pa.list_, _SOURCES)
    held = (log_type(words, source) for source in (*_SOURCES, *of_lists))
    return next((type_ for type_ in held if type_ is not None), None)


def _scalar(type_: PgType, source: pa.DataType, *, nested: bool) -> pa.DataType | None:  # noqa: PLR0911 -- a case each
    base = type_.base
    if base in _INTEGERS:
        return _INTEGERS[base] if pt.is_integer(source) else None
    if base == "numeric":
        return _decimal(type_, source)
    if base in _TEXTS:
        return pa.string() if is_text(source) else None
    if base == "uuid":
        if is_text(source):
            return pa.string() if nested else pa.binary(16)
        return source if source == pa.binary(16) and not nested else None
    if base in ("json", "jsonb"):
        return pa.string() if is_text(source) or is_document(source) else None
    if base == "double precision":
        return pa.float64() if pt.is_integer(source) or is_float(source) else None
    if base == "real":
        return pa.float32() if source in (pa.int8(), pa.int16(), pa.float32()) else None
    return _plain(type_, source)


def _plain(type_: PgType, source: pa.DataType) -> pa.DataType | None:
    """Types that take one kind of source."""
    unit = _UNITS.get(type_.first)
    if unit is not None and type_.base.startswith("timestamp "):
        zone = "UTC" if type_.base == "timestamp with time zone" else None
        fits = pt.is_timestamp(source) and (source.tz is not None) == (zone is not None)
        return pa.timestamp(unit, zone) if fits else None
    whole = type_.first in (None, 6)
    fits_one = {
        "boolean": (pt.is_boolean(source), pa.bool_()),
        "bytea": (is_blob(source), pa.binary()),
        "date": (pt.is_date32(source), pa.date32()),
        "time without time zone": (pt.is_time(source) and whole, pa.time64("us")),
        "interval": (pt.is_duration(source) and whole, pa.duration("us")),
    }
    fits, stored = fits_one.get(type_.base, (False, None))
    return stored if fits else None


def _decimal(type_: PgType, source: pa.DataType) -> pa.DataType | None:
    if pt.is_integer(source):
        digits, scale = MAX_INT_DIGITS, 0
    elif pt.is_decimal(source):
        digits, scale = source.precision, source.scale
    else:
        return None
    if type_.first is None:
        return pa.decimal128(digits, scale)
    precision, most = type_.first, type_.second or 0
    if not 0 <= most <= precision:
        return None
    if precision <= MAX_DIGITS:
        return pa.decimal128(precision, most)
    # More digits than Arrow has: nothing to refuse, if the table holds all that the DataFrame can have.
    return (
        pa.decimal128(digits, scale)
        if scale <= most and digits - scale <= precision - most
        else None
    )


def staged_type(words: str) -> str | None:
    """Return the type by which a column is copied, to be cast by the server to its own; None: as it is.

    Those that pgpq does not encode: COPY's binary format names the type of an array's elements.
    """
    type_ = parse(words)
    if type_ is None or not type_.is_array:
        return None
    if type_.base == "timestamp with time zone":
        return "timestamp without time zone[]"  # in UTC, as the session's time zone is
    if type_.base in ("character varying", "character", "citext", "uuid", "json"):
        return "text[]"
    return None


def is_staged(plan: Plan) -> bool:
    """Return True if rows go through a temporary table: those of a key, or those that the server casts."""
    return bool(key_of(plan)) or any(staged_type(column.type) for column in plan.columns)


def postgresql_type(source: pa.DataType) -> str:  # noqa: PLR0911 -- a case each
    """Return the type that a new column would have for a type of the DataFrame."""
    if pt.is_dictionary(source):
        source = source.value_type
    if is_array(source):
        return (
            "jsonb" if is_document(source.value_type) else f"{postgresql_type(source.value_type)}[]"
        )
    if is_document(source):
        return "jsonb"
    if pt.is_decimal(source):
        return f"numeric({source.precision},{source.scale})"
    if pt.is_timestamp(source):
        return f"timestamp with{'out' if source.tz is None else ''} time zone"
    if pt.is_integer(source):
        width = source.bit_width
        return "smallint" if width <= 16 else "integer" if width == 32 else "bigint"
    if is_float(source):
        return "real" if source == pa.float32() else "double precision"
    names = {pt.is_boolean: "boolean", pt.is_date32: "date", pt.is_time: "time without time zone"}
    names |= {pt.is_duration: "interval", is_blob: "bytea"}
    return next((name for fits, name in names.items() if fits(source)), "text")


def is_float(source: pa.DataType) -> bool:
    """Return True if this is Spark's float or double."""
    return source in (pa.float32(), pa.float64())


def is_document(source: pa.DataType) -> bool:
    """Return True if JSON is made of it: a struct, a map, or an array; none is in an array of PostgreSQL."""
    return bool(pt.is_struct(source) or pt.is_map(source) or is_array(source))


_ROW_BYTES = 8_160
"""Of a row of PostgreSQL in its table: a page of 8 kB. A value of a length that varies may lie elsewhere."""
_HEAD_BYTES = 24
_WIDTHS: Mapping[str, int] = {
    **dict.fromkeys(("bigint", "double precision", "time without time zone"), 8),
    **dict.fromkeys(("timestamp with time zone", "timestamp without time zone", "timestamp"), 8),
    **dict.fromkeys(("integer", "real", "date"), 4),
    "smallint": 2,
    "boolean": 1,
    "uuid": 16,
    "interval": 16,
}
"""Bytes of the types of fixed length, in a row."""


def refuse_wide_row(types: Iterable[str], table: str) -> None:
    """Refuse a table of PostgreSQL that can take no row in which all columns have a value.

    :param types: of the columns that are written.
    :raises SchemaMismatch: their values of fixed length alone are longer than a page.
    """
    widths = [_WIDTHS.get(words.partition("(")[0].strip(), 0) for words in types]
    total = _HEAD_BYTES + sum(widths)
    if total > _ROW_BYTES:
        raise SchemaMismatch(
            f"A row of {table} has {total:,} bytes in {sum(map(bool, widths)):,} columns of fixed length, and"
            f" PostgreSQL takes {_ROW_BYTES:,} bytes (a page): it would refuse every row without nulls.",
            'Put columns of one type together into an array, .withColumn("v", F.array("a", "b", …)), and drop'
            " them; or write to two tables.",
        )

"""Values of each CQL type, for tests with random rows, and what Cassandra returns for them."""

from __future__ import annotations

import datetime as dt
import decimal
import ipaddress
import itertools
import socket
import struct
import uuid
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import pyarrow as pa
from cassandra import util
from cassandra.util import Date, Duration, Time
from hypothesis import strategies as st

EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001 -- the driver's datetimes are naive, in UTC
DAY = 86_400 * 10**9


class Case(NamedTuple):
    """A CQL type with a Spark type that can be written to it."""

    cql: str
    arrow: pa.DataType
    values: st.SearchStrategy[Any]
    """Random values, as `pyarrow.array` takes them."""
    back: Callable[[Any], Any] = lambda value: value
    """Converts a value to what the driver returns for it."""
    cast: pa.DataType | None = None
    """The type of the array before its cast to `arrow`; None if `pyarrow.array` takes `arrow`."""
    as_key: Callable[[Any], Any] = lambda value: value
    """Converts a value to one that a set, or the keys of a map, may have."""

    def array(self, values: list[Any]) -> pa.Array:
        """Return values as a column of the DataFrame."""
        return pa.array(values, self.cast or self.arrow).cast(self.arrow)


def whole(bits: int) -> st.SearchStrategy[int]:
    """Return random integers of a width, with frequent extremes."""
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    return st.one_of(st.integers(low, high), st.sampled_from([low, -1, 0, high]))


def decimals(scale: int, digits: int = 38) -> st.SearchStrategy[decimal.Decimal]:
    """Return random decimals of a scale, without the context's rounding."""
    return st.integers(-(10**digits - 1), 10**digits - 1).map(
        lambda n: decimal.Decimal((int(n < 0), tuple(map(int, str(abs(n)))), -scale))
    )


def as_float(value: float) -> float:
    """Round a number to 32 bits."""
    return float(struct.unpack("f", struct.pack("f", value))[0])


def _time(nanoseconds: int) -> str:
    seconds, fraction = divmod(nanoseconds, 10**9)
    text = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return text + (f".{fraction:09}" if fraction else "")


def inet(text: str) -> str:
    """Return an address as the driver prints it."""
    address = ipaddress.ip_address(text)
    if isinstance(address, ipaddress.IPv4Address):
        return text
    if address.ipv4_mapped:  # Cassandra does this in frozen collections, and the sink everywhere
        return str(address.ipv4_mapped)
    return socket.inet_ntop(socket.AF_INET6, address.packed)


FLOATS = st.floats(width=32, allow_nan=False)
DOUBLES = st.floats(allow_nan=False)
MAPPED = st.ip_addresses(v=4).map("::ffff:{}".format)
NANOSECONDS = st.one_of(st.integers(0, DAY - 1), st.sampled_from([0, DAY - 1]))
MICROS = st.integers(-(2**51), 2**51)
"""Microseconds from 1898 to 2041; the driver rounds other times wrongly, see `test_instants`."""
MOST = (2**63 - 1) // 1_000
V1 = st.integers(0, 2**128 - 1).map(lambda n: str(uuid.UUID(int=n, version=1)))

DIGITS = st.one_of(st.integers(-(10**90), 10**90), st.integers(0, 300).map(lambda n: -(2**n)))
TEXTS = st.one_of(
    st.builds(
        "{}{}.{:040}e{}".format,
        st.sampled_from(["", "-", "+"]),
        *[st.integers(0, 10**40)] * 2,
        st.integers(-99, 99),
    ),
    st.sampled_from(["0", "-0", ".5", "5.", "1E+3", "0.00"]),
)


def once(text: str) -> str:
    """Return the shortest text of a decimal. Elements of a set that are equal numbers would be one."""
    plain = f"{decimal.Decimal(text):f}"
    whole, _, fraction = plain.partition(".")
    fraction = fraction.rstrip("0")
    return f"{whole}.{fraction}" if fraction else "0" if whole in ("-0", "0") else whole


def either_case(value: uuid.UUID) -> st.SearchStrategy[str]:
    """Return a uuid as text, in lower or upper case."""
    return st.sampled_from([str(value), str(value).upper()])


def packed(value: bytes) -> uuid.UUID:
    """Return the uuid of 16 bytes."""
    return uuid.UUID(bytes=value)


SCALARS = [
    Case("ascii", pa.string(), st.text(st.characters(max_codepoint=127))),
    Case("text", pa.string(), st.text()),
    Case("boolean", pa.bool_(), st.booleans()),
    Case("tinyint", pa.int8(), whole(8)),
    Case("smallint", pa.int8(), whole(8)),
    Case("smallint", pa.int16(), whole(16)),
    Case("int", pa.int16(), whole(16)),
    Case("int", pa.int32(), whole(32)),
    Case("bigint", pa.int32(), whole(32)),
    Case("bigint", pa.int64(), whole(64)),
    Case("varint", pa.int8(), whole(8)),
    Case("varint", pa.int64(), whole(64)),
    Case("varint", pa.decimal128(38, 0), decimals(0), int),
    Case("varint", pa.string(), DIGITS.map(str), int),
    Case("float", pa.float32(), FLOATS),
    Case("double", pa.float32(), FLOATS),
    Case("double", pa.float64(), DOUBLES),
    Case("decimal", pa.int64(), whole(64), decimal.Decimal),
    Case("decimal", pa.decimal128(38, 18), decimals(18)),
    Case("decimal", pa.string(), TEXTS, decimal.Decimal, as_key=once),
    Case(
        "timestamp",
        pa.timestamp("us", "Asia/Tokyo"),
        MICROS,
        lambda micros: EPOCH + dt.timedelta(milliseconds=micros // 1_000),
        pa.int64(),
        lambda micros: int(micros / 1_000) * 1_000,  # Cassandra keeps milliseconds
    ),
    Case("date", pa.date32(), st.dates(), Date),
    Case("time", pa.time64("ns"), NANOSECONDS, Time, pa.int64()),
    Case("time", pa.string(), NANOSECONDS.map(_time), Time),
    Case(
        "duration",
        pa.duration("us"),
        st.one_of(st.integers(-MOST, MOST), st.sampled_from([-MOST, MOST])),
        lambda micros: Duration(0, 0, micros * 1_000),
        pa.int64(),
    ),
    Case("uuid", pa.string(), st.uuids().flatmap(either_case), uuid.UUID),
    Case("timeuuid", pa.string(), V1, uuid.UUID),
    Case("uuid", pa.binary(), st.uuids().map(lambda item: item.bytes), packed),
    Case("timeuuid", pa.binary(), V1.map(lambda text: uuid.UUID(text).bytes), packed),
    Case("inet", pa.string(), st.one_of(st.ip_addresses().map(str), MAPPED), inet),
    Case("blob", pa.binary(), st.binary()),
]


NO_KEYS = ("duration",)
"""Types that a key and a set may not have."""
FIELDS = ('a "b', "Order", "later")
"""The fields of the user-defined types; the DataFrame has the second and the first."""


def type_name(case: Case) -> str:
    """Return the name of the user-defined type with two fields of a type."""
    return f"Two {case.cql}"


def shapes(case: Case) -> list[Case]:
    """Return the case, and each collection, tuple and user-defined type of it."""
    many, some = st.lists(case.values, max_size=4), st.none() | case.values
    elements = st.lists(case.values.map(case.as_key), max_size=4)
    distinct = st.lists(case.values.map(case.as_key), max_size=4, unique=True)
    cases = [
        case,
        _shape(case, f"frozen<list<{case.cql}>>", many, list, _lists),
        _shape(case, f"list<{case.cql}>", many, list, _lists),
        _shape(
            case, f"frozen<tuple<{case.cql}, {case.cql}>>", st.tuples(some, some), tuple, _structs
        ),
        _shape(
            case,
            f'frozen<"{type_name(case)}">',
            st.tuples(some, some),
            lambda pair: (pair[1], pair[0], None),
            _structs,
        ),
        _shape(
            case,
            f"map<text, frozen<list<{case.cql}>>>",
            st.lists(st.tuples(st.text(max_size=3), many), max_size=2, unique_by=lambda kv: kv[0]),
            dict,
            _maps_of_lists,
        ),
    ]
    if case.cql not in NO_KEYS:
        cases += [
            _shape(case, f"set<{case.cql}>", elements, set, _lists),
            _shape(case, f"frozen<set<{case.cql}>>", elements, set, _lists),
            _shape(case, f"map<{case.cql}, {case.cql}>", distinct, _to_itself, _maps),
        ]
    return cases


def _to_itself(keys: list[Any]) -> dict[Any, Any]:
    return {key: key for key in keys}


class _Shape(Case):
    """A case whose arrays are made from the arrays of another case."""

    make: Callable[[list[Any]], pa.Array]

    def array(self, values: list[Any]) -> pa.Array:
        """Return values as a column of the DataFrame."""
        return self.make(values)


def _shape(
    part: Case,
    cql: str,
    values: st.SearchStrategy[Any],
    back: Callable[[Any], Any],
    build: Callable[[Case, list[Any]], pa.Array],
) -> Case:
    def converted(value: Any) -> Any:
        return back(_each(part.back, value))

    shape = _Shape(cql, build(part, []).type, values, converted)
    shape.make = lambda options: build(part, options)
    return shape


def _each(back: Callable[[Any], Any], value: Any) -> Any:
    if isinstance(value, list | tuple):
        if value and isinstance(value[0], tuple):  # a map of lists
            return [(key, [back(item) for item in values]) for key, values in value]
        return type(value)(None if item is None else back(item) for item in value)
    return back(value)


def _offsets(values: list[Any]) -> tuple[pa.Array, pa.Array]:
    ends = list(itertools.accumulate(len(value or ()) for value in values))
    nulls = pa.array([value is None for value in values], pa.bool_())
    return pa.array([0, *ends], pa.int32()), nulls


def _flat(values: list[Any]) -> list[Any]:
    return [item for value in values for item in value or ()]


def _lists(part: Case, values: list[Any]) -> pa.Array:
    offsets, nulls = _offsets(values)
    return pa.ListArray.from_arrays(offsets, part.array(_flat(values)), mask=nulls)


def _maps(part: Case, values: list[Any]) -> pa.Array:
    offsets, nulls = _offsets(values)
    keys = part.array(_flat(values))
    return pa.MapArray.from_arrays(offsets, keys, keys, mask=nulls)


def _maps_of_lists(part: Case, values: list[Any]) -> pa.Array:
    offsets, nulls = _offsets(values)
    pairs = _flat(values)
    keys = pa.array([key for key, _ in pairs], pa.string())
    items = _lists(part, [value for _, value in pairs])
    return pa.MapArray.from_arrays(offsets, keys, items, mask=nulls)


def _structs(part: Case, values: list[Any]) -> pa.Array:
    first, second = (
        zip(*(value or (None, None) for value in values), strict=True) if values else ((), ())
    )
    nulls = pa.array([value is None for value in values], pa.bool_())
    columns = [part.array(list(first)), part.array(list(second))]
    return pa.StructArray.from_arrays(columns, names=[FIELDS[1], FIELDS[0]], mask=nulls)


def plain(value: Any) -> Any:
    """Normalize order, duplicates, and the sign of 0.0, so that expected and actual values compare."""
    if isinstance(value, float):
        return repr(value + 0.0)
    if isinstance(value, Mapping):
        return {repr(plain(key)): plain(item) for key, item in value.items()}
    if isinstance(value, util.SortedSet | set):
        return {repr(plain(item)) for item in value}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def expected(case: Case, value: Any) -> Any:
    """Return the value that Cassandra returns; an empty collection that is not frozen is null."""
    if value is None or (case.cql.startswith(("list<", "set<", "map<")) and not value):
        return None
    return plain(case.back(value))

"""PostgreSQL's types: values that arrive, values that are refused, and the table in docs/postgresql.md."""

from __future__ import annotations

import datetime as dt
import random
import re
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from tests.sql.stores import Postgresql, bring
from wal_sink.errors import InvalidRow, SchemaMismatch
from wal_sink.model.plan import Column
from wal_sink.targets.postgresql.types import NEW, TYPES, stored_values, takes, temporary_type
from wal_sink.targets.sql.types import arrow_type, new_type

UTC = dt.UTC
UUIDS = ["123e4567-e89b-12d3-a456-426614174000", "00000000-0000-0000-0000-00000000000f"]
STRUCT = pa.struct([("a", pa.int64()), ("b", pa.list_(pa.string()))])
MAP = pa.map_(pa.string(), pa.decimal128(10, 2))
NESTED = pa.struct(
    [
        ("at", pa.timestamp("us", "UTC")),
        ("raw", pa.list_(pa.binary())),
        ("by", pa.map_(pa.int32(), pa.float64())),
    ]
)
INSTANTS = [
    dt.datetime(2024, 2, 29, 12, 30, 1, 123456, UTC),
    dt.datetime(1, 1, 1, tzinfo=UTC),
    dt.datetime(1969, 12, 31, 23, 59, 59, 999999, UTC),
    dt.datetime(9999, 12, 31, 23, 59, 59, 999999, UTC),
]
AT = "2024-02-29 12:30:01.123456"
"""The first instant, as PostgreSQL prints it."""

SAME_TEXT = [
    ("boolean", pa.bool_(), "true false"),
    ("smallint", pa.int8(), "-128 127"),
    ("smallint", pa.int64(), "-32768 32767"),
    ("integer", pa.int32(), "-2147483648 2147483647"),
    ("bigint", pa.int64(), "-9223372036854775808 9223372036854775807"),
    ("double precision", pa.float64(), "0.1 -0"),
    ("double precision", pa.float32(), "1.5"),
    ("double precision", pa.int64(), "1099511627776"),
    ("numeric(12,2)", pa.decimal128(12, 2), "-9999999999.99 0.01"),
    ("numeric(12,2)", pa.decimal128(38, 18), "1.50"),
    ("numeric(20)", pa.int64(), "9223372036854775807"),
    ("numeric", pa.decimal128(38, 18), "1.000000000000000001 -0.500000000000000000"),
    ("numeric", pa.decimal128(38, 0), "9" * 38),
    ("text", pa.large_string(), "a b"),
    ("text", pa.dictionary(pa.int32(), pa.string()), "a b a"),
    ("character varying(3)", pa.string(), "abc ëëë"),
    ("character varying", pa.string(), "abc"),
    ("character(3)", pa.string(), "a"),
    ("date", pa.date32(), "0001-01-01 9999-12-31"),
    ("uuid", pa.string(), " ".join(UUIDS)),
]
"""Type, type of the DataFrame, and values as both Arrow and PostgreSQL print them."""

ARRAYS: list[tuple[str, pa.DataType, Sequence[object], str]] = [
    ("integer", pa.int32(), [1, None], "1,NULL"),
    ("bigint", pa.int16(), [1], "1"),
    ("text", pa.string(), ["a", 'q"', None], 'a,"q\\"",NULL'),
    ("character varying(3)", pa.string(), ["abc", None], "abc,NULL"),
    ("double precision", pa.float64(), [0.5], "0.5"),
    ("real", pa.float32(), [0.5], "0.5"),
    ("numeric(12,2)", pa.decimal128(12, 2), [Decimal("1.25"), None], "1.25,NULL"),
    ("numeric(12,2)", pa.int64(), [7, None], "7.00,NULL"),
    ("boolean", pa.bool_(), [True, None], "t,NULL"),
    ("date", pa.date32(), [dt.date(2024, 1, 1)], "2024-01-01"),
    ("bytea", pa.binary(), [b"\x01"], '"\\\\x01"'),
    ("timestamp with time zone", pa.timestamp("us", "UTC"), INSTANTS[:1], f'"{AT}+00"'),
    ("timestamp without time zone", pa.timestamp("us"), INSTANTS[:1], f'"{AT}"'),
    ("uuid", pa.string(), [UUIDS[0], None], f"{UUIDS[0]},NULL"),
    ("jsonb", pa.string(), ['{"a":1}', None], '"{\\"a\\": 1}",NULL'),
    ("json", pa.string(), ["[1]", None], "[1],NULL"),
    ("interval", pa.duration("us"), [dt.timedelta(seconds=5)], "00:00:05"),
    ("time without time zone", pa.time64("us"), [dt.time(1, 2)], "01:02:00"),
]
"""Types of elements, their types in the DataFrame, elements, and the text of their array."""

CASES: list[tuple[str, pa.Array, list[str]]] = [
    *(
        (type_, pa.array(text.split()).cast(source), text.split())
        for type_, source, text in SAME_TEXT
    ),
    (
        "real",
        pa.array([1.5, float("inf"), float("nan")], pa.float32()),
        ["1.5", "Infinity", "NaN"],
    ),
    ("numeric(12,2)", pa.array([-7], pa.int32()), ["-7.00"]),
    (
        "numeric(60,20)",
        pa.array([Decimal("12345678901234567890.5")], pa.decimal128(38, 10)),
        ["12345678901234567890.50000000000000000000"],
    ),
    ("text", pa.array(["", "Zoë 🚀\n\t\\."]), ["", "Zoë 🚀\n\t\\."]),
    ("bytea", pa.array([b"", b"\x00\xff"]), ["\\x", "\\x00ff"]),
    (
        "timestamp with time zone",
        pa.array(INSTANTS, pa.timestamp("us", "UTC")),
        [
            "2024-02-29 12:30:01.123456+00",
            "0001-01-01 00:00:00+00",
            "1969-12-31 23:59:59.999999+00",
            "9999-12-31 23:59:59.999999+00",
        ],
    ),
    (
        "timestamp with time zone",
        pa.array(INSTANTS[:1], pa.timestamp("us", "Europe/Berlin")),
        ["2024-02-29 12:30:01.123456+00"],
    ),
    (
        "timestamp(3) with time zone",
        pa.array([INSTANTS[0].replace(microsecond=123000)], pa.timestamp("us", "UTC")),
        ["2024-02-29 12:30:01.123+00"],
    ),
    (
        "timestamp without time zone",
        pa.array([INSTANTS[0].replace(tzinfo=None)], pa.timestamp("us")),
        ["2024-02-29 12:30:01.123456"],
    ),
    (
        "time without time zone",
        pa.array([dt.time(23, 59, 59, 999999)], pa.time64("ns")),
        ["23:59:59.999999"],
    ),
    (
        "interval",
        pa.array([dt.timedelta(days=-3, seconds=5)], pa.duration("us")),
        ["-71:59:55"],
    ),
    ("uuid", pa.array([UUIDS[1].upper()]), [UUIDS[1]]),
    ("json", pa.array(['{"a" : 1}', "3"]), ['{"a" : 1}', "3"]),
    ("jsonb", pa.array(['{"a" : 1}', "null"]), ['{"a": 1}', "null"]),
    (
        "jsonb",
        pa.array([{"a": 2**60, "b": ["x", None]}], STRUCT),
        [f'{{"a": {2**60}, "b": ["x", null]}}'],
    ),
    (
        "json",
        pa.array([{"at": INSTANTS[0], "raw": [b"\x01"], "by": [(1, 0.5)]}], NESTED),
        ['{"at":"2024-02-29T12:30:01.123456Z","raw":["AQ=="],"by":{"1":0.5}}'],
    ),
    ("jsonb", pa.array([[("k", Decimal("1.10"))]], MAP), ['{"k": 1.10}']),
    ("json", pa.array([[("k", Decimal("1.10"))]], MAP), ['{"k":1.10}']),
    ("jsonb", pa.array([[1, None]], pa.list_(pa.int32())), ["[1, null]"]),
    (
        "jsonb",
        pa.array(
            [[(dt.date(2024, 1, 1), INSTANTS[0])]], pa.map_(pa.date32(), pa.timestamp("us", "UTC"))
        ),
        ['{"2024-01-01": "2024-02-29T12:30:01.123456Z"}'],
    ),
    ("text[]", pa.array([["a"]], pa.large_list(pa.large_string())), ["{a}"]),
    *(
        (f"{type_}[]", pa.array([elements, []], pa.list_(source)), [f"{{{text}}}", "{}"])
        for type_, source, elements, text in ARRAYS
    ),
]


@pytest.mark.parametrize(
    ("type_", "values", "expected"),
    CASES,
    ids=[f"{type_}<-{values.type}" for type_, values, _ in CASES],
)
def test_values_of_every_type_arrive(
    store: Postgresql, type_: str, values: pa.Array, expected: list[str]
) -> None:
    """The last value is a null. The batch begins in the middle of its array."""
    store.execute(f"CREATE TABLE t (n int, x {type_})")
    arrays = [pa.nulls(3, values.type), values, pa.nulls(1, values.type)]
    shifted = pa.concat_arrays(arrays).slice(3)
    batch = pa.record_batch([pa.array(range(len(shifted)), pa.int32()), shifted], names=["n", "x"])
    bring(store.target(), batch)
    rows = store.execute("SET timezone = 'UTC'; SELECT x::text FROM t ORDER BY n")
    assert [text for (text,) in rows] == [*expected, None]


def test_random_decimals_arrive_to_the_digit(store: Postgresql) -> None:
    """A library makes the binary form of a numeric, of groups of four digits."""
    chance = random.Random(15)
    digits_of = [(1, 0), (4, 4), (5, 1), (12, 2), (18, 18), (38, 0), (38, 19), (38, 38)]
    for precision, scale in digits_of:
        digits = [chance.randrange(10 ** chance.randint(0, precision)) for _ in range(500)]
        values = [Decimal(chance.choice([-1, 1]) * number).scaleb(-scale) for number in digits]
        store.execute(f"CREATE TABLE t (n int, x numeric({precision},{scale}))")
        arrays = [
            pa.array(range(500), pa.int32()),
            pa.array(values, pa.decimal128(precision, scale)),
        ]
        bring(store.target(), pa.record_batch(arrays, names=["n", "x"]))
        assert [x for (x,) in store.execute("SELECT x FROM t ORDER BY n")] == values
        store.execute("DROP TABLE t")


def test_columns_of_all_types_arrive_side_by_side(store: Postgresql) -> None:
    """COPY writes them into the table, and into the temporary table."""
    chosen = {type_: (values, expected) for type_, values, expected in CASES}
    direct = [type_ for type_ in chosen if temporary_type(type_) is None]
    for number, types in enumerate([direct, list(chosen)]):
        columns = ", ".join(f'"{type_}" {type_}' for type_ in types)
        store.execute(f"CREATE TABLE wide{number} ({columns})")
        batch = pa.record_batch([chosen[type_][0].slice(0, 1) for type_ in types], names=types)
        bring(store.target(table=f"wide{number}"), batch)
        shown = ", ".join(f'"{type_}"::text' for type_ in types)
        (row,) = store.execute(f"SET timezone = 'UTC'; SELECT {shown} FROM wide{number}")
        assert list(row) == [chosen[type_][1][0] for type_ in types]


def keyed_by(*keys: float) -> pa.Array:
    """Return maps that each have one entry with one of the keys."""
    return pa.array([[(key, 1)] for key in keys], pa.map_(pa.float64(), pa.int64()))


INVALID: list[tuple[str, pa.Array, str]] = [
    ("smallint", pa.array([1, 40_000]), "does not fit into smallint"),
    ("double precision", pa.array([1, 2**53 + 1]), "does not fit into double precision"),
    (
        "numeric(4,2)",
        pa.array([Decimal("1.00"), Decimal("100.00")]),
        r"does not fit into numeric\(4,2\)",
    ),
    (
        "numeric(4,2)",
        pa.array([Decimal("1.000"), Decimal("1.001")]),
        r"does not fit into numeric\(4,2\)",
    ),
    ("numeric(4,2)", pa.array([1, 100]), r"does not fit into numeric\(4,2\)"),
    ("numeric(4,2)[]", pa.array([[1], [100]]), r"does not fit into numeric\(4,2\)\[\]"),
    ("timestamp(0) without time zone", pa.array([0, 1], pa.timestamp("us")), "does not fit"),
    (
        "character varying(3)",
        pa.array(["abc", "abcd"]),
        r"does not fit into character varying\(3\)",
    ),
    ("character(2)[]", pa.array([["ab"], ["abc"]]), r"does not fit into character\(2\)\[\]"),
    ("text", pa.array(["a", "a\0b"]), "the character NUL"),
    ("text[]", pa.array([["a"], ["b", "a\0b"]]), "has an element that has the character NUL"),
    ("uuid", pa.array([UUIDS[0], "123"]), "does not fit into uuid"),
    ("uuid[]", pa.array([[], [UUIDS[0], "123"]]), r"does not fit into uuid\[\]"),
    ("json", pa.array(["{}", "{"]), "is not JSON"),
    ("jsonb", pa.array(["{}", '"\\u0000"']), "the character NUL"),
    ("jsonb", pa.array(['"\\\\u0000"', '"\\ud800"']), "is not JSON"),
    ("jsonb", pa.array(["1e308", "1e400"]), "is not JSON"),
    ("jsonb", pa.array(["9" * 300, "9" * 140_000]), "is not JSON"),
    (
        "jsonb",
        pa.array([{"a": 1.0}, {"a": float("nan")}]),
        r"has a number that JSON cannot hold \(nan\)",
    ),
    ("json", keyed_by(1.0, float("nan")), r"has a number that JSON cannot hold \(nan\)"),
    ("jsonb", keyed_by(1.0, float("inf")), r"has a number that JSON cannot hold \(inf\)"),
    ("jsonb", pa.array([{"a": "x"}, {"a": "\0"}]), "the character NUL"),
    ("date", pa.array([0, 2_932_897], pa.date32()), "does not fit into date"),
    (
        "timestamp with time zone",
        pa.array([0, -(2**63)], pa.timestamp("us", "UTC")),
        "9999, and does not fit into timestamp",
    ),
    ("integer NOT NULL", pa.array([1, None], pa.int32()), "takes no null"),
]


@pytest.mark.parametrize(
    ("type_", "values", "words"), INVALID, ids=[f"{type_}<-{words}" for type_, _, words in INVALID]
)
def test_value_that_does_not_fit_is_refused(
    store: Postgresql, type_: str, values: pa.Array, words: str
) -> None:
    """The error names the second row, and has a remedy; the first row is written."""
    store.execute(f"CREATE TABLE t (n int, x {type_})")
    target, numbers = store.target(), pa.array([1, 2], pa.int32())
    batch = pa.record_batch([numbers, values], names=["n", "x"])
    plan = target.plan(batch.schema, "key")
    with pytest.raises(InvalidRow, match=words) as caught:
        target.check(batch, plan)
    assert "Column x of" in caught.value.what
    assert "the row with n=2" in caught.value.what
    assert caught.value.remedy
    bring(target, batch.slice(0, 1))


SPARK = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "decimal(10,2)": pa.decimal128(10, 2),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "time": pa.time64("us"),
    "interval day to second": pa.duration("us"),
    "array<int>": pa.list_(pa.int32()),
    "map<string,int>": pa.map_(pa.string(), pa.int32()),
    "struct<a:int>": pa.struct([("a", pa.int32())]),
}
PAGE = Path(__file__).parents[2] / "docs" / "postgresql.md"
TYPES_SECTION = PAGE.read_text().split("\n## Types\n")[1].split("\n## ")[0]
ROWS = re.findall(r"^\| `(.+?)` \| (.+?) \| (.+?) \|", TYPES_SECTION, re.MULTILINE)


@pytest.mark.parametrize(("words", "sources", "held"), ROWS, ids=[row[0] for row in ROWS])
def test_documentation_lists_all_types_that_fit(words: str, sources: str, held: str) -> None:
    """The integers are in the note of `numeric`."""
    assert len(ROWS) > 15
    column = Column(name="c", source="", type=words, role="regular")
    listed = {*re.split(r", (?![0-9])", sources)}
    for name in listed:
        assert str(stored_values(column, pa.nulls(1, SPARK[name])).type) == held, name
    integers = {"tinyint", "smallint", "int", "bigint"} if words == "numeric" else set()
    assert {name for name, source in SPARK.items() if fits(words, source)} == listed | integers


UNFIT = [
    ("real", pa.int32()),
    ("numeric(3,-2)", pa.int32()),
    ("numeric(50,2)", pa.decimal128(10, 4)),
    ("timestamp(1) without time zone", pa.timestamp("us")),
    ("integer[]", pa.list_(pa.list_(pa.int32()))),
    ("inet", pa.string()),
    ('shop."Mood"', pa.string()),
    ("bit(3)", pa.string()),
]
"""Types that the page does not list."""


def fits(words: str, source: pa.DataType) -> bool:
    """Return True if a column takes a type of the DataFrame."""
    held = arrow_type(TYPES, words)
    return held is not None and takes(source, words, held)


@pytest.mark.parametrize(("words", "source"), UNFIT, ids=[f"{w}<-{s}" for w, s in UNFIT])
def test_types_that_would_lose_data_do_not_fit(words: str, source: pa.DataType) -> None:
    assert not fits(words, source)


def test_proposed_type_of_a_new_column_fits() -> None:
    for _, values, _ in CASES:
        assert fits(str(new_type(NEW, values.type, key=False)), values.type), values.type


def test_error_has_a_line_for_each_misfit(store: Postgresql) -> None:
    store.execute(
        "CREATE TABLE t (a int, b int NOT NULL, c int GENERATED ALWAYS AS (1) STORED, n numeric(9,2))"
    )
    columns = {"a": pa.float64(), "B": pa.int32(), "c": pa.int32(), "n": pa.float64()}
    wrong = pa.schema([*columns.items(), ("d", pa.list_(pa.int64()))])
    with pytest.raises(SchemaMismatch) as caught:
        store.target().plan(wrong, "key")
    table = f'ALTER TABLE "{store.schema}"."t"'
    for text in (
        "a: the table's type is integer, the DataFrame's double.",
        '.withColumn("n", F.col("n").cast("decimal(9,2)"))',
        "There is b, which differs in upper and lower case only",
        "c: the server computes this column",
        f'{table} ADD COLUMN "d" bigint[];',
        "Add it, or let the column take nulls, or give it a default.",
    ):
        assert text in caught.value.what

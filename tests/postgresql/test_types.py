"""Every type that fits, brought into a real table and read back as the server prints it."""

from __future__ import annotations

import datetime as dt
import json
import random
from decimal import Decimal

import pyarrow as pa
import pytest

from tests.postgresql.delivery import bring, target_of
from wal_sink.demo.servers.postgresql import Server
from wal_sink.errors import InvalidRow, SchemaMismatch
from wal_sink.targets.postgresql.types import NEW, TYPES, staged_type, takes
from wal_sink.targets.sql.types import arrow_type, new_type, parse

UTC = dt.UTC
UUIDS = ["123e4567-e89b-12d3-a456-426614174000", "00000000-0000-0000-0000-00000000000F"]
STRUCT = pa.struct([("a", pa.int64()), ("b", pa.list_(pa.string()))])
MAP = pa.map_(pa.string(), pa.decimal128(10, 2))
INSTANTS = [
    dt.datetime(2024, 2, 29, 12, 30, 1, 123456, UTC),
    dt.datetime(1, 1, 1, tzinfo=UTC),
    dt.datetime(1969, 12, 31, 23, 59, 59, 999999, UTC),
    dt.datetime(9999, 12, 31, 23, 59, 59, 999999, UTC),
]


def texts(*values: str | None) -> list[str | None]:
    return [*values]


CASES: list[tuple[str, pa.Array, list[str | None]]] = [
    ("boolean", pa.array([True, False]), texts("true", "false")),
    ("smallint", pa.array([-128, 127], pa.int8()), texts("-128", "127")),
    ("smallint", pa.array([-32768, 32767], pa.int64()), texts("-32768", "32767")),
    ("integer", pa.array([-(2**31), 2**31 - 1], pa.int32()), texts("-2147483648", "2147483647")),
    ("integer", pa.array([5], pa.int16()), texts("5")),
    ("bigint", pa.array([-(2**63), 2**63 - 1]), texts(str(-(2**63)), str(2**63 - 1))),
    ("bigint", pa.array([7], pa.int32()), texts("7")),
    (
        "real",
        pa.array([1.5, float("inf"), float("nan")], pa.float32()),
        texts("1.5", "Infinity", "NaN"),
    ),
    ("double precision", pa.array([0.1, -0.0]), texts("0.1", "-0")),
    ("double precision", pa.array([1.5], pa.float32()), texts("1.5")),
    ("double precision", pa.array([2**40], pa.int64()), texts("1099511627776")),
    (
        "numeric(12,2)",
        pa.array([Decimal("-9999999999.99"), Decimal("0.01")]),
        texts("-9999999999.99", "0.01"),
    ),
    ("numeric(12,2)", pa.array([Decimal("1.50")], pa.decimal128(38, 18)), texts("1.50")),
    ("numeric(12,2)", pa.array([-7], pa.int32()), texts("-7.00")),
    ("numeric(20)", pa.array([2**63 - 1]), texts(str(2**63 - 1))),
    (
        "numeric",
        pa.array([Decimal("1.000000000000000001"), Decimal("-0.5")], pa.decimal128(38, 18)),
        texts("1.000000000000000001", "-0.500000000000000000"),
    ),
    (
        "numeric",
        pa.array([10**38 - 1, -(10**37)], pa.decimal128(38, 0)),
        texts("9" * 38, f"-1{'0' * 37}"),
    ),
    (
        "numeric(60,20)",
        pa.array([Decimal("12345678901234567890.5")], pa.decimal128(38, 10)),
        texts("12345678901234567890.50000000000000000000"),
    ),
    ("text", pa.array(["", "Zoë 🚀\n\t\\."]), texts("", "Zoë 🚀\n\t\\.")),
    ("text", pa.array(["a", "b"], pa.large_string()), texts("a", "b")),
    ("text", pa.array(["a", "b", "a"]).dictionary_encode(), texts("a", "b", "a")),
    ("character varying(3)", pa.array(["abc", "ëëë"]), texts("abc", "ëëë")),
    ("character varying", pa.array(["abc"]), texts("abc")),
    ("character(3)", pa.array(["a"]), texts("a")),
    ("bytea", pa.array([b"", b"\x00\xff"]), texts("\\x", "\\x00ff")),
    (
        "date",
        pa.array([dt.date(1, 1, 1), dt.date(9999, 12, 31)]),
        texts("0001-01-01", "9999-12-31"),
    ),
    (
        "timestamp with time zone",
        pa.array(INSTANTS, pa.timestamp("us", "UTC")),
        texts(
            "2024-02-29 12:30:01.123456+00",
            "0001-01-01 00:00:00+00",
            "1969-12-31 23:59:59.999999+00",
            "9999-12-31 23:59:59.999999+00",
        ),
    ),
    (
        "timestamp with time zone",
        pa.array(INSTANTS[:1], pa.timestamp("us", "Europe/Berlin")),
        texts("2024-02-29 12:30:01.123456+00"),
    ),
    (
        "timestamp(3) with time zone",
        pa.array([INSTANTS[0].replace(microsecond=123000)], pa.timestamp("us", "UTC")),
        texts("2024-02-29 12:30:01.123+00"),
    ),
    (
        "timestamp without time zone",
        pa.array([INSTANTS[0].replace(tzinfo=None)], pa.timestamp("us")),
        texts("2024-02-29 12:30:01.123456"),
    ),
    (
        "time without time zone",
        pa.array([dt.time(23, 59, 59, 999999)], pa.time64("ns")),
        texts("23:59:59.999999"),
    ),
    (
        "interval",
        pa.array([dt.timedelta(days=-3, seconds=5)], pa.duration("us")),
        texts("-71:59:55"),
    ),
    ("uuid", pa.array(UUIDS), texts(UUIDS[0], UUIDS[1].lower())),
    ("json", pa.array(['{"a" : 1}', "3"]), texts('{"a" : 1}', "3")),
    ("jsonb", pa.array(['{"a" : 1}', "null"]), texts('{"a": 1}', "null")),
    (
        "jsonb",
        pa.array([{"a": 2**60, "b": ["x", None]}], STRUCT),
        texts(f'{{"a": {2**60}, "b": ["x", null]}}'),
    ),
    ("jsonb", pa.array([[("k", Decimal("1.10"))]], MAP), texts('{"k": 1.10}')),
    ("json", pa.array([[("k", Decimal("1.10"))]], MAP), texts('{"k":1.10}')),
    ("jsonb", pa.array([[1, None]], pa.list_(pa.int32())), texts("[1, null]")),
    (
        "jsonb",
        pa.array(
            [[(dt.date(2024, 1, 1), INSTANTS[0])]], pa.map_(pa.date32(), pa.timestamp("us", "UTC"))
        ),
        texts('{"2024-01-01": "2024-02-29T12:30:01.123456Z"}'),
    ),
    ("integer[]", pa.array([[1, None], []], pa.list_(pa.int32())), texts("{1,NULL}", "{}")),
    ("bigint[]", pa.array([[1]], pa.list_(pa.int16())), texts("{1}")),
    ("text[]", pa.array([["a", 'q"', None], []]), texts('{a,"q\\"",NULL}', "{}")),
    ("text[]", pa.array([["a"]], pa.large_list(pa.large_string())), texts("{a}")),
    ("character varying(3)[]", pa.array([["abc", None]]), texts("{abc,NULL}")),
    ("double precision[]", pa.array([[0.5]]), texts("{0.5}")),
    ("real[]", pa.array([[0.5]], pa.list_(pa.float32())), texts("{0.5}")),
    (
        "numeric(12,2)[]",
        pa.array([[Decimal("1.25"), None]], pa.list_(pa.decimal128(12, 2))),
        texts("{1.25,NULL}"),
    ),
    ("boolean[]", pa.array([[True, None]]), texts("{t,NULL}")),
    ("date[]", pa.array([[dt.date(2024, 1, 1)]]), texts("{2024-01-01}")),
    ("bytea[]", pa.array([[b"\x01"]]), texts('{"\\\\x01"}')),
    (
        "timestamp with time zone[]",
        pa.array([[INSTANTS[0], None]], pa.list_(pa.timestamp("us", "UTC"))),
        texts('{"2024-02-29 12:30:01.123456+00",NULL}'),
    ),
    (
        "timestamp without time zone[]",
        pa.array([[INSTANTS[0].replace(tzinfo=None)]], pa.list_(pa.timestamp("us"))),
        texts('{"2024-02-29 12:30:01.123456"}'),
    ),
    ("uuid[]", pa.array([[UUIDS[0], None], []]), texts(f"{{{UUIDS[0]},NULL}}", "{}")),
    ("jsonb[]", pa.array([['{"a":1}', None]]), texts('{"{\\"a\\": 1}",NULL}')),
    ("json[]", pa.array([["[1]", None]]), texts("{[1],NULL}")),
    (
        "interval[]",
        pa.array([[dt.timedelta(seconds=5)]], pa.list_(pa.duration("us"))),
        texts("{00:00:05}"),
    ),
    (
        "time without time zone[]",
        pa.array([[dt.time(1, 2)]], pa.list_(pa.time64("us"))),
        texts("{01:02:00}"),
    ),
]


@pytest.mark.parametrize(
    ("type_", "values", "expected"),
    CASES,
    ids=[f"{type_}<-{values.type}" for type_, values, _ in CASES],
)
def test_values_of_every_type_arrive(
    postgresql: Server, schema: str, type_: str, values: pa.Array, expected: list[str | None]
) -> None:
    """With a null at the end, from a batch that does not begin at its array's beginning."""
    postgresql.execute(f"CREATE TABLE {schema}.t (n int, x {type_})")
    shifted = pa.concat_arrays([pa.nulls(3, values.type), values, pa.nulls(1, values.type)]).slice(
        3
    )
    batch = pa.record_batch([pa.array(range(len(shifted)), pa.int32()), shifted], names=["n", "x"])
    bring(target_of(postgresql, f"{schema}.t"), batch)
    stored = postgresql.execute(f"SET timezone = 'UTC'; SELECT x::text FROM {schema}.t ORDER BY n")
    assert [text for (text,) in stored] == [*expected, None]


def test_random_decimals_arrive_to_the_digit(postgresql: Server, schema: str) -> None:
    """The binary form of a numeric is made of groups of four digits, by a library."""
    chance = random.Random(15)
    for precision, scale in [
        (1, 0),
        (4, 4),
        (5, 1),
        (12, 2),
        (18, 18),
        (38, 0),
        (38, 19),
        (38, 38),
    ]:
        digits = [chance.randrange(10 ** chance.randint(0, precision)) for _ in range(500)]
        values = [Decimal(chance.choice([-1, 1]) * number).scaleb(-scale) for number in digits]
        table = f"{schema}.t{precision}_{scale}"
        postgresql.execute(f"CREATE TABLE {table} (n int, x numeric({precision},{scale}))")
        arrays = [
            pa.array(range(500), pa.int32()),
            pa.array(values, pa.decimal128(precision, scale)),
        ]
        bring(target_of(postgresql, table), pa.record_batch(arrays, names=["n", "x"]))
        assert [x for (x,) in postgresql.execute(f"SELECT x FROM {table} ORDER BY n")] == values


def test_columns_of_all_types_stay_apart(postgresql: Server, schema: str) -> None:
    """One of each type side by side, directly and through the temporary table."""
    chosen = {type_: (values, expected) for type_, values, expected in CASES}
    direct = [type_ for type_ in chosen if staged_type(type_) is None]
    for number, types in enumerate([direct, list(chosen)]):
        table = f"{schema}.wide{number}"
        columns = ", ".join(f'"{type_}" {type_}' for type_ in types)
        postgresql.execute(f"CREATE TABLE {table} ({columns})")
        batch = pa.record_batch([chosen[type_][0].slice(0, 1) for type_ in types], names=types)
        bring(target_of(postgresql, table), batch)
        shown = ", ".join(f'"{type_}"::text' for type_ in types)
        (row,) = postgresql.execute(f"SET timezone = 'UTC'; SELECT {shown} FROM {table}")
        assert list(row) == [chosen[type_][1][0] for type_ in types]


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
    ("jsonb", pa.array([{"a": 1.0}, {"a": float("nan")}]), "has a number that JSON cannot hold"),
    ("jsonb", pa.array([{"a": "x"}, {"a": "\0"}]), "the character NUL"),
    ("date", pa.array([0, 2_932_897], pa.date32()), "does not fit into date"),
    (
        "timestamp with time zone",
        pa.array([0, -(2**63)], pa.timestamp("us", "UTC")),
        "does not fit into timestamp",
    ),
    ("integer NOT NULL", pa.array([1, None], pa.int32()), "takes no null"),
]


@pytest.mark.parametrize(
    ("type_", "values", "words"), INVALID, ids=[f"{type_}<-{words}" for type_, _, words in INVALID]
)
def test_value_that_does_not_fit_is_refused(
    postgresql: Server, schema: str, type_: str, values: pa.Array, words: str
) -> None:
    """The first row passes, and is written; the second is named with a remedy."""
    postgresql.execute(f"CREATE TABLE {schema}.t (n int, x {type_})")
    target = target_of(postgresql, f"{schema}.t")
    numbers = pa.array([1, 2], pa.int32())
    batch = pa.record_batch([numbers, values], names=["n", "x"])
    plan = target.plan(batch.schema, "key")
    with pytest.raises(InvalidRow, match=words) as caught:
        target.check(batch, plan)
    assert "Column x of" in caught.value.what
    assert "the row with n=2" in caught.value.what
    assert caught.value.remedy
    bring(target, batch.slice(0, 1))


REFUSED = [
    ("integer", pa.float64()),
    ("integer", pa.string()),
    ("real", pa.float64()),
    ("real", pa.int32()),
    ("numeric(10,2)", pa.float64()),
    ("numeric(3,-2)", pa.int32()),
    ("numeric(50,2)", pa.decimal128(10, 4)),
    ("timestamp with time zone", pa.timestamp("us")),
    ("timestamp without time zone", pa.timestamp("us", "UTC")),
    ("timestamp(1) without time zone", pa.timestamp("us")),
    ("date", pa.timestamp("us")),
    ("text", pa.int32()),
    ("bytea", pa.string()),
    ("uuid", pa.binary()),
    ("integer[]", pa.int32()),
    ("integer[]", pa.list_(pa.list_(pa.int32()))),
    ("inet", pa.string()),
    ('shop."Mood"', pa.string()),
    ("bit(3)", pa.string()),
]


def fits(words: str, source: pa.DataType) -> bool:
    """Return True if a column takes a type of the DataFrame."""
    held = arrow_type(TYPES, words)
    return held is not None and takes(source, words, held)


@pytest.mark.parametrize(("words", "source"), REFUSED, ids=[f"{w}<-{s}" for w, s in REFUSED])
def test_types_that_lose_something_do_not_fit(words: str, source: pa.DataType) -> None:
    assert not fits(words, source)


def test_type_of_the_remedy_can_be_written() -> None:
    """What an error's ALTER TABLE says can be written to."""
    for _, values, _ in CASES:
        assert fits(str(new_type(NEW, values.type, key=False)), values.type), values.type


def test_type_is_parsed() -> None:
    assert parse("numeric(10,2)") == ("numeric", 10, 2)
    assert parse("timestamp(3) with time zone") == ("timestamp with time zone", 3, None)
    assert parse('"Weird"') == ('"Weird"', None, None)


def test_struct_becomes_json(postgresql: Server, schema: str) -> None:
    """Nested parts, all kinds of values, and keys that are not texts."""
    inner = pa.struct(
        [("when", pa.timestamp("us", "UTC")), ("raw", pa.binary()), ("d", pa.decimal128(38, 2))]
    )
    type_ = pa.struct([("items", pa.list_(inner)), ("by", pa.map_(pa.int32(), pa.float64()))])
    value = {
        "items": [{"when": INSTANTS[0], "raw": b"\x01", "d": Decimal("12345678901234567890.12")}],
        "by": [(1, 0.5)],
    }
    postgresql.execute(f"CREATE TABLE {schema}.t (x jsonb)")
    bring(
        target_of(postgresql, f"{schema}.t"),
        pa.record_batch([pa.array([value], type_)], names=["x"]),
    )
    ((text,),) = postgresql.execute(f"SELECT x::text FROM {schema}.t")
    stored = json.loads(text, parse_float=Decimal)
    assert stored == {
        "items": [
            {
                "when": "2024-02-29T12:30:01.123456Z",
                "raw": "AQ==",
                "d": Decimal("12345678901234567890.12"),
            }
        ],
        "by": {"1": Decimal("0.5")},
    }


def test_misfits_are_listed_line_by_line(postgresql: Server, schema: str) -> None:
    postgresql.execute(
        f"CREATE TABLE {schema}.t (a int, b int NOT NULL, c int GENERATED ALWAYS AS (1) STORED)"
    )
    wrong = pa.schema(
        [("a", pa.float64()), ("B", pa.int32()), ("c", pa.int32()), ("d", pa.list_(pa.int64()))]
    )
    with pytest.raises(SchemaMismatch) as caught:
        target_of(postgresql, f"{schema}.t").plan(wrong, "key")
    text = caught.value.what
    assert "a: the table's type is integer, the DataFrame's double." in text
    assert "There is b, which differs in upper and lower case only" in text
    assert "c: the server computes this column" in text
    assert f'ALTER TABLE "{schema}"."t" ADD COLUMN "d" bigint[];' in text
    assert f'ALTER TABLE "{schema}"."t" ALTER COLUMN "b" DROP NOT NULL;' in text

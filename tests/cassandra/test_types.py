"""CQL types: parsed from text, and compared with the types of a DataFrame."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pytest

from wal_sink.model.spark_types import canonical, spark_ddl, spark_type
from wal_sink.targets.cassandra.type_mismatches import mismatches
from wal_sink.targets.cassandra.types import (
    CQL_FOR,
    NESTED,
    TYPES,
    CqlType,
    UserTypes,
    parse,
    user_type_names,
)

SPARK = {
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "string": pa.string(),
    "binary": pa.binary(),
    "decimal": pa.decimal128(38, 18),
    "decimal(p,0)": pa.decimal128(38, 0),
    "timestamp": pa.timestamp("us", "Asia/Tokyo"),
    "timestamp_ntz": pa.timestamp("us"),
    "date": pa.date32(),
    "time": pa.time64("ns"),
    "interval day to second": pa.duration("us"),
    "array": pa.list_(pa.int32()),
    "map": pa.map_(pa.string(), pa.int32()),
    "struct": pa.struct([("a", pa.int32())]),
    "void": pa.null(),
}
"""The Arrow type that Spark sends for each of its types."""

PAGE = Path(__file__).parents[2] / "docs" / "cassandra.md"
DOCUMENTED = dict(
    re.findall(r"^\| `(\w+)` \| ([^|]+) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
)
"""What each CQL type accepts, as the page says."""


def problems_of(source: pa.DataType, cql: str, types: UserTypes | None = None) -> list[str]:
    """Return the texts of what keeps column c from being written to a type."""
    return [*mismatches("c", source, parse(cql, types or {}))]


@pytest.mark.parametrize("cql", sorted(TYPES))
@pytest.mark.parametrize("spark", sorted(SPARK))
def test_type_fits_as_documented_or_is_refused(spark: str, cql: str) -> None:
    documented = DOCUMENTED[cql].split(", ")
    for problems, path in (
        (problems_of(SPARK[spark], cql), "c"),
        (problems_of(pa.list_(SPARK[spark]), f"frozen<list<{cql}>>"), "c.element"),
    ):
        if spark in documented or (spark == "decimal(p,0)" and "decimal" in documented):
            assert problems == []
        else:
            (problem,) = problems
            assert (
                re.match(rf"{path}: .*the table's {cql}\b.* Cast ", problem)
                or "an instant" in problem
            )


def test_documentation_lists_every_type() -> None:
    assert DOCUMENTED.keys() >= TYPES.keys() | NESTED.keys() - {"udt"}


@pytest.mark.parametrize("spark", sorted(set(SPARK) & set(CQL_FOR) - {"timestamp_ntz"}))
def test_cql_type_of_a_new_table_fits(spark: str) -> None:
    assert problems_of(SPARK[spark], CQL_FOR[spark]) == []


def test_error_of_narrowing_names_types_and_cast() -> None:
    (problem,) = problems_of(pa.int64(), "int")
    assert "c: bigint (Arrow int64) does not fit the table's int" in problem
    assert '.withColumn("c", F.col("c").cast("int"))' in problem
    assert "where it is a bigint" in problem


@pytest.mark.parametrize(
    ("cql", "cast"), [("decimal", "decimal(38,18)"), ("varint", "decimal(38,0)")]
)
def test_proposed_cast_to_decimal_has_a_precision(cql: str, cast: str) -> None:
    """Spark's bare decimal is decimal(10,0), which would lose digits."""
    assert f'cast("{cast}")' in problems_of(pa.float64(), cql)[0]


def test_error_of_timestamp_without_zone_names_the_zone() -> None:
    (problem,) = problems_of(pa.timestamp("us"), "timestamp")
    assert "timestamp_ntz is a clock reading without a zone" in problem
    assert "spark.sql.session.timeZone" in problem
    (nested,) = problems_of(pa.list_(pa.timestamp("us")), "set<timestamp>")
    assert "Cast the column to a type in which c.element is timestamp." in nested


@pytest.mark.parametrize(
    "cql",
    ["counter", "'org.example.Custom'", "address", "frozen<address>", "vector<int, 3>", "list<>"],
)
def test_unsupported_type_is_refused_by_name(cql: str) -> None:
    (problem,) = problems_of(pa.int32(), cql)
    assert f"the table's type {cql} is not supported yet. Leave the column out" in problem


TOKYO = pa.timestamp("us", "Asia/Tokyo")
MARKED = pa.field("a", pa.large_string(), nullable=False, metadata={"x": "y"})


@pytest.mark.parametrize(
    ("source", "plain"),
    [
        (pa.string_view(), pa.string()),
        (pa.large_binary(), pa.binary()),
        (pa.dictionary(pa.int32(), pa.large_string()), pa.string()),
        (pa.timestamp("us"), pa.timestamp("us")),
        (pa.decimal128(10, 2), pa.decimal128(10, 2)),
        (
            pa.list_(pa.field("element", TOKYO, nullable=False)),
            pa.list_(pa.timestamp("us", "UTC")),
        ),
        (pa.large_list(pa.struct([MARKED])), pa.list_(pa.struct([("a", pa.string())]))),
        (pa.map_(pa.string(), pa.large_string()), pa.map_(pa.string(), pa.string())),
    ],
)
def test_canonical_type_ignores_names_and_nullability(
    source: pa.DataType, plain: pa.DataType
) -> None:
    assert str(canonical(source)) == str(plain)


def test_errors_use_spark_type_names() -> None:
    assert {word: spark_type(arrow) for word, arrow in SPARK.items() if word in CQL_FOR} == {
        word: word for word in CQL_FOR
    }
    assert spark_type(pa.uint8()) == "smallint"
    assert spark_type(pa.month_day_nano_interval()) == "month_day_nano_interval"
    nested = pa.list_(
        pa.struct([("a b", pa.decimal128(9, 2)), ("m", pa.map_(pa.int8(), pa.date32()))])
    )
    assert spark_ddl(nested) == "array<struct<`a b`:decimal(9,2),m:map<tinyint,date>>>"


ADDRESS: UserTypes = {
    "address": (("street", "text"), ("zip", "int"), ("Tags", "frozen<set<text>>"))
}


def struct(**fields: pa.DataType) -> pa.DataType:
    return pa.struct(list(fields.items()))


@pytest.mark.parametrize(
    ("source", "cql"),
    [
        (pa.list_(pa.int8()), "frozen<list<int>>"),
        (pa.list_(pa.int8()), "set<int>"),
        (pa.list_(pa.int8()), "frozen<set<varint>>"),
        (pa.map_(pa.int8(), pa.float32()), "map<bigint, double>"),
        (struct(x=pa.int8(), y=pa.string()), "frozen<tuple<int, uuid>>"),
        (struct(zip=pa.int8(), street=pa.string()), "frozen<address>"),
        (struct(zip=pa.int16(), Tags=pa.list_(pa.string())), "address"),
        (pa.list_(pa.float32()), "vector<float, 3>"),
        (pa.map_(pa.string(), pa.list_(struct(zip=pa.int8()))), "map<text, frozen<list<address>>>"),
    ],
)
def test_nested_types_widen_at_every_level(source: pa.DataType, cql: str) -> None:
    """Fields of a tuple go by position, others by name."""
    assert problems_of(source, cql, ADDRESS) == []


@pytest.mark.parametrize(
    ("source", "cql", "expected"),
    [
        (
            struct(zip=pa.int64(), street=pa.string()),
            "frozen<address>",
            [
                "c.zip: bigint (Arrow int64) does not fit the table's int without loss. Cast the",
                "column to a type in which c.zip is int,",
                "or write to a table where it is a bigint.",
            ],
        ),
        (struct(zipp=pa.int32()), "address", ["c.zipp: ", "no such field. Did you mean zip?"]),
        (struct(Zip=pa.int32()), "address", ["c.Zip: ", "There is zip, which differs in upper"]),
        (
            pa.struct([("zip", pa.int32()), ("zip", pa.int32())]),
            "address",
            ["c.zip: the struct has 2 fields of this name. Rename all but one."],
        ),
        (
            struct(x=pa.int32()),
            "frozen<tuple<int, int>>",
            ["c: the struct has 1 fields, the table's frozen<tuple<int, int>> 2"],
        ),
        (
            struct(x=pa.int64(), y=pa.int64()),
            "frozen<tuple<int, bigint>>",
            ["c.x: bigint", "c.x is int"],
        ),
        (
            pa.map_(pa.int64(), pa.list_(pa.int64())),
            "map<bigint, frozen<list<smallint>>>",
            ["c.value.element: bigint", "c.value.element is smallint"],
        ),
        (pa.list_(pa.int32()), "vector<float, 3>", ["c.element: int (Arrow int32)", "an int."]),
        (pa.list_(pa.float64()), "vector<float, 3>", ["c.element: double", "c.element is float"]),
        (pa.list_(pa.null()), "set<int>", ["c.element: null", "c.element is int."]),
        (
            pa.map_(pa.string(), pa.int32()),
            "set<text>",
            ["c: map<string,int> does not fit", "Cast it to a supported type, or drop it"],
        ),
        (
            pa.list_(pa.int32()),
            "frozen<list<counter>>",
            ["c.element: the table's type counter is not supported yet. Leave the column out of"],
        ),
    ],
)
def test_error_of_nested_mismatch_names_path_and_type(
    source: pa.DataType, cql: str, expected: list[str]
) -> None:
    (problem,) = problems_of(source, cql, ADDRESS)
    assert problem.startswith(expected[0])
    assert [words for words in expected if words not in problem] == []


def test_mismatches_within_a_column_are_all_named() -> None:
    source = struct(zip=pa.int64(), street=pa.int32(), other=pa.int32())
    assert [item.split(":")[0] for item in problems_of(source, "address", ADDRESS)] == [
        "c.other",
        "c.zip",
        "c.street",
    ]


NAMED: UserTypes = {
    "Ad,dr<": (('a "b', "int"), ("inner", 'frozen<"in ner">')),
    "in ner": (("x", "list<text>"),),
    "set": (("x", "int"),),
    "plain": (("x", "int"),),
}


def shape_of(tree: CqlType) -> str:
    """Print a tree with `!` for frozen."""
    parts = f"({' '.join(shape_of(part) for part in tree.parts)})" if tree.parts else ""
    return f"{tree.kind}{'!' if tree.frozen else ''}{parts}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("int", "int"),
        ("list<int>", "list(int!)"),
        ("frozen<list<int>>", "list!(int!)"),
        ("map<text, frozen<set<int>>>", "map(text! set!(int!))"),
        ("frozen<tuple<int, map<text, text>, uuid>>", "tuple!(int! map!(text! text!) uuid!)"),
        ("vector<float, 3>", "vector!(float!)"),
        ("plain", "udt(int!)"),
        ("frozen<plain>", "udt!(int!)"),
        ('"set"', "udt(int!)"),
        ('frozen<"Ad,dr<">', "udt!(int! udt!(list!(text!)))"),
        (
            'map<"in ner", frozen<"Ad,dr<">>',
            "map(udt!(list!(text!)) udt!(int! udt!(list!(text!))))",
        ),
        ("set", "set"),
        ("vector<float>", "vector<float>"),
        ("map<int>", "map<int>"),
        ("list<>", "list<>"),
        ("'org.example.Custom'", "'org.example.Custom'"),
        ("'org.example.Custom(a,b)'", "'org.example.Custom(a,b)'"),
        ("", ""),
    ],
)
def test_nested_cql_types_are_frozen(text: str, expected: str) -> None:
    tree = parse(text, NAMED)
    assert shape_of(tree) == expected
    assert tree.label == text


def test_cql_type_reads_quoted_names_and_vector_lengths() -> None:
    tree = parse('frozen<"Ad,dr<">', NAMED)
    assert (tree.name, tree.fields) == ("Ad,dr<", ('a "b', "inner"))
    assert list(user_type_names(tree)) == ["Ad,dr<", "in ner"]
    assert parse("vector<float, 1536>", {}).length == 1536

"""The table of types, from both sides: what fits, what does not, and what is said then."""

from __future__ import annotations

import pyarrow as pa
import pytest

from wal_sink.targets.cassandra.types import CQL_FOR, TYPES, canonical, misfit, spark_type

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
    "timestamp": pa.timestamp("us", "Asia/Tokyo"),
    "timestamp_ntz": pa.timestamp("us"),
    "date": pa.date32(),
    "array": pa.list_(pa.int32()),
    "struct": pa.struct([("a", pa.int32())]),
    "interval": pa.duration("us"),
}
"""What Spark sends, by Spark's word."""

FITS = {
    "text": {"string"},
    "boolean": {"boolean"},
    "int": {"tinyint", "smallint", "int"},
    "bigint": {"tinyint", "smallint", "int", "bigint"},
    "double": {"float", "double"},
    "decimal": {"decimal", "tinyint", "smallint", "int", "bigint"},
    "timestamp": {"timestamp"},
    "date": {"date"},
    "uuid": {"string"},
    "blob": {"binary"},
}


@pytest.mark.parametrize("cql", sorted(FITS))
@pytest.mark.parametrize("spark", sorted(SPARK))
def test_every_pair(spark: str, cql: str) -> None:
    """A pair either fits without loss, or is refused with a remedy."""
    problem = misfit("c", SPARK[spark], cql)
    if spark in FITS[cql]:
        assert problem is None
    else:
        assert problem is not None
        assert cql in problem.problem
        assert problem.remedy


def test_the_table_is_complete() -> None:
    """No CQL type is written without a test here."""
    assert set(TYPES) == set(FITS)


@pytest.mark.parametrize("spark", sorted(set(SPARK) & set(CQL_FOR) - {"timestamp_ntz"}))
def test_a_new_table_takes_the_dataframe(spark: str) -> None:
    """The CREATE TABLE that an error prints would fit."""
    assert misfit("c", SPARK[spark], CQL_FOR[spark]) is None


def test_narrowing_names_types_and_cast() -> None:
    """The remedy is the cast that says that loss is meant, or another table."""
    problem = str(misfit("n", pa.int64(), "int"))
    assert "bigint (Arrow int64) does not fit the table's int" in problem
    assert '.withColumn("n", col("n").cast("int"))' in problem
    assert "where it is a bigint" in problem


def test_narrowing_to_decimal_gives_a_precision() -> None:
    """Spark's bare decimal has no fraction."""
    assert 'cast("decimal(38,18)")' in str(misfit("n", pa.float64(), "decimal"))


def test_a_clock_reading_is_no_instant() -> None:
    """A timestamp without zone is refused with its own reason."""
    problem = str(misfit("at", pa.timestamp("us"), "timestamp"))
    assert "timestamp_ntz is a clock reading without a zone" in problem
    assert "spark.sql.session.timeZone" in problem


@pytest.mark.parametrize(
    "cql",
    [
        *("counter", "inet", "time", "timeuuid", "varint", "float", "smallint", "tinyint", "ascii"),
        *(
            "duration",
            "frozen<list<int>>",
            "frozen<tuple<int, text>>",
            "frozen<address>",
            "address",
        ),
        "vector<float, 3>",
    ],
)
def test_other_types_are_refused_by_name(cql: str) -> None:
    """Even when the DataFrame's column would be a natural fit."""
    problem = misfit("c", pa.int32(), cql)
    assert problem is not None
    assert f"{cql} is not supported yet" in problem.problem


@pytest.mark.parametrize("cql", ["list<text>", "set<int>", "map<text, int>"])
def test_collections_in_place_cannot_be_replayed(cql: str) -> None:
    """The refusal names the type that will be needed."""
    assert f"frozen<{cql}>" in str(misfit("c", pa.list_(pa.string()), cql))


@pytest.mark.parametrize(
    ("source", "plain"),
    [
        (pa.large_string(), pa.string()),
        (pa.string_view(), pa.string()),
        (pa.large_binary(), pa.binary()),
        (pa.dictionary(pa.int32(), pa.large_string()), pa.string()),
        (pa.timestamp("us", "+01:00"), pa.timestamp("us", "UTC")),
        (pa.timestamp("us"), pa.timestamp("us")),
        (pa.decimal128(10, 2), pa.decimal128(10, 2)),
    ],
)
def test_canonical(source: pa.DataType, plain: pa.DataType) -> None:
    """Layouts and zones do not matter."""
    assert canonical(source) == plain


def test_spark_type() -> None:
    """Errors speak Spark's words where there is one."""
    assert {word: spark_type(arrow) for word, arrow in SPARK.items() if word in CQL_FOR} == {
        word: word for word in CQL_FOR
    }
    assert spark_type(pa.uint8()) == "uint8"

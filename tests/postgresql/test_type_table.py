"""PostgreSQL's types: the table of docs/postgresql.md, type by type."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pytest

from wal_sink.model.plan import Column
from wal_sink.targets.columns import TableColumn
from wal_sink.targets.postgresql import PostgresqlOptions, PostgresqlTarget
from wal_sink.targets.postgresql.check import stored
from wal_sink.targets.postgresql.types import TYPES, takes
from wal_sink.targets.sql.keyed import KeyedRules
from wal_sink.targets.sql.types import arrow_type

PAGE = Path(__file__).parents[2] / "docs" / "postgresql.md"

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
ROWS = re.findall(
    r"^\| `(.+?)` \| (.+?) \| (.+?) \|",
    PAGE.read_text().split("\n## Types\n")[1].split("\n## ")[0],
    re.MULTILINE,
)


@pytest.mark.parametrize(("words", "sources", "held"), ROWS, ids=[row[0] for row in ROWS])
def test_page_lists_types_that_fit(words: str, sources: str, held: str) -> None:
    """And nothing else fits; that integers fit into a numeric without bounds stands in its note."""
    named = re.split(r", (?![0-9])", sources)
    column = Column(name="c", source="", type=words, role="regular")
    for name in named:
        assert str(stored(column, pa.nulls(1, SPARK[name])).type) == held, name
    type_ = arrow_type(TYPES, words)
    fitting = {name for name, source in SPARK.items() if takes(source, words, type_)}
    others = {"tinyint", "smallint", "int", "bigint"} if words == "numeric" else set()
    assert fitting == {*named} | others


def test_page_has_the_table_of_types() -> None:
    assert len(ROWS) > 15


@pytest.mark.parametrize(
    ("source", "type_", "code"),
    [
        ("double", "numeric(10,2)", 'F.col("c").cast("decimal(10,2)")'),
        ("string", "integer", 'F.col("c").cast("int")'),
    ],
)
def test_remedy_of_a_type_can_be_pasted(source: str, type_: str, code: str) -> None:
    target = PostgresqlTarget(PostgresqlOptions(uri="postgresql://db/shop", table="t"))
    field = pa.field("c", SPARK[source])
    (line,) = KeyedRules(target).about_type(field, TableColumn("c", type_))
    assert f'.withColumn("c", {code})' in line

"""PostgreSQL's types: the table of docs/postgresql.md, type by type."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pytest

from wal_sink.targets.columns import TableColumn
from wal_sink.targets.postgresql.plan import PostgresqlRules
from wal_sink.targets.postgresql.schema import Relation
from wal_sink.targets.postgresql.types import log_type
from wal_sink.targets.sql.names import TableName

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


@pytest.mark.parametrize(("words", "sources", "stored"), ROWS, ids=[row[0] for row in ROWS])
def test_page_lists_types_that_fit(words: str, sources: str, stored: str) -> None:
    """And nothing else fits; that integers fit into a numeric without bounds stands in its note."""
    named = re.split(r", (?![0-9])", sources)
    fitting = {name: log_type(words, type_) for name, type_ in SPARK.items()}
    for name in named:
        assert str(fitting.pop(name)) == stored, name
    others = {name for name, held in fitting.items() if held is not None}
    assert others == ({"tinyint", "smallint", "int", "bigint"} if words == "numeric" else set())


def test_page_has_the_table_of_types() -> None:
    assert len(ROWS) > 15


@pytest.mark.parametrize(
    ("source", "type_", "code"),
    [
        ("double", "numeric(10,2)", 'F.col("c").cast("decimal(10,2)")'),
        ("string", "integer", 'F.col("c").cast("int")'),
        (pa.list_(SPARK["struct<a:int>"]), "text[]", 'F.to_json("c")'),
    ],
)
def test_remedy_of_a_type_can_be_pasted(source: str | pa.DataType, type_: str, code: str) -> None:
    field = pa.field("c", SPARK[source] if isinstance(source, str) else source)
    rules = PostgresqlRules(Relation(TableName("public", "t")))
    (line,) = rules.about_type(field, TableColumn("c", type_))
    assert f'.withColumn("c", {code})' in line

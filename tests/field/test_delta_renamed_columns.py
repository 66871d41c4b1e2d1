"""A Delta table with column mapping: its files have other names for the columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder

from tests.delta.conftest import Query, Upserting, delta_target
from wal_sink.errors import SchemaMismatch

PART = pa.struct([("a", pa.int32())])
SCHEMA = pa.schema(
    [
        ("k", pa.string()),
        ("city", pa.string()),
        ("s", PART),
        ("l", pa.list_(PART)),
        ("m", pa.map_(pa.string(), PART)),
    ]
)


def rows(*keys: str, a: int) -> pa.RecordBatch:
    files = [
        {"k": key, "city": "Köln", "s": {"a": a}, "l": [{"a": a}], "m": [("x", {"a": a})]}
        for key in keys
    ]
    return pa.RecordBatch.from_pylist(files, SCHEMA)


def table_of(path: str) -> list[dict[str, Any]]:
    query = QueryBuilder().register("t", DeltaTable(path))
    table = pa.table(query.execute("SELECT * FROM t ORDER BY k").read_all())
    mapped: list[dict[str, Any]] = table.to_pylist()
    return mapped


@pytest.fixture(params=["name", "id"])
def path(tmp_path: Path, request: pytest.FixtureRequest) -> str:
    made = str(tmp_path / "t")
    mapping = {"delta.columnMapping.mode": request.param}
    DeltaTable.create(made, SCHEMA, partition_by=["city"], configuration=mapping)
    return made


def test_rows_of_renamed_columns_are_added_and_replaced(path: str) -> None:
    Query(path).add(rows("a", "b", a=1))
    (file,) = Path(path).rglob("*.parquet")
    stored = pq.read_schema(file)
    assert [name[:4] for name in stored.names] == ["col-"] * 4
    assert stored.field(0).metadata[b"PARQUET:field_id"] == b"1"
    Upserting(path).add(rows("b", "c", a=2))
    expected = [*rows("a", a=1).to_pylist(), *rows("b", "c", a=2).to_pylist()]
    assert table_of(path) == expected


def test_plan_of_mapped_table_is_the_same_each_time(path: str) -> None:
    """delta-rs returns the metadata of a field in another order for each table that it opens."""
    plans = {Query(path).plan(SCHEMA).to_json() for _ in range(8)}
    assert len(plans) == 1


def test_new_column_of_a_mapped_table_needs_spark(path: str) -> None:
    """delta-rs cannot add it, so the error has Spark's statement."""
    more = SCHEMA.append(pa.field("n", pa.int32()))
    with pytest.raises(SchemaMismatch, match=r"run: ALTER TABLE delta\.`.*` ADD COLUMN `n` int;"):
        delta_target(path, **{"delta.mergeSchema": "true"}).plan(more, "key")

"""A Delta table whose columns may be renamed: its files have other names of them (column mapping)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder

from tests.delta.conftest import Query
from tests.delta.test_upsert import Upserting
from wal_sink.errors import SchemaMismatch
from wal_sink.options import parse
from wal_sink.targets.delta import DeltaTarget
from wal_sink.targets.delta.options import DeltaOptions

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
    """delta-rs orders what it says of a field again in each process and for each table that it opens."""
    plans = {Query(path).plan(SCHEMA).to_json() for _ in range(8)}
    assert len(plans) == 1


def test_column_that_mapped_table_lacks_is_added_by_spark(path: str) -> None:
    """delta-rs adds none there: the start says so, with the statement, and adds nothing."""
    options = parse({"delta.path": path, "delta.mergeSchema": "true"}, DeltaOptions)
    more = SCHEMA.append(pa.field("n", pa.int32()))
    with pytest.raises(SchemaMismatch, match=r"run: ALTER TABLE delta\.`.*` ADD COLUMN `n` int;"):
        DeltaTarget(options).plan(more, "key")

"""Upserts into a Delta table with files of another writer.

delta-spark writes the folder of a partition into the log unencoded, `city=Köln/…`. delta-rs removes it by an
encoded path, `city=K%C3%B6ln/…`. `tests/deploy/test_engines.py` tries tables of delta-spark.
"""

from __future__ import annotations

import json
import string
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from tests.delta.conftest import Query, Upserting, delta_target, table_of
from wal_sink.errors import SchemaMismatch
from wal_sink.targets.delta.files import why_not_removable
from wal_sink.targets.delta.table import RANDOM_PREFIXES
from wal_sink.testing.contracts.ledger import finish, following, row_of

FILE = pa.schema([("k", pa.string()), ("v", pa.int64())])


def add_file(table: Path, column: str, value: str, path: str, at: str) -> None:
    """Add a file with the row `("a", 0)` to a table, as another writer does.

    :param column: the partition column.
    :param path: the path in the log.
    :param at: the path in the table's folder.
    """
    file = table / at
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"k": ["a"], "v": [0]}, FILE), file)
    add = {
        "path": path,
        "partitionValues": {column: value},
        "size": file.stat().st_size,
        "modificationTime": 1,
        "dataChange": True,
        "stats": json.dumps({"numRecords": 1}),
    }
    version = DeltaTable(table).version() + 1
    log = table / "_delta_log" / f"{version:020}.json"
    log.write_text(json.dumps({"add": add}, ensure_ascii=False) + "\n", "utf-8")


def partitioned(table: Path, column: str) -> pa.Schema:
    schema = pa.schema([FILE.field("k"), (column, pa.string()), FILE.field("v")])
    DeltaTable.create(table, schema, partition_by=[column])
    return schema


def batch(schema: pa.Schema, value: str, v: int, **more: str) -> pa.RecordBatch:
    rows = pa.record_batch([["a"], [value], [v]], schema=schema)
    for name, text in more.items():
        rows = rows.append_column(name, pa.array([text]))
    return rows


@pytest.mark.parametrize("deletes", [False, True])
@pytest.mark.parametrize(
    ("column", "value", "path"),
    [
        ("city", "Köln", "city=Köln/part-0.parquet"),
        ("größe", "x", "größe=x/part-0.parquet"),
        ("city", "a b", "city=a b/part-0.parquet"),
        ("city", "x", "city=x/p%61rt-0.parquet"),
        ("city", "x", "file:/tmp/original/city=x/part-0.parquet"),
    ],
    ids=["text", "name", "space", "escape", "clone"],
)
def test_file_that_delta_rs_cannot_remove_is_refused(
    tmp_path: Path, column: str, value: str, path: str, *, deletes: bool
) -> None:
    """The start refuses it, and the commit. Otherwise each row would be there twice."""
    table = tmp_path / "t"
    schema = partitioned(table, column)
    more = {"op": "delete"} if deletes else {}
    query = Upserting(table, **{"operationColumn": "op"} if deletes else {})
    rows = batch(schema, value, 1, **more)
    row = row_of(query.session)
    receipts = query.stage(rows)
    at = "elsewhere.parquet" if ":" in path else unquote(path)
    add_file(table, column, value, path, at)
    refused = pytest.raises(SchemaMismatch, match="cannot remove the file")
    with refused as at_commit:
        finish(query.session, row, following(row), receipts)
    with refused as at_start:
        query.plan(rows.schema)
    assert path in str(at_commit.value)
    assert path in str(at_start.value)
    assert len(list((table / "_wal_sink").rglob("*.json"))) == 1, "each try would leave a file"


def test_files_of_other_writers_with_plain_names_are_replaced(tmp_path: Path) -> None:
    """delta-spark and delta-rs give such a file the same name."""
    table = tmp_path / "t"
    schema = partitioned(table, "city")
    add_file(table, "city", "Köln", "K%C3%B6ln%20+/part-0.parquet", "Köln +/part-0.parquet")
    query = Upserting(str(table))
    for v in (1, 2):
        query.add(batch(schema, "Köln", v))
    assert table_of(query.path) == [{"k": "a", "city": "Köln", "v": 2}]


def test_append_beside_an_unremovable_file_succeeds(tmp_path: Path) -> None:
    table = tmp_path / "t"
    schema = partitioned(table, "city")
    add_file(table, "city", "Köln", "city=Köln/part-0.parquet", "city=Köln/part-0.parquet")
    query = Query(str(table))
    query.add(batch(schema, "Köln", 1))
    assert sorted(row["v"] for row in table_of(query.path)) == [0, 1]


@pytest.mark.parametrize("column", ["größe", "a b", "a%b", "città=1"])
def test_row_in_a_partition_of_any_name_is_replaced(tmp_path: Path, column: str) -> None:
    """A merge removes the file of an append, and the next merge the file of a merge."""
    table = tmp_path / "t"
    schema = partitioned(table, column)
    Query(str(table)).add(batch(schema, "Köln", 0))
    query = Upserting(str(table))
    for v in (1, 2):
        query.add(batch(schema, "Köln", v))
    assert table_of(query.path) == [{"k": "a", column: "Köln", "v": 2}]


def test_folder_of_a_partition_encodes_a_colon(tmp_path: Path) -> None:
    table = tmp_path / "t"
    schema = partitioned(table, "k:v")
    query = Query(str(table))
    query.add(batch(schema, "x", 1))
    (file,) = DeltaTable(query.path).file_uris()
    assert "/k%3Av=x/" in file, "Hadoop reads no path with a colon"
    assert table_of(query.path) == [{"k": "a", "k:v": "x", "v": 1}]


def test_new_table_keeps_values_out_of_file_names(tmp_path: Path) -> None:
    """With this property delta-spark names no folder by a value, so a merge can remove files of OPTIMIZE."""
    path = str(tmp_path / "t")
    options = {"createTable": "true", "partitionColumns": "city"}
    target = delta_target(path, **{"delta.mode": "upsert", "keyColumns": "k"}, **options)
    schema = pa.schema([("k", pa.string()), ("city", pa.string())])
    assert f"'{RANDOM_PREFIXES}' = 'true'" in target.dry_plan(schema, "key").creates
    target.plan(schema, "key")
    assert DeltaTable(path).metadata().configuration[RANDOM_PREFIXES] == "true"


SPELLINGS = [
    *(character for character in string.printable[:95] if character not in "/.%#?\\"),
    *(f"%{ord(character):02X}" for character in string.printable[:95] if character not in "/.\\"),
    *("ö", "%C3%B6", "%c3%b6", "%3d"),
]


def test_delta_rs_removes_only_files_named_by_itself(tmp_path: Path) -> None:
    """Once delta-rs removes files by their path in the log, `why_not_removable` is obsolete."""
    table = tmp_path / "t"
    schema = partitioned(table, "c")
    paths = [f"c={n}{spelling}z/part-0.parquet" for n, spelling in enumerate(SPELLINGS)]
    for path in paths:
        add_file(table, "c", "x", path, unquote(path))
    rows = pa.Table.from_batches([batch(schema, "x", 1)])
    merger = DeltaTable(table).merge(rows, "t.k = s.k", source_alias="s", target_alias="t")
    merger.when_matched_update_all().execute()
    newest = max((table / "_delta_log").glob("*.json"))
    actions = map(json.loads, newest.read_text("utf-8").splitlines())
    removed = {action["remove"]["path"] for action in actions if "remove" in action}
    assert len(removed) == len(paths)
    assert removed & {*paths} == {path for path in paths if not why_not_removable(path)}

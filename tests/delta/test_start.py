"""A start refuses a table that cannot be written, and its remedy helps."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, QueryBuilder, Schema
from deltalake.exceptions import CommitFailedError
from deltalake.schema import PrimitiveType

from tests.delta.conftest import (
    SCHEMA,
    Query,
    Upserting,
    batch,
    delta_target,
    table_of,
    with_protocol,
)
from wal_sink.errors import OptionError, SchemaMismatch
from wal_sink.targets.delta.plan import _KNOWN_FEATURES
from wal_sink.testing.contracts.ledger import create


def test_missing_table_is_refused_with_a_create_statement(tmp_path: Path) -> None:
    path = tmp_path / "it's new"
    schema = pa.schema([("k", pa.string()), ("s", pa.struct([("x", pa.list_(pa.int32()))]))])
    with pytest.raises(SchemaMismatch, match="There is no Delta table") as caught:
        delta_target(path).plan(schema, "key")
    remedy = caught.value.remedy
    assert (
        f"CREATE TABLE delta.`{path}` (`k` string, `s` struct<x:array<int>>) USING DELTA" in remedy
    )
    assert delta_target(path, createTable="true").plan(schema, "key").table == str(path)


@pytest.mark.parametrize(
    "type_",
    [
        pa.duration("us"),
        pa.struct([]),
        pa.list_(pa.struct([])),
        pa.map_(pa.string(), pa.list_(pa.timestamp("us"))),
    ],
    ids=str,
)
def test_column_that_delta_cannot_hold_is_not_added(tmp_path: Path, type_: pa.DataType) -> None:
    """Parquet has no struct without fields. A map with timestamp_ntz makes a table that no reader opens."""
    DeltaTable.create(path := tmp_path / "t", pa.schema([("k", pa.string())]))
    schema = pa.schema([("k", pa.string()), ("d", type_)])
    for place, option in ((path, "delta.mergeSchema"), (tmp_path / "new", "createTable")):
        with pytest.raises(SchemaMismatch, match="no type for column d"):
            delta_target(place, **{option: "true"}).plan(schema, "key")
    assert DeltaTable(path).version() == 0


@pytest.mark.parametrize(
    ("columns", "says", "remedy"),
    [
        (
            [("kk", pa.string()), ("v", pa.int64())],
            "kk: the table has no such column. Did you mean k?",
            "set delta.mergeSchema to true, or run: .* ADD COLUMN `kk` string",
        ),
        (
            [("k", pa.string()), ("v", pa.string())],
            "v: the table's type is bigint",
            r'cast\("bigint"\)',
        ),
        (
            [("k", pa.string()), ("x", pa.duration("us"))],
            "x: the table has no such column. Rename or drop it.",
            "",
        ),
    ],
)
def test_error_names_columns_that_do_not_fit(
    query: Query, columns: list[tuple[str, pa.DataType]], says: str, remedy: str
) -> None:
    with pytest.raises(SchemaMismatch, match=f"(?s){says}.*{remedy}"):
        query.plan(pa.schema(columns))


def test_column_outside_the_dataframe_becomes_null(tmp_path: Path) -> None:
    """If the column takes no null, a start refuses the table."""
    fields = [
        Field("k", PrimitiveType("string")),
        Field("n", PrimitiveType("long"), nullable=False),
    ]
    DeltaTable.create(str(tmp_path / "t"), Schema(fields))
    with pytest.raises(SchemaMismatch, match="n: it takes no null"):
        delta_target(tmp_path / "t").plan(pa.schema([("k", pa.string())]), "key")
    DeltaTable.create(str(tmp_path / "u"), SCHEMA)
    query = Query(tmp_path / "u")
    query.add(pa.record_batch([["a"]], names=["k"]))
    assert table_of(query.path) == [{"k": "a", "v": None}]


@pytest.mark.parametrize(
    ("says", "change"),
    [
        ("constraint few", lambda table: table.alter.add_constraint({"few": "v < 10"})),
        (
            "setTransactionRetentionDuration",
            lambda table: table.alter.set_table_properties(
                {"delta.setTransactionRetentionDuration": "interval 7 days"}
            ),
        ),
    ],
)
def test_unfit_property_is_refused_at_start_and_flush(
    query: Query, says: str, change: Callable[[DeltaTable], object]
) -> None:
    plan = query.plan()
    change(DeltaTable(query.path))
    with pytest.raises(SchemaMismatch, match=says):
        query.plan()
    with pytest.raises(SchemaMismatch, match=says):
        query.session.write(plan, query.slice(batch([("a", 1)]), plan))


@pytest.mark.parametrize(
    ("says", "metadata"),
    [
        ("c is generated", {"delta.generationExpression": "v + 1"}),
        ("c is an identity", {"delta.identity.start": 1}),
    ],
)
def test_computed_column_is_refused(tmp_path: Path, says: str, metadata: dict[str, Any]) -> None:
    """delta-rs would commit any file, with any values."""
    column = {"name": "c", "type": "long", "nullable": True, "metadata": metadata}
    path = with_protocol(tmp_path / "t", 2, [], column)
    with pytest.raises(SchemaMismatch, match=says):
        delta_target(path).plan(SCHEMA, "key")


@pytest.mark.parametrize("feature", sorted(_KNOWN_FEATURES))
def test_table_with_a_known_feature_takes_a_commit(tmp_path: Path, feature: str) -> None:
    query = Query(with_protocol(tmp_path / "t", 7, [feature]))
    query.add(batch([("a", 1)]))
    rows = QueryBuilder().register("t", DeltaTable(query.path)).execute("SELECT * FROM t")
    assert pa.table(rows.read_all()).to_pylist() == [{"k": "a", "v": 1}]


@pytest.mark.parametrize(
    ("version", "features"),
    [
        (7, ["allowColumnDefaults"]),
        (7, ["clustering", "domainMetadata"]),
        (7, ["domainMetadata"]),
        (7, ["identityColumns"]),
        (7, ["typeWidening"]),
        (7, ["vacuumProtocolCheck"]),
        (6, []),
    ],
)
def test_feature_unknown_to_delta_rs_is_refused_at_start(
    tmp_path: Path, version: int, features: list[str]
) -> None:
    """Without the check at the start, each commit would fail with delta-rs' own error."""
    path = with_protocol(tmp_path / "t", version, features)
    name = features[0] if features else "identityColumns"
    with pytest.raises(SchemaMismatch, match=f"delta-rs does not write: {name}"):
        delta_target(path).plan(SCHEMA, "key")
    with delta_target(path).connect("q") as session:
        with pytest.raises(CommitFailedError, match="Unsupported table features") as caught:
            create(session, "q")
        assert delta_target(path).classify(caught.value) == "fatal"


def test_feature_added_later_stops_the_next_window(query: Query) -> None:
    log = Path(query.path) / "_delta_log" / f"{DeltaTable(query.path).version() + 1:020}.json"
    protocol = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["domainMetadata"]}
    log.write_text(json.dumps({"protocol": protocol}))
    with pytest.raises(SchemaMismatch, match="does not write: domainMetadata") as caught:
        query.stage(batch([("a", 1)]))
    drop = f"ALTER TABLE delta.`{query.path}` DROP FEATURE domainMetadata;"
    assert caught.value.remedy == drop


DROP = "ALTER TABLE delta.`{path}` DROP FEATURE"
COPY = (
    "Write to a copy: CREATE TABLE delta.`{path}-copy` USING delta PARTITIONED BY (`a b`)"
    " AS SELECT * FROM delta.`{path}`; and set delta.path to {path}-copy."
)


@pytest.mark.parametrize(
    ("features", "remedy"),
    [
        (["domainMetadata", "rowTracking"], f"{DROP} rowTracking; {DROP} domainMetadata;"),
        (["domainMetadata", "clustering"], COPY),
    ],
)
def test_remedy_drops_unsupported_features_or_copies_the_table(
    tmp_path: Path, features: list[str], remedy: str
) -> None:
    """Spark runs these statements in tests/deploy/test_engines.py."""
    path = with_protocol(tmp_path / "t", 7, features, partition_by=("a b",))
    with pytest.raises(SchemaMismatch) as caught:
        delta_target(path).plan(SCHEMA, "key")
    assert caught.value.remedy.startswith(remedy.format(path=path))


def test_append_only_table_takes_appends_and_refuses_upserts(query: Query) -> None:
    """The first row that replaces another one would stop the flush forever."""
    table = DeltaTable(query.path)
    table.alter.set_table_properties(
        {"delta.appendOnly": "true", "delta.enableChangeDataFeed": "true"}
    )
    query.add(batch([("a", 1)]))
    assert table_of(query.path) == [{"k": "a", "v": 1}]
    with pytest.raises(SchemaMismatch, match="append-only"):
        Upserting(query.path).plan()


def test_upserts_with_column_of_unsupported_type_are_refused(tmp_path: Path) -> None:
    """Each MERGE would fail. Added rows are null in that column."""
    column = {"name": "x", "type": "variant", "nullable": True, "metadata": {}}
    path = with_protocol(tmp_path / "t", 7, ["variantType"], column)
    Query(path).add(batch([("a", 1)]))
    with pytest.raises(SchemaMismatch, match="wal_sink does not write the type of x"):
        Upserting(path).plan()


def test_rows_for_another_table_stop_the_flush(query: Query, tmp_path: Path) -> None:
    DeltaTable.create(str(tmp_path / "other"), SCHEMA)
    other, plan = Query(tmp_path / "other"), query.plan()
    with pytest.raises(OptionError, match=f"published for the Delta table {query.path}, "):
        other.session.write(plan, query.slice(batch([("a", 1)]), plan))


UPSERT = {"delta.mode": "upsert", "keyColumns": "k"}
AT = "delta.timestampColumn"


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"delta.path": "lake/orders"}, "A relative path is another folder in each process"),
        ({"delta.path": "file:/data/t"}, "neither an absolute path nor a URL"),
        ({"delta.storageOptions": "[]"}, r"delta\.storageOptions is not a JSON object"),
        ({"delta.storageOptions": '{"a": 1}'}, r"delta\.storageOptions is not a JSON object"),
        ({"delta.storageOptions": "x"}, r"delta\.storageOptions is not a JSON object"),
        ({"delta.mode": "upsert"}, "keyColumns names no column"),
        ({"keyColumns": "k"}, "a Delta table has no key"),
        ({"partitionColumns": "k"}, "without createTable"),
        ({"operationColumn": "op"}, "no row can be found to delete"),
        (UPSERT | {"keyColumns": "key"}, "keyColumns names key"),
        (UPSERT | {"keyColumns": "f"}, "not compared by equality"),
        ({AT: "at"}, "delta.mode is append"),
        (UPSERT | {AT: "at", "operationColumn": "op"}, "would bring its key back"),
        (UPSERT | {AT: "k"}, "k, which is string"),
        (UPSERT | {AT: "x"}, "x, which is not"),
    ],
)
def test_unfit_option_is_refused(tmp_path: Path, options: dict[str, str], error: str) -> None:
    schema = pa.schema([*SCHEMA, ("f", pa.float64()), ("at", pa.timestamp("us", "UTC"))])
    DeltaTable.create(str(tmp_path / "t"), schema)
    with pytest.raises((OptionError, SchemaMismatch), match=error):
        delta_target(**{"path": str(tmp_path / "t")} | options).plan(schema, "key")


@pytest.mark.parametrize(
    "path",
    [
        "s3://key:Geheim@bucket/t",
        "s3a://key:Ge/heim@bucket/t",
        "S3://Geheim@bucket/t",
        "s3://bucket/t?secret_access_key=Geheim",
        "abfss://c:Geheim@account.dfs.core.windows.net/t",
        "abfss://c@account.dfs.core.windows.net/t?sig=Geheim",
        "hdfs://me:Geheim@host:9000/t",
    ],
)
def test_secret_in_the_path_is_refused_and_not_shown(path: str) -> None:
    with pytest.raises(OptionError, match=r"delta\.storageOptions or in the environment") as caught:
        delta_target(path)
    assert "Geheim" not in str(caught.value)


@pytest.mark.parametrize(
    "path",
    [
        "/data/a@b:c?d/t",
        "file:///data/a@b:c/t",
        "s3://bucket/a@b:c/t",
        "abfss://c@account.dfs.core.windows.net/t",
        "hdfs://host:9000/t",
    ],
)
@pytest.mark.parametrize("slashes", ["", "/", "//"])
def test_path_without_a_secret_is_accepted(path: str, slashes: str) -> None:
    """Slashes at the end do not count: pending rows of the same path stay with the table."""
    assert delta_target(path + slashes).writes_to == path

"""What a start says of a table that cannot be written, and what the remedy does."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, QueryBuilder, Schema, write_deltalake
from deltalake.exceptions import CommitFailedError
from deltalake.schema import PrimitiveType

from tests.delta.conftest import SCHEMA, Query, batch, table_of
from tests.protocol.engine import World, in_memory
from tests.support.starts import start
from wal_sink.errors import OptionError, SchemaMismatch, TargetUnavailable
from wal_sink.options import parse
from wal_sink.targets.delta import DeltaTarget
from wal_sink.targets.delta.options import DeltaOptions
from wal_sink.targets.delta.table import _KNOWN_FEATURES, TableShape, refuse_unfit
from wal_sink.testing.contracts.ledger import create


def target(path: object, **options: str) -> DeltaTarget:
    return DeltaTarget(parse({"delta.path": str(path), **options}, DeltaOptions))


def test_missing_table_is_created_by_the_remedy(tmp_path: Path) -> None:
    """Its Python runs as it stands; the table then takes the DataFrame."""
    path = tmp_path / "it's new"
    schema = pa.schema([("k", pa.string()), ("s", pa.struct([("x", pa.list_(pa.int32()))]))])
    with pytest.raises(SchemaMismatch, match="There is no Delta table") as caught:
        target(path).plan(schema, "key")
    remedy = caught.value.remedy
    assert (
        f"CREATE TABLE delta.`{path}` (`k` string, `s` struct<x:array<int>>) USING DELTA" in remedy
    )
    exec(remedy.partition("by Python: ")[2], {"deltalake": deltalake})
    assert target(path).plan(schema, "key").table == str(path)


@pytest.mark.parametrize(
    "type_", [pa.duration("us"), pa.struct([]), pa.list_(pa.struct([]))], ids=str
)
def test_missing_table_for_what_delta_has_no_type(tmp_path: Path, type_: pa.DataType) -> None:
    """Nor its files: Parquet has no struct without fields."""
    with pytest.raises(SchemaMismatch, match="no type for column d"):
        target(tmp_path / "t").plan(pa.schema([("d", type_)]), "key")


def test_column_that_makes_a_table_unreadable_is_not_added(tmp_path: Path) -> None:
    """delta-rs adds it without the feature that the table needs then."""
    DeltaTable.create(path := tmp_path / "t", pa.schema([("k", pa.string())]))
    map_ = pa.map_(pa.string(), pa.list_(pa.timestamp("us")))
    schema = pa.schema([("k", pa.string()), ("d", map_)])
    for where, option in ((path, "delta.mergeSchema"), (tmp_path / "new", "createTable")):
        with pytest.raises(SchemaMismatch, match="no type for column d"):
            target(where, **{option: "true"}).plan(schema, "key")
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
            [("k", pa.string()), ("x", pa.map_(pa.int32(), pa.date32()))],
            "x: the table has no such column",
            "map<int,date>",
        ),
    ],
)
def test_columns_that_do_not_fit(
    query: Query, columns: list[tuple[str, pa.DataType]], says: str, remedy: str
) -> None:
    with pytest.raises(SchemaMismatch, match=f"(?s){says}.*{remedy}"):
        query.plan(pa.schema(columns))


def test_column_that_the_dataframe_lacks(tmp_path: Path) -> None:
    """It is null in the new rows, unless the table takes no null there."""
    fields = [
        Field("k", PrimitiveType("string")),
        Field("n", PrimitiveType("long"), nullable=False),
    ]
    DeltaTable.create(str(tmp_path / "t"), Schema(fields))
    with pytest.raises(SchemaMismatch, match="n: it takes no null"):
        Query(str(tmp_path / "t")).plan(pa.schema([("k", pa.string())]))
    DeltaTable.create(str(tmp_path / "u"), SCHEMA)
    query = Query(str(tmp_path / "u"))
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
def test_table_that_asks_more_of_its_writers(
    query: Query, says: str, change: Callable[[DeltaTable], object]
) -> None:
    """At the start, and where it was changed under a query that flushes."""
    plan = query.plan()
    change(DeltaTable(query.path))
    with pytest.raises(SchemaMismatch, match=says):
        query.plan()
    with pytest.raises(SchemaMismatch, match=says):
        query.session.write(plan, query.slice(batch([("a", 1)]), plan))


@pytest.mark.parametrize(
    ("says", "metadata", "properties", "features"),
    [
        ("c is generated", {"delta.generationExpression": "v + 1"}, {}, []),
        ("c is an identity", {"delta.identity.start": 1}, {}, []),
        (
            "does not write: icebergCompatV2, rowTracking",
            {},
            {},
            ["rowTracking", "icebergCompatV2"],
        ),
    ],
)
def test_table_feature_ignored_by_delta_rs_is_refused(
    says: str, metadata: dict[str, Any], properties: dict[str, str], features: list[str]
) -> None:
    """It commits any file that it is given: a wrong one would be found by readers."""
    array = {"type": "array", "elementType": "string", "containsNull": True}
    field = {"name": "c", "type": array, "nullable": True, "metadata": metadata}
    schema = Schema.from_json(json.dumps({"type": "struct", "fields": [field]}))
    with pytest.raises(SchemaMismatch, match=says):
        refuse_unfit(TableShape("/t", pa.schema(schema.to_arrow()), properties, features))


def with_protocol(path: Path, version: int, features: list[str]) -> str:
    """Make a table with the columns of `SCHEMA` whose protocol asks for features, as Spark makes it."""
    DeltaTable.create(str(path), SCHEMA)
    log = path / "_delta_log" / f"{0:020}.json"
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    protocol: dict[str, Any] = {"minReaderVersion": 1, "minWriterVersion": version}
    if features:
        protocol["writerFeatures"] = features
        if of_readers := sorted(OF_READERS & {*features}):
            protocol |= {"minReaderVersion": 3, "readerFeatures": of_readers}
    kept = [action for action in actions if "protocol" not in action]
    lines = [json.dumps(action) for action in [{"protocol": protocol}, *kept]]
    log.write_text("\n".join(lines))
    return str(path)


OF_READERS = {
    *("columnMapping", "deletionVectors", "timestampNtz", "typeWidening", "v2Checkpoint"),
    *("vacuumProtocolCheck", "variantType", "variantType-preview"),
}


@pytest.mark.parametrize("feature", sorted(_KNOWN_FEATURES))
def test_feature_is_known_if_a_commit_succeeds(tmp_path: Path, feature: str) -> None:
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
def test_feature_unknown_to_delta_rs_is_refused_early(
    tmp_path: Path, version: int, features: list[str]
) -> None:
    """By the start. A commit without that check ends with delta-rs' own error, which is not a conflict."""
    path = with_protocol(tmp_path / "t", version, features)
    name = features[0] if features else "identityColumns"
    with pytest.raises(SchemaMismatch, match=f"delta-rs does not write: {name}"):
        target(path).plan(SCHEMA, "key")
    with target(path).connect("q") as session:
        with pytest.raises(CommitFailedError, match="Unsupported table features") as caught:
            create(session, "q")
        assert target(path).classify(caught.value) == "fatal"


def test_feature_added_later_stops_the_next_window(query: Query) -> None:
    """Before a commit: an error of delta-rs would come at each try."""
    log = Path(query.path) / "_delta_log" / f"{DeltaTable(query.path).version() + 1:020}.json"
    protocol = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["domainMetadata"]}
    log.write_text(json.dumps({"protocol": protocol}))
    with pytest.raises(SchemaMismatch, match="does not write: domainMetadata") as caught:
        query.stage(batch([("a", 1)]))
    drop = f"ALTER TABLE delta.`{query.path}` DROP FEATURE domainMetadata;"
    assert caught.value.remedy == drop


DROP = "ALTER TABLE delta.`/t` DROP FEATURE"
COPY = (
    "Write to a copy: CREATE TABLE delta.`/t-copy` USING delta PARTITIONED BY (`a b`)"
    " AS SELECT * FROM delta.`/t`; and set delta.path to /t-copy."
)


@pytest.mark.parametrize(
    ("features", "remedy"),
    [
        (["domainMetadata", "rowTracking"], f"{DROP} rowTracking; {DROP} domainMetadata;"),
        (["domainMetadata", "clustering"], COPY),
    ],
)
def test_remedy_for_features_names_what_spark_drops(features: list[str], remedy: str) -> None:
    """Spark runs these in tests/deploy/test_engines.py."""
    with pytest.raises(SchemaMismatch) as caught:
        refuse_unfit(TableShape("/t", pa.schema([]), {}, features, ["a b"]))
    assert caught.value.remedy.startswith(remedy)


def test_table_that_can_be_written(query: Query) -> None:
    """What appending does not have to do with."""
    table = DeltaTable(query.path)
    table.alter.set_table_properties(
        {"delta.appendOnly": "true", "delta.enableChangeDataFeed": "true"}
    )
    query.add(batch([("a", 1)]))
    assert table_of(query.path) == [{"k": "a", "v": 1}]


def test_column_that_is_gone_stops_the_flush(query: Query) -> None:
    """Not the start only: rows of the old plan wait in the log."""
    plan = query.plan()
    rows = query.slice(batch([("a", 1)]), plan)
    DeltaTable.create(query.path, pa.schema([("k", pa.string())]), mode="overwrite")
    with pytest.raises(
        SchemaMismatch,
        match="has changed since pending rows were checked against it: column v is gone",
    ):
        query.session.write(plan, rows)


def test_table_is_altered_as_the_error_says(tmp_path: Path) -> None:
    """The next start goes by the table as it is then."""
    path, other = str(tmp_path / "t"), pa.schema([SCHEMA.field("k"), ("v", pa.int32())])
    DeltaTable.create(path, SCHEMA)
    world = World(*in_memory(), target(path))

    def publish(v: int) -> None:
        start(world).batches([("a", v)])

    def alter(schema: pa.Schema) -> None:
        rows = DeltaTable(path).to_pyarrow_table().cast(schema)
        write_deltalake(path, rows, mode="overwrite", schema_mode="overwrite")

    publish(1)
    alter(other)
    with pytest.raises(SchemaMismatch, match=r"column v was bigint, and is int now") as caught:
        world.flush()
    alter(SCHEMA)
    world.flush()
    alter(other)
    assert caught.value.remedy.endswith("change the table, and start the query.")
    publish(2)
    world.flush()
    assert sorted(row["v"] for row in table_of(path)) == [1, 2]


def test_rows_go_to_the_table_that_the_options_name(query: Query, tmp_path: Path) -> None:
    """A plan of the log for another table does not lead there."""
    DeltaTable.create(str(tmp_path / "other"), SCHEMA)
    other = Query(str(tmp_path / "other"))
    plan = query.plan()
    with pytest.raises(OptionError, match=f"published for the Delta table {query.path}, "):
        other.session.write(plan, query.slice(batch([("a", 1)]), plan))


def test_relative_path_is_refused() -> None:
    with pytest.raises(OptionError, match="a relative path: it is another folder in each process"):
        target("lake/orders")


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
def test_keys_in_the_path_are_refused(path: str) -> None:
    """Before anything is written; the error does not repeat them."""
    with pytest.raises(OptionError, match=r"delta\.storageOptions or in the environment") as caught:
        target(path)
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
def test_path_without_keys_is_taken(path: str) -> None:
    assert target(path).writes_to == path


@pytest.mark.parametrize("text", ["[]", '{"a": 1}', "x"])
def test_storage_options_are_an_object_of_texts(tmp_path: Path, text: str) -> None:
    options = parse({"delta.path": str(tmp_path), "delta.storageOptions": text}, DeltaOptions)
    with pytest.raises(OptionError, match=r"delta\.storageOptions is not a JSON object"):
        DeltaTarget(options).plan(SCHEMA, "key")
    assert text not in repr(options)


def test_store_that_does_not_answer_may_pass() -> None:
    storage = (
        '{"AWS_ENDPOINT_URL": "http://127.0.0.1:1", "AWS_ACCESS_KEY_ID": "a", "AWS_ALLOW_HTTP": "true",'
        ' "AWS_SECRET_ACCESS_KEY": "b", "AWS_REGION": "x", "max_retries": "0"}'
    )
    options = parse({"delta.path": "s3://b/t", "delta.storageOptions": storage}, DeltaOptions)
    with pytest.raises(TargetUnavailable, match="does not answer"), contextlib.ExitStack():
        DeltaTarget(options).plan(SCHEMA, "key")

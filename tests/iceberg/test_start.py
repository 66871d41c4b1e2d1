"""A start refuses an unfit table or option, and creates a table or adds columns on request."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow.fs import AwsStandardS3RetryStrategy, S3FileSystem
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.transforms import IdentityTransform, Transform, TruncateTransform

from tests.iceberg.conftest import catalog_options, load, make_table, query, read
from tests.support.s3 import S3
from wal_sink.errors import InvalidRow, OptionError, SchemaMismatch, TargetUnavailable, WalSinkError
from wal_sink.options import parse
from wal_sink.targets.iceberg import IcebergTarget
from wal_sink.targets.iceberg.catalog import classify
from wal_sink.targets.iceberg.options import IcebergOptions

SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
ROW: dict[str, Any] = {"k": "a", "v": 1, "at": None}


DOUBLE = pa.field("d", pa.float64())


def target(options: dict[str, str], **arguments: str) -> IcebergTarget:
    return IcebergTarget(parse(options | arguments, IcebergOptions))


def test_start_creates_a_table_with_key_and_partitions(tmp_path: Path) -> None:
    """A check only shows the statement, with quoted names. A second start changes nothing."""
    options = catalog_options(tmp_path) | {
        "createTable": "true",
        "keyColumns": "k",
        "partitionColumns": "days(at), bucket(4, v), k",
    }
    shown = target(options).dry_plan(SCHEMA, "key").creates
    assert "`at` timestamp" in shown
    assert "PARTITIONED BY (days(`at`), bucket(4, `v`), `k`)" in shown
    blank = options | {"table": "shop.my orders", "keyColumns": "a b", "partitionColumns": ""}
    assert target(blank).dry_plan(pa.schema([("a b", pa.int64())]), "key").creates == (
        "CREATE TABLE shop.`my orders` (`a b` bigint NOT NULL) USING iceberg;"
        "\nALTER TABLE shop.`my orders` SET IDENTIFIER FIELDS `a b`"
    )
    with pytest.raises(SchemaMismatch, match="There is no table"):
        target(catalog_options(tmp_path)).plan(SCHEMA, "key")
    plans = [target(options).plan(SCHEMA, "key") for _ in range(2)]
    assert plans[0] == plans[1]
    table = load(options)
    assert [str(field.transform) for field in table.spec().fields] == [
        "day",
        "bucket[4]",
        "identity",
    ]
    assert table.format_version == 2
    assert table.schema().identifier_field_names() == {"k"}
    with query(options, SCHEMA) as running:
        running.add([ROW])
    assert read(options) == [ROW]


@pytest.mark.s3
@pytest.mark.parametrize("bucket", ["none", "denied"])
def test_store_that_refuses_access_raises_option_error(tmp_path: Path, s3: S3, bucket: str) -> None:
    """Arrow reports the refusal only in the text of its error."""
    options = catalog_options(tmp_path) | {
        "iceberg.catalog.warehouse": s3.bucket("denied") if bucket == "denied" else "s3://nowhere",
        "iceberg.catalog.s3.endpoint": s3.endpoint,
        "iceberg.catalog.s3.access-key-id": "test",
        "iceberg.catalog.s3.secret-access-key": "Geheim",
        "iceberg.catalog.s3.region": "us-east-1",
    }
    with pytest.raises(OptionError, match=r"ACCESS_DENIED|NO_SUCH_BUCKET"):
        target(options, createTable="true").plan(SCHEMA, "key")


def test_store_that_does_not_answer_is_retried() -> None:
    """Arrow quotes the key in its error, so the table's name may look like a refusal."""
    store = S3FileSystem(
        endpoint_override="http://127.0.0.1:9",
        access_key="test",
        secret_key="Geheim",
        region="us-east-1",
        retry_strategy=AwsStandardS3RetryStrategy(max_attempts=1),
    )
    for key in ("access_denied/Forbidden/t", "ACCESS_DENIED", "AccessDenied/t", "no_such_bucket"):
        with pytest.raises(OSError, match=key) as caught:
            store.open_input_file(f"forbidden/{key}")
        assert classify(caught.value) == "retry"


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"partitionColumns": "k"}, "without createTable"),
        (
            {"createTable": "true", "partitionColumns": "hours(v)"},
            "no Iceberg table is partitioned",
        ),
        (
            {"createTable": "true", "partitionColumns": "bucket(k)"},
            "no Iceberg table is partitioned",
        ),
        (
            {"createTable": "true", "partitionColumns": "bucket(4, k"},
            "no Iceberg table is partitioned",
        ),
        ({"createTable": "true", "partitionColumns": "day(moment)"}, "names moment"),
        ({"createTable": "true", "keyColumns": "key"}, "names key"),
        ({"createTable": "true", "keyColumns": "d"}, "keyColumns is d, and no float"),
        ({"table": "orders"}, "has no namespace"),
        (
            {
                "iceberg.catalog.type": "",
                "iceberg.catalog.uri": "http://127.0.0.1:9",
                "iceberg.catalog.py-catalog-impl": "no.Such",
            },
            "Could not initialize Catalog: no.Such",
        ),
        ({"iceberg.catalog.typ": "sql"}, r"Did you mean iceberg\.catalog\.type\?"),
        ({"iceberg.catalog.Warehous": "/lake"}, r"Did you mean iceberg\.catalog\.warehouse\?"),
        ({"iceberg.catalog.uri": "postgresql://me:secret@host/db"}, "has a password in it"),
        (
            {"iceberg.catalog.uri": "postgresql+psycopg2://me@host/db?password=secret"},
            "has a password in it",
        ),
        ({"iceberg.catalog.uri": "http://me:secret@[host/db"}, "uri is not an address"),
        ({"iceberg.catalog.uri": "sqlite:////no/such/folder/c.db"}, "does not answer"),
    ],
)
def test_unfit_option_is_refused(tmp_path: Path, options: dict[str, str], error: str) -> None:
    with pytest.raises(WalSinkError, match=error) as caught:
        target(catalog_options(tmp_path), **options).plan(SCHEMA.append(DOUBLE), "key")
    assert "secret" not in str(caught.value)


def test_partition_name_differs_from_all_column_names(tmp_path: Path) -> None:
    options = catalog_options(tmp_path) | {"createTable": "true", "partitionColumns": "day(at)"}
    schema = pa.schema([("at", pa.date32()), ("at_day", pa.string())])
    target(options).plan(schema, "key")
    assert [field.name for field in load(options).spec().fields] == ["at_day_"]


def test_new_columns_are_added_at_a_start(tmp_path: Path) -> None:
    """They are added only with mergeSchema, and not by a check."""
    options = catalog_options(tmp_path)
    make_table(options, SCHEMA)
    with query(options, SCHEMA) as running:
        running.add([ROW])
    wide = SCHEMA.append(pa.field("tags", pa.list_(pa.string())))
    remedy = "tags: the table has no such column.* or set iceberg.mergeSchema to true"
    with pytest.raises(SchemaMismatch, match=remedy):
        target(options).plan(wide, "key")
    merging = options | {"iceberg.mergeSchema": "true"}
    shown = target(merging).dry_plan(wide, "key")
    assert load(options).schema().column_names == SCHEMA.names
    assert target(merging).plan(wide, "key") == shown
    with query(merging, wide) as running:
        running.add([ROW | {"v": 2, "tags": ["x", None]}])
    assert sorted(read(options), key=lambda row: row["v"]) == [
        ROW | {"tags": None},
        ROW | {"v": 2, "tags": ["x", None]},
    ]


NO_TYPE = "Iceberg has no type for column d"


@pytest.mark.parametrize(
    ("by", "type_", "says"),
    [
        ("d", pa.float64(), "partitioned by d, a double"),
        ("days(at), hours(at)", pa.float64(), "partitioned twice by at"),
        ("", pa.struct([]), NO_TYPE),
        ("", pa.list_(pa.struct([])), NO_TYPE),
        ("", pa.null(), NO_TYPE),
        ("", pa.duration("us"), NO_TYPE),
    ],
    ids=str,
)
def test_unfit_partition_or_type_creates_no_table(
    tmp_path: Path, by: str, type_: pa.DataType, says: str
) -> None:
    """A partition by a float would lose rows with NaN. Parquet has no struct without fields."""
    options = catalog_options(tmp_path) | {"createTable": "true", "partitionColumns": by}
    with pytest.raises(SchemaMismatch, match=says):
        target(options).plan(SCHEMA.append(pa.field("d", type_)), "key")
    with pytest.raises(NoSuchTableError):
        load(options)


def test_unfit_dataframe_changes_no_table(tmp_path: Path) -> None:
    """A name that differs by case only is not a new column."""
    options = catalog_options(tmp_path)
    make_table(options, SCHEMA)
    merging = target(options | {"iceberg.mergeSchema": "true"})
    first, *others = SCHEMA
    for unfit in (
        pa.schema([first.with_type(pa.list_(pa.string())), *others, ("new", pa.string())]),
        pa.schema([first.with_name(first.name.upper()), *others, ("new", pa.string())]),
    ):
        with pytest.raises(SchemaMismatch):
            merging.plan(unfit, "key")
    assert load(options).schema().column_names == SCHEMA.names


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("write.format.default", "orc", "its files are orc"),
        ("write.parquet.compression-codec", "lzo", "properties: While LZO compression"),
        ("write.metadata.metrics.default", "some", "properties: Unsupported metrics mode: some"),
    ],
)
def test_unfit_property_is_refused(tmp_path: Path, name: str, value: str, says: str) -> None:
    options = catalog_options(tmp_path)
    with make_table(options, SCHEMA).transaction() as change:
        change.set_properties({name: value})
    with pytest.raises(SchemaMismatch, match=says):
        target(options).plan(SCHEMA, "key")


def test_table_with_another_avro_codec_takes_rows(tmp_path: Path) -> None:
    """Pyiceberg lacks some codecs, so manifests have Java's default codec."""
    options = catalog_options(tmp_path)
    with make_table(options, SCHEMA).transaction() as change:
        change.set_properties({"write.avro.compression-codec": "snappy"})
    with query(options, SCHEMA) as running:
        running.add([ROW])
    assert read(options) == [ROW]


@pytest.mark.parametrize(
    ("by", "type_", "short", "long"),
    [
        ("k", pa.string(), "x" * 253, "é" * 43),
        ("k", pa.binary(), b"x" * 144, b"x" * 190),
        ("truncate(50, k)", pa.string(), "x" * 300, "é" * 43),
    ],
)
def test_partition_value_too_long_for_a_folder_is_refused(
    tmp_path: Path, by: str, type_: pa.DataType, short: object, long: object
) -> None:
    options = catalog_options(tmp_path) | {"createTable": "true", "partitionColumns": by}
    schema = pa.schema([("k", type_), ("v", pa.int64())])
    made = target(options)
    plan = made.plan(schema, "key")
    made.check(pa.record_batch([pa.array([short], type_), [1]], schema), plan)
    with pytest.raises(InvalidRow, match="too long for the name of a partition") as caught:
        made.check(pa.record_batch([pa.array([short, long], type_), [1, 2]], schema), plan)
    assert caught.value.rows.to_pylist() == [False, True]


def test_tasks_get_the_drivers_catalog_properties(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Options override pyiceberg's configuration, and nested properties stay nested."""
    lines = ["catalog:", "  lake:", "    auth:", "      type: basic", "      basic:"]
    lines += ["        username: me", "        password: mine"]
    (tmp_path / ".pyiceberg.yaml").write_text("\n".join(lines))
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", "sqlite:////elsewhere.db")
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__S3__REGION", "eu-central-1")
    options = catalog_options(tmp_path) | {"iceberg.catalog.name": "lake"}
    sent = target(options).for_tasks()
    monkeypatch.delenv("PYICEBERG_CATALOG__LAKE__S3__REGION")
    properties: dict[str, Any] = {**sent.options.catalog_properties}
    assert properties["uri"] == options["iceberg.catalog.uri"]
    assert properties["s3.region"] == "eu-central-1"
    assert properties["auth"] == {"type": "basic", "basic": {"username": "me", "password": "mine"}}
    assert "eu-central-1" not in repr(sent)
    assert "mine" not in repr(sent)


@pytest.mark.parametrize("type_", ["rest", ""])
def test_catalog_that_does_not_answer_raises_unavailable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, type_: str
) -> None:
    """The catalog accepts the connection, and does not answer."""
    monkeypatch.setattr("wal_sink.targets.iceberg.catalog._WAITS_S", (1.0, 0.2))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        uri = f"http://127.0.0.1:{silent.getsockname()[1]}"
        options = {"iceberg.catalog.type": type_, "iceberg.catalog.uri": uri}
        with pytest.raises(TargetUnavailable, match="timed out"):
            target(catalog_options(tmp_path) | options).plan(SCHEMA, "key")


@pytest.mark.parametrize(
    ("type_", "by", "says"),
    [
        (pa.binary(), TruncateTransform(2), r"partitioned by truncate\[2\] of v, binary, which"),
        (pa.uuid(), IdentityTransform(), "partitioned by identity of v, uuid, which pyiceberg"),
        (pa.uuid(), None, "sorted by identity of v, uuid, which pyiceberg"),
    ],
)
def test_transform_unknown_to_pyiceberg_is_refused(
    tmp_path: Path, type_: pa.DataType, by: Transform[Any, Any] | None, says: str
) -> None:
    """The transform is that of a partition, or of the sort order."""
    options, schema = catalog_options(tmp_path), pa.schema([("v", type_), ("w", pa.int64())])
    table = make_table(options, schema, [("v", by)] if by else [])
    if by is None:
        with table.update_sort_order() as order:
            order.asc("v", IdentityTransform())
    with pytest.raises(SchemaMismatch, match=says):
        target(options).plan(schema.remove(0), "key")

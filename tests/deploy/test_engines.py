"""Spark and DuckDB read the tables of a stream, and Spark changes them at the same time."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.delta import conftest as delta
from tests.delta.conftest import Upserting
from tests.delta.test_readers import EXTREMES
from tests.delta.test_readers import ROWS as ROWS_OF_EXTREMES
from tests.deploy.engines import DELTA, DUCKDB, ICEBERG, SparkSql, duckdb_rows
from tests.iceberg import conftest as iceberg
from tests.iceberg.rest_server import RestCatalog
from tests.iceberg.test_readers import ROWS, SCHEMA
from tests.support.deploy_table import Counted, Row
from wal_sink.errors import SchemaMismatch, TargetUnavailable
from wal_sink.model.ledger import LedgerRow, Outcome
from wal_sink.model.plan import Plan
from wal_sink.model.spark_types import spark_ddl
from wal_sink.options import parse
from wal_sink.targets.delta import DeltaTarget
from wal_sink.targets.delta.options import DeltaOptions
from wal_sink.targets.iceberg import IcebergTarget
from wal_sink.targets.iceberg.options import IcebergOptions
from wal_sink.testing.contracts.ledger import finish, following, row_of

pytestmark = [pytest.mark.test_all, pytest.mark.spark, pytest.mark.timeout(1_200)]

# A value of each column of the rows of tests/iceberg, in the SQL of Spark and DuckDB.
LITERALS = {
    "text": "'a/b=c%é'",
    "flag": "false",
    "day": "DATE '1969-12-31'",
    "at": "TIMESTAMP '1969-12-31 23:59:59.999999+00:00'",
    "price": "CAST('-12345678901234567890.123456789' AS DECIMAL(38, 9))",
    "small": "32767",
    "large": "9007199254740993",
    "real": "CAST('5e-324' AS DOUBLE)",
}


def found_by_filters(table: str, quote: str = '"', but: str = "") -> str:
    """Return a query that counts the rows with a value of each column. Each epoch has one such row.

    :param but: a column to leave out.
    """
    counts = [
        f"SELECT count(*) AS n FROM {table} WHERE {quote}{name}{quote} = {value}"
        for name, value in LITERALS.items()
        if name != but
    ]
    return " UNION ALL ".join(counts)


def by_spark(spark: SparkSql, table: str) -> list[int]:
    return [row["n"] for row in spark.rows(found_by_filters(table, "`"))]


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestCatalog]:
    made = RestCatalog(tmp_path_factory.mktemp("rest"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory, catalog: RestCatalog) -> Iterator[SparkSql]:
    lake = {
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.type": "rest",
        "spark.sql.catalog.lake.uri": catalog.uri,
        "spark.sql.catalog.lake.cache-enabled": "false",
    }
    made = SparkSql(tmp_path_factory.mktemp("spark"), lake)
    yield made
    made.close()


@pytest.fixture
def options(catalog: RestCatalog) -> dict[str, str]:
    return catalog.new_table()


@pytest.mark.parametrize("version", [1, 3])
def test_remedy_for_another_iceberg_format_version_works(
    spark: SparkSql, options: dict[str, str], version: int
) -> None:
    """The remedy upgrades an older version, and copies a table of a newer one."""
    spark.rows("USE lake")
    name = options["table"]
    spark.rows(f"CREATE NAMESPACE IF NOT EXISTS {name.partition('.')[0]}")
    spark.rows(
        f"CREATE TABLE {name} (v BIGINT) USING iceberg TBLPROPERTIES ('format-version' = '{version}')"
    )
    schema = pa.schema([("v", pa.int64())])
    with pytest.raises(SchemaMismatch, match=f"format version {version}") as caught:
        iceberg.Query(options, schema)
    (statement,) = statements(caught.value)
    spark.rows(statement)
    if version > 2:
        options = options | {"table": f"{name}_copy"}
    with iceberg.query(options, schema) as running:
        running.add([{"v": 1}])
    assert spark.rows(f"SELECT * FROM {options['table']}") == [{"v": 1}]
    spark.rows("USE spark_catalog")


def test_spark_reads_and_maintains_the_iceberg_table(
    spark: SparkSql, options: dict[str, str], counted: Counted
) -> None:
    """Spark makes the table by the DDL of a check, reads it, also as of the first epoch, and maintains it."""
    name = options["table"]
    table = f"lake.{name}"
    asked = options | {"createTable": "true", "partitionColumns": "days(at)"}
    shown = IcebergTarget(parse(asked, IcebergOptions)).dry_plan(SCHEMA, "key").creates
    settings = "'write.delete.mode' = 'merge-on-read', 'commit.retry.num-retries' = '10'"
    for statement in (
        "USE lake",
        f"CREATE NAMESPACE {name.partition('.')[0]}",
        shown,
        f"ALTER TABLE {name} SET TBLPROPERTIES ({settings})",
        "USE spark_catalog.default",
    ):
        spark.rows(statement)
    with iceberg.query(options, SCHEMA) as running:
        running.add(ROWS)
        first = iceberg.load(options).current_snapshot()
        running.add(ROWS)
        assert first is not None
        then = f"{table} VERSION AS OF {first.snapshot_id}"
        for source, epochs in ((table, 2), (then, 1)):
            assert spark.number(f"SELECT count(*) AS n FROM {source}") == epochs * len(ROWS)
            assert by_spark(spark, source) == [epochs] * len(LITERALS)
        summaries = spark.rows(
            f"SELECT operation, summary FROM {table}.snapshots ORDER BY committed_at"
        )
        epochs_of = [summary["summary"].get("wal-sink.epochs") for summary in summaries]
        assert [item for item in epochs_of if item] == ["0", "1"], summaries

        scan = f"iceberg_scan('{iceberg.load(options).metadata_location}')"
        # A filter by `at` skips a file: DuckDB computes a wrong day before 1970.
        count = f"SELECT count(*) AS n FROM {scan}"
        result = duckdb_rows(count, found_by_filters(scan, but="at"))
        assert result == [[[2 * len(ROWS)]], [[2]] * (len(LITERALS) - 1)]

        for statement in (
            f"DELETE FROM {table} WHERE small = 32767",  # a row of each epoch
            f"CALL lake.system.rewrite_data_files(table => '{name}', options => map('rewrite-all', 'true'))",
            f"CALL lake.system.rewrite_manifests('{name}')",
            (
                f"CALL lake.system.expire_snapshots(table => '{name}', retain_last => 1,"
                " older_than => TIMESTAMP '2100-01-01')"
            ),
            f"CALL lake.system.remove_orphan_files(table => '{name}')",
        ):
            receipts = running.stage(ROWS)
            spark.rows(statement)
            assert running.commit(receipts) is Outcome.APPLIED, statement
    expected = 7 * len(ROWS) - 2
    assert len(iceberg.read(options)) == expected
    found_now = spark.number(f"SELECT count(*) AS n FROM {table}")
    counted(Row("Spark with Iceberg", ICEBERG, "5 calls", expected, found_now))
    of_deleted_row = {"flag", "day", "at", "small", "large"}
    assert by_spark(spark, table) == [5 if name in of_deleted_row else 7 for name in LITERALS]


def staged(query: delta.Query, *rows: tuple[str, int]) -> tuple[LedgerRow, tuple[bytes, ...]]:
    """Stage rows of the next epoch; return the present ledger row and the receipts."""
    return row_of(query.session), query.stage(delta.batch(rows))


def commit(query: delta.Query, current: LedgerRow, receipts: tuple[bytes, ...]) -> Outcome:
    """Finish the next epoch."""
    return finish(query.session, current, following(current), receipts)


@pytest.mark.parametrize("kind", [delta.Query, Upserting])
def test_spark_reads_and_maintains_the_delta_table(
    spark: SparkSql, tmp_path: Path, kind: Any, counted: Counted
) -> None:
    """delta-spark makes the table by the DDL of a check, reads it, compacts it, and merges into it."""
    path = str(tmp_path / "t")
    table = f"delta.`{path}`"
    asked = parse({"delta.path": path, "createTable": "true"}, DeltaOptions)
    spark.rows(DeltaTarget(asked).dry_plan(delta.SCHEMA, "key").creates)
    query = kind(path)
    query.add(delta.batch([("a", 0), ("b", 0)]))
    expected = {"a": 0, "b": 0}
    merge = (
        f"MERGE INTO {table} t USING (SELECT 'mine' AS k, 7L AS v UNION ALL SELECT 'a', 8L) s ON t.k = s.k"
        " WHEN MATCHED THEN UPDATE SET v = s.v WHEN NOT MATCHED THEN INSERT *"
    )
    for i, statement in enumerate(
        (f"OPTIMIZE {table}", merge, f"VACUUM {table}", f"DELETE FROM {table} WHERE k = 'b'")
    ):
        current, receipts = staged(query, (f"n{i}", i))
        spark.rows(statement)
        assert commit(query, current, receipts) is Outcome.APPLIED, statement
        expected[f"n{i}"] = i
    expected |= {"mine": 7, "a": 8}
    del expected["b"]
    # VACUUM without retention deletes the staged files. They are staged again, and committed.
    current, receipts = staged(query, ("late", 9))
    spark.rows(f"VACUUM {table} RETAIN 0 HOURS")
    with pytest.raises(TargetUnavailable, match="All rows of the window are staged again"):
        commit(query, current, receipts)
    assert commit(query, *staged(query, ("late", 9))) is Outcome.APPLIED
    expected["late"] = 9

    read = [
        spark.rows(f"SELECT k, v FROM {table} ORDER BY k, v"),
        *(
            [{"k": k, "v": v} for k, v in duckdb_row]
            for duckdb_row in duckdb_rows(f"SELECT k, v FROM delta_scan('{path}') ORDER BY k, v")
        ),
    ]
    assert read == [[{"k": k, "v": v} for k, v in sorted(expected.items())]] * 2
    assert sorted((row["k"], row["v"]) for row in delta.table_of(path)) == sorted(expected.items())
    counted(Row("delta-spark", DELTA, "5 statements", len(expected), len(read[0])))
    counted(Row("DuckDB with delta", DUCKDB, "none", len(expected), len(read[1])))
    assert spark.number(f"SELECT v FROM {table} WHERE k = 'late'") == 9
    history = spark.rows(f"DESCRIBE HISTORY {table}")
    text = {item.get("userMetadata"): item.get("isBlindAppend") for item in history}
    blind = None if kind is Upserting else True
    for epochs in (f"wal_sink: epochs {n} to {n}" for n in range(6)):
        assert text[epochs] == blind


def statements(error: SchemaMismatch, *ours: str) -> list[str]:
    """Return the statements in the remedy of an error.

    :param ours: the first words of the wanted statements; none for all statements.
    """
    begin = "|".join(ours or ("ALTER TABLE", "CREATE TABLE", "INSERT", "SET spark", "RESTORE"))
    return re.findall(rf"\b(?:{begin})\b[^;]*", error.remedy)


def planned_by_start(path: str) -> Plan:
    """Return the plan of a start, which writes nothing."""
    return DeltaTarget(parse({"delta.path": path}, DeltaOptions)).plan(delta.SCHEMA, "key")


DEFAULTS = "SET TBLPROPERTIES ('delta.feature.allowColumnDefaults' = 'supported')"


@pytest.mark.parametrize(
    ("ddl", "alters", "remedies"),
    [
        ("", ["SET TBLPROPERTIES ('delta.enableRowTracking' = 'true')"], [("ALTER TABLE",)]),
        ("", ["SET TBLPROPERTIES ('delta.enableInCommitTimestamps' = 'true')"], [("ALTER TABLE",)]),
        ("", ["ADD CONSTRAINT few CHECK (v < 10)"], [("ALTER TABLE",)]),
        ("", ["CLUSTER BY (k)"], [("CREATE TABLE",), ("SET spark", "RESTORE")]),
        ("", [DEFAULTS], [("CREATE TABLE",), ("SET spark", "RESTORE")]),
        (
            "",
            ["SET TBLPROPERTIES ('delta.enableTypeWidening' = 'true')"],
            [("SET spark", "RESTORE")],
        ),
        (", w BIGINT GENERATED ALWAYS AS (v + 1)", [], [("CREATE TABLE",)]),
        (", w BIGINT GENERATED ALWAYS AS IDENTITY", [], [("CREATE TABLE",)]),
        (
            "",
            [
                "SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')",
                "RENAME COLUMN v TO w",
                "RENAME COLUMN w TO v",
            ],
            [],
        ),
    ],
    ids=[
        *("tracking", "timestamps", "constraint", "clustering", "defaults", "widening"),
        *("generated", "identity", "mapping"),
    ],
)
def test_remedies_for_features_of_delta_spark_work(
    spark: SparkSql,
    tmp_path: Path,
    ddl: str,
    alters: list[str],
    remedies: list[tuple[str, ...]],
) -> None:
    """If a remedy has several ways, each one is tried with a new table."""
    for number, words in enumerate(remedies or [()]):
        path = str(tmp_path / f"t{number}")
        table = f"delta.`{path}`"
        spark.rows(f"CREATE TABLE {table} (k STRING, v BIGINT{ddl}) USING delta")
        spark.rows(f"INSERT INTO {table} (k, v) VALUES ('a', 0)")
        query = None
        if not ddl:
            query = delta.Query(path)
            query.add(delta.batch([("b", 1)]))
        version = DeltaTable(path).version()
        for alter in alters:
            spark.rows(f"ALTER TABLE {table} {alter}")
        if words:
            with pytest.raises(SchemaMismatch) as caught:
                planned_by_start(path)
            pasted = statements(caught.value, *words)
            assert pasted
            for statement in pasted:
                spark.rows(statement.replace("AS OF n", f"AS OF {version}"))
            spark.rows("SET spark.databricks.delta.restore.protocolDowngradeAllowed = false")
        path += "-copy" * ("CREATE TABLE" in words)
        if query is None or "CREATE TABLE" in words:
            query = delta.Query(path)
        query.add(delta.batch([("c", 2)]))
        rows = spark.rows(f"SELECT k, v FROM delta.`{path}` ORDER BY k")
        keys = ["a", "c"] if ddl else ["a", "b", "c"]
        assert [row["k"] for row in rows] == keys, words


CITIES = pa.schema(
    [("k", pa.string()), ("größe", pa.string()), ("city", pa.string()), ("v", pa.int64())]
)


@pytest.mark.parametrize("made_by", ["spark", "clone", "sink"])
def test_upsert_that_would_double_delta_spark_rows_is_refused(
    spark: SparkSql, tmp_path: Path, made_by: str
) -> None:
    """delta-rs and delta_spark encode the letters of the table's folders differently.

    The first upsert is refused. After the statements of the error's remedy, each upsert replaces its row.
    """
    path, original = str(tmp_path / "t"), tmp_path / "original"
    table, ddl = f"delta.`{path}`", "k STRING, `größe` STRING, city STRING, v BIGINT"
    query: Upserting | None = None

    def upsert(v: int) -> None:
        nonlocal query
        query = query or Upserting(path)
        query.add(pa.record_batch([["a"], ["x"], ["Köln"], [v]], schema=CITIES))

    source = f"delta.`{original}`" if made_by == "clone" else table
    spark.rows(f"CREATE TABLE {source} ({ddl}) USING delta PARTITIONED BY (`größe`, city)")
    if made_by == "sink":
        upsert(0)
        spark.rows(f"OPTIMIZE {table} ZORDER BY (v)")
    else:
        spark.rows(f"INSERT INTO {source} VALUES ('a', 'x', 'Köln', 0)")
    if made_by == "clone":
        spark.rows(f"CREATE TABLE {table} SHALLOW CLONE {source}")
    with pytest.raises(SchemaMismatch, match="cannot remove the file") as caught:
        upsert(1)
    for statement in statements(caught.value):
        spark.rows(statement)
    for v, statement in enumerate(
        (
            "",
            f"OPTIMIZE {table} ZORDER BY (v)",
            f"INSERT INTO {table} SELECT 'b', `größe`, city, 0 FROM {table}",
        )
    ):
        if statement:
            spark.rows(statement)
        upsert(v + 1)
    assert query
    assert row_of(query.session).epoch == (3 if made_by == "sink" else 2)
    assert spark.rows(f"SELECT k, v FROM {table} ORDER BY k") == [
        {"k": "a", "v": 3},
        {"k": "b", "v": 0},
    ]


def literal(value: Any, type_: pa.DataType) -> str:
    """Return a value as an expression of Spark's SQL."""
    if isinstance(value, bytes):
        return f"unhex('{value.hex()}')"
    return f"CAST('{value}' AS {spark_ddl(type_).upper()})"


def by_values(table: str, rows: pa.RecordBatch, quote: str) -> tuple[str, list[list[int]]]:
    """Return a query that counts the rows with each value of each column, and the counts in `rows`."""
    queries, expected = [], []
    for field, column in zip(rows.schema, rows.columns, strict=True):
        for value_count in column.value_counts():
            value = value_count["values"].as_py()
            wanted = "IS NULL" if value is None else f"= {literal(value, field.type)}"
            name = f"{quote}{field.name}{quote}"
            queries.append(f"SELECT count(*) AS n FROM {table} WHERE {name} {wanted}")
            expected.append([value_count["counts"].as_py()])
    return " UNION ALL ".join(queries), expected


@pytest.mark.parametrize("kind", [delta.Query, Upserting])
def test_filters_find_each_value_of_a_delta_table(
    spark: SparkSql, tmp_path: Path, kind: Any, counted: Counted
) -> None:
    """delta-spark and DuckDB find each value by a filter, now and as of an earlier epoch.

    Each value is in a file with other values, and in a file of its own. Files of an upsert have bounds in the
    log.
    """
    path = str(tmp_path / "t")
    upserts = kind is Upserting
    schema = ROWS_OF_EXTREMES.append(pa.field("k", pa.int64()))
    rows: list[dict[str, Any]] = [{} for _ in range(max(map(len, EXTREMES.values())) + 1)]
    for name, values in EXTREMES.items():
        for row, value in zip(rows, values, strict=False):
            # delta-rs leaves NaN out of the bounds of a merge's files: docs/delta.md.
            row[name] = None if upserts and str(value) == "nan" else value
    alone, together = (
        pa.RecordBatch.from_pylist([row | {"k": k} for k, row in enumerate(rows, first)], schema)
        for first in (0, len(rows))
    )
    if upserts:  # an upsert refuses this column
        alone, together = (item.drop_columns(["dec"]) for item in (alone, together))
    DeltaTable.create(path, alone.schema, partition_by=[] if upserts else ["dt"])
    query = kind(path)
    for i in range(len(rows)):
        query.add(alone.slice(i, 1))
    version = DeltaTable(path).version()
    query.add(together)
    # A filter by the field `b` of `a` would make Spark read the dictionary of the column `a.b`.
    every = pa.concat_batches([alone, together]).drop_columns(["a", "k"])
    table, scan = f"delta.`{path}`", f"delta_scan('{path}')"
    earlier = alone.drop_columns(["a", "k"])
    for source, wanted in ((table, every), (f"{table} VERSION AS OF {version}", earlier)):
        asked, expected = by_values(source, wanted, "`")
        assert [[row["n"]] for row in spark.rows(asked)] == expected, asked
    # A filter by the column `a.b` would make DuckDB read the bounds of the field.
    asked, expected = by_values(scan, every.drop_columns(["a.b"]) if upserts else every, '"')
    asked = asked.replace("AS TIMESTAMP)", "AS TIMESTAMPTZ)").replace("TIMESTAMP_NTZ", "TIMESTAMP")
    count = f"SELECT count(*) FROM {scan}"
    assert duckdb_rows(count, asked) == [[[2 * len(rows)]], expected], asked
    found_now = spark.number(f"SELECT count(*) AS n FROM {table}")
    counted(Row("delta-spark", DELTA, "filters", 2 * len(rows), found_now))

"""Sessions in a time zone that only Java can parse: `UTC+01:00`, `GMT+8`."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

import wal_sink
from wal_sink.coalesced_batches import in_utc
from wal_sink.demo.postgresql import Server

AT = dt.datetime(2024, 2, 29, 12, 0, tzinfo=dt.UTC)
ZONES = ("UTC+01:00", "GMT+8", "America/New_York")


@pytest.mark.parametrize("zone", ZONES)
def test_instants_of_any_zone_become_utc(zone: str) -> None:
    """Instants are inside structs, arrays and maps. The batch is a slice and has nulls."""
    here, utc = pa.timestamp("us", zone), pa.timestamp("us", "UTC")
    us = int(AT.timestamp() * 1_000_000)

    def typed(time: pa.DataType) -> pa.DataType:
        inside = pa.struct([pa.field("at", time, nullable=False), ("n", pa.int32())])
        return pa.struct([("a", pa.list_(inside)), ("m", pa.map_(time, pa.large_list(time)))])

    bare: list[object] = [
        None,
        {"a": [{"at": us, "n": 1}, None], "m": [(us, [None, us])]},
        {"a": None, "m": []},
    ]
    column = pa.array(bare, typed(pa.int64())).view(typed(here))
    batch = pa.record_batch({"c": column, "k": pa.array([1, 2, 3])}).slice(1)
    assert in_utc(batch).to_pydict() == {
        "c": [{"a": [{"at": AT, "n": 1}, None], "m": [(AT, [None, AT])]}, {"a": None, "m": []}],
        "k": [2, 3],
    }
    assert in_utc(batch).schema.field("c").type == typed(utc)


@pytest.fixture
def in_zone(spark: SparkSession, zone: str) -> Iterator[SparkSession]:
    """Set the zone of the session for one test."""
    session_zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", zone)
    yield spark
    spark.conf.set("spark.sql.session.timeZone", str(session_zone))


@pytest.mark.spark
@pytest.mark.parametrize(
    ("zone", "by_format"),
    [("UTC+01:00", True), pytest.param("GMT+8", False, marks=pytest.mark.test_all)],
)
def test_session_in_a_zone_unknown_to_python_writes_rows(
    in_zone: SparkSession,
    postgresql: Server,
    schema: str,
    tmp_path: Path,
    checkpoint: str,
    *,
    by_format: bool,
) -> None:
    """A struct with an instant becomes jsonb. A row that PostgreSQL cannot hold goes into quarantine."""
    postgresql.execute(f"CREATE TABLE {schema}.t (id int, at timestamptz, j jsonb)")
    lake, source = str(tmp_path / "lake"), str(tmp_path / "source")
    rows = in_zone.sql(
        f"SELECT id, IF(id = 1, timestamp_seconds({AT.timestamp():.0f}), timestamp_seconds(-3e11)) AS at,"
        f" named_struct('at', timestamp_seconds({AT.timestamp():.0f})) AS j FROM VALUES (1), (2) AS t (id)"
    )
    rows.write.parquet(source)
    options = {
        "checkpointLocation": checkpoint,
        "onInvalidRow": "quarantine",
        "targets": "server,lake",
        "server.target": "postgresql",
        "server.postgresql.uri": postgresql.uri,
        "server.table": f"{schema}.t",
        "lake.target": "delta",
        "lake.delta.path": lake,
        "lake.createTable": "true",
    }
    stream = in_zone.readStream.schema(rows.schema).parquet(source)
    with wal_sink.register(in_zone):
        writer = stream.writeStream.trigger(availableNow=True)
        if by_format:
            writer = writer.format("wal_sink").options(**options)
        else:
            write = wal_sink.batch_writer(in_zone, **options)
            writer = writer.foreachBatch(write).option("checkpointLocation", checkpoint)
        writer.start().awaitTermination()
        wal_sink.await_flushed(checkpoint)
    ((id_, at, text),) = postgresql.execute(f"SELECT id, at, j::text FROM {schema}.t")
    assert (id_, at) == (1, AT)
    assert dt.datetime.fromisoformat(json.loads(text)["at"]) == AT
    assert DeltaTable(lake).to_pyarrow_table().to_pylist() == [{"id": 1, "at": AT, "j": {"at": AT}}]
    assert wal_sink.status(checkpoint).quarantined_rows == 1  # it goes to no target

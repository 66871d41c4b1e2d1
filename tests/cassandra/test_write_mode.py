"""`cassandra.writeMode` = `update`: the statement, its bytes, and refusals of a start."""

from __future__ import annotations

import itertools

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from tests.cassandra.test_compare import COLUMNS, live
from tests.cassandra.test_ttl_and_event_time import wire
from tests.support.cql_driver import bind, plan_of, prepared
from wal_sink.errors import SchemaMismatch
from wal_sink.targets.cassandra.compare import (
    match_columns,
    refuse_changed,
    refuse_no_update,
)
from wal_sink.targets.cassandra.encode import encode
from wal_sink.targets.cassandra.row_plan import CassandraPlan
from wal_sink.targets.cassandra.write.statements import Statements, TimestampedRows

KEY = [("id", pa.int64()), ("day", pa.date32())]
STATIC = pa.schema([("shop", pa.string()), ("id", pa.int64())])
LIVE = live(*(column for column in COLUMNS if column.name != "tags"))


def plan(schema: pa.Schema) -> CassandraPlan:
    made = plan_of(keyspace="shop", table="orders", update=True)
    return msgspec.structs.replace(made, columns=match_columns(schema, LIVE, update=True))


@pytest.mark.parametrize("with_ttl", [False, True])
def test_update_takes_timestamp_values_and_key(*, with_ttl: bool) -> None:
    """The order of the columns in the DataFrame does not matter. The bytes are the driver's."""
    schema = pa.schema([KEY[1], ("shop", pa.string()), KEY[0]])
    source = plan(schema)
    rows = pa.record_batch(
        [pa.array([1, 2], pa.int32()).cast(pa.date32()), ["x", None], [7, 8]], schema=schema
    )
    # Static columns alone are refused beside clustering columns; the statement does not care.
    ttls = np.array([90, 0]) if with_ttl else None
    parts = Statements(source, prepared).divide(TimestampedRows(rows, np.array([5, 6])), ttls)
    using = "USING TIMESTAMP ? AND TTL ?" if with_ttl else "USING TIMESTAMP ?"
    for part in parts:
        statement, timestamps_us = part.statement, part.rows.timestamps_us
        assert statement.prepared.query_string == (
            f'UPDATE "shop"."orders" {using} SET "shop" = ? WHERE "day" = ? AND "id" = ?'
        )
        assert [c.name for c in statement.plan.columns] == ["shop", "day", "id"]
        bound = bind(
            part.rows.batch,
            statement.plan,
            timestamps_us.tolist(),
            timestamp_first=statement.timestamp_first,
            ttls=None if part.ttls is None else part.ttls.tolist(),
            expired=part.expired,
        )
        types = ["bigint", *(["int"] if with_ttl else []), "text", "date", "bigint"]
        for values in bound:
            assert values[statement.columns] == values[-3:]
        encoded = encode(
            part.rows.batch,
            statement.plan,
            timestamps_us,
            statement.head,
            timestamp_first=statement.timestamp_first,
            ttls=part.ttls,
            expired=part.expired,
        )
        data, bounds = encoded.data.to_pybytes(), encoded.offsets.tolist()
        expected = [statement.head + b"".join(map(wire, values, types)) for values in bound]
        assert [data[i:j] for i, j in itertools.pairwise(bounds)] == expected
    assert len(parts) == (2 if with_ttl else 1)


def test_static_columns_alone_need_no_clustering_columns() -> None:
    """An INSERT would need the clustering columns."""
    source = plan(STATIC)
    assert source.static_alone
    refuse_changed(source, LIVE)
    with pytest.raises(SchemaMismatch, match="day: it is in the table's primary key"):
        match_columns(STATIC, LIVE)
    with pytest.raises(SchemaMismatch, match="day: it is in the table's primary key"):
        match_columns(STATIC.append(pa.field("amount", pa.int32())), LIVE, update=True)


@pytest.mark.parametrize(
    ("fields", "operation", "words"),
    [
        (KEY, "", "only the key"),
        ([*KEY, ("shop", pa.string())], "", "beside the whole key"),
        ([KEY[0], ("shop", pa.string())], "op", "delete the whole partition"),
        ([*KEY, ("shop", pa.string()), ("amount", pa.int32())], "op", ""),
        ([KEY[0], ("shop", pa.string())], "", ""),
    ],
)
def test_row_without_values_is_refused_by_update_mode(
    fields: list[tuple[str, pa.DataType]], operation: str, words: str
) -> None:
    columns = match_columns(pa.schema(fields), LIVE, update=True)
    if not words:
        refuse_no_update(LIVE, columns, operation)
        return
    with pytest.raises(SchemaMismatch, match=words) as caught:
        refuse_no_update(LIVE, columns, operation)
    assert caught.value.remedy

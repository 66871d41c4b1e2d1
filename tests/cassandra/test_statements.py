"""The statements of rows: which statement writes a row, and with which values."""

from __future__ import annotations

import functools
import struct
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from cassandra.metadata import Metadata
from cassandra.query import UNSET_VALUE

from tests.cassandra.test_control_columns import CHANGES, INSTANT, KEY, PLAN, S_US
from tests.cassandra.test_plan import COLUMNS, live
from tests.support.cql_driver import Field, encode_from, plan_of, plan_of_column, prepared
from wal_sink.targets.cassandra.arrow_buffers import binaries
from wal_sink.targets.cassandra.batches import PlanRequests
from wal_sink.targets.cassandra.driver.frames import EncodedBatch
from wal_sink.targets.cassandra.plan import plan_columns
from wal_sink.targets.cassandra.row_plan import EXPIRES_US, MAX_TTL_S, TIMESTAMP_US, TTL_S
from wal_sink.targets.cassandra.rows import check
from wal_sink.targets.cassandra.sender import log_timestamp_us
from wal_sink.targets.cassandra.statements import (
    Statements,
    TimestampedRows,
    remaining_ttls,
)

US = 1_700_000_000_000_000
NOW_S = 1_790_000_000
INSERT = 'INSERT INTO "ks"."t" ("b", "k", "v", "a", "m") VALUES (?, ?, ?, ?, ?) USING TIMESTAMP ?'
DELETE = 'DELETE FROM "ks"."t" USING TIMESTAMP ? WHERE "k" = ?'


def numbers(kind: str, *values: int) -> list[bytes]:
    """Return numbers as the protocol has them."""
    return [struct.pack(f">{kind}", value) for value in values]


def statements_of_rows(
    statements: Statements, rows: TimestampedRows, ttls: Any = None
) -> list[tuple[str, list[Any]]]:
    """Return statement and values of each row."""
    data = bytes(statements.encode_rows(rows, ttls).data)
    encoded = EncodedBatch(rows.batch.num_rows, data, statements).rows()
    return [(query_id.decode(), values) for query_id, values in encoded]


def test_request_keeps_the_order_of_a_partitions_rows() -> None:
    """Upserts and deletes of a partition stay together."""
    by_partition = {}
    for request in requests_of_changes():
        ((key,), own_rows) = rows_of(request)
        by_partition[key] = own_rows
    assert by_partition == {
        b"x": [
            (INSERT, US),
            (DELETE + ' AND "a" = ? AND "b" = ?', US + 1),
            (DELETE + ' AND "a" = ?', US + 3),
        ],
        b"y": [(INSERT, US + 2), (DELETE, US + 4), (INSERT, US + 5)],
    }


def requests_of_changes() -> list[EncodedBatch]:
    rows = TimestampedRows(check(CHANGES, PLAN), np.arange(US, US + CHANGES.num_rows))
    by_second = functools.partial(prepared, key=[1])
    session = SimpleNamespace(prepare=by_second, cluster=SimpleNamespace(metadata=Metadata()))
    return list(PlanRequests(PLAN, session, "dc1", batch_rows=3).requests(rows))


def test_rows_too_long_together_are_encoded_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = requests_of_changes()
    monkeypatch.setattr("wal_sink.targets.cassandra.encode.ENCODED_BYTES", 180)  # one row fits
    parts = requests_of_changes()
    assert len(parts) > len(whole)
    assert sorted_rows(parts) == sorted_rows(whole)
    monkeypatch.setattr("wal_sink.targets.cassandra.encode.ENCODED_BYTES", 1)
    with pytest.raises(OverflowError, match="too long"):
        requests_of_changes()


def test_fields_of_nulls_count_as_encoded_bytes() -> None:
    """The log has a bit for each of these structs. A request would have 2.5 GB, and nothing is allocated."""
    types = {"wide": tuple((f"f{i}", "boolean") for i in range(30))}
    structs = pa.StructArray.from_arrays(
        [pa.array(np.zeros(20_000_000, np.bool_)), *[pa.nulls(20_000_000)] * 29],
        names=[name for name, _ in types["wide"]],
    )
    lists = pa.ListArray.from_arrays(pa.array([0, len(structs)], pa.int32()), structs)
    plan = plan_of_column("frozen<list<frozen<wide>>>", lists.type, "unset", types)
    rows = pa.record_batch({"id": pa.array([1], pa.int32()), "c": lists})
    with pytest.raises(OverflowError, match="too long"):
        encode_from(rows, plan, US)
    with pytest.raises(OverflowError, match="too long"):
        binaries(pa.py_buffer(b""), np.array([0, 2**31]))


def sorted_rows(requests: list[EncodedBatch]) -> list[tuple[str, int]]:
    return sorted(row for request in requests for row in rows_of(request)[1])


def rows_of(request: EncodedBatch) -> tuple[set[bytes], list[tuple[str, int]]]:
    """Return the partitions of a request, and statement and timestamp of each row."""
    keys, rows = set[bytes](), list[tuple[str, int]]()
    for query_id, values in request.rows():
        query = query_id.decode()
        keys.add(values[1])  # in either statement
        timestamp = values[0 if query.startswith("DELETE") else -1]
        rows.append((query, int.from_bytes(timestamp, "big")))
    return keys, rows


def remaining(details: dict[str, Any], now_s: int, **columns: list[int]) -> list[int]:
    names = {"ttl": TTL_S, "until": EXPIRES_US}
    arrays = {names[name]: pa.array(values, pa.int64()) for name, values in columns.items()}
    rows = len(next(iter(columns.values()), [0]))
    timestamps_us = np.arange(NOW_S * S_US + 900_000, NOW_S * S_US + 900_000 + rows)
    batch = pa.table(arrays).combine_chunks().to_batches()[0] if arrays else pa.record_batch({})
    seconds = remaining_ttls(
        TimestampedRows(batch, timestamps_us), plan_of(**details).details, now_s
    )
    assert seconds is not None
    return [int(second) for second in seconds]


def test_row_never_expires_early() -> None:
    until = [NOW_S * S_US, NOW_S * S_US + 1, (NOW_S + 9) * S_US - 1, (NOW_S - 9) * S_US]
    assert remaining({"expires_at_column": "t"}, NOW_S, until=until) == [0, 1, 9, -9]


def test_remaining_ttl_never_exceeds_option_or_server() -> None:
    """Timestamps may be ahead of the clock, and a time of expiry may be far away."""
    assert remaining({"ttl_s": 10}, NOW_S - 500) == [10]
    assert remaining({"ttl_column": "t"}, NOW_S - 500, ttl=[7, 8]) == [7, 8]
    far = (NOW_S + 2 * MAX_TTL_S) * S_US
    assert remaining({"expires_at_column": "t"}, NOW_S, until=[far]) == [MAX_TTL_S]


@pytest.mark.parametrize("nulls", ["unset", "write"])
def test_insert_with_ttl_has_timestamp_and_ttl_last(nulls: str) -> None:
    """An expired row has nulls for its values, and a TTL of a second."""
    columns: list[Field] = [
        KEY,
        ("ttl", "control", "control", pa.int32()),
        ("v", "regular", "double", pa.float64()),
        ("c", "clustering", "int", pa.int32()),
        ("w", "regular", "int", pa.int32()),
    ]
    plan = plan_of(*columns, nulls=nulls, ttl_column="ttl")
    rows = [("a", 10, 1.5, 1, 7), ("b", 3, 2.5, 2, None), ("c", 20, None, 3, 8)]
    arrays = zip(zip(*rows, strict=True), columns, strict=True)
    batch = pa.record_batch(
        [pa.array(values, kind) for values, (*_, kind) in arrays], [name for name, *_ in columns]
    )
    stored = TimestampedRows(check(batch, plan), np.arange(3) + NOW_S * S_US)
    assert stored.batch.schema.names == ["k", "v", "c", "w", TTL_S]
    ttls = remaining_ttls(stored, plan.details, NOW_S + 4)
    written = statements_of_rows(Statements(plan, prepared), stored, ttls)
    query = 'INSERT INTO "ks"."t" ("k", "v", "c", "w") VALUES (?, ?, ?, ?)'
    assert {query for query, _ in written} == {f"{query} USING TIMESTAMP ? AND TTL ?"}
    null = UNSET_VALUE if nulls == "unset" else None
    us = numbers("q", *(NOW_S * S_US + i for i in range(3)))
    assert sorted(values for _, values in written) == [
        [b"a", struct.pack(">d", 1.5), *numbers("i", 1, 7), us[0], *numbers("i", 6)],
        [b"b", None, *numbers("i", 2), null, us[1], *numbers("i", 1)],
        [b"c", null, *numbers("i", 3, 8), us[2], *numbers("i", 16)],
    ]


@pytest.mark.parametrize("ttl_s", [None, 90])
def test_update_has_the_timestamp_first_and_the_key_last(ttl_s: int | None) -> None:
    """The order of the columns in the DataFrame does not matter."""
    schema = pa.schema([("day", pa.date32()), ("shop", pa.string()), ("id", pa.int64())])
    columns = plan_columns(schema, live(*COLUMNS), update=True)
    plan = plan_of(keyspace="shop", table="orders", update=True)
    plan = msgspec.structs.replace(plan, columns=columns)
    days = pa.array([1, 2], pa.int32()).cast(pa.date32())
    rows = TimestampedRows(pa.record_batch([days, ["x", None], [7, 8]], schema), np.array([5, 6]))
    ttls = None if ttl_s is None else np.array([ttl_s, 0])  # the second row has expired
    written = statements_of_rows(Statements(plan, prepared), rows, ttls)
    using = "USING TIMESTAMP ?" if ttl_s is None else "USING TIMESTAMP ? AND TTL ?"
    query = f'UPDATE "shop"."orders" {using} SET "shop" = ? WHERE "day" = ? AND "id" = ?'
    assert {query for query, _ in written} == {query}
    ttl = [[], []] if ttl_s is None else [numbers("i", ttl_s), numbers("i", 1)]
    day = numbers("I", 2**31 + 1, 2**31 + 2)
    assert sorted(values for _, values in written) == [
        [*numbers("q", 5), *ttl[0], b"x", day[0], *numbers("q", 7)],
        [*numbers("q", 6), *ttl[1], UNSET_VALUE, day[1], *numbers("q", 8)],
    ]


def test_event_times_become_the_timestamps_of_rows() -> None:
    """The column of the table has milliseconds."""
    plan = plan_of(KEY, ("at", "regular", "timestamp", INSTANT), timestamp_column="at")
    batch = pa.record_batch({"k": ["x"] * 3, "at": pa.array([1, 2, 3], INSTANT)})
    stored = check(batch, plan)
    assert stored.column(TIMESTAMP_US).to_pylist() == [1, 2, 3]
    rows = TimestampedRows(stored, np.arange(3) + NOW_S)
    written = statements_of_rows(Statements(plan, prepared), rows)
    (zero,) = numbers("q", 0)
    assert [values for _, values in written] == [[b"x", zero, us] for us in numbers("q", 1, 2, 3)]


def test_event_time_does_not_identify_a_refused_row() -> None:
    """The log identifies a row by the timestamp that the ledger counts."""
    batch = pa.record_batch({"k": ["x"]})
    for plan, us in (
        (plan_of(KEY), NOW_S * S_US),
        (plan_of(KEY, timestamp_column="at"), None),
    ):
        statements = Statements(plan, prepared)
        upsert = statements.upsert
        rows = encode_from(batch, upsert.plan, NOW_S * S_US, upsert.head)
        assert log_timestamp_us(EncodedBatch(1, bytes(rows.data), statements)) == us

"""TTLs and event times: the options, the check of the tasks, remaining TTLs, and the bytes of rows."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from cassandra.query import UNSET_VALUE

from tests.support.cql_driver import SIMPLE, Field, bind, encode_from, plan_of, prepared
from tests.test_options import GIVEN
from wal_sink.clock import now_us
from wal_sink.configuration import configure
from wal_sink.errors import InvalidRow, OptionError, SchemaMismatch
from wal_sink.options import parse
from wal_sink.targets.cassandra import CassandraOptions
from wal_sink.targets.cassandra.check import check
from wal_sink.targets.cassandra.driver.frames import EncodedBatch
from wal_sink.targets.cassandra.encode import encode
from wal_sink.targets.cassandra.plan import written_columns
from wal_sink.targets.cassandra.row_plan import (
    EXPIRES_US,
    MAX_TTL_S,
    TIMESTAMP_US,
    TTL_S,
    CassandraPlan,
    RowTtl,
)
from wal_sink.targets.cassandra.write.refusals import ledger_us
from wal_sink.targets.cassandra.write.statements import (
    Statements,
    TimestampedRows,
    remaining_ttls,
    upsert,
)

NOW_S = 1_790_000_000
S_US = 1_000_000


# --- options --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"cassandra.ttl": "0"}, "cassandra.ttl"),
        ({"cassandra.ttl": "-1"}, "cassandra.ttl"),
        ({"cassandra.ttl": "1.5"}, "cassandra.ttl"),
        ({"cassandra.ttl": str(MAX_TTL_S + 1)}, "cassandra.ttl"),
        ({"cassandra.ttlColumn": "a", "cassandra.timestampColumn": "a"}, "both name column a"),
    ],
)
def test_options_that_contradict_each_other_are_refused(more: dict[str, str], words: str) -> None:
    with pytest.raises(OptionError, match=words) as caught:
        configure(GIVEN | more)
    assert caught.value.remedy


INSTANT = pa.timestamp("us", "UTC")


@pytest.mark.parametrize(
    ("options", "field", "table", "words"),
    [
        ({"cassandra.ttlColumn": "t"}, ("t", pa.int32()), {"id", "t"}, "which is a column of"),
        ({"cassandra.ttlColumn": "id"}, ("t", pa.int32()), {"id"}, "which is a column of"),
        ({"operationColumn": "t"}, ("t", pa.string()), {"id", "t"}, "which is a column of"),
        ({"cassandra.ttlColumn": "t"}, ("t", pa.float64()), {"id"}, "is double"),
        ({"cassandra.ttlColumn": "t"}, ("u", pa.int32()), {"id"}, "no such column"),
        ({"cassandra.expiresAtColumn": "t"}, ("t", pa.int64()), {"id"}, "is int64"),
        ({"cassandra.expiresAtColumn": "t"}, ("t", pa.timestamp("us")), {"id"}, "is timestamp"),
        ({"cassandra.timestampColumn": "t"}, ("t", pa.int32()), {"id"}, "is int32"),
        ({"cassandra.timestampColumn": "t"}, ("t", pa.date32()), {"id"}, "is date32"),
    ],
)
def test_unfit_control_column_is_refused(
    options: dict[str, str], field: tuple[str, pa.DataType], table: set[str], words: str
) -> None:
    schema = pa.schema([("id", pa.int32()), field])
    with pytest.raises(SchemaMismatch, match=words) as caught:
        written(schema, options, table)
    assert caught.value.remedy


def written(schema: pa.Schema, options: dict[str, str], table: set[str]) -> pa.Schema:
    """Return the columns that are written to a table."""
    return written_columns(schema, parse(GIVEN | options, CassandraOptions), table, "ks.t")


def test_times_with_a_column_of_the_table_are_written() -> None:
    schema = pa.schema([("id", pa.int32()), ("at", INSTANT), ("v", pa.int32()), ("until", INSTANT)])
    options = {"cassandra.expiresAtColumn": "until", "cassandra.timestampColumn": "at"}
    assert written(schema, options, {"id", "v", "at"}).names == ["id", "at", "v"]
    assert written(schema, options, {"id", "v"}).names == ["id", "v"]


COLUMNS: list[Field] = [
    ("k", "partition", "text", pa.string()),
    ("ttl", "control", "control", pa.int32()),
    ("v", "regular", "double", pa.float64()),
    ("c", "clustering", "int", pa.int32()),
    ("s", "regular", "set<int>", pa.list_(pa.int32())),
]

TTL_COLUMN = {"ttl": RowTtl(ttl_column="ttl")}
EXPIRES_AT_COLUMN = {"ttl": RowTtl(expires_at_column="until")}
EVENT_TIME, EVENT_NUMBER = {"timestamp_column": "at"}, {"timestamp_column": "us"}


@pytest.mark.parametrize(
    ("details", "good", "value", "words"),
    [
        (TTL_COLUMN, 1, None, "is null"),
        (TTL_COLUMN, 1, 0, "is not a TTL of one second"),
        (TTL_COLUMN, 1, -1, "is not a TTL of one second"),
        (TTL_COLUMN, 1, MAX_TTL_S + 1, "is more than"),
        (TTL_COLUMN, 1, 2**62, "is more than"),
        (EXPIRES_AT_COLUMN, 0, None, "is null"),
        (EXPIRES_AT_COLUMN, 0, 5_680_281_600 * S_US, "is more than"),
        (EVENT_TIME, 1, None, "is null"),
        (EVENT_TIME, 1, -S_US, "is not after 1970"),
        (EVENT_TIME, 1, "ahead", "ahead of the clock"),
        (EVENT_NUMBER, 10**15, 1_700_000_000_000, "before 2001"),
        (EVENT_NUMBER, 10**15, None, "is null"),
    ],
)
def test_implausible_time_is_refused(
    details: dict[str, Any], good: int, value: Any, words: str
) -> None:
    ttl = details.get("ttl", RowTtl())
    name = ttl.ttl_column or ttl.expires_at_column or details["timestamp_column"]
    kind = INSTANT if name in ("until", "at") else pa.int64()
    if value == "ahead":
        value = now_us() + 3_700 * S_US
    plan = plan_of(COLUMNS[0], (name, "control", "control", kind), **details)
    frame = pa.record_batch({"k": ["a", "b"], name: pa.array([good, value], kind)})
    with pytest.raises(InvalidRow, match=words) as caught:
        check(frame, plan)
    assert name in str(caught.value)
    assert caught.value.remedy
    assert check(frame[:1], plan).num_rows == 1


# --- what is left ---------------------------------------------------------------------------------


def remaining(rule: RowTtl, now_s: int, **columns: list[int]) -> list[int]:
    names = {"ttl": TTL_S, "until": EXPIRES_US}
    arrays = {names[name]: pa.array(values, pa.int64()) for name, values in columns.items()}
    rows = len(next(iter(columns.values()), [0]))
    timestamps_us = np.arange(NOW_S * S_US + 900_000, NOW_S * S_US + 900_000 + rows)
    batch = pa.table(arrays).combine_chunks().to_batches()[0] if arrays else pa.record_batch({})
    seconds = remaining_ttls(TimestampedRows(batch, timestamps_us), rule, now_s)
    assert seconds is not None
    return [int(second) for second in seconds]


def test_expiry_is_never_early() -> None:
    ttl = RowTtl(expires_at_column="t")
    until = [NOW_S * S_US, NOW_S * S_US + 1, (NOW_S + 9) * S_US - 1, (NOW_S - 9) * S_US]
    assert remaining(ttl, NOW_S, until=until) == [0, 1, 9, -9]


def test_remaining_ttl_never_exceeds_option_or_server() -> None:
    """Timestamps may be ahead of the clock, and a time of expiry may be far away."""
    assert remaining(RowTtl(ttl_s=10), NOW_S - 500) == [10]
    assert remaining(RowTtl(ttl_column="t"), NOW_S - 500, ttl=[7, 8]) == [7, 8]
    far = (NOW_S + 2 * MAX_TTL_S) * S_US
    assert remaining(RowTtl(expires_at_column="t"), NOW_S, until=[far]) == [MAX_TTL_S]


# --- the statements -------------------------------------------------------------------------------


@pytest.mark.parametrize("nulls", ["unset", "write"])
def test_rows_with_ttl_equal_what_the_driver_binds(nulls: str) -> None:
    """An expired row has nulls for its values, and a TTL of a second."""
    plan = plan_of(*COLUMNS, nulls=nulls, ttl=RowTtl(ttl_column="ttl"))
    schema = pa.schema([(name, kind) for name, _, _, kind in COLUMNS])
    rows = [("a", 10, 1.5, 1, [1, 2]), ("b", 3, 2.5, 2, None), ("c", 20, None, 3, [3])]
    frame = pa.record_batch(
        [pa.array(c, f.type) for c, f in zip(zip(*rows, strict=True), schema, strict=True)],
        schema=schema,
    )
    stored = check(frame, plan)
    assert stored.schema.names == ["k", "v", "c", "s", TTL_S]
    timestamps_us = np.arange(3) + NOW_S * S_US
    rows_of_log = TimestampedRows(stored, timestamps_us)
    ttls = remaining_ttls(rows_of_log, plan.details.ttl, NOW_S + 4)
    parts = Statements(plan, prepared).divide(rows_of_log, ttls)
    result = []
    for part in parts:
        source, batch = part.statement, part.rows.batch
        query = source.prepared.query_id.decode()
        assert query == upsert(plan.of_table(), with_ttl=True)
        assert query.endswith("USING TIMESTAMP ? AND TTL ?")
        assert part.ttls is not None
        data = encode(
            *(batch, source.plan, part.rows.timestamps_us, source.head),
            ttls=part.ttls,
            expired=part.expired,
        )
        bound = bind(
            *(batch, source.plan, part.rows.timestamps_us.tolist()),
            ttls=part.ttls.tolist(),
            expired=part.expired,
        )
        whole = data.data.to_pybytes()
        for values, (i, j) in zip(bound, itertools.pairwise(data.offsets.tolist()), strict=True):
            assert whole[i:j] == source.head + b"".join(map(wire, values, TYPES))
        result += [(row, part.expired) for row in bound]
    unset = [value for row, _ in result for value in row if value is UNSET_VALUE]
    assert len(unset) == (2 if nulls == "unset" else 0)
    by_key = {row[0]: (row, expired) for row, expired in result}
    assert by_key["a"] == (("a", 1.5, 1, (1, 2), NOW_S * S_US, 6), False)
    (_, v, c, _, us, ttl), expired = by_key["b"]
    assert (v, c, us, ttl, expired) == (None, 2, NOW_S * S_US + 1, 1, True)
    assert by_key["c"][0][-1] == 16


TYPES = ["text", "double", "int", "set<int>", "bigint", "int"]


def wire(value: Any, cql: str) -> bytes:
    if value is None or value is UNSET_VALUE:
        return (-1 if value is None else -2).to_bytes(4, "big", signed=True)
    if cql.startswith("set"):
        inner = b"".join(wire(item, "int") for item in value)
        data = len(value).to_bytes(4, "big") + inner
    else:
        data = SIMPLE[cql].serialize(value, 5)
    return len(data).to_bytes(4, "big") + data


# --- event times ----------------------------------------------------------------------------------

EVENTS: list[Field] = [
    ("k", "partition", "text", pa.string()),
    ("n", "clustering", "int", pa.int32()),
    ("op", "operation", "operation", pa.string()),
    ("at", "regular", "timestamp", INSTANT),
    ("ttl", "control", "control", pa.int64()),
    ("a", "regular", "int", pa.int32()),
    ("b", "regular", "list<int>", pa.list_(pa.int32())),
    ("s", "static", "text", pa.string()),
]


def event_plan(nulls: str) -> CassandraPlan:
    """Return a plan with event times, TTLs, deletes and static columns."""
    return plan_of(
        *EVENTS,
        nulls=nulls,
        ttl=RowTtl(ttl_column="ttl"),
        timestamp_column="at",
        operations={"upsert": "upsert", "delete": "delete"},
        clustering=("n",),
    )


EVENT_PLAN = event_plan("unset")


def test_event_times_become_the_timestamps_of_rows() -> None:
    """The column of the table has milliseconds."""
    columns = (
        ["x"] * 3,
        [1] * 3,
        ["upsert"] * 3,
        [1, 2, 3],
        [9] * 3,
        [1] * 3,
        [None] * 3,
        [None] * 3,
    )
    frame = pa.record_batch(
        [pa.array(c, kind) for c, (_, _, _, kind) in zip(columns, EVENTS, strict=True)],
        names=[name for name, *_ in EVENTS],
    )
    stored = check(frame, EVENT_PLAN)
    assert stored.column(TIMESTAMP_US).to_pylist() == [1, 2, 3]
    assert stored.column("at").to_pylist() == [0, 0, 0]
    (part,) = Statements(EVENT_PLAN, prepared).divide(TimestampedRows(stored, np.arange(3) + NOW_S))
    assert part.rows.timestamps_us.tolist() == [1, 2, 3]
    assert part.rows.batch.schema.names == ["k", "n", "at", "a", "b", "s"]


def test_event_time_does_not_identify_a_refused_row() -> None:
    """The log identifies a row by the timestamp that the ledger counts."""
    batch = pa.record_batch({"k": ["x"]})
    for plan, us in (
        (plan_of(COLUMNS[0]), NOW_S * S_US),
        (plan_of(COLUMNS[0], timestamp_column="at"), None),
    ):
        statements = Statements(plan, prepared)
        upsert = statements.upsert
        rows = encode_from(batch, upsert.plan, NOW_S * S_US, upsert.head)
        assert ledger_us(EncodedBatch(1, bytes(rows.data), statements)) == us

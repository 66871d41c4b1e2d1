"""Lives and event times: the options, what is left as a row is written, its bytes, rows of one time."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from cassandra.query import UNSET_VALUE

from tests.cql_driver import SIMPLE, Field, bind, plan_of, prepared
from tests.unit.test_options import GIVEN
from wal_sink.clock import now_us
from wal_sink.configuration import configure
from wal_sink.errors import InvalidRow, OptionError, SchemaMismatch
from wal_sink.options import parse
from wal_sink.targets.cassandra import CassandraOptions
from wal_sink.targets.cassandra.check import check
from wal_sink.targets.cassandra.driver.frames import EncodedBatch
from wal_sink.targets.cassandra.encode import encode
from wal_sink.targets.cassandra.feature import Stamped
from wal_sink.targets.cassandra.features import FEATURES
from wal_sink.targets.cassandra.features.event_time import EVENT_US
from wal_sink.targets.cassandra.features.lives import (
    EXPIRES_US,
    LIFE_S,
    for_server,
    latest_expiry_s,
    seconds_left,
)
from wal_sink.targets.cassandra.row_plan import MOST_TTL_S, CassandraPlan, Lives
from wal_sink.targets.cassandra.write.batches import (
    Limits,
    PreparedPlan,
    Replicas,
    SliceBuffer,
)
from wal_sink.targets.cassandra.write.refusals import ledger_us
from wal_sink.targets.cassandra.write.statements import Statements, upsert
from wal_sink.targets.cassandra.write.writer import ASK_EVERY_S, WriteClock

ANYWHERE = Replicas(None, "ks", "dc")
NOW_S = 1_790_000_000
S_US = 1_000_000


# --- options --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"cassandra.ttl": "0"}, "cassandra.ttl"),
        ({"cassandra.ttl": "-1"}, "cassandra.ttl"),
        ({"cassandra.ttl": "1.5"}, "cassandra.ttl"),
        ({"cassandra.ttl": str(MOST_TTL_S + 1)}, "cassandra.ttl"),
        ({"cassandra.ttlColumn": "a", "operationColumn": "a"}, "both name column a"),
        ({"cassandra.ttlColumn": "a", "cassandra.timestampColumn": "a"}, "both name column a"),
    ],
)
def test_options_that_contradict_each_other_are_refused(more: dict[str, str], words: str) -> None:
    """At the start, with a remedy."""
    with pytest.raises(OptionError, match=words) as caught:
        configure(GIVEN | more)
    assert caught.value.remedy


def test_a_server_that_counts_in_31_bits_takes_no_life_beyond_2038() -> None:
    """Where it says nothing of its mode, too."""
    for mode in (None, "CASSANDRA_4", "UPGRADING"):
        latest_s = latest_expiry_s(mode)
        assert 2**31 - 100 < latest_s < 2**31
        with pytest.raises(OptionError, match="2038-01-19") as caught:
            for_server(Lives(ttl_s=MOST_TTL_S), latest_s, NOW_S)
        assert str(latest_s - NOW_S) in caught.value.remedy
        assert for_server(Lives(ttl_column="a"), latest_s, NOW_S).most_ttl_s == latest_s - NOW_S
    later = for_server(Lives(ttl_s=MOST_TTL_S), latest_expiry_s("NONE"), NOW_S)
    assert later.most_ttl_s == MOST_TTL_S


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
def test_a_column_that_does_not_fit_is_refused(
    options: dict[str, str], field: tuple[str, pa.DataType], table: set[str], words: str
) -> None:
    """A key among them."""
    schema = pa.schema([("id", pa.int32()), field])
    with pytest.raises(SchemaMismatch, match=words) as caught:
        written(schema, options, table)
    assert caught.value.remedy


def written(schema: pa.Schema, options: dict[str, str], table: set[str]) -> pa.Schema:
    """Return the columns that are written to a table."""
    read = parse(GIVEN | options, CassandraOptions)
    for feature in FEATURES:
        schema = feature.written(schema, read, table, "ks.t")
    return schema


def test_times_that_the_table_has_too_are_written() -> None:
    """As the users of `updated_at` expect; others are not."""
    schema = pa.schema([("id", pa.int32()), ("at", INSTANT), ("v", pa.int32()), ("until", INSTANT)])
    options = {"cassandra.expiresAtColumn": "until", "cassandra.timestampColumn": "at"}
    assert written(schema, options, {"id", "v", "at"}).names == ["id", "at", "v"]
    assert written(schema, options, {"id", "v"}).names == ["id", "v"]


COLUMNS: list[Field] = [
    ("k", "partition", "text", pa.string()),
    ("life", "control", "control", pa.int32()),
    ("v", "regular", "double", pa.float64()),
    ("c", "clustering", "int", pa.int32()),
    ("s", "regular", "set<int>", pa.list_(pa.int32())),
]

TTL_COLUMN = {"lives": Lives(ttl_column="life")}
EXPIRES_COLUMN = {"lives": Lives(expires_column="until")}
EVENT_COLUMN, EVENT_NUMBER = {"event_column": "at"}, {"event_column": "us"}


@pytest.mark.parametrize(
    ("details", "good", "value", "words"),
    [
        (TTL_COLUMN, 1, None, "is null"),
        (TTL_COLUMN, 1, 0, "is not one second"),
        (TTL_COLUMN, 1, -1, "is not one second"),
        (TTL_COLUMN, 1, MOST_TTL_S + 1, "is more than"),
        (TTL_COLUMN, 1, 2**62, "is more than"),
        (EXPIRES_COLUMN, 0, None, "is null"),
        (EXPIRES_COLUMN, 0, 5_680_281_600 * S_US, "is later than"),
        (EVENT_COLUMN, 1, None, "is null"),
        (EVENT_COLUMN, 1, -S_US, "is not after 1970"),
        (EVENT_COLUMN, 1, "ahead", "ahead of the clock"),
        (EVENT_NUMBER, 10**15, 1_700_000_000_000, "before 2001"),
        (EVENT_NUMBER, 10**15, None, "is null"),
    ],
)
def test_a_time_that_cannot_be_meant_is_refused(
    details: dict[str, Any], good: int, value: Any, words: str
) -> None:
    """By the tasks, before anything is published."""
    lives = details.get("lives", Lives())
    name = lives.ttl_column or lives.expires_column or details["event_column"]
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


def left(times: Lives, now_s: int, default_ttl_s: int = 0, **columns: list[int]) -> list[int]:
    names = {"life": LIFE_S, "until": EXPIRES_US}
    arrays = {names[name]: pa.array(values, pa.int64()) for name, values in columns.items()}
    rows = len(next(iter(columns.values()), [0]))
    stamps = np.arange(NOW_S * S_US + 900_000, NOW_S * S_US + 900_000 + rows)
    batch = pa.table(arrays).combine_chunks().to_batches()[0] if arrays else pa.record_batch({})
    found: list[int] = seconds_left(batch, stamps, times, now_s, default_ttl_s).tolist()
    return found


def test_an_expiry_is_never_early() -> None:
    times = Lives(expires_column="t")
    until = [NOW_S * S_US, NOW_S * S_US + 1, (NOW_S + 9) * S_US - 1, (NOW_S - 9) * S_US]
    assert left(times, NOW_S, until=until) == [0, 1, 9, -9]


def test_a_life_is_not_longer_than_it_was_given_nor_than_the_server_takes() -> None:
    """Where timestamps are ahead of the clock; and beyond the end of what the server counts (rule 14)."""
    assert left(Lives(ttl_s=10), NOW_S - 500) == [10]
    assert left(Lives(ttl_column="t"), NOW_S - 500, life=[7, 8]) == [7, 8]
    far = (NOW_S + 2 * MOST_TTL_S) * S_US
    assert left(Lives(expires_column="t"), NOW_S, until=[far]) == [MOST_TTL_S]
    assert left(Lives(ttl_s=1000, latest_s=NOW_S + 70), NOW_S) == [70]


def test_lives_are_counted_from_the_earlier_of_two_clocks() -> None:
    """One that is ahead ends no life; a node is asked now and then, and its clock goes on meanwhile."""
    mine, told, since, asked = [5_000 * S_US], [4_000 * S_US], [0.0], []

    def ask() -> int:
        asked.append(since[0])
        return told[0]

    clock = WriteClock(ask, lambda: mine[0], lambda: since[0])
    assert clock.now_s() == 4_000
    since[0] += 20
    assert clock.now_s() == 4_020
    assert asked == [0.0]
    since[0] += ASK_EVERY_S
    told[0] = 6_000 * S_US
    assert clock.now_s() == 5_000
    assert asked == [0.0, 20 + ASK_EVERY_S]
    assert WriteClock(lambda: None, lambda: 7 * S_US).now_s() == 7


# --- the statements -------------------------------------------------------------------------------


@pytest.mark.parametrize("nulls", ["unset", "write"])
def test_rows_with_lives_are_encoded_as_the_driver_binds_them(nulls: str) -> None:
    """What is over has nulls for its values, and a second to live."""
    plan = plan_of(*COLUMNS, nulls=nulls, lives=Lives(ttl_column="life"))
    schema = pa.schema([(name, kind) for name, _, _, kind in COLUMNS])
    rows = [("a", 10, 1.5, 1, [1, 2]), ("b", 3, 2.5, 2, None), ("c", 20, None, 3, [3])]
    frame = pa.record_batch(
        [pa.array(c, f.type) for c, f in zip(zip(*rows, strict=True), schema, strict=True)],
        schema=schema,
    )
    stored = check(frame, plan)
    assert stored.schema.names == ["k", "v", "c", "s", LIFE_S]
    stamps = np.arange(3) + NOW_S * S_US
    assert plan.details.lives is not None
    lives = seconds_left(stored, stamps, plan.details.lives, NOW_S + 4)
    parts = Statements(plan, prepared).divide(Stamped(stored, stamps), lives)
    found = []
    for part in parts:
        of, batch = part.statement, part.rows.batch
        query = of.prepared.query_id.decode()
        assert query == upsert(plan.of_table(), with_ttl=True)
        assert query.endswith("USING TIMESTAMP ? AND TTL ?")
        assert part.ttls is not None
        data = encode(
            *(batch, of.plan, part.rows.stamps, of.head), ttls=part.ttls, cleared=part.cleared
        )
        bound = bind(
            *(batch, of.plan, part.rows.stamps.tolist()),
            ttls=part.ttls.tolist(),
            cleared=part.cleared,
        )
        whole = data.data.to_pybytes()
        for values, (i, j) in zip(bound, itertools.pairwise(data.offsets.tolist()), strict=True):
            assert whole[i:j] == of.head + b"".join(map(wire, values, TYPES))
        found += [(row, part.cleared) for row in bound]
    unset = [value for row, _ in found for value in row if value is UNSET_VALUE]
    assert len(unset) == (2 if nulls == "unset" else 0)
    by_key = {row[0]: (row, cleared) for row, cleared in found}
    assert by_key["a"] == (("a", 1.5, 1, (1, 2), NOW_S * S_US, 6), False)
    (_, v, c, _, stamp, ttl), cleared = by_key["b"]
    assert (v, c, stamp, ttl, cleared) == (None, 2, NOW_S * S_US + 1, 1, True)
    assert by_key["c"][0][-1] == 16


TYPES = ["text", "double", "int", "set<int>", "bigint", "int"]


def wire(value: Any, cql: str) -> bytes:
    if value is None or value is UNSET_VALUE:
        return (-1 if value is None else -2).to_bytes(4, "big", signed=True)
    if cql.startswith("set"):
        inner = b"".join(wire(each, "int") for each in value)
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
    ("life", "control", "control", pa.int64()),
    ("a", "regular", "int", pa.int32()),
    ("b", "regular", "list<int>", pa.list_(pa.int32())),
    ("s", "static", "text", pa.string()),
]


def event_plan(nulls: str) -> CassandraPlan:
    """Return a plan of rows with event times, lives and static columns, some of them deletes."""
    return plan_of(
        *EVENTS,
        nulls=nulls,
        lives=Lives(ttl_column="life"),
        event_column="at",
        operations={"upsert": "upsert", "delete": "delete"},
        clustering=("n",),
    )


EVENT_PLAN = event_plan("unset")


def test_event_times_become_the_timestamps_of_rows() -> None:
    """What the table has of them is milliseconds."""
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
    assert stored.column(EVENT_US).to_pylist() == [1, 2, 3]
    assert stored.column("at").to_pylist() == [0, 0, 0]
    (part,) = Statements(EVENT_PLAN, prepared).divide(Stamped(stored, np.arange(3) + NOW_S))
    assert part.rows.stamps.tolist() == [1, 2, 3]
    assert part.rows.batch.schema.names == ["k", "n", "at", "a", "b", "s"]


def test_an_event_time_does_not_tell_which_row_is_refused() -> None:
    """Nor does a timestamp of a plan beside it: both may have prepared the same statement."""
    plain = plan_of(COLUMNS[0])
    timed = plan_of(COLUMNS[0], event_column="at")
    plans = [
        PreparedPlan(of, Statements(of, prepared), Limits(), ANYWHERE, SliceBuffer())
        for of in (plain, timed)
    ]
    upsert = plans[0].statements.upsert
    batch = pa.record_batch({"k": ["x"]})
    rows = encode(batch, upsert.plan, NOW_S * S_US, upsert.head)
    lone = EncodedBatch(1, bytes(rows.data), "ks", b"x")
    assert ledger_us(lone, plans[:1]) == NOW_S * S_US
    assert ledger_us(lone, plans) is None
    assert ledger_us(lone, []) is None

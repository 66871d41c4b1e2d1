"""Lives and event times: the options, what is left as a row is written, its bytes, rows of one time."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from cassandra.query import UNSET_VALUE, PreparedStatement
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cql_driver import SIMPLE
from wal_sink.configuration import configure
from wal_sink.errors import OptionError, SchemaMismatch
from wal_sink.model.plan import Column, Plan, plan_key
from wal_sink.targets.cassandra.check import check
from wal_sink.targets.cassandra.driver.frames import EncodedBatch, EncodedRows
from wal_sink.targets.cassandra.encode import encode
from wal_sink.targets.cassandra.times.given import (
    MOST_TTL_S,
    NO_TIMES,
    RowTimes,
    for_server,
    latest_expiry_s,
    planned_times,
    with_times,
    without_times,
)
from wal_sink.targets.cassandra.times.lives import ASK_EVERY_S, WriteClock, seconds_left
from wal_sink.targets.cassandra.times.read import EVENT_US, EXPIRES_US, LIFE_S
from wal_sink.targets.cassandra.types.absent import absent_details
from wal_sink.targets.cassandra.write.batches import Limits
from wal_sink.targets.cassandra.write.bind import bind
from wal_sink.targets.cassandra.write.prepared import Planned, Prepared, ledger_us
from wal_sink.targets.cassandra.write.replicas import Replicas
from wal_sink.targets.cassandra.write.slice_buffer import SliceBuffer, Stamped
from wal_sink.targets.cassandra.write.statements import Statements, insert

GIVEN = {
    "checkpointLocation": "/data/checkpoint",
    "cassandra.contactPoints": "127.0.0.1",
    "keyspace": "shop",
    "table": "orders",
}
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
        ({"cassandra.ttl": "1", "cassandra.ttlColumn": "a"}, "each says how long"),
        ({"cassandra.ttl": "1", "cassandra.expiresAtColumn": "a"}, "each says how long"),
        ({"cassandra.ttlColumn": "a", "cassandra.expiresAtColumn": "b"}, "each says how long"),
        ({"cassandra.ttlColumn": "a", "operationColumn": "a"}, "both name column a"),
        ({"cassandra.ttlColumn": "a", "cassandra.timestampColumn": "a"}, "both name column a"),
    ],
)
def test_options_that_contradict_each_other_are_refused(more: dict[str, str], words: str) -> None:
    """At the start, with a remedy."""
    with pytest.raises(OptionError, match=words) as caught:
        configure(GIVEN | more)
    assert caught.value.remedy


def test_each_option_makes_a_plan_of_its_own_and_is_said() -> None:
    """And none of them leaves the plan as it was, so that a query that goes on needs no new one."""
    schema = pa.schema([("id", pa.int64())])
    options = [
        {},
        {"cassandra.ttl": "60"},
        {"cassandra.ttl": "61"},
        {"cassandra.ttlColumn": "a"},
        {"cassandra.expiresAtColumn": "a"},
        {"cassandra.timestampColumn": "a"},
    ]
    targets = [configure(GIVEN | each).target for each in options]
    keys = [plan_key(schema, "cassandra", target.shape) for target in targets]
    assert keys[0] == "e480cf7763d2a521aa05ae6f1d0a2004"
    assert len({*keys}) == len(keys)
    for target, given_options in zip(targets[1:], options[1:], strict=True):
        (name,) = given_options
        assert name in " ".join(target.description.values())


def test_a_server_that_counts_in_31_bits_takes_no_life_beyond_2038() -> None:
    """Where it says nothing of its mode, too."""
    for mode in (None, "CASSANDRA_4", "UPGRADING"):
        latest_s = latest_expiry_s(mode)
        assert 2**31 - 100 < latest_s < 2**31
        with pytest.raises(OptionError, match="2038-01-19") as caught:
            for_server(RowTimes(ttl_s=MOST_TTL_S), latest_s, NOW_S)
        assert str(latest_s - NOW_S) in caught.value.remedy
        assert for_server(RowTimes(ttl_column="a"), latest_s, NOW_S).most_ttl_s == latest_s - NOW_S
    later = for_server(RowTimes(ttl_s=MOST_TTL_S), latest_expiry_s("NONE"), NOW_S)
    assert later.most_ttl_s == MOST_TTL_S


INSTANT = pa.timestamp("us", "UTC")


@pytest.mark.parametrize(
    ("times", "field", "table", "words"),
    [
        (RowTimes(ttl_column="t"), ("t", pa.int32()), ["id", "t"], "which is a column of"),
        (RowTimes(ttl_column="id"), ("t", pa.int32()), ["id"], "which is a column of"),
        (RowTimes(ttl_column="t"), ("t", pa.float64()), ["id"], "is double"),
        (RowTimes(ttl_column="t"), ("u", pa.int32()), ["id"], "no such column"),
        (RowTimes(expires_column="t"), ("t", pa.int64()), ["id"], "is int64"),
        (RowTimes(expires_column="t"), ("t", pa.timestamp("us")), ["id"], "is timestamp"),
        (RowTimes(event_column="t"), ("t", pa.int32()), ["id"], "is int32"),
        (RowTimes(event_column="t"), ("t", pa.date32()), ["id"], "is date32"),
    ],
)
def test_a_column_that_does_not_fit_is_refused(
    times: RowTimes, field: tuple[str, pa.DataType], table: list[str], words: str
) -> None:
    """A key among them."""
    schema = pa.schema([("id", pa.int32()), field])
    with pytest.raises(SchemaMismatch, match=words) as caught:
        without_times(schema, times, table, "ks.t")
    assert caught.value.remedy


def test_times_that_the_table_has_too_are_written() -> None:
    """As the users of `updated_at` expect; others are not."""
    schema = pa.schema([("id", pa.int32()), ("at", INSTANT), ("v", pa.int32()), ("until", INSTANT)])
    times = RowTimes(expires_column="until", event_column="at")
    assert without_times(schema, times, ["id", "v", "at"], "t").names == ["id", "at", "v"]
    written = without_times(schema, times, ["id", "v"], "t")
    assert written.names == ["id", "v"]
    columns = [Column(name=n, source="int32", type="int", role="regular") for n in written.names]
    assert [(c.name, c.role) for c in with_times(columns, schema)] == [
        ("id", "regular"),
        ("at", "time"),
        ("v", "regular"),
        ("until", "time"),
    ]


# --- what is left ---------------------------------------------------------------------------------


def left(times: RowTimes, now_s: int, default_ttl_s: int = 0, **columns: list[int]) -> list[int]:
    names = {"life": LIFE_S, "until": EXPIRES_US}
    arrays = {names[name]: pa.array(values, pa.int64()) for name, values in columns.items()}
    rows = len(next(iter(columns.values()), [0]))
    stamps = np.arange(NOW_S * S_US + 900_000, NOW_S * S_US + 900_000 + rows)
    batch = pa.table(arrays).combine_chunks().to_batches()[0] if arrays else pa.record_batch({})
    found: list[int] = seconds_left(batch, stamps, times, now_s, default_ttl_s).tolist()
    return found


def test_a_life_ends_in_the_same_second_whenever_it_is_written() -> None:
    """As Cassandra counts: the second of writing and the seconds of the life."""
    for late_s in range(12):
        found = left(RowTimes(ttl_column="t"), NOW_S + late_s, life=[10, 5, 1])
        assert found == [10 - late_s, 5 - late_s, 1 - late_s]
        assert left(RowTimes(ttl_s=10), NOW_S + late_s) == [10 - late_s]
        assert left(RowTimes(), NOW_S + late_s, default_ttl_s=7) == [7 - late_s]
        assert left(RowTimes(ttl_s=10), NOW_S + late_s, default_ttl_s=7) == [10 - late_s]


def test_an_expiry_is_never_early() -> None:
    times = RowTimes(expires_column="t")
    until = [NOW_S * S_US, NOW_S * S_US + 1, (NOW_S + 9) * S_US - 1, (NOW_S - 9) * S_US]
    assert left(times, NOW_S, until=until) == [0, 1, 9, -9]


def test_a_life_is_not_longer_than_it_was_given_nor_than_the_server_takes() -> None:
    """Where timestamps are ahead of the clock; and beyond the end of what the server counts."""
    assert left(RowTimes(ttl_s=10), NOW_S - 500) == [10]
    assert left(RowTimes(ttl_column="t"), NOW_S - 500, life=[7, 8]) == [7, 8]
    far = (NOW_S + 2 * MOST_TTL_S) * S_US
    assert left(RowTimes(expires_column="t"), NOW_S, until=[far]) == [MOST_TTL_S]
    assert left(RowTimes(ttl_s=1000, latest_s=NOW_S + 70), NOW_S) == [70]


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

COLUMNS = [
    ("k", "partition", "text", pa.string()),
    ("life", "time", "time", pa.int32()),
    ("v", "regular", "double", pa.float64()),
    ("c", "clustering", "int", pa.int32()),
    ("s", "regular", "set<int>", pa.list_(pa.int32())),
]


def plan_of(times: RowTimes, columns: list[tuple[str, str, str, pa.DataType]], **more: str) -> Plan:
    return Plan(
        key="k",
        target="cassandra",
        table='"ks"."t"',
        columns=tuple(
            Column(name=name, source=str(kind), type=cql, role=role)  # type: ignore[arg-type]
            for name, role, cql, kind in columns
        ),
        details={"nulls": "unset", "keyspace": "ks", **times.details, **more},
    )


def prepared(query: str) -> PreparedStatement:
    return PreparedStatement([], query.encode(), [], query, "ks", 5, [], None)


@pytest.mark.parametrize("nulls", ["unset", "write"])
def test_rows_with_lives_are_encoded_as_the_driver_binds_them(nulls: str) -> None:
    """What is over has nulls for its values, and a second to live."""
    plan = plan_of(RowTimes(ttl_column="life"), COLUMNS, nulls=nulls)
    schema = pa.schema([(name, kind) for name, _, _, kind in COLUMNS])
    rows = [("a", 10, 1.5, 1, [1, 2]), ("b", 3, 2.5, 2, None), ("c", 20, None, 3, [3])]
    frame = pa.record_batch(
        [pa.array(c, f.type) for c, f in zip(zip(*rows, strict=True), schema, strict=True)],
        schema=schema,
    )
    stored = check(frame, plan)
    assert stored.schema.names == ["k", "v", "c", "s", LIFE_S]
    stamps = np.arange(3) + NOW_S * S_US
    lives = seconds_left(stored, stamps, planned_times(plan), NOW_S + 4)
    parts = Statements(plan, prepared).divide(Stamped(stored, stamps), lives)
    found = []
    for part in parts:
        of, batch = part.statement, part.rows.batch
        query = of.prepared.query_id.decode()
        assert query == insert(plan.of_table(), with_ttl=True)
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
        for values, (i, j) in zip(
            bound.values, itertools.pairwise(data.offsets.tolist()), strict=True
        ):
            assert whole[i:j] == of.head + b"".join(map(wire, values, TYPES))
        found += [(row, part.cleared) for row in bound.values]
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

EVENTS = [
    ("k", "partition", "text", pa.string()),
    ("op", "operation", "operation", pa.string()),
    ("at", "regular", "timestamp", INSTANT),
    ("a", "regular", "int", pa.int32()),
    ("b", "regular", "text", pa.string()),
]
EVENT_PLAN = plan_of(
    RowTimes(event_column="at"),
    EVENTS,
    operations='{"upsert": "upsert", "delete": "delete"}',
    clustering="[]",
)

changes = st.lists(
    st.tuples(
        st.sampled_from("xy"),
        st.sampled_from(["upsert", "upsert", "delete"]),
        st.sampled_from([1_000_001, 1_000_003]),
        st.none() | st.integers(0, 3),
        st.none() | st.sampled_from(["p", "q"]),
    ),
    max_size=8,
)


@settings(max_examples=300, deadline=None)
@given(changes, st.sampled_from(["unset", "write"]))
def test_of_one_key_and_time_the_rows_end_as_one_by_one(
    rows: list[tuple[Any, ...]], nulls: str
) -> None:
    """By Cassandra's rules, in any order, as if each had been a microsecond after the one before."""
    plan = plan_of(
        RowTimes(event_column="at"),
        EVENTS,
        nulls=nulls,
        operations='{"upsert": "upsert", "delete": "delete"}',
        clustering="[]",
    )
    columns = list(zip(*rows, strict=True)) or [()] * len(EVENTS)
    frame = pa.record_batch(
        [pa.array(c, kind) for c, (_, _, _, kind) in zip(columns, EVENTS, strict=True)],
        names=[name for name, *_ in EVENTS],
    )
    stored = check(frame, plan)
    assert stored.column("at").type == pa.int64(), "what the table has of it: milliseconds"
    names = ["k", "op", "a", "b"]
    logged = list(zip(*(stored.column(n).to_pylist() for n in [*names, EVENT_US]), strict=True))
    expected = sorted(enumerate(rows), key=lambda each: (each[1][2], each[0]))
    wanted = [(k, op, a, b, 10 * us + i) for i, (k, op, us, a, b) in expected]
    assert cells(logged, nulls) == cells(wanted, nulls)
    assert cells(logged[::-1], nulls) == cells(wanted, nulls)


def cells(rows: list[tuple[Any, ...]], nulls: str) -> dict[str, dict[str, Any]]:
    """Return what a reader sees of rows with their timestamps; of equal ones a tombstone wins."""
    deleted: dict[str, int] = {}
    found: dict[tuple[str, str], tuple[int, Any]] = {}
    for k, op, a, b, us in rows:
        if op == "delete":
            deleted[k] = max(us, deleted.get(k, -1))
            continue
        for name, value in (("", True), ("a", a), ("b", b)):
            if value is not None or nulls == "write":
                old = found.get((k, name))
                assert old is None or old[0] != us, "Cassandra would keep the larger value"
                if old is None or old[0] < us:
                    found[k, name] = us, value
    seen: dict[str, dict[str, Any]] = {}
    for (k, name), (us, value) in found.items():
        if us > deleted.get(k, -1) and value is not None:
            seen.setdefault(k, {})[name] = value
    return seen


def test_times_of_their_own_cost_no_look_at_the_keys() -> None:
    """Only rows that share a time can be of one key and time."""
    frame = pa.record_batch(
        [
            pa.array(["x"] * 3),
            pa.array(["upsert"] * 3),
            pa.array([1, 2, 3], INSTANT),
            pa.array([1, 1, 1], pa.int32()),
            pa.array([None] * 3, pa.string()),
        ],
        names=[name for name, *_ in EVENTS],
    )
    stored = check(frame, EVENT_PLAN)
    assert stored.column(EVENT_US).to_pylist() == [1, 2, 3]
    assert stored.column("at").to_pylist() == [0, 0, 0]
    (part,) = Statements(EVENT_PLAN, prepared).divide(Stamped(stored, np.arange(3) + NOW_S))
    assert part.rows.stamps.tolist() == [1, 2, 3]
    assert part.rows.batch.schema.names == ["k", "at", "a", "b"]


def test_an_event_time_does_not_tell_which_row_is_refused() -> None:
    """Nor does a timestamp of a plan beside it: both may have prepared the same statement."""
    plain = plan_of(NO_TIMES, COLUMNS[:1])
    timed = plan_of(RowTimes(event_column="at"), COLUMNS[:1])
    planned = [
        Planned(of, (Prepared(of, Statements(of, prepared), Limits(), ANYWHERE),), SliceBuffer())
        for of in (plain, timed)
    ]
    (table,) = planned[0].tables
    upsert = table.statements.upsert
    batch = pa.record_batch({"k": ["x"]})
    rows = encode(batch, upsert.plan, NOW_S * S_US, upsert.head)
    lone = EncodedBatch(EncodedRows(1, bytes(rows.data)), "ks", b"x")
    assert ledger_us(lone, planned[:1]) == NOW_S * S_US
    assert ledger_us(lone, planned) is None
    assert ledger_us(lone, []) is None
    details = {**plain.details, **absent_details(True)}
    absent = msgspec.structs.replace(plain, details=details).of_one_session()
    statements = Statements(absent, prepared)
    table = Prepared(absent, statements, Limits(), ANYWHERE)
    data = statements.upsert.head + b"\0\0\0\1x"  # the server dates such a row
    conditional = EncodedBatch(EncodedRows(1, data), "ks", b"x")
    assert ledger_us(conditional, [Planned(absent, (table,), SliceBuffer())]) is None

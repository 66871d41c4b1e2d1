"""Totals (`cassandra.addColumns`): what is written in place of rows, and what a start refuses."""

from __future__ import annotations

import itertools
from decimal import Decimal
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from tests.cql_driver import Field, refuse_drift
from tests.cql_driver import plan_of as plan_of_fields
from tests.support.records import begun_epoch
from wal_sink.configuration import configure
from wal_sink.errors import OptionError, SchemaMismatch, TargetRefused
from wal_sink.model.ledger import Window
from wal_sink.model.plan import Column, Role, WriteDemands
from wal_sink.targets.cassandra.encode import distinct_keys
from wal_sink.targets.cassandra.features import demands
from wal_sink.targets.cassandra.features.totals import (
    NOTHING,
    Added,
    Adding,
    Current,
    Places,
    Sums,
    refuse_no_totals,
    totals,
)
from wal_sink.targets.cassandra.row_plan import ADDED_COLUMN, CassandraPlan, TableName
from wal_sink.targets.cassandra.table import ColumnMetadata, TableMetadata
from wal_sink.targets.cassandra.write.totals import requests, select, with_added_column

GIVEN = {
    "checkpointLocation": "file:///data/checkpoint",
    "cassandra.contactPoints": "127.0.0.1",
    "keyspace": "shop",
    "table": "clicks",
}
QUERY = "5c0e"
BASE_US = 1_700_000_000_000_000
BIG = 2**63 - 1
BIGINT = pa.int64()


def window(*rows: int, first: int = 7) -> Window:
    """Return a window of epochs with so many rows; their timestamps are a thousand apart."""
    epochs = [
        begun_epoch(first + number, base_us=BASE_US + 1_000 * number, rows=count)
        for number, count in enumerate(rows)
    ]
    return Window(nonce="n", begun_us=BASE_US, epochs=tuple(epochs))


def plan_of(kind: str = "bigint", nulls: str = "unset", **more: Any) -> CassandraPlan:
    """Return a plan of the key (k, n), a total v and a text t."""
    fields: list[Field] = [
        ("k", "partition", "text", pa.string()),
        ("n", "clustering", "int", pa.int32()),
        ("v", "regular", kind, pa.int64()),
        ("t", "regular", "text", pa.string()),
    ]
    details = {"keyspace": "shop", "table": "clicks", "added": ("v",), **more}
    return plan_of_fields(*fields, nulls=nulls, **details)


Rows = list[tuple[str, int, Any, str | None]]


def add(
    rows: Rows,
    held: dict[tuple[str, int], Current] | None = None,
    *,
    kind: pa.DataType = BIGINT,
    plan: CassandraPlan | None = None,
    stamps: list[int] | None = None,
    of: Window | None = None,
    after: tuple[str, ...] = (),
) -> Sums:
    """Add rows to what the table holds, by the code that the flusher uses."""
    plan = plan or plan_of()
    kinds = (pa.string(), pa.int32(), kind, pa.string())
    columns = list(zip(*rows, strict=True))
    arrays = [pa.array(values, each) for values, each in zip(columns, kinds, strict=True)]
    batch = pa.RecordBatch.from_arrays(arrays, names=["k", "n", "v", "t"])
    keys = distinct_keys(batch, plan)
    current = [
        (held or {}).get((k.decode(), int.from_bytes(n, "big", signed=True)), NOTHING)
        for k, n in keys.values()
    ]
    us = stamps or list(range(BASE_US, BASE_US + len(rows)))
    adding = Adding(plan, QUERY, after, Places(of or window(len(rows))))
    return totals(batch, np.array(us, np.int64), keys.numbers, current, adding)


def written(found: Sums) -> dict[tuple[str, int], tuple[Any, ...]]:
    """Return what is written by key: total, text, what is in it, and the time after `BASE_US`."""
    rows = zip(found.batch.to_pylist(), found.stamps.tolist(), strict=True)
    return {(r["k"], r["n"]): (r["v"], r["t"], r[ADDED_COLUMN], us - BASE_US) for r, us in rows}


def test_rows_of_a_key_become_one() -> None:
    """The sum, with the other columns' newest values, at the place and time of the last row."""
    rows: Rows = [("a", 1, 2, "x"), ("b", 1, 5, None), ("a", 1, 3, None), ("a", 2, None, "z")]
    held = {("b", 1): Current((100,), None, 1, -1)}
    assert written(add(rows, held)) == {
        ("b", 1): (105, None, f"{QUERY} 7 1", 1),
        ("a", 1): (5, "x", f"{QUERY} 7 2", 2),
        ("a", 2): (None, "z", f"{QUERY} 7 3", 3),
    }
    clears = add(rows, held, plan=plan_of(nulls="write"))
    assert written(clears)["a", 1] == (5, None, f"{QUERY} 7 2", 2)


def test_rule_27_rows_that_are_in_a_total_are_not_added_again() -> None:
    """However much of a window is in it, the same totals come out, at the same times."""
    rows: Rows = [("a", 1, 2, None), ("b", 1, 1, None), ("a", 1, 3, None), ("a", 1, 4, None)]
    stamps = [BASE_US, BASE_US + 1, BASE_US + 2, BASE_US + 1_000]
    of = window(3, 1)
    whole = {("b", 1): (1, None, f"{QUERY} 7 1", 1), ("a", 1): (9, None, f"{QUERY} 8 0", 1_000)}
    for epoch, row, so_far in ((6, 99, 0), (7, 0, 2), (7, 1, 2), (7, 2, 5)):
        told = Added(QUERY, epoch, row).to_text()
        held = {("a", 1): Current((so_far,), told, BASE_US - 5, BASE_US - 5)}
        assert written(add(rows, held, stamps=stamps, of=of)) == whole
    done = {("a", 1): Current((9,), Added(QUERY, 8, 0).to_text(), BASE_US + 1_000, BASE_US + 1_000)}
    assert set(written(add(rows, done, stamps=stamps, of=of))) == {("b", 1)}
    us = BASE_US + 90_000
    later = {("a", 1): Current((50,), Added(QUERY, 30, 2).to_text(), us, us)}
    assert set(written(add(rows, later, stamps=stamps, of=of))) == {("b", 1)}


@pytest.mark.parametrize(
    "kind", [pa.int64(), pa.float32(), pa.float64(), pa.decimal128(20, 2)], ids=str
)
def test_rule_27_totals_do_not_depend_on_how_rows_are_cut(kind: pa.DataType) -> None:
    """Each cut of a window's rows, one after the other, ends in the same cells."""
    given = [0.1, 1e9, -0.3, None, 7.7, 1e-7]
    make: Any = {
        "int64": lambda x: int(x * 10),
        "decimal128(20, 2)": lambda x: round(Decimal(x), 2),
    }
    values = [None if x is None else make.get(str(kind), float)(x) for x in given]
    rows: Rows = [("ab"[i % 3 == 1], 1, value, None) for i, value in enumerate(values)]
    plan = plan_of("decimal" if pa.types.is_decimal(kind) else "double")

    def flushed(*cuts: int) -> dict[tuple[str, int], tuple[Any, ...]]:
        table: dict[tuple[str, int], tuple[Any, ...]] = {}
        for begin, end in itertools.pairwise((0, *cuts, len(rows))):
            number = Decimal if pa.types.is_decimal(kind) else (lambda x: x)
            held = {
                key: Current((None if v is None else number(v),), told, BASE_US + us, BASE_US + us)
                for key, (v, _, told, us) in table.items()
            }
            us = list(range(BASE_US + begin, BASE_US + end))
            of = window(len(rows))
            table |= written(add(rows[begin:end], held, kind=kind, plan=plan, stamps=us, of=of))
        return table

    whole = flushed()
    for number in range(1, len(rows)):
        for cuts in itertools.combinations(range(1, len(rows)), number):
            assert flushed(*cuts) == whole


def test_what_does_not_fit_is_refused_before_it_is_written() -> None:
    """A total is never wrapped; sums that leave the range and come back are right."""
    rows: Rows = [("a", 1, BIG, None), ("a", 1, BIG, None), ("a", 1, -BIG, None)]
    assert written(add(rows))["a", 1][0] == BIG
    with pytest.raises(TargetRefused, match=rf"{2 * BIG} of column v does not fit.*k='a', n=1"):
        add(rows[:2])
    small: Rows = [("a", 1, 100, None)]
    held = {("a", 1): Current((28,), None, 1, -1)}
    with pytest.raises(TargetRefused, match="128 of column v does not fit into 8 bits"):
        add(small, held, kind=pa.int8())
    wide = {("a", 1): Current((10**400,), None, 1, -1)}
    found = add([("a", 1, 5, None)], wide, kind=pa.decimal128(19, 0), plan=plan_of("varint"))
    assert written(found)["a", 1][0] == str(10**400 + 5)


def test_rule_27_a_second_query_is_refused_until_the_first_is_over() -> None:
    """Each would undo what the other one adds."""
    rows: Rows = [("a", 1, 2, None)]
    held = {("a", 1): Current((40,), Added("other", 9, 3).to_text(), BASE_US - 1, BASE_US - 1)}
    with pytest.raises(TargetRefused, match=r"(?s)Query other.*addColumnsAfter=other"):
        add(rows, held)
    assert written(add(rows, held, after=("other",)))["a", 1][0] == 42
    strange = {("a", 1): Current((40,), "by hand", BASE_US - 1, BASE_US - 3)}
    with pytest.raises(TargetRefused, match="which this sink has not written") as caught:
        add(rows, strange)
    said = f'UPDATE "shop"."clicks" USING TIMESTAMP {BASE_US - 3} SET {ADDED_COLUMN} = null'
    assert said in caught.value.remedy, "a null of now would hide what is added to what waits"


def test_rule_27_a_total_that_no_reader_would_see_is_not_written() -> None:
    """A newer cell of something else hides it; after that, its rows would count as added."""
    held = {("a", 1): Current((40,), None, BASE_US, -1)}
    with pytest.raises(TargetRefused, match=rf"(?s)k='a', n=1 .*{BASE_US}.*earlier time"):
        add([("a", 1, 2, None)], held)


def test_rule_27_a_total_that_was_replaced_since_is_not_passed_over() -> None:
    """As after a rewind to before the option; what an epoch behind the row has written is no matter."""
    place, added_us, replaced_us = Added(QUERY, 7, 0).to_text(), BASE_US - 9, BASE_US - 5
    held = {("a", 1): Current((40,), place, replaced_us, added_us)}
    with pytest.raises(TargetRefused, match="They were written since") as caught:
        add([("a", 1, 2, None)], held)
    assert f"TIMESTAMP {added_us} SET {ADDED_COLUMN} = null" in caught.value.remedy
    assert f"TIMESTAMP {replaced_us} SET {ADDED_COLUMN} = {place!r}" in caught.value.remedy
    behind = {("a", 1): Current((40,), place, BASE_US + 1_000, added_us)}
    assert written(add([("a", 1, 2, None)], behind)) == {}


def test_a_read_names_totals_and_key() -> None:
    """Values, what is in them, and their times; several rows of a partition where their bytes tell them."""
    column = f'"{ADDED_COLUMN}"'
    values = f'SELECT "v", {column}, WRITETIME("v"), WRITETIME({column})'
    listed = f'{values}, intasblob("n") FROM "shop"."clicks" WHERE "k" = ? AND "n" IN ?'
    assert select(plan_of()) == listed
    columns = [
        msgspec.structs.replace(each, type="varint") if each.name == "n" else each
        for each in plan_of().columns
    ]
    alone = msgspec.structs.replace(plan_of(), columns=tuple(columns))
    assert select(alone) == f'{values} FROM "shop"."clicks" WHERE "k" = ? AND "n" = ?'


def test_keys_of_a_partition_are_read_together() -> None:
    """At most twenty; each is found again by its value."""
    keys = [[b"p%d" % (i % 2), b"%02d" % i] for i in range(50)]
    found = list(requests(keys, 1))
    assert [len(numbers) for numbers, _ in found] == [20, 20, 5, 5]
    for numbers, (partition, listed) in found:
        assert listed[:4] == len(numbers).to_bytes(4, "big")
        assert {keys[number][0] for number in numbers.values()} == {partition}
        assert all(keys[number][1] == value for value, number in numbers.items())
        assert listed[4:] == b"".join(b"\0\0\0\x02" + (value or b"") for value in numbers)
    assert list(requests(keys[:2], None)) == [({None: 0}, keys[0]), ({None: 1}, keys[1])]


# --- what a start refuses ---


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"cassandra.consistencyLevel": "ONE"}, "LOCAL_QUORUM"),
        ({"cassandra.consistencyLevel": "TWO"}, "LOCAL_QUORUM"),
        ({"cassandra.addColumns": "v, v"}, "twice"),
    ],
    ids=str,
)
def test_contradictions_are_refused(more: dict[str, str], named: str) -> None:
    """Each with what to do."""
    with pytest.raises(OptionError, match=named) as refused:
        configure(GIVEN | {"cassandra.addColumns": "v"} | more)
    assert "cassandra.addColumns" in refused.value.what + refused.value.remedy


def test_plans_for_totals_are_plans_of_their_own() -> None:
    """Without the option everything is as it was; who came before is in no plan."""
    plain, given, again = (
        configure(GIVEN | more).target.shape
        for more in (
            {},
            {"cassandra.addColumns": "v, w"},
            {"cassandra.addColumns": "v,w", "cassandra.addColumnsAfter": "q"},
        )
    )
    assert given == {**plain, "cassandra.addColumns": "v, w"}
    assert again == {**plain, "cassandra.addColumns": "v,w"}
    assert demands([plan_of()]) == WriteDemands(one_session=True)
    assert demands([plan_of(added=())]) == WriteDemands()


COLUMNS = (
    ColumnMetadata("k", "text", "partition"),
    ColumnMetadata("v", "bigint", "regular"),
    ColumnMetadata("t", "text", "regular"),
    ColumnMetadata(ADDED_COLUMN, "text", "regular"),
)


def live(*columns: ColumnMetadata, default_ttl: int = 0) -> TableMetadata:
    """Return a table."""
    name = TableName("shop", "clicks")
    return TableMetadata(name, ("shop",), True, ("clicks",), (), columns, default_ttl)


@pytest.mark.parametrize(
    ("change", "added", "why"),
    [
        ({}, "nope", "nope: the DataFrame has no such column"),
        ({}, "k", "it is a partition column"),
        ({}, "t", "it is text. A total is one of tinyint"),
        ({"v": ("varint", "regular", "string")}, "v", "the DataFrame has text"),
        ({"t": ("text", "static", "string")}, "v", "t: it is static"),
        ({"t": ("list<int>", "regular", "list<int32>")}, "v", "t: it is a list"),
        ({"t": ("decimal", "clustering", "decimal128(9, 2)")}, "v", "1.5 and 1.50 are one row"),
        ({"t": ("double", "clustering", "double")}, "v", "each NaN is the same row"),
        (
            {"t": ("frozen<tuple<int, float>>", "clustering", "struct")},
            "v",
            "each NaN is the same row",
        ),
        (
            {"k": ("frozen<set<text>>", "partition", "list<string>")},
            "v",
            "in another order are one row",
        ),
        (
            {"t": ("frozen<map<text, int>>", "clustering", "map")},
            "v",
            "in another order are one row",
        ),
        ({ADDED_COLUMN: ("text", "regular", "string")}, "v", f"the sink writes {ADDED_COLUMN}"),
    ],
    ids=str,
)
def test_columns_that_cannot_be_added_are_refused(
    change: dict[str, tuple[str, Role, str]], added: str, why: str
) -> None:
    """A line for each."""
    given: dict[str, tuple[str, Role, str]] = {
        "k": ("text", "partition", "string"),
        "v": ("bigint", "regular", "int64"),
        "t": ("text", "regular", "string"),
        **change,
    }
    columns = [Column(name=n, source=s, type=t, role=r) for n, (t, r, s) in given.items()]
    with pytest.raises(SchemaMismatch, match=why):
        refuse_no_totals(live(*COLUMNS), columns, [added])


def test_the_table_needs_a_column_that_says_what_is_in_a_total() -> None:
    """The error has the statement that adds it; and totals do not expire."""
    columns = [Column(name="v", source="int64", type="bigint", role="regular")]
    refuse_no_totals(live(*COLUMNS), columns, ["v"])
    refuse_no_totals(live(), [], [])
    add = rf"ALTER TABLE .* ADD {ADDED_COLUMN} text;"
    with pytest.raises(SchemaMismatch, match=add):
        refuse_no_totals(live(*COLUMNS[:3]), columns, ["v"])
    odd = ColumnMetadata(ADDED_COLUMN, "bigint", "regular")
    with pytest.raises(SchemaMismatch, match="has to be text"):
        refuse_no_totals(live(*COLUMNS[:3], odd), columns, ["v"])
    with pytest.raises(SchemaMismatch, match="default_time_to_live = 0"):
        refuse_no_totals(live(*COLUMNS, default_ttl=9), columns, ["v"])


def test_rule_27_a_table_that_was_altered_since_so_that_totals_expire_is_refused() -> None:
    """Their place would expire with them, and rows be added from nothing."""
    columns = tuple(column for column in plan_of().columns if column.name != "n")
    plan = with_added_column(msgspec.structs.replace(plan_of(), columns=columns))
    refuse_drift(plan, live(*COLUMNS))
    with pytest.raises(SchemaMismatch, match=r"any more:\n.*default_time_to_live = 0"):
        refuse_drift(plan, live(*COLUMNS, default_ttl=9))
    plain = plan.noting(added=())
    refuse_drift(plain, live(*COLUMNS, default_ttl=9))

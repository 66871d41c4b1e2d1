"""`cassandra.collections.<column>`: the options, what a start refuses, the statements, and their bytes."""

from __future__ import annotations

import itertools

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from cassandra.query import UNSET_VALUE
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.cql_driver import bind, driver_rows, plan_of, plan_of_column, prepared
from tests.cql_values import FIELDS, SCALARS, Case, type_name
from tests.unit.test_cassandra_compare import live
from tests.unit.test_options import GIVEN
from wal_sink.configuration import configure
from wal_sink.errors import OptionError, SchemaMismatch
from wal_sink.options import names, parse, public, refuse_unknown
from wal_sink.targets.cassandra import CassandraOptions
from wal_sink.targets.cassandra.check import check
from wal_sink.targets.cassandra.compare import Wanted, match_columns, refuse_changed
from wal_sink.targets.cassandra.encode import encode
from wal_sink.targets.cassandra.feature import Stamped
from wal_sink.targets.cassandra.features.updates import found_changes
from wal_sink.targets.cassandra.row_plan import CassandraPlan, Change
from wal_sink.targets.cassandra.table import ColumnMetadata
from wal_sink.targets.cassandra.write.statements import Statements

BY = "cassandra.collections."
LIVE = live(
    ColumnMetadata("id", "bigint", "partition"),
    ColumnMetadata("day", "set<int>", "regular"),
    ColumnMetadata("tags", "set<text>", "regular"),
    ColumnMetadata("stock", "map<text, int>", "regular"),
    ColumnMetadata("notes", "list<text>", "regular"),
    ColumnMetadata("fixed", "frozen<set<text>>", "regular"),
    ColumnMetadata("amount", "int", "static"),
)
TEXTS = pa.list_(pa.string())
STOCK = pa.map_(pa.string(), pa.int32())


# --- an option that is given by columns -----------------------------------------------------------


def test_the_option_is_one_of_each_column() -> None:
    """By whatever way it comes: Spark's format passes names in lower case, Python as they are typed."""
    for typed in (f"{BY}TAGS", f"{BY}tags".upper(), f"{BY.lower()}tags"):
        found = configure(GIVEN | {typed: " Add "})
        assert found.target_options.changes == {"tags": "add"}  # type: ignore[attr-defined]
        assert found.public[f"{BY}tags"] == " Add "
        assert configure(GIVEN | {k: v for k, v in found.public.items() if k in GIVEN or BY in k})
    both = parse(GIVEN | {f"{BY}a.b": "remove", f"{BY}c": "overwrite"}, CassandraOptions)
    assert both.changes == {"a.b": "remove"}
    assert parse(public(both), CassandraOptions) == both


def test_it_is_known_with_its_column_alone() -> None:
    """A misspelt one is named with what it may mean; other targets have none."""
    known = names(CassandraOptions)
    refuse_unknown({f"{BY}x": "add"}, known)
    for typed in (BY, BY.removesuffix("."), "cassandra.collection.tags"):
        with pytest.raises(OptionError, match="Unknown option") as caught:
            refuse_unknown({typed: "add"}, known)
        assert f"{BY}<column>" in caught.value.remedy
    with pytest.raises(OptionError, match=r"Unknown option orders\.cassandra\.collections\.tags"):
        configure(GIVEN | {f"orders.{BY}tags": "add"})


def test_of_several_targets_each_has_its_own() -> None:
    """Behind the target's name."""
    one = {f"one.{name}": value for name, value in GIVEN.items() if name != "checkpointLocation"}
    other = {name.replace("one.", "two."): value for name, value in one.items()}
    raw = {"checkpointLocation": "/c", "targets": "one,two", f"two.{BY}Tags": "remove"}
    kinds = {"one.target": "cassandra", "two.target": "cassandra", "two.table": "others"}
    found = configure(raw | one | other | kinds)
    assert [each.options.changes for each in found.destinations] == [{}, {"tags": "remove"}]  # type: ignore[attr-defined]
    assert found.public[f"two.{BY}tags"] == "remove"


@pytest.mark.parametrize(
    ("more", "words", "remedy"),
    [
        ({f"{BY}tags": "append"}, "collections.tags is append", "overwrite, add, remove"),
        ({f"{BY}tags": ""}, "collections.tags is", "overwrite, add, remove"),
    ],
)
def test_what_contradicts_is_refused(more: dict[str, str], words: str, remedy: str) -> None:
    """At the start, with a remedy."""
    with pytest.raises(OptionError, match=words) as caught:
        configure(GIVEN | more)
    assert remedy in caught.value.remedy


# --- what is agreed with the table ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("column", "kind", "change", "words"),
    [
        ("id", pa.int64(), "add", "is in the table's primary key"),
        ("notes", TEXTS, "add", "append to it twice doubles"),
        ("amount", pa.int32(), "add", "is no set and no map"),
        ("fixed", TEXTS, "remove", "is frozen: it can only be written whole"),
        ("stock", STOCK, "remove", r'withColumn\("stock", map_keys\("stock"\)\)'),
        ("stock", TEXTS, "add", r"does not fit the table's map<text, int>"),
        ("stock", pa.list_(pa.int32()), "remove", "of the keys of map<text, int>|element"),
        ("tags", pa.string(), "add", r"does not fit the table's set<text>"),
    ],
)
def test_what_cannot_be_changed_is_refused(
    column: str, kind: pa.DataType, change: Change, words: str
) -> None:
    """By one line of the start's error; no other line is about the column."""
    fields = {"id": pa.int64(), column: kind}
    with pytest.raises(SchemaMismatch, match=words) as caught:
        match_columns(pa.schema(list(fields.items())), LIVE, Wanted(changes={column: change}))
    assert str(caught.value).count(f"\n  - {column}") == 1


def test_the_names_are_those_of_the_dataframe() -> None:
    """In any case, as Spark passes them; two columns that differ in nothing else cannot be told apart."""
    assert found_changes({"tags": "add"}, ["id", "Tags"]) == {"Tags": "add"}
    with pytest.raises(SchemaMismatch, match="names no column") as caught:
        found_changes({"tagz": "add"}, ["id", "tags"])
    assert "Did you mean tags?" in caught.value.what
    with pytest.raises(SchemaMismatch, match="could mean Tags or tags"):
        found_changes({"tags": "add"}, ["Tags", "tags"])


def test_each_table_decides_for_itself() -> None:
    """A table without the column is written by INSERT, as ever."""
    wanted = Wanted(changes={"tags": "add"})
    assert wanted.among(["id", "tags"]) == Wanted({}, True, {"tags": "add"})
    assert wanted.among(["id"]) == Wanted()


# --- statements and bytes -------------------------------------------------------------------------


def plan_of_table(schema: pa.Schema, changes: dict[str, Change]) -> CassandraPlan:
    made = plan_of(keyspace="shop", table="orders", nulls="write", update=True, changes=changes)
    columns = match_columns(schema, LIVE, Wanted(update=True, changes=changes))
    return msgspec.structs.replace(made, columns=columns)


def test_the_statement_adds_and_takes_out() -> None:
    """At the row's time; of a row whose life is over it takes out what the row would have added."""
    schema = pa.schema([("tags", TEXTS), ("stock", STOCK), ("id", pa.int64()), ("day", TEXTS)])
    schema = schema.set(3, pa.field("day", pa.list_(pa.int32())))
    plan = plan_of_table(schema, {"tags": "remove", "stock": "add"})
    rows = pa.record_batch(
        [
            [["a"], None, ["b"]],
            pa.array([[("x", 1), ("y", 2)], [("z", 3)], None], STOCK),
            [1, 2, 3],
            pa.array([[1], None, []], pa.list_(pa.int32())),
        ],
        schema=schema,
    )
    rows = pa.concat_batches([rows, rows])[2:5]  # at an offset: 3, 1, 2
    refuse_changed(plan, LIVE)
    alive, over = '"stock" = "stock" + ?', '"stock" = "stock" - ?'
    parts = Statements(plan, prepared).divide(Stamped(rows, np.arange(3)), np.array([9, 0, 0]))
    queries = [part.statement.prepared.query_string for part in parts]
    for query, stock in zip(sorted(queries), (alive, over), strict=True):
        assert query == (
            'UPDATE "shop"."orders" USING TIMESTAMP ? AND TTL ? SET "tags" = "tags" - ?,'
            f' {stock}, "day" = ? WHERE "id" = ?'
        )
    (dead,) = (part for part in parts if part.cleared)
    bound = bind(
        dead.rows.batch,
        dead.statement.plan,
        dead.rows.stamps.tolist(),
        stamp_first=True,
        cleared=True,
    )
    assert [row[1:4] for row in bound] == [
        (("a",), ("x", "y"), None),
        (UNSET_VALUE, ("z",), None),
    ]


@pytest.mark.parametrize("change", ["add", "remove"])
@pytest.mark.parametrize("case", SCALARS, ids=lambda case: f"{case.cql} {case.arrow}")
@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_the_bytes_are_the_drivers(case: Case, change: Change, data: st.DataObject) -> None:
    """For elements of every type, of sets and of maps, with nulls: they leave what is there."""
    if case.cql == "duration":
        return  # no element of a set, and no key
    keys = st.lists(case.values.map(case.as_key), max_size=3)
    values = data.draw(st.lists(st.none() | keys, max_size=4))
    elements = case.array([*itertools.chain.from_iterable(v or [] for v in values)])
    ends = np.cumsum([0, *(len(v or []) for v in values)])
    mask = pa.array([v is None for v in values], pa.bool_())
    column = pa.ListArray.from_arrays(pa.array(ends, pa.int32()), elements, mask=mask)
    types = {type_name(each): tuple((name, each.cql) for name in FIELDS) for each in SCALARS}
    for cql in (f"set<{case.cql}>", f"map<{case.cql}, frozen<list<int>>>"):
        given_column = column
        if change == "add" and cql.startswith("map"):
            items = pa.array([[1]] * len(column.values), pa.list_(pa.int32()))
            given_column = pa.MapArray.from_arrays(pa.array(ends, pa.int32()), column.values, items)
        planned = plan_of_column(cql, given_column.type, "write", types)
        planned = planned.noting(changes={"c": change})
        ids = pa.array(range(len(column)), pa.int32())
        stored = check(pa.record_batch({"id": ids, "c": given_column}), planned)
        encoded, offsets = encode(stored, planned, 7)
        raw = encoded.to_pybytes()
        expected = [row.wire for row in driver_rows(stored, planned, 7)]
        assert [raw[i:j] for i, j in itertools.pairwise(offsets)] == expected

"""Several tables of one stream: the options, what is agreed with each, what tasks refuse, what each gets."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from tests.cql_driver import plan_of
from tests.unit.test_cassandra_compare import live as live_table
from wal_sink.configuration import configure
from wal_sink.errors import InvalidRow, OptionError, SchemaMismatch
from wal_sink.model.plan import Column, Plan, plan_key
from wal_sink.options import parse
from wal_sink.targets.cassandra import CassandraOptions
from wal_sink.targets.cassandra.check import check
from wal_sink.targets.cassandra.compare import Wanted, match_tables, refuse_changed
from wal_sink.targets.cassandra.feature import Stamped
from wal_sink.targets.cassandra.features.tables import SeveralTables
from wal_sink.targets.cassandra.plan import of_several
from wal_sink.targets.cassandra.row_plan import CassandraPlan
from wal_sink.targets.cassandra.table import ColumnMetadata, TableMetadata
from wal_sink.targets.cassandra.write.batches import by_table

GIVEN = {
    "checkpointLocation": "/data/checkpoint",
    "cassandra.contactPoints": "127.0.0.1",
    "keyspace": "shop",
}
US = 1_700_000_000_000_000


@pytest.mark.parametrize(
    ("given", "words", "remedy"),
    [
        ({}, "table is missing", "tables, for several"),
        ({"table": "a", "tables": "b,c"}, "given together", "tables=a,"),
        ({"table": "a", "tableColumn": "t"}, "without tables", '"tables"'),
        ({"table": "a,b"}, "several tables", '.option("tables", "a,b")'),
        ({"tables": "a,shop.b"}, "'shop.b' cannot be a name", "keyspace is in option keyspace"),
        ({"tables": ","}, "table is missing", "tables, for several"),
        ({"tables": 'a,"b"'}, "cannot be a name", "without quotes"),
        ({"tables": "a, b,a"}, "lists a twice", "Leave out one"),
        (
            {"tables": "a,b", "tableColumn": "t", "operationColumn": "t"},
            "both name column t",
            "a column for each",
        ),
        (
            {"tables": "a,b", "tableColumn": "t", "cassandra.ttlColumn": "t"},
            "both name column t",
            "a column for each",
        ),
        (
            {"tables": "a,b", "tableColumn": "t", "cassandra.columns": '{"t": "u"}'},
            "tableColumn names, too",
            "Leave it out",
        ),
        (
            {"target": "postgresql", "tables": "a,b"},
            "cassandra.contactPoints is for target cassandra",
            'Add .option("target", "cassandra")',
        ),
    ],
)
def test_options_that_contradict_each_other_are_refused(
    given: dict[str, str], words: str, remedy: str
) -> None:
    """At the start, with a remedy."""
    with pytest.raises(OptionError, match=words) as caught:
        configure(GIVEN | given)
    assert remedy in caught.value.remedy


def test_a_start_says_where_rows_go() -> None:
    """And has a plan for it: one for one table is that of before."""
    every = configure(GIVEN | {"tables": "by_day, by_customer"}).target
    naming = configure(GIVEN | {"tables": "by_day, by_customer", "tableColumn": "goes"}).target
    assert every.description["tables"].startswith("shop.by_day, shop.by_customer, ledger in shop.")
    assert "to every table" in every.description["rows"]
    assert "goes names" in naming.description["rows"]
    assert every.writes_to == "shop.by_day, shop.by_customer"
    one = configure(GIVEN | {"table": "orders"}).target
    assert one.shape == {"keyspace": "shop", "table": "orders"}
    assert not {"tables", "rows"} & set(one.description)
    schema = pa.schema([("id", pa.int64())])
    assert len({plan_key(schema, "c", each.shape) for each in (every, naming, one)}) == 3


@pytest.mark.parametrize(("other", "same"), [("b,c", "shop.b"), ("c,d", "")])
def test_of_several_targets_two_may_not_have_a_table_in_common(other: str, same: str) -> None:
    """Each has timestamps of its own: an older row would come back."""
    given = {"checkpointLocation": "/c", "targets": "x,y"}
    for name, tables in (("x", "a,b"), ("y", other)):
        own = {"target": "cassandra", "tables": tables, **GIVEN}
        given |= {f"{name}.{k}": v for k, v in own.items() if k != "checkpointLocation"}
    if not same:
        assert configure(given).names == ("x", "y")
        return
    with pytest.raises(OptionError, match=f"the same table, {same}"):
        configure(given)


# --- what is agreed with each ---------------------------------------------------------------------


def table(name: str, *columns: tuple[str, str, str]) -> TableMetadata:
    found = [ColumnMetadata(*each) for each in columns]  # type: ignore[arg-type]
    live = live_table(*found, table=name, tables=("by_day", "by_customer"))
    return live._replace(views=())


BY_DAY = table(
    "by_day",
    ("day", "date", "partition"),
    ("id", "bigint", "clustering"),
    ("customer_id", "text", "regular"),
    ("tags", "set<text>", "regular"),
)
BY_CUSTOMER = table(
    "by_customer",
    ("customer_id", "text", "partition"),
    ("day", "date", "clustering"),
    ("id", "bigint", "clustering"),
    ("tags", "frozen<set<text>>", "static"),
    ("note", "text", "regular"),
)
NAMES = Wanted({"customer": "customer_id"})
SCHEMA = pa.schema(
    [
        ("goes", pa.string()),
        ("note", pa.string()),
        ("op", pa.string()),
        ("id", pa.int32()),
        ("customer", pa.string()),
        ("day", pa.date32()),
        ("tags", pa.list_(pa.string())),
    ]
)
WRITTEN = pa.schema([field for field in SCHEMA if field.name not in ("goes", "op")])


def plan(naming: str = "goes", operation: str = "op") -> CassandraPlan:
    """Return what is agreed with both tables."""
    beside = {naming, operation}
    schema = pa.schema([f for f in SCHEMA if f in WRITTEN or f.name in beside])
    tables = [BY_DAY, BY_CUSTOMER]
    plans = []
    for live, columns in zip(tables, match_tables(WRITTEN, tables, NAMES), strict=True):
        names = {column.in_table: column.name for column in columns}
        clustering = [names[column.name] for column in live.key if column.role == "clustering"]
        words: Any = {"upsert": "upsert", "delete": "delete"} if operation else {}
        made = plan_of(
            keyspace="shop",
            table=live.name.table,
            operations=words,
            clustering=tuple(clustering) if operation else (),
        )
        own = {column.name: column for column in columns}
        if operation:
            own["op"] = Column(name="op", source="string", type="operation", role="operation")
        in_order = tuple(own[name] for name in schema.names if name in own)
        plans.append(msgspec.structs.replace(made, columns=in_order))
    return of_several(plans, schema, naming)


def test_each_table_has_a_plan_as_if_it_were_alone() -> None:
    """With its own types and roles, from the log's JSON; the log's has every column of the DataFrame."""
    whole = CassandraPlan.of(Plan.from_json(plan().plain.to_json(), "plan"))
    assert whole == plan()
    assert [column.name for column in whole.columns] == SCHEMA.names
    assert whole.table == '"shop"."by_day", "shop"."by_customer"'
    day, customer = whole.tables
    assert (day.table, customer.table) == ('"shop"."by_day"', '"shop"."by_customer"')
    assert [(c.name, c.in_table, c.type, c.role) for c in customer.columns] == [
        ("note", "note", "text", "regular"),
        ("op", "op", "operation", "operation"),
        ("id", "id", "bigint", "clustering"),
        ("customer", "customer_id", "text", "partition"),
        ("day", "day", "date", "clustering"),
        ("tags", "tags", "frozen<set<text>>", "static"),
    ]
    assert [c.name for c in day.columns] == ["op", "id", "customer", "day", "tags"]
    assert day.details.among == "by_day,by_customer"
    refuse_changed(day.of_table(), BY_DAY)
    refuse_changed(customer.of_table(), BY_CUSTOMER)
    with pytest.raises(SchemaMismatch, match=r'"by_customer" is no longer .*note was text'):
        refuse_changed(customer.of_table(), BY_CUSTOMER._replace(columns=BY_CUSTOMER.columns[:-1]))
    conditional = [each.noting(if_not_exists=True) for each in plan("", "").tables]
    whole = of_several(conditional, WRITTEN, "")
    assert all(each.details.if_not_exists for each in (whole, *whole.tables))


def test_a_start_says_what_a_table_lacks(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="wal_sink"):
        match_tables(WRITTEN, [BY_DAY, BY_CUSTOMER], NAMES)
    assert '"by_day" lacks the column note' in caplog.text
    assert '"by_customer" does not' not in caplog.text


@pytest.mark.parametrize(
    ("schema", "tables", "names", "lines"),
    [
        (
            WRITTEN.append(pa.field("notes", pa.string())),
            [BY_DAY, BY_CUSTOMER],
            NAMES,
            ["notes: none of the tables has a column notes"],
        ),
        (
            WRITTEN,
            [BY_DAY, BY_CUSTOMER],
            Wanted(),
            ["customer_id: it is in the table's primary key"],
        ),
        (
            WRITTEN,
            [BY_DAY, BY_CUSTOMER],
            Wanted({**NAMES.names, "x": "y"}),
            ["x: cassandra.columns names it, and the DataFrame has no such column"],
        ),
        (
            WRITTEN,
            [
                BY_DAY,
                table(
                    "by_customer", ("customer_id", "text", "partition"), ("id", "int", "regular")
                ),
            ],
            NAMES,
            ["id: it is bigint in", "and int in", "Give it one type"],
        ),
        (WRITTEN, [BY_DAY, table("gone")], NAMES, ["does not exist"]),
    ],
)
def test_tables_that_do_not_fit_are_refused(
    schema: pa.Schema, tables: Sequence[TableMetadata], names: Wanted, lines: list[str]
) -> None:
    """At the start; errors name the table."""
    with pytest.raises(SchemaMismatch) as caught:
        match_tables(schema, tables, names)
    assert [line for line in lines if line not in str(caught.value)] == []
    assert caught.value.remedy


def test_a_column_of_a_table_cannot_name_the_table() -> None:
    options = parse(GIVEN | {"tables": "a,b", "tableColumn": "note"}, CassandraOptions)
    with pytest.raises(SchemaMismatch, match="a column of one of") as caught:
        SeveralTables().written(SCHEMA, options, {"note"}, '"shop"."by_day"')
    assert "withColumnRenamed" in caught.value.remedy


# --- what tasks refuse, and what the log has ------------------------------------------------------

Row = tuple[Any, ...]
"""goes, note, op, id, customer, day, tags."""


def batch(*rows: Row, whole: CassandraPlan) -> pa.RecordBatch:
    columns = dict(zip(SCHEMA.names, zip(*rows, strict=True), strict=True))
    fields = [SCHEMA.field(column.name) for column in whole.columns]
    arrays = [pa.array(columns[field.name], field.type) for field in fields]
    return pa.record_batch(arrays, schema=pa.schema(fields))


ROWS: list[Row] = [
    ("by_day", "not in by_day", "upsert", 1, "ann", 10, ["b", "a", "b"]),
    ("by_customer", "x", "upsert", 2, "bob", 11, None),
    ("by_day", None, "upsert", 3, None, 12, None),
    ("by_customer", "gone", "delete", None, "ann", 10, ["a"]),
]


def test_a_row_is_checked_by_the_table_that_it_names() -> None:
    """The log has the rows in their order, and nothing of what their table lacks."""
    stored = check(batch(*ROWS, whole=plan()), plan())
    assert stored.schema.names == SCHEMA.names
    assert stored.column("goes").to_pylist() == [row[0] for row in ROWS]
    assert stored.column("id").to_pylist() == [1, 2, 3, None]
    assert stored.column("note").to_pylist() == [None, "x", None, None]
    assert stored.column("customer").to_pylist() == ["ann", "bob", None, "ann"]
    assert stored.column("tags").to_pylist() == [["b", "a", "b"], None, None, None]


def test_a_row_for_every_table_is_checked_by_each() -> None:
    whole = plan(naming="")
    fitting = [ROWS[0], (None, "y", "delete", 5, "cid", 9, ["a"])]
    stored = check(batch(*fitting, whole=whole), whole)
    assert stored.column("note").to_pylist() == ["not in by_day", None]
    assert stored.column("customer").to_pylist() == ["ann", "cid"], "the key of one of the tables"
    assert stored.column("tags").to_pylist() == [["b", "a", "b"], None]
    with pytest.raises(InvalidRow, match=r'customer of .*"by_customer" is part'):
        check(batch(*fitting, ROWS[2], whole=whole), whole)


@pytest.mark.parametrize(
    ("row", "words", "remedy"),
    [
        (
            ("by_week", None, "upsert", 1, "x", 1, None),
            r"goes of .* \('by_week'\) names no table",
            "tables",
        ),
        ((None, None, "upsert", 1, "x", 1, None), r"goes of .* \(None\) names no table", "tables"),
        (("by_day", None, "upsert", 1, "x", None, None), r'Column day .*"by_day"', "Drop such"),
        (("by_customer", None, "upsert", 1, None, 1, None), r'customer .*"by_customer"', "Drop"),
        (("by_customer", None, "truncate", 1, "x", 1, None), "is no operation", "operations"),
    ],
)
def test_a_row_that_cannot_be_written_is_named(row: Row, words: str, remedy: str) -> None:
    """With its table, before the epoch is published."""
    with pytest.raises(InvalidRow, match=words) as caught:
        check(batch(*ROWS, row, whole=plan()), plan())
    assert remedy in caught.value.remedy


def test_batches_without_rows_or_of_one_table() -> None:
    whole = plan()
    rows = batch(*ROWS, whole=whole)
    stored = check(rows, whole)
    for begin, end in ((0, 0), (0, 1), (1, 2), (2, 4)):
        assert check(rows[begin:end], whole) == stored[begin:end]


# --- what each table gets -------------------------------------------------------------------------


def test_each_row_has_its_own_timestamp_in_each_table() -> None:
    """The same one in every table; rows of other tables count, too."""
    for naming, expected in (
        ("goes", [[US, US + 2], [US + 1, US + 3]]),
        ("", [[US, US + 1], [US, US + 1]]),
    ):
        whole = plan(naming)
        rows = ROWS if naming else ROWS[:2]
        stored = check(batch(*rows, whole=whole), whole)
        stamps = np.arange(US, US + len(rows))
        tables = whole.tables
        parts = list(by_table(Stamped(stored, stamps), whole))
        assert [part.stamps.tolist() for part in parts] == expected
        for part, of in zip(parts, tables, strict=True):
            assert part.batch.schema.names == [column.name for column in of.columns]


INSERT = 'INSERT INTO "shop"."{}" ({}) VALUES ({}) USING TIMESTAMP ?'

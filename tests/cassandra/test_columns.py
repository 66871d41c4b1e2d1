"""`cassandra.columns`: columns with another name in the table than in the DataFrame."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from tests.cassandra.test_plan import COLUMNS, live
from tests.support.cql_driver import plan_of
from tests.test_options import GIVEN
from wal_sink.configuration import configure
from wal_sink.errors import CorruptLog, InvalidRow, OptionError, SchemaMismatch
from wal_sink.model.plan import Column, Plan
from wal_sink.publish.preflight import CheckedColumn
from wal_sink.targets.cassandra.options import read_columns
from wal_sink.targets.cassandra.plan import plan_columns
from wal_sink.targets.cassandra.row_plan import CassandraPlan, CassandraRowPlan
from wal_sink.targets.cassandra.rows import check
from wal_sink.targets.cassandra.statements import delete, upsert
from wal_sink.targets.cassandra.table_changes import refuse_changed

NAMES = {"orderId": "id", "theShop": "shop"}
SCHEMA = pa.schema([("theShop", pa.string()), ("day", pa.date32()), ("orderId", pa.int32())])


def plan(**details: Any) -> CassandraPlan:
    """Return the plan for a DataFrame whose columns are renamed."""
    columns = plan_columns(SCHEMA, live(*COLUMNS), NAMES)
    made = plan_of(keyspace="shop", table="orders", **details)
    return msgspec.structs.replace(made, columns=columns)


@pytest.mark.parametrize(
    ("text", "words", "remedy"),
    [
        ("customerId=customer_id", "not a JSON object", "double quotes"),
        ('{"a": 1}', "writes 'a' to 1", "the table's"),
        ('{"a": ""}', "cannot be a name", "the table's"),
        ('{"": "a"}', "cannot be a name", "the table's"),
        ('{"a": "x", "a": "y"}', "'a' twice", "Leave out one"),
        ('{"a": "x", "b": "x"}', "two columns that are written to 'x'", "coalesce"),
    ],
)
def test_invalid_column_names_are_refused(text: str, words: str, remedy: str) -> None:
    with pytest.raises(OptionError, match=words) as caught:
        configure(GIVEN | {"cassandra.columns": text})
    assert remedy in caught.value.remedy


def test_renamed_column_is_written_to_its_table_column() -> None:
    """Statements have the table's names. Two columns may exchange their names."""
    assert [(c.name, c.in_table, c.type, c.role) for c in plan().columns] == [
        ("theShop", "shop", "text", "static"),
        ("day", "day", "date", "clustering"),
        ("orderId", "id", "bigint", "partition"),
    ]
    assert '("shop", "day", "id")' in upsert(plan())
    assert delete(plan()).endswith('WHERE "shop" = ? AND "day" = ? AND "id" = ?')
    swapped = pa.schema([("id", pa.date32()), ("day", pa.int64())])
    columns = plan_columns(swapped, live(*COLUMNS), {"id": "day", "day": "id"})
    assert [column.type for column in columns] == ["date", "bigint"]
    checked = CheckedColumn(
        name="a", source="int64", spark="bigint", type="int", role="regular", column="b"
    )
    assert checked.fits == "bigint to b int"


def test_plan_with_column_names_survives_json() -> None:
    logged = Plan.from_json(plan(clustering=("day",)).plain.to_json(), "plan")
    assert logged == plan(clustering=("day",)).plain
    assert CassandraPlan.of(logged) == plan(clustering=("day",))
    hostile = msgspec.structs.replace(logged, table="shop.orders; DROP TABLE x")
    assert CassandraPlan.of(hostile).table == '"shop"."orders"', "it stands in statements"
    same = Column(name="a", source="int32", type="int", role="regular")
    text = Plan(key="k", target="t", table="t", columns=(same,)).to_json()
    assert set(json.loads(text)["columns"][0]) == {"name", "source", "type", "role"}


def test_plan_with_an_unknown_detail_is_corrupt() -> None:
    """Another version has written the plan. Without the detail, rows would never expire."""
    logged = plan().plain
    details = logged.details | {"ttl": {"ttl_s": 60}}
    with pytest.raises(CorruptLog, match="unknown field `ttl`"):
        CassandraPlan.of(msgspec.structs.replace(logged, details=details))


@pytest.mark.parametrize(
    ("names", "lines"),
    [
        (
            {"orderid": "id"},
            ["orderid: cassandra.columns names it", "differs in upper and lower case only"],
        ),
        ({"orderId": "ID"}, ["the table has no column ID", "Correct cassandra.columns"]),
        (
            {"theShop": "day", "orderId": "id"},
            [
                "theShop: cassandra.columns writes it to day",
                "to which the DataFrame's day is written",
            ],
        ),
        (
            {"theShop": "shop"},
            ["id: it is in the table's primary key", "orderId: the table has no"],
        ),
        (
            {"day": "amount", "orderId": "id"},
            ["day: date (Arrow date32[day]) does not fit the table's decimal"],
        ),
    ],
)
def test_unfit_mapping_of_columns_is_refused(names: dict[str, str], lines: list[str]) -> None:
    with pytest.raises(SchemaMismatch) as caught:
        plan_columns(SCHEMA, live(*COLUMNS), names)
    assert [line for line in lines if line not in str(caught.value)] == []


def test_error_of_a_task_names_the_dataframes_column() -> None:
    """The remedy is an expression over the DataFrame."""
    rows = pa.record_batch([["x"], [None], [1]], schema=SCHEMA)
    with pytest.raises(InvalidRow, match=r"Column day of .* is part .* orderId=1") as caught:
        check(rows, plan())
    assert '["day"]' in caught.value.remedy
    assert check(rows[:0], plan()).schema.names == SCHEMA.names


def test_change_of_a_renamed_column_is_detected() -> None:
    refuse_changed(plan(), live(*COLUMNS))
    with pytest.raises(SchemaMismatch, match=r"shop was text \(static\), is gone"):
        refuse_changed(plan(), live(*(c for c in COLUMNS if c.name != "shop")))


def test_renamed_columns_may_have_any_characters() -> None:
    assert read_columns('{"Ä b": "c\\"d", "same": "same"}') == {"Ä b": 'c"d'}
    assert read_columns(" ") == {}


def test_equal_row_plans_have_equal_json() -> None:
    """A text from another process equals the default value, and is not identical with it."""
    sent: Any = str(b"unset", "utf-8")
    here = CassandraRowPlan(keyspace="k", table="t", ttl_s=1)
    present = CassandraRowPlan(keyspace="k", table="t", nulls=sent, ttl_s=1)
    assert msgspec.json.encode(here) == msgspec.json.encode(present)

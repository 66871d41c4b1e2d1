"""A DataFrame compared with a table: the error has a line for each problem."""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa
import pytest

from tests.support.cql_driver import plan_of
from wal_sink.errors import SchemaMismatch
from wal_sink.targets.cassandra.ledger import LEDGER_COLUMNS, create_ledger, refuse_other_ledger
from wal_sink.targets.cassandra.plan import plan_columns, refuse_no_update, used_types
from wal_sink.targets.cassandra.row_plan import CassandraPlan, TableName
from wal_sink.targets.cassandra.table import ColumnMetadata, TableMetadata
from wal_sink.targets.cassandra.table_changes import refuse_changed

COLUMNS = (
    ColumnMetadata("id", "bigint", "partition"),
    ColumnMetadata("day", "date", "clustering"),
    ColumnMetadata("shop", "text", "static"),
    ColumnMetadata("amount", "decimal", "regular"),
    ColumnMetadata("tags", "list<text>", "regular"),
)
FITTING = pa.schema(
    [
        ("amount", pa.decimal128(10, 2)),
        ("day", pa.date32()),
        ("id", pa.int32()),
        ("shop", pa.string()),
    ]
)


def live(
    *columns: ColumnMetadata,
    table: str = "orders",
    tables: tuple[str, ...] = ("orders", "Customers"),
    durable: bool = True,
) -> TableMetadata:
    return TableMetadata(
        name=TableName("shop", table),
        keyspaces=("shop", "system"),
        durable=durable,
        tables=tables,
        columns=columns,
        default_ttl=0,
    )


def refusal(schema: pa.Schema, table: TableMetadata) -> str:
    with pytest.raises(SchemaMismatch) as refused:
        plan_columns(schema, table)
    return str(refused.value)


def test_names_that_differ_only_in_case_are_two_columns() -> None:
    schema = pa.schema([("id", pa.int32()), ("Id", pa.string())])
    table = live(ColumnMetadata("id", "int", "partition"), ColumnMetadata("Id", "text", "regular"))
    assert [column.type for column in plan_columns(schema, table)] == ["int", "text"]


def test_error_proposes_rename_for_column_of_another_case() -> None:
    schema = pa.schema([("ID", pa.int32()), ("day", pa.date32())])
    text = refusal(schema, live(*COLUMNS))
    assert (
        "- ID: the table has no such column. There is id, which differs in upper and lower case only: names"
        ' are exact. Rename it, .withColumnRenamed("ID", "id").'
    ) in text
    assert "ALTER TABLE" not in text


def test_error_has_a_line_for_each_problem() -> None:
    schema = pa.schema(
        [
            ("id", pa.string()),
            ("amout", pa.decimal128(10, 2)),
            ("Shop", pa.string()),
            ("tags", pa.list_(pa.string())),
            ("zzz", pa.int32()),
            ("zzz", pa.int32()),
        ]
    )
    text = refusal(schema, live(*COLUMNS))
    lines = [line for line in text.splitlines() if line.startswith("  - ")]
    assert len(lines) == 6
    for expected in (
        "- id: string does not fit the table's bigint",
        "- amout: the table has no such column. Did you mean amount? Rename or drop it, or run:",
        "- Shop: the table has no such column. There is shop, which differs in upper and lower case",
        "- zzz: the DataFrame has 2 columns of this name.",
        'no such column. Rename or drop it, or run: ALTER TABLE "shop"."orders" ADD "zzz" int;',
        "- day: it is in the table's primary key (clustering key, date) and not in the DataFrame.",
    ):
        assert expected in text


def test_error_of_missing_keyspace_has_create_keyspace() -> None:
    table = live()._replace(name=TableName("shopp", "orders"))
    text = refusal(FITTING, table)
    assert "Keyspace shopp does not exist. Did you mean shop?" in text
    assert 'CREATE KEYSPACE "shopp"' in text


def test_error_of_missing_table_has_create_table() -> None:
    schema = pa.schema([('a "b"', pa.int64()), ("at", pa.timestamp("us", "UTC")), ("s", pa.null())])
    text = refusal(schema, live(table="order"))
    assert 'Table "shop"."order" does not exist. Did you mean orders?' in text
    assert (
        """
CREATE TABLE "shop"."order" (
  "a ""b\""" bigint,
  "at" timestamp,
  -- "s": null is not supported yet,
  PRIMARY KEY ("a ""b\""")  -- choose: rows with equal keys overwrite each other
);"""
        in text
    )


def test_counter_table_or_volatile_keyspace_is_refused() -> None:
    counter = live(*COLUMNS[:1], ColumnMetadata("n", "counter", "regular"))
    assert "is a counter table" in refusal(pa.schema([("id", pa.int64())]), counter)
    text = refusal(FITTING, live(*COLUMNS, durable=False))
    assert "durable_writes = false" in text
    assert 'ALTER KEYSPACE "shop" WITH durable_writes = true' in text


def planned(schema: pa.Schema = FITTING, **details: Any) -> CassandraPlan:
    made = plan_of(keyspace="shop", table="orders", **details)
    return msgspec.structs.replace(made, columns=plan_columns(schema, live(*COLUMNS)))


@pytest.mark.parametrize(
    ("now", "says"),
    [
        (COLUMNS[:3], "amount was decimal (regular), is gone"),
        (
            (*COLUMNS[:3], ColumnMetadata("amount", "double", "regular")),
            "amount was decimal (regular), is double (regular)",
        ),
        (
            (*COLUMNS[:2], ColumnMetadata("shop", "text", "regular"), *COLUMNS[3:]),
            "shop was text (static), is text (regular)",
        ),
        ((*COLUMNS, ColumnMetadata("hour", "int", "clustering")), "hour is new, int (clustering)"),
    ],
)
def test_error_names_each_difference_of_a_changed_table(
    now: tuple[ColumnMetadata, ...], says: str
) -> None:
    """A new column that is not in the key is accepted."""
    refuse_changed(planned(), live(*COLUMNS, ColumnMetadata("note", "text", "regular")))
    with pytest.raises(SchemaMismatch) as refused:
        refuse_changed(planned(), live(*now))
    assert says in str(refused.value)
    with pytest.raises(SchemaMismatch, match="durable_writes = false"):
        refuse_changed(planned(), live(*COLUMNS, durable=False))


LEDGER = tuple(
    ColumnMetadata(name, cql, "partition" if name == "query_id" else "regular")
    for name, cql in LEDGER_COLUMNS.items()
)


def test_ledger_table_with_an_additional_column_is_accepted() -> None:
    refuse_other_ledger(live(*LEDGER))
    refuse_other_ledger(live(*LEDGER, ColumnMetadata("later", "text", "regular")))


@pytest.mark.parametrize(
    "columns",
    [
        LEDGER[:-1],
        (*LEDGER[:-1], ColumnMetadata("last", "blob", "regular")),
        (*LEDGER[1:], ColumnMetadata("query_id", "text", "regular")),
        (*LEDGER, ColumnMetadata("part", "int", "clustering")),
    ],
)
def test_ledger_table_with_other_columns_is_refused(columns: tuple[ColumnMetadata, ...]) -> None:
    with pytest.raises(SchemaMismatch, match="is not a ledger of wal_sink") as refused:
        refuse_other_ledger(live(*columns))
    assert create_ledger(TableName("shop", "orders")) in refused.value.remedy


@pytest.mark.parametrize(
    ("details", "default_ttl", "named"),
    [
        ({"timestamp_column": "at"}, 0, "cassandra.timestampColumn"),
        ({"ttl_s": 60}, 0, "cassandra.ttl"),
        ({"ttl_column": "ttl"}, 0, "cassandra.ttlColumn"),
        ({}, 60, "default_time_to_live = 60"),
        ({}, 0, ""),
        ({"expires_at_column": "until"}, 0, ""),
    ],
    ids=["event", "seconds", "column-of-seconds", "of-the-table", "none", "expiry"],
)
def test_event_times_and_ttls_with_unfrozen_list_are_refused(
    details: dict[str, Any], default_ttl: int, named: str
) -> None:
    """Each sending of such a list has a later timestamp. A time of expiry does not depend on it."""
    table = live(*COLUMNS)._replace(default_ttl=default_ttl)
    plan = planned(FITTING.append(pa.field("tags", pa.list_(pa.string()))), **details)
    if not named:
        refuse_changed(plan, table)
        return
    with pytest.raises(SchemaMismatch) as refused:
        refuse_changed(plan, table)
    assert named in str(refused.value)
    assert "frozen<list<…>>" in str(refused.value)
    plain = planned(**details)
    refuse_changed(plain, table)


PLACE = (("street", "text"), ("Zip", "frozen<code>"))
CODE = (("n", "int"),)


def test_changed_field_of_a_type_is_refused() -> None:
    """The plan has the types of its columns, including types inside of others. New fields are accepted."""

    def with_types(**types: tuple[tuple[str, str], ...]) -> TableMetadata:
        column = ColumnMetadata("c", "map<int, frozen<place>>", "regular")
        return live(COLUMNS[0], column)._replace(types=types)

    planned_with = with_types(place=PLACE, code=CODE, other=CODE)
    place = pa.struct([("Zip", pa.struct([("n", pa.int32())]))])
    schema = pa.schema([("id", pa.int32()), ("c", pa.map_(pa.int32(), place))])
    columns = plan_columns(schema, planned_with)
    types = used_types(columns, planned_with)
    assert set(types) == {"place", "code"}
    made = plan_of(keyspace="shop", table="orders", types=types)
    made = msgspec.structs.replace(made, columns=columns)
    assert made.plain.details["types"]["code"] == [["n", "int"]]
    refuse_changed(made, planned_with)
    refuse_changed(made, with_types(place=(*PLACE, ("more", "int")), code=CODE))
    with pytest.raises(SchemaMismatch, match=r'type code was \("n" int\), is \("m" int\)'):
        refuse_changed(made, with_types(place=PLACE, code=(("m", "int"),)))
    with pytest.raises(SchemaMismatch, match=r'type code was \("n" int\), is \(\)'):
        refuse_changed(made, with_types(place=PLACE))


KEY = [("id", pa.int64()), ("day", pa.date32())]


def test_static_columns_alone_need_no_clustering_columns() -> None:
    """An INSERT would need the clustering columns."""
    static = pa.schema([("shop", pa.string()), KEY[0]])
    columns = plan_columns(static, live(*COLUMNS), update=True)
    source = plan_of(keyspace="shop", table="orders", update=True)
    source = msgspec.structs.replace(source, columns=columns)
    assert source.writes_partitions
    refuse_changed(source, live(*COLUMNS))
    with pytest.raises(SchemaMismatch, match="day: it is in the table's primary key"):
        plan_columns(static, live(*COLUMNS))
    with pytest.raises(SchemaMismatch, match="day: it is in the table's primary key"):
        plan_columns(static.append(pa.field("amount", pa.int32())), live(*COLUMNS), update=True)


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
def test_dataframe_that_update_mode_cannot_write_is_refused(
    fields: list[tuple[str, pa.DataType]], operation: str, words: str
) -> None:
    columns = plan_columns(pa.schema(fields), live(*COLUMNS), update=True)
    if not words:
        refuse_no_update(live(*COLUMNS), columns, operation)
        return
    with pytest.raises(SchemaMismatch, match=words) as caught:
        refuse_no_update(live(*COLUMNS), columns, operation)
    assert caught.value.remedy

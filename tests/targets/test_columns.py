"""Comparison of DataFrame and table: one error names all differences."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest

from wal_sink.errors import SchemaMismatch
from wal_sink.model.plan import Column, Plan
from wal_sink.targets.columns import TableColumn, TableRules, match_columns, refuse_changed
from wal_sink.targets.kafka.plan import agreed_columns

TABLE = [
    TableColumn("Id", "INT"),
    TableColumn("name", "TEXT", required=True),
    TableColumn("at", "TIME", required=True, default=True),
    TableColumn("n", "INT", required=True, computed=True),
    TableColumn("note", "TEXT"),
]


class Rules(TableRules):
    """Numbers fit INT. Everything else fits TEXT and TIME."""

    def about_type(self, field: pa.Field, column: TableColumn) -> Sequence[str]:
        if pa.types.is_integer(field.type) == (column.type == "INT"):
            return []
        return [self.types_differ(field, column.type, "Cast it.")]

    def to_add(self, field: pa.Field) -> str:
        return f"run: ADD {field.name};"

    def to_allow_null(self, column: TableColumn) -> str:
        return f"run: ALTER {column.name};"


def test_error_has_a_line_for_each_difference() -> None:
    names = ["id", "nmae", "note", "n", "x", "x"]
    types = [pa.int64(), pa.string(), pa.decimal128(9, 2), pa.int32(), pa.string(), pa.string()]
    with pytest.raises(SchemaMismatch) as caught:
        match_columns(
            pa.schema(list(zip(names, types, strict=True))),
            [*TABLE, TableColumn("ref", "INT")],
            "shop.t",
            Rules(),
            ["key: there is none."],
        )
    assert caught.value.what.splitlines() == [
        "The DataFrame does not fit shop.t:",
        "  - x: the DataFrame has 2 columns of this name. Rename all but one.",
        (
            "  - id: the table has no such column. There is Id, which differs in upper and lower case only:"
            ' names are exact. Rename it, .withColumnRenamed("id", "Id").'
        ),
        "  - nmae: the table has no such column. Did you mean name? Rename or drop it, or run: ADD nmae;",
        "  - n: the server computes this column and takes no value. Drop it.",
        "  - x: the table has no such column. Rename or drop it, or run: ADD x;",
        (
            "  - name: it takes no null, has no default, and is not in the DataFrame. Add it, or run: ALTER"
            " name;"
        ),
        "  - key: there is none.",
    ]


def test_error_names_an_unfit_type_as_spark_does() -> None:
    schema = pa.schema([("name", pa.string()), ("Id", pa.decimal128(9, 2))])
    with pytest.raises(
        SchemaMismatch, match=r"Id: .* is INT, the DataFrame's decimal\(9,2\)\. Cast"
    ):
        match_columns(schema, TABLE, "t", Rules())


def planned(*columns: str) -> Plan:
    fields = [(name, pa.int64() if name == "Id" else pa.string()) for name in columns]
    matched = match_columns(pa.schema(fields), TABLE, "t", Rules())
    return Plan(key="k", target="t", table="t", columns=matched)


def test_fitting_columns_are_planned_in_dataframe_order() -> None:
    assert planned("name", "Id").columns == (
        Column(name="name", source="string", type="TEXT", role="required"),
        Column(name="Id", source="int64", type="INT", role="regular"),
    )


def test_error_names_all_changes_of_a_table() -> None:
    """A new column that a row may omit is accepted, and a column that now takes nulls."""
    plan = planned("Id", "name", "note")
    refuse_changed(plan, TABLE)
    refuse_changed(plan, [column._replace(required=False) for column in TABLE])
    refuse_changed(plan, [*TABLE, TableColumn("new", "INT")])
    now = [TABLE[0]._replace(type="BIG"), TABLE[4]._replace(required=True)]
    with pytest.raises(SchemaMismatch) as caught:
        refuse_changed(plan, [*now, TableColumn("new", "INT", required=True)], ["it moved"])
    assert caught.value.what.partition(": ")[2] == (
        "column Id was INT, and is BIG now; column name is gone; column note takes no null any more; column"
        " new is new and takes no null; it moved."
    )
    with pytest.raises(SchemaMismatch, match="column Id is computed by the server now"):
        refuse_changed(plan, [TABLE[0]._replace(computed=True), *TABLE[1:]])
    with pytest.raises(SchemaMismatch, match=r"checked against it: the table is gone\."):
        refuse_changed(plan, [], ["it moved"])


def test_kafka_error_shows_the_value_expression_once() -> None:
    """Kafka has no table. One expression puts all columns into the value."""
    with pytest.raises(SchemaMismatch) as caught:
        agreed_columns(pa.schema([("id", pa.int64()), ("cost", pa.int64())]), {})
    assert caught.value.what.splitlines()[1:] == [
        "  - id: a record of Kafka has no such column. Put it into value, as below.",
        "  - cost: a record of Kafka has no such column. Put it into value, as below.",
        (
            "  - value: it is not in the DataFrame. Put all columns into it,"
            " .select(F.to_json(F.struct('*')).alias('value'))."
        ),
    ]
    assert "table" not in str(caught.value)

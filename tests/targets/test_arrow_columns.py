"""Columns of tables whose types are Arrow types."""

from __future__ import annotations

import pyarrow as pa
import pytest

from wal_sink.errors import SchemaMismatch
from wal_sink.targets.arrow_columns import is_as_wide, new_columns

INT, BIGINT = pa.int32(), pa.int64()


def struct(*fields: tuple[str, pa.DataType, bool]) -> pa.DataType:
    return pa.struct([pa.field(name, type_, nullable) for name, type_, nullable in fields])


@pytest.mark.parametrize(
    ("wide", "narrow", "fits"),
    [
        (BIGINT, INT, True),
        (INT, BIGINT, False),
        (pa.float64(), INT, True),
        (pa.float64(), BIGINT, False),
        (pa.float64(), pa.float32(), True),
        (pa.decimal128(14, 2), pa.decimal128(10, 2), True),
        (pa.decimal128(10, 4), pa.decimal128(10, 2), False),
        (pa.decimal128(10, 0), INT, True),
        (pa.string(), INT, False),
        (pa.list_(BIGINT), pa.list_(INT), True),
        (struct(("a", INT, True), ("b", INT, True)), struct(("a", INT, True)), True),
        (struct(("a", INT, True), ("b", INT, False)), struct(("a", INT, True)), False),
        (struct(("a", INT, False)), struct(("a", INT, True)), False),
        (struct(("b", INT, True)), struct(("a", INT, True)), False),
    ],
    ids=str,
)
def test_type_is_as_wide_if_it_holds_each_value(
    wide: pa.DataType, narrow: pa.DataType, *, fits: bool
) -> None:
    assert is_as_wide(wide, narrow) is fits


def test_new_columns_that_differ_by_case_are_refused() -> None:
    schema = pa.schema([("k", pa.string()), ("v", pa.int64()), ("K", pa.string())])
    with pytest.raises(
        SchemaMismatch, match="columns k, K differ by case only, and Delta"
    ) as caught:
        new_columns(schema, (), lambda _: None, "Delta")
    assert caught.value.remedy == "Rename all but one, .withColumnRenamed('K', …)."

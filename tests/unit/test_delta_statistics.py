"""The statistics of a Delta table's file: every value lies within the bounds that are given."""

from __future__ import annotations

import datetime
import json
import math
from decimal import Decimal
from io import BytesIO
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from wal_sink.targets.delta.statistics import of_file

HIGHEST = "\U0010ffff"
DAY = datetime.datetime(2024, 2, 29, 23, 59, 59)  # noqa: DTZ001 -- of no zone


def statistics(column: pa.Array, with_nan: tuple[str, ...] = (), groups: int = 2) -> dict[str, Any]:
    """Return those of a file with one column c."""
    table = pa.table([column], names=["c"])
    file = BytesIO()
    pq.write_table(table, file, row_group_size=max(1, math.ceil(len(column) / groups)))
    found: dict[str, Any] = json.loads(
        of_file(pq.read_metadata(file), table.schema, with_nan), parse_float=Decimal
    )
    return found


@pytest.mark.parametrize(
    ("type_", "values", "low", "high"),
    [
        (pa.int64(), [3, None, -(2**63), 2**63 - 1], -(2**63), 2**63 - 1),
        (pa.int8(), [3], 3, 3),
        (pa.float64(), [1.5, -2.25], Decimal("-2.25"), Decimal("1.5")),
        (pa.float64(), [math.inf, 1.0], 1, None),
        (
            pa.date32(),
            [datetime.date(2024, 2, 29), datetime.date(1, 1, 1)],
            "0001-01-01",
            "2024-02-29",
        ),
        (
            pa.decimal128(15, 3),
            [Decimal("1.250"), Decimal(-7)],
            Decimal("-7.000"),
            Decimal("1.250"),
        ),
        (pa.decimal128(38, 3), [Decimal("1.250")], None, None),
        (pa.bool_(), [True, False], None, None),
        (pa.binary(), [b"a"], None, None),
        (pa.string(), ["b", "a", None], "a", "b"),
        (pa.string(), ["x" * 33], "x" * 32, "x" * 32 + HIGHEST),
        (pa.string(), ["x" * 32 + HIGHEST], "x" * 32, None),
        (pa.string(), [None, None], None, None),
    ],
)
def test_bounds(type_: pa.DataType, values: list[Any], low: Any, high: Any) -> None:
    """Nulls do not count, and are counted; a bound that is not certain is left out."""
    found = statistics(pa.array(values, type_))
    assert (found["minValues"].get("c"), found["maxValues"].get("c")) == (low, high)
    assert found["nullCount"] == {"c": values.count(None)}
    assert found["numRecords"] == len(values)


@pytest.mark.parametrize("zone", [None, "UTC"])
def test_times_are_rounded_outwards(zone: str | None) -> None:
    """Bounds are in milliseconds."""
    values = [DAY.replace(microsecond=1_001), DAY.replace(microsecond=999_999)]
    found = statistics(pa.array(values, pa.timestamp("us", zone)))
    z = "Z" if zone else ""
    assert found["minValues"]["c"] == f"2024-02-29T23:59:59.001{z}"
    assert found["maxValues"]["c"] == f"2024-03-01T00:00:00.000{z}"
    exact = statistics(pa.array([DAY], pa.timestamp("us", zone)))
    assert exact["maxValues"]["c"] == f"2024-02-29T23:59:59.000{z}"


def test_a_time_that_python_does_not_know_has_no_bound() -> None:
    """Spark's timestamps go further."""
    found = statistics(pa.array([-(10**17), 0], pa.timestamp("us", "UTC")))
    assert (found["minValues"], found["maxValues"]) == ({}, {})


def test_a_column_with_nan_has_no_bounds() -> None:
    """Parquet's leave NaN out, which Spark takes for the largest of all."""
    found = statistics(pa.array([1.0, math.nan, 2.0]), with_nan=("c",), groups=1)
    assert (found["minValues"], found["maxValues"]) == ({}, {})


def test_nested_columns_and_the_33rd_have_none() -> None:
    """Readers do not miss them."""
    columns = {"a": pa.array([[1]]), **{f"c{n}": pa.array([n]) for n in range(40)}}
    table = pa.table(columns)
    file = BytesIO()
    pq.write_table(table, file)
    found = json.loads(of_file(pq.read_metadata(file), table.schema))
    assert list(found["minValues"]) == [f"c{n}" for n in range(31)]


def test_no_rows() -> None:
    assert statistics(pa.array([], pa.int64()))["numRecords"] == 0

"""Every reader finds every row by a filter on any column: it skips no file that has the row."""

from __future__ import annotations

import datetime
import math
import sys
import tempfile
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Field, QueryBuilder
from deltalake.schema import PrimitiveType
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.delta.conftest import SCHEMA, Query, batch, delta_target
from wal_sink.errors import SchemaMismatch

UTC = datetime.UTC
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))


def whole(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def digits(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    most = 10**precision - 1
    return st.integers(-most, most).map(lambda n: Decimal(f"{n}E-{scale}"))


COLUMNS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "b": (pa.bool_(), st.booleans()),
    "i1": (pa.int8(), whole(8)),
    "i8": (pa.int64(), whole(64)),
    "f": (pa.float32(), st.floats(width=32).map(lambda f: f + 0.0)),
    "d": (pa.float64(), st.floats().map(lambda f: f + 0.0)),
    "dec": (pa.decimal128(38, 18), digits(38, 18)),
    "cents": (pa.decimal128(10, 2), digits(10, 2)),
    "dt": (pa.date32(), st.dates()),
    "ts": (pa.timestamp("us", "UTC"), st.datetimes(timezones=st.just(UTC))),
    "ntz": (pa.timestamp("us"), st.datetimes()),
    "s": (pa.string(), TEXTS),
    "bin": (pa.binary(), st.binary()),
    "a": (pa.struct([("b", pa.int32())]), st.fixed_dictionaries({"b": whole(32)})),
    "a.b": (pa.int32(), whole(32)),
}
MOMENTS = [
    datetime.datetime(1, 1, 1),  # noqa: DTZ001
    datetime.datetime(1969, 12, 31, 23, 59, 59, 999_999),  # noqa: DTZ001
    datetime.datetime(9999, 12, 31, 23, 59, 59, 999_999),  # noqa: DTZ001
]
EXTREMES: dict[str, list[Any]] = {
    "b": [True, False],
    "i1": [-(2**7), 2**7 - 1],
    "i8": [-(2**63), 2**53 + 1, 2**63 - 1],
    "f": [math.nan, math.inf, -math.inf, 2.0**-149, -(2.0**127)],
    "d": [math.nan, math.inf, -math.inf, 5e-324, -sys.float_info.max],
    "dec": [Decimal(f"{sign}{'9' * 20}.{'9' * 18}") for sign in "+-"] + [Decimal("21881.32")],
    "cents": [Decimal("99999999.99"), Decimal("-99999999.99")],
    "dt": [moment.date() for moment in MOMENTS],
    "ts": [moment.replace(tzinfo=UTC) for moment in MOMENTS],
    "ntz": MOMENTS,
    "s": ["", "x" * 32 + "\U0010ffff", "x" * 33, "\U0010ffff", "\ue000"],
    "bin": [b"", b"\0", b"\xff" * 40],
    "a": [{"b": -(2**31)}, {"b": 2**31 - 1}],
    "a.b": [0, 1],
}
ROWS = pa.schema([(name, type_) for name, (type_, _) in COLUMNS.items()])
PLAIN = [name for name, (type_, _) in COLUMNS.items() if not pa.types.is_struct(type_)]

Count = Callable[[str, str, Any], int]
"""Returns how many rows of the table at a path have a value in a column. None counts nulls."""


def count_dataset(path: str, column: str, value: Any) -> int:
    """Count by delta-rs' dataset, which skips files by the statistics of the log."""
    field, type_ = ds.field(column), COLUMNS[column][0]
    wanted = field.is_null() if value is None else field == pa.scalar(value, type_)
    return int(DeltaTable(path).to_pyarrow_dataset().to_table(filter=wanted).num_rows)


def count_datafusion(path: str, column: str, value: Any) -> int:
    """Count by delta-rs' own query engine."""
    wanted = "IS NULL" if value is None else f"= {literal(value, COLUMNS[column][0])}"
    query = QueryBuilder().register("t", DeltaTable(path))
    counted = query.execute(f'SELECT count(*) AS n FROM t WHERE "{column}" {wanted}').read_all()
    return int(counted["n"][0].as_py())


def literal(value: Any, type_: pa.DataType) -> str:
    match value:
        case bool() | int():
            return str(value)
        case bytes():
            return f"X'{value.hex()}'"
        case datetime.datetime():
            zone = 'Some("UTC")' if type_.tz else "None"
            return f"arrow_cast('{value.isoformat()}', 'Timestamp(Microsecond, {zone})')"
        case str():
            return "'" + value.replace("'", "''") + "'"
    kinds = {"float": "Float32", "double": "Float64", "date32[day]": "Date32"}
    kind = kinds.get(str(type_)) or f"Decimal128({type_.precision}, {type_.scale})"
    text = f"{value:f}" if isinstance(value, Decimal) else value
    return f"arrow_cast('{text}', '{kind}')"


def count_polars(path: str, column: str, value: Any) -> int:
    frame = pl.scan_delta(path)
    wanted = pl.col(column).is_null()
    if value is not None:
        wanted = pl.col(column) == pl.lit(value, frame.collect_schema()[column])
    return int(frame.filter(wanted).collect().height)


READERS: list[Count] = [count_dataset, count_datafusion, count_polars]


@pytest.mark.parametrize("count", READERS)
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    rows=st.lists(
        st.fixed_dictionaries(
            {
                name: st.none() | st.sampled_from(EXTREMES[name]) | source
                for name, (_, source) in COLUMNS.items()
            }
        ),
        min_size=1,
        max_size=3,
    )
)
def test_filter_of_each_reader_finds_all_rows(count: Count, rows: list[dict[str, Any]]) -> None:
    """NaN is left out, since it equals nothing in some readers."""
    with tempfile.TemporaryDirectory() as folder:
        DeltaTable.create(folder, ROWS)
        Query(folder).add(pa.RecordBatch.from_pylist(rows, ROWS))
        for column in PLAIN:
            values = [row[column] for row in rows]
            for value in (v for v in values if not (isinstance(v, float) and math.isnan(v))):
                expected = sum(type(v) is type(value) and v == value for v in values)
                assert count(folder, column, value) == expected, (column, value)


@pytest.mark.parametrize("count", READERS)
@pytest.mark.parametrize("made", [False, True], ids=["altered", "made"])
def test_filter_finds_rows_in_files_of_a_merge(tmp_path: Path, count: Count, *, made: bool) -> None:
    """delta-rs rounds the bounds of long decimals, by which readers would skip files with rows."""
    path = str(tmp_path / "t")
    names = ("dec", "cents", "f", "d", "b", "ts")
    schema = pa.schema([("i8", pa.int64()), *(ROWS.field(name) for name in names)])
    options = {"delta.mode": "upsert", "keyColumns": "i8", "createTable": "true"}
    target = delta_target(path, **options)
    if not made:
        DeltaTable.create(path, schema)
        with pytest.raises(SchemaMismatch, match="rounds the bounds of dec, ") as caught:
            target.plan(schema, "key")
        assert "TBLPROPERTIES ('delta.dataSkippingStatsColumns'" in caught.value.remedy
        DeltaTable(path).alter.set_table_properties({"delta.dataSkippingStatsColumns": "i8"})
    target.plan(schema, "key")
    query = Query(path, **options)
    rows = [
        {
            "i8": i,
            "dec": Decimal("21881.32"),
            "cents": Decimal("0.07"),
            "f": value,
            "d": value,
            "b": value == 1.0,
            "ts": datetime.datetime(2024, 1, 1, 0, 0, 0, 1_001, UTC),
        }
        for i, value in enumerate((1.0, math.nan, math.inf, -math.inf))
    ]
    for row in rows:
        query.add(pa.RecordBatch.from_pylist([row], schema))
    query.add(pa.RecordBatch.from_pylist(rows[1:], schema))
    assert [count(path, "i8", i) for i in range(4)] == [1] * 4
    assert [count(path, name, rows[0][name]) for name in ("dec", "cents", "ts")] == [4] * 3
    for name in ("f", "d"):
        assert [count(path, name, value) for value in (1.0, math.inf, -math.inf)] == [1] * 3
    assert (count(path, "b", True), count(path, "b", False)) == (1, 3)


def test_file_with_a_nan_has_no_bounds(tmp_path: Path) -> None:
    """For Spark, NaN is the greatest number, so it would skip the file by a bound without NaN."""
    path = str(tmp_path / "t")
    schema = pa.schema([ROWS.field(name) for name in ("d", "f", "i8")])
    DeltaTable.create(path, schema)
    Query(path).add(pa.record_batch([[math.nan, 1.0], [1.0, None], [1, 2]], schema=schema))
    (file,) = Path(path).glob("*.parquet")
    group = pq.ParquetFile(file).metadata.row_group(0)
    assert [group.column(i).is_stats_set for i in range(3)] == [False, True, True]


def test_column_added_later_is_null_in_older_rows(query: Query) -> None:
    query.add(batch([("a", 1)]))
    DeltaTable(query.path).alter.add_columns([Field("b", PrimitiveType("boolean"))])
    assert [count(query.path, "b", None) for count in READERS] == [1, 1, 1]
    assert "b" not in SCHEMA.names


PARTITIONS: dict[str, list[Any]] = {
    "b": [True, False],
    "i8": [-(2**63), 0, 7],
    "cents": [Decimal("0.01"), Decimal("0.00"), Decimal("12345678.90")],
    "dt": [datetime.date(1, 1, 1), datetime.date(9999, 12, 31)],
    "ts": [datetime.datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC)],
    "ntz": [datetime.datetime(2024, 1, 1, 2, 3, 4, 5)],  # noqa: DTZ001 -- it has none
    "s": [
        "a b",
        "a_b",
        "a/b",
        "a%20b",
        "ä€",
        "k=v:w",
        "it's",
        "+#?&",
        "a\nb",
        " x ",
        "..",
        "汉" * 28,
    ],
}


@pytest.mark.parametrize("count", READERS)
@pytest.mark.parametrize("column", PARTITIONS)
def test_readers_find_rows_by_partition(tmp_path: Path, count: Count, column: str) -> None:
    """Some readers read the value from the log, others from the folder's name."""
    values = [*PARTITIONS[column], None]
    schema = pa.schema([(column, COLUMNS[column][0]), ("n", pa.int64())])
    DeltaTable.create(str(tmp_path), schema, partition_by=[column])
    Query(str(tmp_path)).add(pa.record_batch([values, range(len(values))], schema=schema))
    assert [count(str(tmp_path), column, value) for value in values] == [1] * len(values)

"""Upserts: a commit merges rows by their key, in one step with the ledger row."""

from __future__ import annotations

import contextlib
import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.delta.conftest import SCHEMA, Query, Upserting, batch, delta_target, table_of
from wal_sink.errors import InvalidRow, OptionError, SchemaMismatch
from wal_sink.model.ledger import Outcome
from wal_sink.targets.base import RowSlice
from wal_sink.targets.delta.table import Table
from wal_sink.testing.contracts.ledger import finish, following, row_of

NEW_YEAR = datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)
UPSERT = {"delta.mode": "upsert", "keyColumns": "k"}


@pytest.fixture(params=[(), ("k",)], ids=["plain", "partitioned"])
def query(tmp_path: Path, request: pytest.FixtureRequest) -> Upserting:
    path = str(tmp_path / "t")
    DeltaTable.create(path, SCHEMA, partition_by=list(request.param))
    return Upserting(path)


def pairs(path: str) -> list[tuple[str, int]]:
    return sorted((row["k"], row["v"]) for row in table_of(path))


def test_last_row_of_a_key_wins_across_windows(query: Upserting) -> None:
    """The order of the log decides, also if another task has staged the later row first."""
    query.add(batch([("a", 1), ("b", 1), ("a", 2)]))
    assert pairs(query.path) == [("a", 2), ("b", 1)]
    plan = query.plan()
    current = row_of(query.session)
    late = RowSlice(1, query.target.check(batch([("a", 5), ("c", 5)]), plan), 50)
    early = RowSlice(1, query.target.check(batch([("c", 4), ("a", 4), ("d", 4)]), plan), 10)
    receipts: tuple[bytes, ...] = ()
    for rows in (late, early):
        with query.connect() as task:
            task.write(plan, rows)
            receipts += task.drain()
    assert finish(query.session, current, following(current), receipts) is Outcome.APPLIED
    assert pairs(query.path) == [("a", 5), ("b", 1), ("c", 5), ("d", 4)]
    table = DeltaTable(query.path)
    former = DeltaTable(query.path, version=table.version() - 1)
    files = {*map(str, Path(query.path).rglob("*.parquet"))}
    assert files == {*former.file_uris(), *table.file_uris()}, "staged files are deleted"


def test_repeated_merge_is_applied_once(query: Upserting, monkeypatch: pytest.MonkeyPatch) -> None:
    """delta-rs repeats a request, and the second request conflicts with the first."""
    query.add(batch([("a", 1)]))
    current = row_of(query.session)
    receipts = query.stage(batch([("a", 2), ("b", 2)]))
    real: Any = Table.merge

    def merge(self: Table, *arguments: Any) -> None:
        monkeypatch.setattr(Table, "merge", real)
        stale = Table(self.path, None, self.files)
        real(self, *arguments)
        real(stale, *arguments)

    monkeypatch.setattr(Table, "merge", merge)
    assert finish(query.session, current, following(current), receipts) is Outcome.APPLIED
    assert pairs(query.path) == [("a", 2), ("b", 2)]


@pytest.mark.parametrize("action", ["append", "optimize", "delete", "vacuum", "merge"])
def test_merge_is_repeated_after_another_commit(
    query: Upserting, monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    for v in range(2):
        query.add(batch([("a", v), (f"x{v}", v)]))
    current = row_of(query.session)
    receipts = query.stage(batch([("a", 7), ("new", 7)]))
    real: Any = Table.merge

    def merge(self: Table, *arguments: Any) -> None:
        monkeypatch.setattr(Table, "merge", real)
        table, rows = DeltaTable(self.path), pa.Table.from_batches([batch([("new", 1)])])
        match action:
            case "append":
                write_deltalake(self.path, rows, mode="append")
            case "optimize":
                table.optimize.compact()
            case "delete":
                table.delete("k = 'a'")
            case "vacuum":
                table.vacuum(0, dry_run=False, enforce_retention_duration=False)
            case "merge":
                merger = table.merge(rows, "t.k = s.k", source_alias="s", target_alias="t")
                merger.when_not_matched_insert_all().execute()
        real(self, *arguments)

    monkeypatch.setattr(Table, "merge", merge)
    assert finish(query.session, current, following(current), receipts) is Outcome.APPLIED
    assert pairs(query.path) == [("a", 7), ("new", 7), ("x0", 0), ("x1", 1)]
    assert row_of(query.session).epoch == 2


TIMED = SCHEMA.append(pa.field("at", pa.timestamp("us", "UTC")))
AT = {"delta.timestampColumn": "at"}


@pytest.mark.parametrize(
    ("published", "present", "error"),
    [
        ({}, UPSERT, "with delta.mode=append, and the options say delta.mode=upsert"),
        (UPSERT, {}, "keyColumns=k, and the options say delta.mode=append"),
        (UPSERT, UPSERT | {"keyColumns": "v"}, "keyColumns=k, and .* and keyColumns=v"),
        (UPSERT | AT, UPSERT, "and delta.timestampColumn=at, and .* and keyColumns=k"),
    ],
)
def test_rows_published_for_other_options_stop_the_flush(
    tmp_path: Path, published: dict[str, str], present: dict[str, str], error: str
) -> None:
    """With the present options the pending rows would replace the rows of other keys, or later rows."""
    DeltaTable.create(str(tmp_path / "t"), TIMED)
    earlier, after = Query(tmp_path / "t", **published), Query(tmp_path / "t", **present)
    plan = earlier.plan(TIMED)
    rows = earlier.slice(at(("a", 1, 3)), plan)
    with pytest.raises(OptionError, match=error):
        after.session.compare(plan)
    with pytest.raises(OptionError, match=error):
        after.session.write(plan, rows)


def test_replaced_row_is_null_where_the_dataframe_lacks_columns(tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    DeltaTable.create(path, SCHEMA.append(pa.field("note", pa.string())))
    write_deltalake(path, pa.table({"k": ["a"], "v": [1], "note": ["old"]}), mode="append")
    Upserting(path).add(batch([("a", 2)]))
    assert table_of(path) == [{"k": "a", "v": 2, "note": None}]


@pytest.mark.parametrize(
    ("type_", "values"),
    [
        (pa.bool_(), [True, False]),
        (pa.string(), ["", "x" * 40 + "1", "x" * 40 + "2", "\U0010ffff" * 40, 'it\'s "k"']),
        (
            pa.timestamp("us", "UTC"),
            [NEW_YEAR + datetime.timedelta(microseconds=i) for i in (1, 999, 1001)],
        ),
        (pa.int64(), [2**53, 2**53 + 1, -(2**63)]),
        (pa.binary(), [b"", b"\xff" * 40]),
        (pa.date32(), [datetime.date(1, 1, 1), datetime.date(9999, 12, 31)]),
    ],
    ids=str,
)
def test_upsert_finds_keys_with_truncated_statistics(
    tmp_path: Path, type_: pa.DataType, values: list[Any]
) -> None:
    schema = pa.schema([('a "key"', type_), ("v", pa.int64())])
    DeltaTable.create(str(tmp_path / "t"), schema)
    keyed = Upserting(tmp_path / "t", keyColumns='a "key"')
    for v in range(2):
        keyed.add(pa.record_batch([pa.array(values, type_), [v] * len(values)], schema=schema))
    assert [row["v"] for row in table_of(keyed.path)] == [1] * len(values)


NUMBER = pa.field("a", pa.int32(), nullable=False)
LIST = pa.list_(pa.field("element", pa.int32(), nullable=False))


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        (pa.struct([NUMBER]), {"a": 1}),
        (pa.list_(pa.struct([NUMBER])), [{"a": 1}]),
        (pa.list_(pa.field("element", pa.struct([NUMBER]), nullable=False)), [{"a": 1}]),
        (pa.struct([("l", LIST)]), {"l": [1]}),
        (pa.map_(pa.string(), pa.field("value", LIST, nullable=False)), [("k", [1])]),
    ],
    ids=str,
)
def test_struct_with_a_required_field_is_merged(
    tmp_path: Path, type_: pa.DataType, value: Any
) -> None:
    """delta-rs cannot cast a struct to a type with a required field."""
    path, schema = str(tmp_path / "t"), SCHEMA.append(pa.field("x", type_))
    DeltaTable.create(path, schema)
    query = Upserting(path)
    for x in (value, None):
        rows = [{"k": "a", "v": 1, "x": value}, {"k": "b", "v": 2, "x": x}]
        query.add(pa.RecordBatch.from_pylist(rows, schema))
    query.add(batch([("c", 3)]))
    stored = {row["k"]: row["x"] for row in table_of(path)}
    assert stored == {"a": value, "b": None, "c": None}


def at(*rows: tuple[str, int, int | None]) -> pa.RecordBatch:
    """Return rows with key, value, and the day of their event time."""
    times = [None if day is None else NEW_YEAR + datetime.timedelta(day) for _, _, day in rows]
    columns = [[key for key, _, _ in rows], [v for _, v, _ in rows], times]
    return pa.record_batch(columns, schema=TIMED)


def test_upsert_keeps_the_row_with_the_later_time(tmp_path: Path) -> None:
    """Of equal times the later row of the log stays. A row of the table without a time is the earliest."""
    path = str(tmp_path / "t")
    DeltaTable.create(path, TIMED)
    Upserting(path).add(at(("old", 0, None), ("older", 0, None)))
    query = Upserting(path, **AT)
    epoch = row_of(query.session).epoch
    query.add(at(("a", 1, 5), ("a", 2, 3), ("b", 1, 1), ("b", 2, 1), ("old", 1, -400)))
    assert pairs(path) == [("a", 1), ("b", 2), ("old", 1), ("older", 0)]
    query.add(at(("a", 3, 4), ("b", 3, 1), ("c", 1, 0)))
    assert pairs(path) == [("a", 1), ("b", 3), ("c", 1), ("old", 1), ("older", 0)]
    query.add(at(("a", 4, 4), ("b", 4, 0)))
    assert pairs(path) == [("a", 1), ("b", 3), ("c", 1), ("old", 1), ("older", 0)]
    assert row_of(query.session).epoch == epoch + 3, "also if no row has the later time"


def test_row_without_an_event_time_is_refused(tmp_path: Path) -> None:
    DeltaTable.create(str(tmp_path / "t"), TIMED)
    query = Upserting(tmp_path / "t", **AT)
    with pytest.raises(
        InvalidRow, match=r"Column at .* is null, and delta.timestampColumn"
    ) as caught:
        query.target.check(at(("a", 1, 1), ("b", 1, None)), query.plan(TIMED))
    assert caught.value.rows.to_pylist() == [False, True]


def test_start_creates_the_table_and_adds_columns(tmp_path: Path) -> None:
    """A check shows the same plan, and changes nothing. The operation column is in no table."""
    path = tmp_path / "t"
    options = {"createTable": "true", "partitionColumns": "k", "delta.mergeSchema": "true"}
    made = delta_target(path, **options | UPSERT | {"operationColumn": "op"})
    schema = pa.schema([("op", pa.string()), *SCHEMA])
    shown = made.dry_plan(schema, "key").creates
    assert "`k` string NOT NULL" in shown
    assert "PARTITIONED BY (`k`) TBLPROPERTIES ('delta.dataSkipping" in shown
    with contextlib.suppress(FileNotFoundError):
        assert not list(path.iterdir())
    plans = [made.plan(schema, "key") for _ in range(2)]
    assert plans[0] == plans[1]
    table = DeltaTable(path)
    assert [field.name for field in table.schema().fields] == ["k", "v"]
    assert table.metadata().partition_columns == ["k"]
    added = [("at", pa.timestamp("us")), ("s", pa.struct([("x", pa.list_(pa.int32()))]))]
    wide = pa.schema([*schema, *added])
    shown_plan = made.dry_plan(wide, "key")
    assert len(DeltaTable(path).schema().fields) == 2
    assert made.plan(wide, "key") == shown_plan
    Upserting(path).add(
        pa.record_batch([["a"], [1], [None], [{"x": [1]}]], schema=pa.schema([*SCHEMA, *added]))
    )
    assert table_of(str(path)) == [{"k": "a", "v": 1, "at": None, "s": {"x": [1]}}]


def test_unfit_dataframe_changes_no_table(tmp_path: Path) -> None:
    """A name that differs by case only is not a new column."""
    path = tmp_path / "t"
    DeltaTable.create(str(path), SCHEMA)
    merging = delta_target(path, **{"delta.mergeSchema": "true"})
    for unfit in (
        pa.schema([("k", pa.int32()), ("v", pa.float64()), ("new", pa.string())]),
        pa.schema([("K", pa.string()), ("v", pa.int64()), ("new", pa.string())]),
    ):
        with pytest.raises(SchemaMismatch):
            merging.plan(unfit, "key")
    assert [field.name for field in DeltaTable(str(path)).schema().fields] == ["k", "v"]
    for options, unfit, error in (
        (UPSERT, pa.schema([("k", pa.float64())]), "not compared by equality"),
        ({}, pa.schema([("k", pa.string()), ("K", pa.string())]), "k, K differ by case only"),
    ):
        with pytest.raises(SchemaMismatch, match=error):
            delta_target(tmp_path / "made", createTable="true", **options).plan(unfit, "key")
    assert not DeltaTable.is_deltatable(str(tmp_path / "made"))


def test_delete_needs_only_the_key(tmp_path: Path) -> None:
    """A delete has a null in a column that takes none."""
    schema = pa.schema([("op", pa.string()), ("k", pa.string()), ("v", pa.int64())])
    table = pa.schema([("k", pa.string()), pa.field("v", pa.int64(), nullable=False)])
    DeltaTable.create(str(tmp_path / "t"), table)
    query = Upserting(tmp_path / "t", operationColumn="op")

    def changes(*rows: tuple[str, str, int | None]) -> pa.RecordBatch:
        values = [dict(zip(schema.names, row, strict=True)) for row in rows]
        return pa.RecordBatch.from_pylist(values, schema)

    query.add(changes(("upsert", "x", 1), ("delete", "x", None)))
    query.add(changes(("upsert", "a", 1), ("upsert", "b", 2)))
    query.add(changes(("delete", "a", None), ("upsert", "c", 3), ("delete", "nowhere", None)))
    query.add(changes(("delete", "nowhere", None)))
    assert row_of(query.session).epoch == 3, "delta-rs commits no merge that changes no row"
    assert pairs(query.path) == [("b", 2), ("c", 3)]
    with pytest.raises(InvalidRow, match=r"Column v .* is null"):
        query.target.check(changes(("upsert", "a", None)), query.plan(schema))


def test_partition_value_that_delta_rs_cannot_merge_is_refused(tmp_path: Path) -> None:
    schema = pa.schema([("k", pa.decimal128(5, 2)), ("v", pa.int64())])
    DeltaTable.create(str(tmp_path / "t"), schema, partition_by=["k"])
    with pytest.raises(InvalidRow, match="is negative"):
        Upserting(tmp_path / "t").check([{"k": Decimal("-1.01"), "v": 1}], schema)


LONG = pa.decimal128(20, 2)
MOST = "delta.dataSkippingNumIndexedCols"


@pytest.mark.parametrize(
    ("type_", "partition", "properties"),
    [
        (LONG, ["d"], {}),
        (pa.list_(LONG), [], {}),
        (pa.map_(pa.string(), LONG), [], {}),
        (LONG, [], {MOST: "2"}),
        (LONG, ["v"], {MOST: "1"}),
    ],
    ids=["partition", "array", "map", "third", "second in files"],
)
def test_merge_writes_no_bounds_of_a_long_decimal(
    tmp_path: Path, type_: pa.DataType, partition: list[str], properties: dict[str, str]
) -> None:
    """The bounds would be rounded, so readers would miss rows."""
    schema = SCHEMA.append(pa.field("d", type_))
    path = str(tmp_path / "t")
    DeltaTable.create(path, schema, partition_by=partition, configuration=properties)
    query = Upserting(path)
    long = Decimal("123456789012345678.25")
    value = {LONG: long, pa.list_(LONG): [long]}.get(type_, [("x", long)])
    for v in (1, 2):
        query.add(pa.RecordBatch.from_pylist([{"k": "a", "v": v, "d": value}], schema))
    assert table_of(path) == [{"k": "a", "v": 2, "d": value}]
    bounds = DeltaTable(path).get_add_actions(flatten=True).schema.names
    assert "min.k" in bounds
    assert not [name for name in bounds if name.startswith("min.d")]

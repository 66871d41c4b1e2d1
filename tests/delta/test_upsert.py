"""Upserts: a commit merges rows by their key, in one step with the ledger row."""

from __future__ import annotations

import contextlib
import datetime
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.delta.conftest import SCHEMA, Query, batch, table_of
from tests.delta.test_start import with_protocol
from tests.protocol.engine import World, in_memory
from wal_sink.errors import InvalidRow, OptionError, SchemaMismatch
from wal_sink.model.ledger import Outcome
from wal_sink.options import parse
from wal_sink.targets.base import RowSlice
from wal_sink.targets.delta import DeltaTarget
from wal_sink.targets.delta.options import DeltaOptions
from wal_sink.targets.delta.table import Table
from wal_sink.testing.contracts.ledger import finish, following, row_of

NEW_YEAR = datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)
Pairs = list[tuple[str, int]]


class Upserting(Query):
    """A query that upserts by `k`."""

    def made(self, **arguments: str) -> DeltaTarget:
        options = {"delta.path": self.path, "delta.mode": "upsert", "keyColumns": "k"}
        return DeltaTarget(parse(options | arguments, DeltaOptions))


@pytest.fixture(params=[(), ("k",)], ids=["plain", "partitioned"])
def query(tmp_path: Path, request: pytest.FixtureRequest) -> Upserting:
    path = str(tmp_path / "t")
    DeltaTable.create(path, SCHEMA, partition_by=list(request.param))
    return Upserting(path)


def pairs(path: str) -> Pairs:
    return sorted((row["k"], row["v"]) for row in table_of(path))


def test_last_row_of_a_key_wins_across_windows(query: Upserting) -> None:
    """Within a window by its order, whichever task has staged it; and over windows."""
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
    staged = list(Path(query.path).rglob("*.parquet"))
    named = DeltaTable(query.path).file_uris()
    kept = {
        *DeltaTable(query.path, version=DeltaTable(query.path).version() - 1).file_uris(),
        *named,
    }
    assert {*map(str, staged)} == kept, "what was staged for the merge is deleted"


def test_commit_that_comes_twice(query: Upserting, monkeypatch: pytest.MonkeyPatch) -> None:
    """delta-rs repeats a request, meets its own: the rows are there once, and the answer is not a refusal."""
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


def test_one_of_two_flushers_commits(query: Upserting) -> None:
    """Both have seen the same row, and looked at the same version."""
    current = row_of(query.session)
    receipts = query.stage(batch([("a", 1)]))
    with query.connect() as other:
        other.read()
        assert finish(query.session, current, following(current), receipts) is Outcome.APPLIED
        assert finish(other, current, following(current), receipts) is Outcome.CONFLICT
    assert pairs(query.path) == [("a", 1)]


@pytest.mark.parametrize("what", ["append", "optimize", "delete", "vacuum", "merge"])
def test_others_commit_between_look_and_commit(
    query: Upserting, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """The merge is made again with their rows."""
    for v in range(2):
        query.add(batch([("a", v), (f"x{v}", v)]))
    current = row_of(query.session)
    receipts = query.stage(batch([("a", 7), ("new", 7)]))
    real: Any = Table.merge

    def merge(self: Table, *arguments: Any) -> None:
        monkeypatch.setattr(Table, "merge", real)
        table = DeltaTable(self.path)
        match what:
            case "append":
                write_deltalake(
                    self.path, pa.Table.from_batches([batch([("new", 1)])]), mode="append"
                )
            case "optimize":
                table.optimize.compact()
            case "delete":
                table.delete("k = 'a'")
            case "vacuum":
                table.vacuum(0, dry_run=False, enforce_retention_duration=False)
            case "merge":
                rows = pa.Table.from_batches([batch([("new", 1)])])
                merger = table.merge(rows, "t.k = s.k", source_alias="s", target_alias="t")
                merger.when_not_matched_insert_all().execute()
        real(self, *arguments)

    monkeypatch.setattr(Table, "merge", merge)
    assert finish(query.session, current, following(current), receipts) is Outcome.APPLIED
    assert pairs(query.path) == [("a", 7), ("new", 7), ("x0", 0), ("x1", 1)]
    assert row_of(query.session).epoch == 2


def test_rows_that_were_published_for_an_append_are_added(tmp_path: Path) -> None:
    """The option was changed while they waited. The other way round, the flush says what to set."""
    path = str(tmp_path / "t")
    DeltaTable.create(path, SCHEMA)
    earlier, after = Query(path), Upserting(path)
    plan = earlier.plan()
    current = row_of(after.session)
    after.session.write(
        plan, RowSlice(0, earlier.target.check(batch([("a", 1), ("a", 2)]), plan), 1)
    )
    assert (
        finish(after.session, current, following(current), after.session.drain()) is Outcome.APPLIED
    )
    assert pairs(path) == [("a", 1), ("a", 2)]
    with pytest.raises(OptionError, match=r"with delta\.mode=upsert, and the options say append"):
        earlier.session.write(after.plan(), RowSlice(0, batch([("a", 1)]), 1))


def test_added_and_merged_rows_share_no_window(tmp_path: Path) -> None:
    """A MERGE would not find what is added by its own commit, and the key would be there twice."""
    path = str(tmp_path / "t")
    DeltaTable.create(path, SCHEMA)
    appends = Query(path).target
    world = World(*in_memory(), appends)
    for world.target, rows in (
        (appends, [("a", 1), ("b", 1)]),
        (Upserting(path).target, [("a", 2)]),
        (Upserting(path).target, [("a", 3), ("c", 3)]),
    ):
        world.run().batches(rows)
    world.flush()
    assert pairs(path) == [("a", 3), ("b", 1), ("c", 3)]
    history = DeltaTable(path).history()
    text = {item.get("userMetadata"): item.get("isBlindAppend", False) for item in history}
    assert text["wal_sink: epochs 1 to 2"] is False, "epochs that are merged share one"


def test_append_only_table_takes_no_rows_by_key(tmp_path: Path) -> None:
    """The first row that replaces one would stop the flush forever."""
    path = str(tmp_path / "t")
    DeltaTable.create(path, SCHEMA, configuration={"delta.appendOnly": "true"})
    Query(path).plan()
    with pytest.raises(SchemaMismatch, match="append-only"):
        Upserting(path).plan()


def test_row_with_unwritable_columns_is_not_replaced(tmp_path: Path) -> None:
    """Each MERGE would fail. Rows may be added beside: their other columns are null."""
    path = with_protocol(tmp_path / "t", 7, ["variantType"])
    log = tmp_path / "t" / "_delta_log" / f"{0:020}.json"
    column = {"name": "x", "type": "variant", "nullable": True, "metadata": {}}
    inside_text = json.dumps(json.dumps(column))[1:-1]
    log.write_text(log.read_text().replace(r"\"fields\":[", rf"\"fields\":[{inside_text},"))
    Query(path).add(batch([("a", 1)]))
    with pytest.raises(SchemaMismatch, match="wal_sink does not write the type of x"):
        Upserting(path).plan()


def test_rows_of_another_key_column_are_not_merged(tmp_path: Path) -> None:
    """Merged by the new key, they would replace rows of other keys that are in the table."""
    path = str(tmp_path / "t")
    DeltaTable.create(path, SCHEMA)
    earlier = Upserting(path)
    plan = earlier.plan()
    options = {"delta.path": path, "delta.mode": "upsert", "keyColumns": "v"}
    with DeltaTarget(parse(options, DeltaOptions)).connect(earlier.query_id) as after:
        for use in (
            after.compare,
            lambda plan: after.write(plan, RowSlice(0, batch([("a", 1)]), 1)),
        ):
            with pytest.raises(OptionError, match=r"the key k were published .* say keyColumns=v"):
                use(plan)


def test_row_is_replaced_whole(tmp_path: Path) -> None:
    """A column that the DataFrame lacks becomes null."""
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
def test_upsert_finds_keys_whose_statistics_are_cut(
    tmp_path: Path, type_: pa.DataType, values: list[Any]
) -> None:
    """Each is found again, though statistics of files are cut: no row is there twice."""
    path = str(tmp_path / "t")
    schema = pa.schema([('a "key"', type_), ("v", pa.int64())])
    DeltaTable.create(path, schema)

    class Keyed(Upserting):
        def made(self, **options: str) -> DeltaTarget:
            return super().made(keyColumns='a "key"', **options)

    keyed = Keyed(path)
    for v in range(2):
        rows = pa.record_batch([pa.array(values, type_), [v] * len(values)], schema=schema)
        keyed.add(rows)
    result = table_of(path)
    assert len(result) == len(values)
    assert {row["v"] for row in result} == {1}


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
    """delta-rs casts no struct to one with such a part: each MERGE failed. A null value has none."""
    path, schema = str(tmp_path / "t"), SCHEMA.append(pa.field("x", type_))
    DeltaTable.create(path, schema)
    query = Upserting(path)
    for x in (value, None):
        rows = [{"k": "a", "v": 1, "x": value}, {"k": "b", "v": 2, "x": x}]
        query.add(pa.RecordBatch.from_pylist(rows, schema))
    query.add(batch([("c", 3)]))
    result = {row["k"]: row["x"] for row in table_of(path)}
    assert result == {"a": value, "b": None, "c": None}


def target(path: object, **options: str) -> DeltaTarget:
    return DeltaTarget(parse({"delta.path": str(path), **options}, DeltaOptions))


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"delta.mode": "upsert"}, "keyColumns names no column"),
        ({"keyColumns": "k"}, "a Delta table has no key"),
        ({"partitionColumns": "k"}, "without createTable"),
        ({"delta.mode": "upsert", "keyColumns": "key"}, "keyColumns names key"),
        ({"delta.mode": "upsert", "keyColumns": "f"}, "not compared by equality"),
    ],
)
def test_options_that_do_not_fit(tmp_path: Path, options: dict[str, str], error: str) -> None:
    schema = SCHEMA.append(pa.field("f", pa.float64()))
    DeltaTable.create(str(tmp_path / "t"), schema)
    with pytest.raises((OptionError, SchemaMismatch), match=error):
        target(tmp_path / "t", **options).plan(schema, "key")


TIMED = SCHEMA.append(pa.field("at", pa.timestamp("us", "UTC")))


class Timed(Upserting):
    """A query in which the later time decides."""

    def made(self, **options: str) -> DeltaTarget:
        return super().made(**{"delta.timestampColumn": "at"} | options)


def at(*rows: tuple[str, int, int | None]) -> pa.RecordBatch:
    times = [None if day is None else NEW_YEAR + datetime.timedelta(day) for _, _, day in rows]
    columns = [[key for key, _, _ in rows], [v for _, v, _ in rows], times]
    return pa.record_batch(columns, schema=TIMED)


def test_row_with_the_later_time_stays(tmp_path: Path) -> None:
    """In a window, over windows, and beside rows that have none; of equal times the later row of the log."""
    path = str(tmp_path / "t")
    DeltaTable.create(path, TIMED)
    Upserting(path).add(at(("old", 0, None), ("older", 0, None)))
    query = Timed(path)
    epoch = row_of(query.session).epoch
    query.add(at(("a", 1, 5), ("a", 2, 3), ("b", 1, 1), ("b", 2, 1), ("old", 1, -400)))
    assert pairs(path) == [("a", 1), ("b", 2), ("old", 1), ("older", 0)]
    query.add(at(("a", 3, 4), ("b", 3, 1), ("c", 1, 0)))
    assert pairs(path) == [("a", 1), ("b", 3), ("c", 1), ("old", 1), ("older", 0)]
    query.add(at(("a", 4, 4), ("b", 4, 0)))
    assert pairs(path) == [("a", 1), ("b", 3), ("c", 1), ("old", 1), ("older", 0)]
    assert row_of(query.session).epoch == epoch + 3, "also where no row is the later one"


def test_rows_with_a_time_are_not_merged_without_it(tmp_path: Path) -> None:
    """By a flusher with the options of before, say: an earlier row would replace a later one."""
    path = str(tmp_path / "t")
    DeltaTable.create(path, TIMED)
    query = Timed(path)
    plan = query.plan(TIMED)
    late = Upserting(path)
    rows = RowSlice(0, query.target.check(at(("a", 1, 3)), plan), 1)
    with pytest.raises(OptionError, match=r"and delta\.timestampColumn is not given"):
        late.session.write(plan, rows)


def test_row_without_a_time_is_refused(tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    DeltaTable.create(path, TIMED)
    query = Timed(path)
    with pytest.raises(
        InvalidRow, match=r"Column at .* is null, and delta.timestampColumn"
    ) as caught:
        query.target.check(at(("a", 1, 1), ("b", 1, None)), query.plan(TIMED))
    assert caught.value.rows.to_pylist() == [False, True]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"delta.timestampColumn": "at"}, "delta.mode is append"),
        (
            {"delta.mode": "upsert", "keyColumns": "k", "operationColumn": "op"},
            "would bring its key back",
        ),
        ({"delta.mode": "upsert", "keyColumns": "k", "delta.timestampColumn": "k"}, "is string"),
        (
            {"delta.mode": "upsert", "keyColumns": "k", "delta.timestampColumn": "x"},
            "x, which is not",
        ),
    ],
)
def test_times_that_do_not_fit(tmp_path: Path, options: dict[str, str], error: str) -> None:
    DeltaTable.create(str(tmp_path / "t"), TIMED)
    with pytest.raises((OptionError, SchemaMismatch), match=error):
        target(tmp_path / "t", **{"delta.timestampColumn": "at"} | options).plan(TIMED, "key")


def test_table_is_made_and_gets_columns(tmp_path: Path) -> None:
    """By a start, and not by a check."""
    path = tmp_path / "t"
    options = {"createTable": "true", "partitionColumns": "k", "delta.mergeSchema": "true"}
    made = target(path, **options, **{"delta.mode": "upsert", "keyColumns": "k"})
    shown = made.dry_plan(SCHEMA, "key").creates
    assert "`k` string NOT NULL" in shown
    assert "PARTITIONED BY (`k`) TBLPROPERTIES ('delta.dataSkipping" in shown
    with contextlib.suppress(FileNotFoundError):
        assert not list(path.iterdir())
    plans = [made.plan(SCHEMA, "key") for _ in range(2)]
    assert plans[0] == plans[1]
    assert DeltaTable(path).metadata().partition_columns == ["k"]
    wide = SCHEMA.append(pa.field("at", pa.timestamp("us"))).append(
        pa.field("s", pa.struct([("x", pa.list_(pa.int32()))]))
    )
    shown_plan = made.dry_plan(wide, "key")
    assert len(DeltaTable(path).schema().fields) == 2
    assert made.plan(wide, "key") == shown_plan
    query = Upserting(str(path))
    query.add(pa.record_batch([["a"], [1], [None], [{"x": [1]}]], schema=wide))
    assert table_of(str(path)) == [{"k": "a", "v": 1, "at": None, "s": {"x": [1]}}]


def test_dataframe_that_does_not_fit_changes_no_table(tmp_path: Path) -> None:
    """Neither by a new column, nor by a new table; a name that differs by its case is not a new column."""
    path = tmp_path / "t"
    DeltaTable.create(str(path), SCHEMA)
    merging = target(path, **{"delta.mergeSchema": "true"})
    for unfit in (
        pa.schema([("k", pa.int32()), ("v", pa.float64()), ("new", pa.string())]),
        pa.schema([("K", pa.string()), ("v", pa.int64()), ("new", pa.string())]),
    ):
        with pytest.raises(SchemaMismatch):
            merging.plan(unfit, "key")
    assert [field.name for field in DeltaTable(str(path)).schema().fields] == ["k", "v"]
    making = {"createTable": "true", "delta.mode": "upsert", "keyColumns": "d"}
    with pytest.raises(SchemaMismatch):
        target(tmp_path / "made", **making).plan(pa.schema([("d", pa.float64())]), "key")
    twice = pa.schema([("k", pa.string()), ("K", pa.string())])
    with pytest.raises(SchemaMismatch, match="k, K differ by case only"):
        target(tmp_path / "made", createTable="true").plan(twice, "key")
    assert not DeltaTable.is_deltatable(str(tmp_path / "made"))


def test_delete_needs_its_key_alone(tmp_path: Path) -> None:
    """Another column that takes no null, or is made with the table, holds up no delete."""
    schema = pa.schema([("op", pa.string()), pa.field("k", pa.string()), ("v", pa.int64())])
    path = str(tmp_path / "t")
    DeltaTable.create(
        path, pa.schema([pa.field("k", pa.string()), pa.field("v", pa.int64(), False)])
    )

    class Deleting(Upserting):
        def made(self, **options: str) -> DeltaTarget:
            return super().made(operationColumn="op", **options)

    query = Deleting(path)

    def changes(*rows: tuple[str, str, int | None]) -> pa.RecordBatch:
        return pa.RecordBatch.from_pylist(
            [dict(zip(schema.names, row, strict=True)) for row in rows], schema
        )

    query.add(changes(("upsert", "x", 1), ("delete", "x", None)))
    query.add(changes(("upsert", "a", 1), ("upsert", "b", 2)))
    query.add(changes(("delete", "a", None), ("upsert", "c", 3), ("delete", "nowhere", None)))
    query.add(changes(("delete", "nowhere", None)))
    assert row_of(query.session).epoch == 3, "delta-rs commits no merge that changes no row"
    assert pairs(path) == [("b", 2), ("c", 3)]
    plan = query.plan(schema)
    with pytest.raises(InvalidRow, match=r"Column v .* is null"):
        query.target.check(changes(("upsert", "a", None)), plan)
    with pytest.raises(OptionError, match="no row can be found to delete"):
        parse({"delta.path": path, "operationColumn": "op"}, DeltaOptions)


def test_new_table_has_no_column_of_operations(tmp_path: Path) -> None:
    """Nor does one whose columns are added at a start."""
    schema = pa.schema([("op", pa.string()), *SCHEMA])
    path = str(tmp_path / "t")
    options = {
        "delta.path": path,
        "delta.mode": "upsert",
        "keyColumns": "k",
        "operationColumn": "op",
    }
    made = DeltaTarget(
        parse(options | {"createTable": "true", "delta.mergeSchema": "true"}, DeltaOptions)
    )
    for fields in (schema, schema.append(pa.field("new", pa.int32()))):
        made.plan(fields, "key")
        names = [field.name for field in DeltaTable(path).schema().fields]
        assert names == [name for name in fields.names if name != "op"]


@pytest.mark.parametrize(
    ("type_", "bad", "says"),
    [
        (pa.decimal128(5, 2), Decimal("-1.01"), "is negative"),
        (pa.string(), "é" * 43, "is too long for the name of a partition's folder"),
        (pa.string(), "a " * 85, "is too long for the name of a partition's folder"),
    ],
)
def test_value_that_delta_rs_cannot_merge_is_refused(
    tmp_path: Path, type_: pa.DataType, bad: object, says: str
) -> None:
    """As a partition of a table that is merged; the flush would stop forever."""
    schema = pa.schema([("k", type_), ("v", pa.int64())])
    DeltaTable.create(str(tmp_path / "t"), schema, partition_by=["k"])
    upserting = Upserting(str(tmp_path / "t"))
    with pytest.raises(InvalidRow, match=says):
        upserting.add(pa.record_batch([pa.array([bad], type_), [1]], schema=schema))


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
def test_long_decimal_without_bounds_does_not_matter(
    tmp_path: Path, type_: pa.DataType, partition: list[str], properties: dict[str, str]
) -> None:
    """A merge writes none of it, so readers miss nothing by them."""
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

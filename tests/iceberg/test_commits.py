"""Commits of ledger row and rows beside other writers, lost answers, clean-ups and altered tables."""

from __future__ import annotations

import contextlib
import datetime
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException
from pyiceberg.table import Table

from tests.iceberg.conftest import (
    Query,
    catalog_options,
    load,
    make_table,
    query,
    read,
)
from tests.support.power_loss import Power
from wal_sink.errors import SchemaMismatch
from wal_sink.model.ledger import Outcome
from wal_sink.targets.iceberg.table import tag
from wal_sink.testing.contracts.ledger import create
from wal_sink.testing.faults import Crash

SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64())])


def row(v: int) -> dict[str, Any]:
    return {"k": "a", "v": v}


def values(options: dict[str, str]) -> list[int]:
    return sorted(record["v"] for record in read(options))


@pytest.fixture
def options(tmp_path: Path) -> dict[str, str]:
    named = catalog_options(tmp_path)
    make_table(named, SCHEMA)
    return named


@pytest.fixture
def running(options: dict[str, str]) -> Iterator[Query]:
    with query(options, SCHEMA) as made:
        yield made


def append_elsewhere(options: dict[str, str], *numbers: int) -> None:
    """Add rows as another writer does, a commit for each."""
    for v in numbers:
        load(options).append(pa.Table.from_pylist([row(v)], SCHEMA))


def next_commit(
    patch: pytest.MonkeyPatch,
    first: Callable[[], object] = lambda: None,
    then: Callable[[], object] = lambda: None,
) -> None:
    """Run actions before and after the catalog receives the next commit. An exception stops the commit."""
    real: Any = Table._do_commit

    def commit(self: Table, *arguments: Any) -> None:
        patch.setattr(Table, "_do_commit", real)
        first()
        real(self, *arguments)
        then()

    patch.setattr(Table, "_do_commit", commit)


def fail(error: BaseException) -> None:
    raise error


def test_window_is_one_snapshot_of_the_branch(options: dict[str, str], running: Query) -> None:
    """The ledger row is one more snapshot, with one file."""
    for v in range(3):
        running.add([row(v)])
    running.add([])
    table = load(options)
    assert len(table.history()) == 3, "a window without rows adds none"
    assert len(table.metadata.snapshots) == 4
    assert table.current_snapshot().summary["wal-sink.epochs"] == "2"
    folder = Path(table.location().removeprefix("file://")) / "metadata"
    assert len([*folder.glob("wal-sink-*.avro")]) == 1
    assert values(options) == [0, 1, 2]


def test_commit_overtaken_by_another_writer_is_repeated(
    options: dict[str, str], running: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    receipts = running.stage([row(1)])
    append_elsewhere(options, 3)
    next_commit(monkeypatch, first=lambda: append_elsewhere(options, 2))
    assert running.commit(receipts) is Outcome.APPLIED
    assert values(options) == [1, 2, 3]
    sequences = [snapshot.sequence_number for snapshot in load(options).metadata.snapshots]
    assert len({*sequences}) == len(sequences)


@pytest.mark.parametrize("landed", [False, True])
def test_commit_whose_answer_is_lost_is_unknown(
    options: dict[str, str], running: Query, monkeypatch: pytest.MonkeyPatch, *, landed: bool
) -> None:
    """The ledger row then shows whether the commit took effect."""
    receipts = running.stage([row(1)])
    lost = CommitStateUnknownException("gateway timeout")
    next_commit(monkeypatch, **{"then" if landed else "first": lambda: fail(lost)})
    assert running.commit(receipts) is Outcome.UNKNOWN
    assert running.row.epoch == (0 if landed else -1)
    if not landed:
        assert running.commit(receipts) is Outcome.APPLIED
    assert values(options) == [1]


def test_files_named_by_a_catalog_survive_a_power_loss(
    tmp_path: Path, options: dict[str, str], running: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The flusher dies after the catalog has the commit, and nobody reads the row before the power loss."""
    power = Power(monkeypatch, tmp_path)
    receipts = running.stage([row(1)])
    with monkeypatch.context() as patch, contextlib.suppress(Crash):
        next_commit(patch, then=lambda: fail(Crash()))
        running.commit(receipts)
    power.lose()
    assert values(options) == [1]


def test_manifest_deleted_before_a_commit_stops_the_commit(
    options: dict[str, str], running: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clean-up of orphans may delete it. A table that names a missing manifest cannot be read."""
    receipts = running.stage([row(1)])
    real = os.open

    def opened(path: Path, flags: int) -> int:
        if path.suffix == ".avro":
            path.unlink()
        return real(path, flags)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", opened)
        with pytest.raises(FileNotFoundError):
            running.commit(receipts)
    assert values(options) == []
    assert running.commit(receipts) is Outcome.APPLIED
    assert values(options) == [1]


def test_commit_that_always_conflicts_is_unknown(
    options: dict[str, str], running: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of the requests may have taken effect, so the staged files stay."""
    receipts = running.stage([row(1)])

    def commit(*_: object) -> None:
        raise CommitFailedException("busy")

    with monkeypatch.context() as patch:
        patch.setattr(Table, "_do_commit", commit)
        patch.setattr("wal_sink.targets.staged_files._PAUSE_S", 0.0)
        assert running.commit(receipts) is Outcome.UNKNOWN
    assert running.commit(receipts) is Outcome.APPLIED
    assert values(options) == [1]


def test_ledger_row_and_staged_files_survive_snapshot_expiry(
    options: dict[str, str], running: Query
) -> None:
    for v in range(3):
        running.add([row(v)])
    receipts = running.stage([row(3)])
    future = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=1)
    load(options).maintenance.expire_snapshots().older_than(future).commit()
    assert len(load(options).metadata.snapshots) == 2
    assert running.commit(receipts) is Outcome.APPLIED
    assert values(options) == [0, 1, 2, 3]


def test_files_staged_before_a_table_change_are_refused(
    options: dict[str, str], running: Query
) -> None:
    """A new column that takes nulls only needs new files. A renamed column stops the flush."""
    receipts = running.stage([row(1)])
    with load(options).update_schema() as update:
        update.add_column("note", update._schema.find_type("k"))
    assert running.commit(receipts) is Outcome.CONFLICT
    assert running.commit(running.stage([row(1)])) is Outcome.APPLIED
    assert read(options) == [{"k": "a", "v": 1, "note": None}]
    with load(options).update_spec() as spec:
        spec.add_identity("k")
    running.add([row(2)])
    assert values(options) == [1, 2]
    with load(options).update_schema() as update:
        update.rename_column("v", "w")
    with pytest.raises(
        SchemaMismatch, match="pending rows were checked against it: column v is gone"
    ):
        running.add([row(3)])


def test_column_dropped_and_added_again_takes_rows(tmp_path: Path) -> None:
    """The new column has other ids. No change of the table could bring the former ids back."""
    schema = pa.schema([("point", pa.struct([("x", pa.int32())]))])
    options = catalog_options(tmp_path)
    table = make_table(options, schema)
    type_ = table.schema().find_type("point")
    with query(options, schema) as running:
        with table.update_schema() as update:
            update.delete_column("point")
        with table.update_schema() as update:
            update.add_column("point", type_)
        running.add([{"point": {"x": 1}}])
    assert read(options) == [{"point": {"x": 1}}]


def test_rolled_back_table_has_no_ledger_row(options: dict[str, str], running: Query) -> None:
    """The table lost the query's rows, also if another writer has added rows since."""
    running.add([row(1)])
    running.add([row(2)])
    table = load(options)
    first = table.history()[0].snapshot_id
    table.manage_snapshots().set_current_snapshot(first).commit()
    assert running.session.read() is None
    append_elsewhere(options, 7)
    assert running.session.read() is None


def test_table_created_again_has_no_ledger_row(options: dict[str, str], running: Query) -> None:
    running.add([row(1)])
    table = load(options)
    table.catalog.drop_table(table.name())
    with pytest.raises(SchemaMismatch, match="There is no table"):
        running.session.read()
    table.catalog.create_table(table.name(), SCHEMA)
    assert running.session.read() is None
    create(running.session, running.query_id)


def test_commit_from_an_outdated_ledger_row_is_refused(
    options: dict[str, str], running: Query
) -> None:
    """Of two flushers that have read the same row, only one finishes."""
    with running.connect() as other:
        other.read()
        looked = other._table()
        current = looked.row(other._tag)
        assert current.row is not None
        assert running.commit(running.stage([row(1)])) is Outcome.APPLIED
        with pytest.raises(CommitFailedException):
            looked.commit(other._tag, 77, current.row, [], "")


def test_ledger_row_survives_expiry_of_its_rows_snapshot(
    options: dict[str, str], running: Query
) -> None:
    """No snapshot shows whether the table still has them."""
    running.add([row(1)])
    append_elsewhere(options, 2, 3)
    table = load(options)
    expired = [entry.snapshot_id for entry in table.history()[:2]]
    table.maintenance.expire_snapshots().by_ids(expired).commit()
    assert running.row.epoch == 0


def test_tags_of_two_queries_differ() -> None:
    assert len({tag("q/a.b"), tag("q/a_b"), tag("q.2f.a_b"), tag("q/a-b")}) == 4


def test_ledger_row_of_another_log_keeps_its_snapshot(running: Query) -> None:
    running.add([row(1)])
    row_before = running.row
    new = row_before._replace(log_id="another")
    assert running.session.finish(row_before, new) is Outcome.APPLIED
    _, current = running.session._refreshed()._stored(running.session._tag)
    assert current is not None
    assert current.rows is not None

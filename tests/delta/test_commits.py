"""Commits beside two flushers, other writers, lost answers and altered tables."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError

from tests.delta.conftest import SCHEMA, Query, batch, table_of
from wal_sink.errors import CorruptLog, SchemaMismatch, TargetUnavailable
from wal_sink.model.ledger import LedgerRow, Outcome
from wal_sink.targets.delta.files import Files
from wal_sink.targets.delta.session import LedgerFiles
from wal_sink.targets.delta.table import Table
from wal_sink.testing.contracts.ledger import create, finish, following, row_of


def staged(query: Query) -> tuple[LedgerRow, tuple[bytes, ...]]:
    """Return the ledger row, and the receipts of a staged row."""
    return row_of(query.session), query.stage(batch([("a", 1)]))


def between(monkeypatch: pytest.MonkeyPatch, action: Callable[[], object]) -> None:
    """Run an action once, after a session has read the row and before its commit."""
    real = LedgerFiles.write

    def write(self: LedgerFiles, row: LedgerRow) -> int:
        monkeypatch.setattr(LedgerFiles, "write", real)
        action()
        return real(self, row)

    monkeypatch.setattr(LedgerFiles, "write", write)


def test_flusher_overtaken_by_another_adds_no_rows(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    current, receipts = staged(query)
    other = query.connect()
    plan = query.plan()
    other.write(plan, query.slice(batch([("a", 1)]), plan))
    theirs = other.drain()
    outcomes: list[Outcome] = []
    between(
        monkeypatch, lambda: outcomes.append(finish(other, current, following(current), theirs))
    )
    assert finish(query.session, current, following(current), receipts) is Outcome.UNKNOWN
    assert outcomes == [Outcome.APPLIED]
    assert table_of(query.path) == [{"k": "a", "v": 1}]


def test_commit_succeeds_beside_another_writer(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_deltalake(query.path, pa.table([["b"], [2]], schema=SCHEMA), mode="append")
    current, receipts = staged(query)

    def write() -> None:
        write_deltalake(query.path, pa.table([["b"], [3]], schema=SCHEMA), mode="append")
        DeltaTable(query.path).delete("v = 2")

    between(monkeypatch, write)
    assert finish(query.session, current, following(current), receipts) is Outcome.APPLIED
    assert sorted(row["v"] for row in table_of(query.path)) == [1, 3]
    assert row_of(query.session).epoch == 0


def test_commit_of_files_staged_before_a_change_fails(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next try compares plan and table again."""
    (current, receipts), plan = staged(query), query.plan()
    between(
        monkeypatch,
        lambda: DeltaTable(query.path).alter.add_constraint({"few": "v < 10"}),
    )
    assert finish(query.session, current, following(current), receipts) is Outcome.UNKNOWN
    assert table_of(query.path) == []
    with pytest.raises(SchemaMismatch, match="constraint few"):
        query.stage(batch([("a", 1)]))
    with pytest.raises(SchemaMismatch, match="constraint few"):
        query.session.compare(plan)


@pytest.mark.parametrize(
    "error",
    [
        OSError("Generic S3 error: operation timed out"),
        CommitFailedError("Transaction failed: the lock table does not answer"),
    ],
    ids=["lost", "no conflict"],
)
def test_files_of_a_failed_commit_stay(
    query: Query, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """The request may arrive at any later time, and then the table needs all of its files."""
    current, receipts = staged(query)
    late: list[Callable[[], None]] = []
    real: Any = Table.commit

    def lossy(self: Table, *arguments: Any) -> None:
        stale = Table(self.path, None, Files(self.path, None))
        late.append(lambda: real(stale, *arguments))
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(Table, "commit", lossy)
        if isinstance(error, OSError):
            assert finish(query.session, current, following(current), receipts) is Outcome.UNKNOWN
        else:
            assert query.target.classify(error) == "fatal"
            with pytest.raises(CommitFailedError):
                finish(query.session, current, following(current), receipts)
    assert (row_of(query.session), table_of(query.path)) == (current, [])
    late[0]()
    assert row_of(query.connect()).epoch == 0
    assert table_of(query.path) == [{"k": "a", "v": 1}]


@pytest.mark.parametrize("missed", [False, True])
def test_table_created_again_has_no_ledger(query: Query, *, missed: bool) -> None:
    """An open session has no ledger either, whether or not it has read while the table was missing."""
    query.add(batch([("a", 1)]))
    current = row_of(query.session)
    shutil.rmtree(query.path)
    if missed:
        with pytest.raises((SchemaMismatch, OSError)):
            query.session.read()
        with pytest.raises(SchemaMismatch, match="There is no Delta table"):
            query.connect()
    DeltaTable.create(query.path, SCHEMA)
    assert query.session.read() is None
    assert finish(query.session, current, following(current)) is Outcome.CONFLICT
    assert DeltaTable(query.path).version() == 0


def test_replaced_table_has_no_ledger(query: Query) -> None:
    """CREATE OR REPLACE deletes the rows, and keeps the table's log with all transactions."""
    query.add(batch([("a", 1)]))
    current = row_of(query.session)
    DeltaTable.create(query.path, SCHEMA, mode="overwrite")
    assert (query.session.read(), query.connect().read()) == (None, None)
    assert finish(query.session, current, following(current)) is Outcome.CONFLICT
    create(query.session, query.query_id, 0)
    query.add(batch([("a", 2)]))
    assert table_of(query.path) == [{"k": "a", "v": 2}]


def test_table_replaced_under_a_window_gets_no_rows(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    query.add(batch([("a", 1)]))
    current = row_of(query.session)
    receipts = query.stage(batch([("a", 2)]))
    between(monkeypatch, lambda: DeltaTable.create(query.path, SCHEMA, mode="overwrite"))
    outcome = finish(query.session, current, following(current), receipts)
    assert outcome is not Outcome.APPLIED
    assert query.session.read() is None
    assert table_of(query.path) == []


def test_missing_ledger_file_raises_corrupt_log(query: Query) -> None:
    shutil.rmtree(Path(query.path) / "_wal_sink")
    with pytest.raises(CorruptLog, match="_wal_sink"):
        query.connect().read()


def test_history_of_the_table_names_the_epochs(query: Query) -> None:
    query.add(batch([("a", 1)]))
    query.add(batch([("a", 2)]))
    table = DeltaTable(query.path)
    assert table.transaction_version(query.query_id) == 1
    text = [(commit.get("userMetadata"), commit["isBlindAppend"]) for commit in table.history(2)]
    assert text == [("wal_sink: epochs 1 to 1", True), ("wal_sink: epochs 0 to 0", True)]


def test_vacuum_deletes_uncommitted_files(query: Query) -> None:
    """VACUUM deletes the files of a dead process. It keeps committed rows and the ledger."""
    query.add(batch([("a", 1)]))
    current = row_of(query.session)
    receipts = query.stage(batch([("a", 2)]))
    DeltaTable(query.path).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    assert len([*Path(query.path).glob("*.parquet")]) == 1
    assert table_of(query.path) == [{"k": "a", "v": 1}]
    assert row_of(query.session) == current
    with pytest.raises(TargetUnavailable, match="VACUUM"):
        finish(query.session, current, following(current), receipts)


def test_ledger_row_survives_cleanup_of_the_delta_log(query: Query) -> None:
    current, receipts = staged(query)
    assert finish(query.session, current, following(current), receipts) is Outcome.APPLIED
    table = DeltaTable(query.path)
    table.alter.set_table_properties({"delta.logRetentionDuration": "interval 0 days"})
    write_deltalake(query.path, pa.table([["a"], [0]], schema=SCHEMA), mode="append")
    table = DeltaTable(query.path)
    table.create_checkpoint()
    table.cleanup_metadata()
    with query.connect() as session:
        assert row_of(session).epoch == 0

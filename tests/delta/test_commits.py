"""Commits that meet others: two flushers, other writers, answers that are lost, tables that are changed."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.exceptions import CommitFailedError
from deltalake.schema import PrimitiveType

from tests.delta.conftest import SCHEMA, Query, batch, conflict_after_commit, table_of
from wal_sink.errors import CorruptLog, SchemaMismatch, TargetUnavailable
from wal_sink.model.ledger import LedgerRow, Outcome
from wal_sink.targets.delta.files import Files
from wal_sink.targets.delta.session import LedgerFiles
from wal_sink.targets.delta.table import Table
from wal_sink.testing.contracts.ledger import create, finish, following, row_of


def staged(query: Query) -> tuple[LedgerRow, tuple[bytes, ...]]:
    """Return the ledger row, and the receipts of a row that is staged."""
    return row_of(query.session), query.stage(batch([("a", 1)]))


def between(monkeypatch: pytest.MonkeyPatch, does: Callable[[], object]) -> None:
    """Let something happen once, when a session has read the row and is about to commit."""
    real = LedgerFiles.write
    done: list[int] = []

    def write(self: LedgerFiles, row: LedgerRow) -> int:
        if not done:
            done.append(1)
            does()
        return real(self, row)

    monkeypatch.setattr(LedgerFiles, "write", write)


def test_another_flusher_is_quicker_by_a_moment(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It commits between this one's look at the ledger and its commit."""
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


@pytest.mark.parametrize("writer", ["appends", "deletes"])
def test_other_writers_do_not_hold_up_a_commit(
    query: Query, monkeypatch: pytest.MonkeyPatch, writer: str
) -> None:
    """What they add stays beside, and what they delete is gone."""
    theirs = pa.table([["b"], [2]], schema=SCHEMA)
    write_deltalake(query.path, theirs, mode="append")
    current, receipts = staged(query)

    def write() -> None:
        if writer == "appends":
            write_deltalake(query.path, theirs, mode="append")
        else:
            DeltaTable(query.path).delete("v = 2")

    between(monkeypatch, write)
    assert finish(query.session, current, following(current), receipts) is Outcome.APPLIED
    others = [row for row in table_of(query.path) if row["k"] == "b"]
    assert len(others) == (2 if writer == "appends" else 0)
    assert row_of(query.session).epoch == 0


def test_table_that_is_altered_after_rows_were_staged(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the last moment: the commit is refused, and the next try compares plan and table again."""
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


def test_commit_whose_answer_is_lost(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store said nothing. The request may arrive at any later time: all of its files have to be there."""
    current, receipts = staged(query)
    late: list[Callable[[], None]] = []
    real: Any = Table.commit

    def lossy(self: Table, *arguments: Any) -> None:
        stale = Table(self.path, None, Files(self.path, None))
        late.append(lambda: real(stale, *arguments))
        raise OSError("Generic S3 error: operation timed out")

    with monkeypatch.context() as patch:
        patch.setattr(Table, "commit", lossy)
        assert finish(query.session, current, following(current), receipts) is Outcome.UNKNOWN
    assert (row_of(query.session), table_of(query.path)) == (current, [])
    late[0]()
    assert row_of(query.connect()).epoch == 0
    assert table_of(query.path) == [{"k": "a", "v": 1}]


def test_error_that_is_no_conflict_leaves_the_files(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    """delta-rs says `CommitFailedError` of a lock that it did not get, too; its request may still arrive."""
    current, receipts = staged(query)
    late: list[Callable[[], None]] = []
    real: Any = Table.commit

    def lossy(self: Table, *arguments: Any) -> None:
        stale = Table(self.path, None, Files(self.path, None))
        late.append(lambda: real(stale, *arguments))
        raise CommitFailedError("Transaction failed: the lock table does not answer")

    with monkeypatch.context() as patch:
        patch.setattr(Table, "commit", lossy)
        with pytest.raises(CommitFailedError) as caught:
            finish(query.session, current, following(current), receipts)
    assert query.target.classify(caught.value) == "fatal"
    late[0]()
    assert row_of(query.connect()).epoch == 0


def test_commit_that_met_itself_before_another_is_unknown(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another flusher has moved the row on since: what was staged stays, and counts once."""
    current, receipts = staged(query)

    def landed() -> None:
        other = query.connect()
        row = row_of(other)
        plan = query.plan()
        other.write(plan, query.slice(batch([("a", 2)]), plan))
        assert finish(other, row, following(row), other.drain()) is Outcome.APPLIED

    conflict_after_commit(monkeypatch, landed)
    assert finish(query.session, current, following(current), receipts) is Outcome.UNKNOWN
    assert row_of(query.session).epoch == 1
    assert sorted(row["v"] for row in table_of(query.path)) == [1, 2]


def test_table_that_was_made_again_has_no_ledger(query: Query) -> None:
    """Under an open session, too: it must not go on with the old table's log."""
    query.add(batch([("a", 1)]))
    shutil.rmtree(query.path)
    with pytest.raises((SchemaMismatch, OSError)):
        query.session.read()
    with pytest.raises(SchemaMismatch, match="There is no Delta table"):
        query.connect()
    DeltaTable.create(query.path, SCHEMA)
    assert query.session.read() is None


def test_table_made_again_between_reads_has_no_ledger(query: Query) -> None:
    query.add(batch([("a", 1)]))
    current = row_of(query.session)
    shutil.rmtree(query.path)
    DeltaTable.create(query.path, SCHEMA)
    assert query.session.read() is None
    assert finish(query.session, current, following(current)) is Outcome.CONFLICT
    assert DeltaTable(query.path).version() == 0


def test_table_that_is_replaced_has_no_ledger(query: Query) -> None:
    """CREATE OR REPLACE keeps the table's log, with all transactions, and takes its rows away."""
    query.add(batch([("a", 1)]))
    current = row_of(query.session)
    DeltaTable.create(query.path, SCHEMA, mode="overwrite")
    assert (query.session.read(), query.connect().read()) == (None, None)
    assert finish(query.session, current, following(current)) is Outcome.CONFLICT
    create(query.session, query.query_id, 0)
    query.add(batch([("a", 2)]))
    assert table_of(query.path) == [{"k": "a", "v": 2}]


@pytest.mark.parametrize("rows", [0, 1])
def test_table_replaced_under_a_window_gets_no_rows(
    query: Query, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    """After the row was read: what is committed all the same is not a row of the new table."""
    query.add(batch([("a", 1)]))
    current = row_of(query.session)
    receipts = query.stage(batch([("a", 2)] * rows))
    between(monkeypatch, lambda: DeltaTable.create(query.path, SCHEMA, mode="overwrite"))
    outcome = finish(query.session, current, following(current), receipts)
    assert outcome is not Outcome.APPLIED or not rows
    assert query.session.read() is None
    assert table_of(query.path) == []


def test_missing_ledger_file_is_corrupt_log(query: Query) -> None:
    """It is never taken for a query that the table does not know."""
    shutil.rmtree(Path(query.path) / "_wal_sink")
    with pytest.raises(CorruptLog, match="_wal_sink"):
        query.connect().read()


def test_log_says_which_epoch_is_there(query: Query) -> None:
    """As a transaction under the query's id, and in the table's history."""
    query.add(batch([("a", 1)]))
    query.add(batch([("a", 2)]))
    table = DeltaTable(query.path)
    assert table.transaction_version(query.query_id) == 1
    text = [(commit.get("userMetadata"), commit["isBlindAppend"]) for commit in table.history(2)]
    assert text == [("wal_sink: epochs 1 to 1", True), ("wal_sink: epochs 0 to 0", True)]


def test_vacuum_deletes_uncommitted_files(query: Query) -> None:
    """Orphans of a process that died; neither rows that count nor the ledger."""
    query.add(batch([("a", 1)]))
    current = row_of(query.session)
    (receipt,) = query.stage(batch([("a", 2)]))
    assert [row["v"] for row in table_of(query.path)] == [1]
    files = {path.name for path in Path(query.path).glob("*.parquet")}
    DeltaTable(query.path).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    remaining = {path.name for path in Path(query.path).glob("*.parquet")}
    assert len(files - remaining) == 1
    assert row_of(query.session) == current
    with pytest.raises(TargetUnavailable, match="VACUUM"):
        finish(query.session, current, following(current), [receipt])
    assert (
        finish(query.session, current, following(current), query.stage(batch([("a", 2)])))
        is Outcome.APPLIED
    )
    assert sorted(row["v"] for row in table_of(query.path)) == [1, 2]


def test_rows_of_an_older_plan_fit_an_added_column(query: Query) -> None:
    """A table that grows a column that takes nulls holds up nothing."""
    plan = query.plan()
    DeltaTable(query.path).alter.add_columns([Field("n", PrimitiveType("integer"))])
    current = row_of(query.session)
    query.session.write(plan, query.slice(batch([("a", 1)]), plan))
    receipts: Sequence[bytes] = query.session.drain()
    assert finish(query.session, current, following(current), receipts) is Outcome.APPLIED
    assert table_of(query.path) == [{"k": "a", "v": 1, "n": None}]


def test_ledger_row_survives_checkpoints_and_clean_ups(query: Query) -> None:
    """The commits themselves go, and with them what they say in their history."""
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

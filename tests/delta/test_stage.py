"""Staged rows: bounded memory, and no files without a receipt."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.delta.conftest import SCHEMA, Query, batch, table_of
from wal_sink.errors import TargetUnavailable
from wal_sink.model.ledger import Outcome
from wal_sink.targets import staged_files
from wal_sink.testing.contracts.ledger import finish, following, row_of


def files(query: Query) -> list[str]:
    return sorted(str(path.relative_to(query.path)) for path in Path(query.path).rglob("*.parquet"))


def partitioned(tmp_path: Path) -> Query:
    path = str(tmp_path / "p")
    DeltaTable.create(path, SCHEMA, partition_by=["k"])
    return Query(path)


def test_small_batches_that_fill_the_memory_become_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch takes memory in addition to that of its values."""
    monkeypatch.setattr(staged_files, "MOST_WAITING_BYTES", 100_000)
    query = partitioned(tmp_path)
    plan = query.plan()
    current = row_of(query.session)
    for n in range(40):
        query.session.write(plan, query.slice(batch([("a", n), ("b", n)]), plan))
    assert files(query)
    receipts = query.session.drain()
    assert finish(query.session, current, following(current), receipts) is Outcome.APPLIED
    assert sorted(row["v"] for row in table_of(query.path)) == sorted([*range(40)] * 2)


def test_partition_columns_may_have_any_name(tmp_path: Path) -> None:
    schema = pa.schema([("row", pa.string()), ("row_list", pa.string()), ("0", pa.int64())])
    DeltaTable.create(str(tmp_path), schema, partition_by=["row", "row_list"])
    rows = [{"row": "a", "row_list": "b", "0": 1}, {"row": "c", "row_list": None, "0": 2}]
    query = Query(tmp_path)
    query.add(pa.RecordBatch.from_pylist(rows, schema))
    assert sorted(table_of(query.path), key=lambda row: row["0"]) == rows


def test_close_deletes_files_without_a_receipt(tmp_path: Path) -> None:
    """Drained files belong to the flusher, so they stay."""
    query = partitioned(tmp_path)
    plan = query.plan()
    query.session.write(plan, query.slice(batch([("a", 1)]), plan))
    assert len(query.session.drain()) == 1
    query.session.write(plan, query.slice(batch([("a", 2), ("b", 2)]), plan))
    query.session.close()
    assert len(files(query)) == 1
    assert query.session.drain() == ()


def test_missing_staged_file_has_no_receipt(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    """A VACUUM without retention deletes a staged file. The session deletes the other one."""
    monkeypatch.setattr(staged_files, "MOST_WAITING_BYTES", 1)
    plan = query.plan()
    for n in range(2):
        query.session.write(plan, query.slice(batch([("a", n)]), plan))
    (Path(query.path) / files(query)[0]).unlink()
    with pytest.raises(TargetUnavailable, match=r"is gone.*\n.*VACUUM"):
        query.session.drain()
    query.session.close()
    assert files(query) == []

"""What the Delta target relies on in delta-rs, measured; also that of its undocumented names."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError

from wal_sink.targets.delta.files import Files

SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64())])


@pytest.fixture
def path(tmp_path: Path) -> str:
    DeltaTable.create(str(tmp_path / "t"), SCHEMA)
    return str(tmp_path / "t")


def commit(table: DeltaTable, version: int) -> None:
    transaction = CommitProperties(app_transactions=[Transaction("app", version)])
    table.create_write_transaction([], "append", table.schema(), commit_properties=transaction)


def test_a_transaction_is_compared_with_the_look_only(path: str) -> None:
    """From a look before another commit of it, it is refused; from a fresh look the same one is accepted.

    So the ledger row is read, and its change committed, on one look.
    """
    first, second = DeltaTable(path), DeltaTable(path)
    commit(first, 1)
    with pytest.raises(CommitFailedError):
        commit(second, 1)
    with pytest.raises(CommitFailedError):
        commit(first, 2)  # its own commit is after its look
    commit(DeltaTable(path), 1)
    assert DeltaTable(path).transaction_version("app") == 1


def test_commits_of_other_writers_are_passed_over(path: str) -> None:
    """Those that add rows; and still none of the same transaction is."""
    before, stale = DeltaTable(path), DeltaTable(path)
    for number in range(20):
        write_deltalake(path, pa.table([["a"], [number]], schema=SCHEMA), mode="append")
    commit(before, 7)
    write_deltalake(path, pa.table([["a"], [0]], schema=SCHEMA), mode="append")
    with pytest.raises(CommitFailedError):
        commit(stale, 8)
    assert DeltaTable(path).transaction_version("app") == 7


def test_a_transaction_survives_checkpoints_and_clean_ups(path: str) -> None:
    """The commits themselves go, and with them what they say in their history."""
    table = DeltaTable(path)
    commit(table, 7)
    table = DeltaTable(path)
    table.alter.set_table_properties({"delta.logRetentionDuration": "interval 0 days"})
    write_deltalake(path, pa.table([["a"], [0]], schema=SCHEMA), mode="append")
    table = DeltaTable(path)
    table.create_checkpoint()
    table.cleanup_metadata()
    assert DeltaTable(path).transaction_version("app") == 7


def test_files_are_written_read_and_deleted(path: str) -> None:
    """By what lies below `DeltaStorageHandler`; Arrow's buffers too."""
    files = Files(path, None)
    output = files.open_output("a/b.bin")
    output.write(pa.py_buffer(b"12"))
    output.write(b"34")
    assert output.tell() == 4
    output.close()
    assert files.read("a/b.bin") == b"1234"
    assert files.missing(["a/b.bin", "a/c.bin"]) == ["a/c.bin"]
    files.delete("a/b.bin")
    files.delete("a/b.bin")
    with pytest.raises(FileNotFoundError):
        files.read("a/b.bin")

"""Databases that are a file: SQLite and DuckDB."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from tests.sql.stores import ROW, SCHEMA, TABLE, DuckDb, Sqlite, agreed, new_query
from wal_sink.errors import TargetUnavailable
from wal_sink.model.ledger import Outcome
from wal_sink.targets.base import RowSlice
from wal_sink.testing.contracts.ledger import create, finish, following
from wal_sink.testing.contracts.rows import deliver


@pytest.mark.parametrize("store", [Sqlite, DuckDb], indirect=True)
def test_file_replaced_under_a_session_takes_no_row(store: Sqlite | DuckDb) -> None:
    """The ledger of the new file has another row. Rows in the former file would be lost."""
    store.execute(TABLE.format(key=""))
    if isinstance(store, Sqlite):
        store.execute("PRAGMA journal_mode = WAL")  # in other modes SQLite refuses a write
    target = store.target()
    plan = agreed(target)
    backup = store.path.with_suffix(".backup")
    backup.write_bytes(store.path.read_bytes())
    with target.connect("query") as session:
        row = create(session, "query")
        backup.replace(store.path)
        session.write(plan, ROW)
        assert finish(session, row, following(row)) is Outcome.CONFLICT
        assert session.read() is None
    assert store.execute("SELECT * FROM t") == []


def test_commit_to_sqlite_syncs_its_folder(tmp_path: Path) -> None:
    """The level EXTRA syncs the folder after the journal is deleted."""
    with contextlib.closing(Sqlite(tmp_path).target().open()) as connection:
        assert connection.query("PRAGMA synchronous") == [(3,)]


def test_file_database_ignores_the_password_of_another_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The variable may be set for MariaDB in the same process. SQLAlchemy refuses a password for SQLite."""
    monkeypatch.setenv("WAL_SINK_SQL_PASSWORD", "of MariaDB")
    store = Sqlite(tmp_path)
    store.execute(TABLE.format(key=""))
    agreed(store.target())


def test_duckdb_file_is_open_only_in_transactions(tmp_path: Path) -> None:
    """Between transactions another process can open the file, such as Spark's planner beside a flusher."""
    store = DuckDb(tmp_path)
    store.execute(TABLE.format(key=""))
    target = store.target()
    elsewhere = (
        f"import duckdb; print(duckdb.connect({str(store.path)!r}).sql('FROM t').fetchall())"
    )

    def read() -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", elsewhere]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    plan = agreed(target)
    with new_query(target) as session:
        deliver(session, plan, ROW)
        assert read().stdout == "[(1, 'x')]\n"
        session.write(plan, RowSlice(1, pa.record_batch([[2], ["y"]], SCHEMA), 0))
        assert "Could not set lock" in read().stderr


def test_lock_of_duckdb_is_waited_for(tmp_path: Path) -> None:
    """Another process has the file open for a second."""
    store = DuckDb(tmp_path)
    store.execute(TABLE.format(key=""))
    opened = f"import duckdb, time; c = duckdb.connect({str(store.path)!r})"
    hold = f"{opened}; print(1, flush=True); time.sleep(1)"
    for timeout, passes in ((0.1, False), (20, True)):
        with subprocess.Popen([sys.executable, "-c", hold], stdout=subprocess.PIPE) as other:
            assert other.stdout is not None
            other.stdout.readline()
            target = store.target(lock_timeout=timeout)
            with contextlib.nullcontext() if passes else pytest.raises(TargetUnavailable):
                agreed(target)

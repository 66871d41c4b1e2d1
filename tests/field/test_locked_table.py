"""Another session holds a lock on the table. The flush reports it, and continues after its release."""

from __future__ import annotations

import contextlib
import re
import sqlite3
from pathlib import Path

import psycopg
import pyarrow as pa
import pytest

from tests.sql.stores import Postgresql, Sqlite
from wal_sink.demo.postgresql import Server
from wal_sink.errors import TargetUnavailable
from wal_sink.testing.micro_batches import PlayedQuery

ROWS = pa.schema([("id", pa.int64())])


def lock_error(query: PlayedQuery) -> TargetUnavailable:
    """Flush, and return the error that names the lock."""
    with pytest.raises(TargetUnavailable) as caught:
        query.flush()
    return caught.value


@pytest.mark.postgresql
def test_error_of_a_postgresql_lock_names_its_holder(postgresql: Server, schema: str) -> None:
    """The statement in the error ends the lock."""
    store = Postgresql(postgresql, schema)
    store.execute("CREATE TABLE t (id bigint)")
    query = PlayedQuery(store.target(lock_timeout=0.3), ROWS)
    query.run().batch([(1,)])
    holder = psycopg.connect(postgresql.uri, application_name="a night job")
    with contextlib.closing(holder):
        holder.execute(f"LOCK TABLE {schema}.t IN EXCLUSIVE MODE")
        error = lock_error(query)
        assert f"t in mode ExclusiveLock by process {holder.info.backend_pid}" in error.what
        assert "application a night job, since " in error.what
        assert "outage" not in str(error)
        (statement,) = re.findall(r"run: (SELECT .*?;)", error.remedy)
        postgresql.execute(statement)
        query.flush()
    assert store.execute("SELECT id FROM t") == [(1,)]


def test_lock_on_sqlite_file_is_not_reported_as_outage(tmp_path: Path) -> None:
    store = Sqlite(tmp_path)
    store.execute("CREATE TABLE t (id bigint)")
    query = PlayedQuery(store.target(lock_timeout=0.1), ROWS)
    query.run().batch([(1,)])
    with contextlib.closing(sqlite3.connect(store.url.removeprefix("sqlite:///"))) as holder:
        holder.execute("BEGIN IMMEDIATE")
        error = lock_error(query)
        assert "holds a lock on t, or on the ledger's table" in error.what
        assert "outage" not in str(error)
        holder.rollback()
        query.flush()
    assert store.execute("SELECT id FROM t") == [(1,)]

"""Somebody has dropped the ledger's table, and there is no backup of it."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pytest

from tests.sql.mariadb import MariaDb
from tests.sql.stores import DuckDb, Maria, Postgresql, Sqlite, Store
from tests.support.operators import set_mark
from wal_sink.demo.postgresql import Server
from wal_sink.errors import LedgerBehindLog, TargetRefused
from wal_sink.protocol.flush_decisions import Retention
from wal_sink.targets.base import Target
from wal_sink.targets.postgresql import PostgresqlOptions, PostgresqlTarget
from wal_sink.targets.sqlalchemy import SqlAlchemyOptions, SqlAlchemyTarget
from wal_sink.testing.micro_batches import PlayedQuery

SCHEMA = pa.schema([("id", pa.int64())])


@pytest.fixture(
    params=[
        pytest.param("postgresql", marks=pytest.mark.postgresql),
        pytest.param("mariadb", marks=pytest.mark.mariadb),
        "sqlite",
        "duckdb",
    ]
)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """Create a database."""
    if request.param == "postgresql":
        server: Server = request.getfixturevalue("postgresql")
        return Postgresql(server, request.getfixturevalue("schema"))
    if request.param == "mariadb":
        maria: MariaDb = request.getfixturevalue("mariadb")
        return Maria(maria, request.getfixturevalue("database"))
    return Sqlite(tmp_path) if request.param == "sqlite" else DuckDb(tmp_path)


def test_dropped_ledger_is_restored_by_the_errors(store: Store) -> None:
    """Each error has a command. No row is doubled, although the log still has all rows."""
    store.execute("CREATE TABLE t (id BIGINT)")
    if isinstance(store, Postgresql):
        uri, table = store.server.uri, f"{store.schema}.t"
        target: Target = PostgresqlTarget(PostgresqlOptions(uri=uri, table=table))
    else:
        target = SqlAlchemyTarget(SqlAlchemyOptions(url=store.url, table="t"))
    query = PlayedQuery(target, SCHEMA)
    query.retention = Retention(us=3_600_000_000, bytes=1 << 30)
    run = query.run().flushed_batches([(1,)], [(2,)])
    query.end_sessions()
    store.execute("DROP TABLE wal_sink_ledger")
    run.batch([(3,)])
    with pytest.raises(TargetRefused, match=r"wal_sink_ledger.? cannot be read") as dropped:
        query.flush()
    store.paste(dropped.value.remedy.partition("Run:\n")[2])
    with pytest.raises(LedgerBehindLog, match="has no ledger row any more") as behind:
        query.flush()
    (epoch,) = re.findall(r"set-mark CHECKPOINT --to (\d+)", behind.value.remedy)
    set_mark(query.flusher().pipeline, int(epoch))
    query.flush()
    assert sorted(store.execute("SELECT id FROM t")) == [(1,), (2,), (3,)]

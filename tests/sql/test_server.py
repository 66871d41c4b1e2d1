"""What of a server, a storage engine or a ledger table would lose or double windows."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.sql.mariadb import MariaDb, MySql
from tests.sql.stores import (
    SCHEMA,
    TABLE,
    Maria,
    Sqlite,
    Store,
    agreed,
    sql_target,
)
from wal_sink.errors import SchemaMismatch, TargetRefused
from wal_sink.targets.base import RowSlice
from wal_sink.targets.sql.session import SqlSession
from wal_sink.targets.sqlalchemy import SqlAlchemyOptions, SqlAlchemyTarget
from wal_sink.testing.contracts.ledger import create, following, row_of
from wal_sink.testing.contracts.rows import deliver
from wal_sink.testing.micro_batches import PlayedQuery


@pytest.mark.parametrize("table", ["t", "wal_sink_ledger"])
def test_engine_without_transactions_is_refused(
    mariadb: MariaDb, database: str, table: str
) -> None:
    """Of the rows or of the ledger, at the start and under a session; the remedy works."""
    store = Maria(mariadb, database)
    store.execute(TABLE.format(key=""))
    target = sql_target(store)
    plan = agreed(target)
    rows = RowSlice(0, pa.record_batch([[1], ["x"]], SCHEMA), 0)
    with target.connect("query") as session:
        create(session, "query")
        store.execute(f"ALTER TABLE {table} ENGINE=MyISAM")
        with pytest.raises(SchemaMismatch, match=f"{table} has the storage engine MyISAM"):
            deliver(session, plan, rows)
    with pytest.raises(SchemaMismatch, match="MyISAM, which has no transactions") as caught:
        agreed(target)
    assert store.execute("SELECT * FROM t") == []
    store.execute(caught.value.remedy.partition("run:\n")[2])
    agreed(target)
    if isinstance(mariadb, MySql):
        return  # it has no tables of that kind
    store.execute(f"ALTER TABLE {table} ENGINE=Aria, ADD SYSTEM VERSIONING")
    with pytest.raises(SchemaMismatch, match="Aria, which has no transactions"):
        agreed(target)


def test_table_on_another_server_is_refused(mariadb: MariaDb, database: str) -> None:
    """Its engine has transactions, which commit before the ledger's or behind it, never together."""
    if isinstance(mariadb, MySql):
        return  # its engine of that name has no transactions
    store = Maria(mariadb, database)
    mariadb.execute("INSTALL SONAME 'ha_federatedx'")
    try:
        store.execute("CREATE TABLE there (id BIGINT, name TEXT)")
        place = f"mysql://root@{mariadb.host}:{mariadb.port}/{database}/there"
        store.paste(
            "CREATE TABLE t (id BIGINT, name LONGTEXT) ENGINE=FEDERATED CHARACTER SET utf8mb4"
            f" COLLATE utf8mb4_bin CONNECTION='{place}'"
        )
        with pytest.raises(SchemaMismatch, match=r"FEDERATED, which .* does not commit together"):
            agreed(sql_target(store))
        store.paste("DROP TABLE t")
    finally:
        mariadb.execute("UNINSTALL SONAME 'ha_federatedx'")


@pytest.mark.parametrize(
    ("table", "trigger", "clause"),
    [
        ("name TEXT", "SELECT raise( Rollback, 'no')", "trigger no has raise"),
        ("name TEXT", "SELECT RAISE(IGNORE)", "trigger no has RAISE"),
        ("name TEXT NOT NULL ON CONFLICT ROLLBACK", "SELECT 'rollback'", "table t has CONFLICT"),
        ("name TEXT NOT NULL ON CONFLICT IGNORE", "SELECT 'ignore'", "table t has CONFLICT"),
    ],
)
def test_sqlite_table_that_drops_rows_is_refused(
    tmp_path: Path, table: str, trigger: str, clause: str
) -> None:
    """At a start, by a check, and under a session; with ABORT the row alone is refused."""
    store = Sqlite(tmp_path)
    store.execute("CREATE TABLE t (id BIGINT, name TEXT NOT NULL ON CONFLICT ABORT, rollback TEXT)")
    target = sql_target(store)
    plan, rows = agreed(target), RowSlice(0, pa.record_batch([[1], ["x"]], SCHEMA), 0)
    store.execute("DROP TABLE t")
    store.execute(f"CREATE TABLE t (id BIGINT, {table})")
    store.execute(f"CREATE TRIGGER no BEFORE INSERT ON t WHEN NEW.id = 2 BEGIN {trigger}; END")
    with target.connect("query") as session:
        create(session, "query")
        with pytest.raises(SchemaMismatch, match=f"^{clause}"):
            deliver(session, plan, rows)
    for start in (target.plan, target.dry_plan):
        with pytest.raises(SchemaMismatch, match=f"^{clause}"):
            start(SCHEMA, "key")


def test_missing_ledger_names_another_database(store: Store) -> None:
    """A query that is started with the URL of another database has its plan: none is made there."""
    store.execute(TABLE.format(key=""))
    with sql_target(store).connect("query") as session:
        words = "wal_sink_ledger. cannot be read: .*\n.*another database or schema than this query"
        with pytest.raises(TargetRefused, match=words):
            row_of(session)


def test_server_that_replicates_by_statement_is_refused(mariadb: MariaDb, database: str) -> None:
    """A replica may take other rows than the server has."""
    store = Maria(mariadb, database)
    store.execute(TABLE.format(key=""))
    mariadb.execute("SET GLOBAL binlog_format = 'STATEMENT'")
    try:
        with pytest.raises(TargetRefused, match="BINLOG_FORMAT = STATEMENT") as caught:
            agreed(sql_target(store))
        assert not re.search("user|password|right", caught.value.remedy)
        (statement,) = re.findall(r"Run: (SET .*?;)", caught.value.remedy)
        mariadb.execute(statement)
        query = PlayedQuery(sql_target(store), SCHEMA)
        query.on_invalid_row = "quarantine"
        query.run().batch([(1, "a")])
        mariadb.execute("SET GLOBAL binlog_format = 'STATEMENT'")
        with pytest.raises(TargetRefused, match="SET GLOBAL binlog_format"):
            query.flush()
    finally:
        mariadb.execute("SET GLOBAL binlog_format = 'MIXED'")
    query.flush()
    assert store.execute("SELECT * FROM t") == [(1, "a")]


def test_withdrawn_right_comes_with_its_grant(mariadb: MariaDb, database: str) -> None:
    """On the rows' table or the ledger's; the flush goes on when it is given."""
    store, user = Maria(mariadb, database), f"u{database[-8:]}"
    store.execute(TABLE.format(key=""))
    mariadb.execute(f"CREATE USER {user} IDENTIFIED BY 'p'")
    try:
        for table in ("t", "wal_sink_ledger"):
            agreed(sql_target(store))  # makes the ledger
            mariadb.execute(f"GRANT SELECT, INSERT, UPDATE ON {database}.{table} TO {user}")
        url = store.url.replace("root@", f"{user}:p@")
        query = PlayedQuery(SqlAlchemyTarget(SqlAlchemyOptions(url=url, table="t")), SCHEMA)
        run = query.run()
        for number, table in enumerate(("t", "wal_sink_ledger")):
            run.batch([(number, "a")])
            mariadb.execute(f"REVOKE INSERT, UPDATE ON {database}.{table} FROM {user}")
            with pytest.raises(TargetRefused, match=r"command denied") as caught:
                query.flush()
            mariadb.execute(caught.value.remedy.partition(": ")[2])
            query.flush()
        assert len(store.execute("SELECT * FROM t")) == 2
    finally:
        mariadb.execute(f"DROP USER {user}")


def test_autocommit_is_refused(mariadb: MariaDb, database: str) -> None:
    """Rows would be there without the ledger."""
    store = Maria(mariadb, database)
    store.execute(TABLE.format(key=""))
    with pytest.raises(SchemaMismatch, match="commits by itself"):
        agreed(sql_target(store, "?autocommit=true"))


def test_isolation_of_the_server_is_not_inherited(mariadb: MariaDb, database: str) -> None:
    """An epoch that is not committed must not be read: its rows would be trimmed, and may be lost."""
    store = Maria(mariadb, database)
    store.execute(TABLE.format(key=""))
    mariadb.execute("SET GLOBAL TRANSACTION ISOLATION LEVEL READ UNCOMMITTED")
    try:
        target = sql_target(store)
        plan = agreed(target)
        with target.connect("query") as session, target.connect("query") as other:
            row = create(session, "query")
            assert isinstance(session, SqlSession)
            session.write(plan, RowSlice(0, pa.record_batch([[1], ["x"]], SCHEMA), 0))
            assert session._ledger.move(row, following(row))
            assert store.execute("SELECT epoch FROM wal_sink_ledger") == [(0,)], "no dirty read"
            assert row_of(other) == row
    finally:
        mariadb.execute("SET GLOBAL TRANSACTION ISOLATION LEVEL REPEATABLE READ")


@pytest.mark.parametrize("scheme", ["mysql", "mariadb"])
def test_idle_transaction_is_bounded_by_the_server(
    mariadb: MariaDb, database: str, scheme: str
) -> None:
    """A stalled flusher gives the ledger row back, whatever the URL of a MariaDB begins with."""
    store = Maria(mariadb, database)
    store.execute(TABLE.format(key=""))
    if isinstance(mariadb, MySql):  # it bounds no transaction, but a silent connection
        assert bounds(store, "@@wait_timeout") == [(600,)]
        return
    store.url = store.url.replace("mysql", scheme, 1)
    mariadb.execute("SET GLOBAL max_statement_time = 100")
    try:
        bounded = bounds(store, "@@idle_transaction_timeout, @@max_statement_time, @@wait_timeout")
    finally:
        mariadb.execute("SET GLOBAL max_statement_time = 0")
    assert bounded == [(60, 0.0, 28_800)]


def bounds(store: Store, names: str) -> list[Any]:
    """Return settings of a flusher's connection."""
    with contextlib.closing(sql_target(store).open()) as connection:
        bounded: list[Any] = connection.query(f"SELECT {names}")
        return bounded


def test_ledger_that_ignores_case_is_refused(mariadb: MariaDb, database: str) -> None:
    """As MariaDB's default collation does."""
    store = Maria(mariadb, database)
    store.execute(TABLE.format(key=""))
    agreed(sql_target(store))
    text = "CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci"
    store.execute(f"ALTER TABLE wal_sink_ledger {text}")
    with pytest.raises(SchemaMismatch, match="without upper and lower case"):
        agreed(sql_target(store))

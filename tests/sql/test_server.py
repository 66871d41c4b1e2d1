"""Servers, storage engines and ledger tables that could lose a window or write it twice."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Any

import pytest

from tests.sql.mariadb import MySql
from tests.sql.stores import ROW, SCHEMA, TABLE, Maria, Sqlite, Store, agreed, new_query
from wal_sink.errors import SchemaMismatch, TargetRefused
from wal_sink.model.ledger import Outcome
from wal_sink.targets.sql.session import SqlSession
from wal_sink.targets.sqlalchemy import SqlAlchemyOptions, SqlAlchemyTarget
from wal_sink.testing.contracts.ledger import create, finish, following, row_of
from wal_sink.testing.contracts.rows import deliver
from wal_sink.testing.micro_batches import PlayedQuery


@pytest.mark.parametrize("table", ["t", "wal_sink_ledger"])
def test_engine_without_transactions_is_refused(maria: Maria, table: str) -> None:
    """A start and a session refuse the engine of the rows' table, and that of the ledger's table."""
    maria.execute(TABLE.format(key=""))
    target = maria.target()
    plan = agreed(target)
    with new_query(target) as session:
        maria.execute(f"ALTER TABLE {table} ENGINE=MyISAM")
        with pytest.raises(SchemaMismatch, match=f"{table} has the storage engine MyISAM"):
            deliver(session, plan, ROW)
    with pytest.raises(SchemaMismatch, match="MyISAM, which has no transactions") as caught:
        agreed(target)
    assert maria.execute("SELECT * FROM t") == []
    maria.execute(caught.value.remedy.partition("run:\n")[2])
    agreed(target)
    if isinstance(maria.server, MySql):
        return  # MySQL has no Aria
    maria.execute(f"ALTER TABLE {table} ENGINE=Aria, ADD SYSTEM VERSIONING")
    with pytest.raises(SchemaMismatch, match="Aria, which has no transactions"):
        agreed(target)


def test_remedy_of_a_refused_engine_quotes_the_table(maria: Maria) -> None:
    maria.execute("CREATE TABLE `a``b` (id BIGINT NOT NULL, name VARCHAR(20)) ENGINE=MyISAM")
    target = maria.target(table="a`b")
    with pytest.raises(SchemaMismatch, match="storage engine MyISAM") as caught:
        agreed(target)
    maria.execute(caught.value.remedy.partition("run:\n")[2])
    agreed(target)


def test_table_on_another_server_is_refused(maria: Maria) -> None:
    """Its rows do not commit together with the ledger."""
    if isinstance(maria.server, MySql):
        return  # its engine of that name has no transactions
    maria.server.execute("INSTALL SONAME 'ha_federatedx'")
    try:
        maria.execute("CREATE TABLE there (id BIGINT, name TEXT)")
        place = f"mysql://root@{maria.server.host}:{maria.server.port}/{maria.database}/there"
        maria.paste(
            "CREATE TABLE t (id BIGINT, name LONGTEXT) ENGINE=FEDERATED CHARACTER SET utf8mb4"
            f" COLLATE utf8mb4_bin CONNECTION='{place}'"
        )
        with pytest.raises(SchemaMismatch, match=r"FEDERATED, which .* does not commit together"):
            agreed(maria.target())
        maria.paste("DROP TABLE t")
    finally:
        maria.server.execute("UNINSTALL SONAME 'ha_federatedx'")


def test_compared_table_cannot_be_altered_before_commit(maria: Maria) -> None:
    """The session locks the table before the first row."""
    maria.execute(TABLE.format(key=""))
    target = maria.target()
    plan = agreed(target)
    with new_query(target) as session, maria.server._connect(maria.database) as other:
        row = row_of(session)
        session.write(plan, ROW._replace(batch=ROW.batch.slice(0, 0)))
        with other.cursor() as cursor:
            cursor.execute("SET lock_wait_timeout = 1")
            with pytest.raises(Exception, match="Lock wait timeout"):
                cursor.execute("ALTER TABLE t ADD x INT")
        session.write(plan, ROW)
        assert finish(session, row, following(row)) is Outcome.APPLIED


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
    """A start, a check and a session refuse the table. A clause with ABORT is accepted."""
    store = Sqlite(tmp_path)
    store.execute("CREATE TABLE t (id BIGINT, name TEXT NOT NULL ON CONFLICT ABORT, rollback TEXT)")
    target = store.target()
    plan = agreed(target)
    store.execute("DROP TABLE t")
    store.execute(f"CREATE TABLE t (id BIGINT, {table})")
    store.execute(f"CREATE TRIGGER no BEFORE INSERT ON t WHEN NEW.id = 2 BEGIN {trigger}; END")
    with new_query(target) as session, pytest.raises(SchemaMismatch, match=f"^{clause}"):
        deliver(session, plan, ROW)
    for start in (target.plan, target.dry_plan):
        with pytest.raises(SchemaMismatch, match=f"^{clause}"):
            start(SCHEMA, "key")


def test_error_of_missing_ledger_suspects_another_database(store: Store) -> None:
    """The query was started again with the URL of another database, where no plan was made."""
    store.execute(TABLE.format(key=""))
    with store.target().connect("query") as session:
        words = "wal_sink_ledger. cannot be read: .*\n.*another database, schema or ledger table than before"
        with pytest.raises(TargetRefused, match=words):
            row_of(session)


def test_server_that_replicates_by_statement_is_refused(maria: Maria) -> None:
    """A replica may get other rows than the server."""
    maria.execute(TABLE.format(key=""))
    maria.server.execute("SET GLOBAL binlog_format = 'STATEMENT'")
    try:
        with pytest.raises(TargetRefused, match="BINLOG_FORMAT = STATEMENT") as caught:
            agreed(maria.target())
        assert not re.search("user|password|right", caught.value.remedy)
        (statement,) = re.findall(r"Run: (SET .*?;)", caught.value.remedy)
        maria.server.execute(statement)
        query = PlayedQuery(maria.target(), SCHEMA)
        query.on_invalid_row = "quarantine"
        query.run().batch([(1, "a")])
        maria.server.execute("SET GLOBAL binlog_format = 'STATEMENT'")
        with pytest.raises(TargetRefused, match="SET GLOBAL binlog_format"):
            query.flush()
    finally:
        maria.server.execute("SET GLOBAL binlog_format = 'MIXED'")
    query.flush()
    assert maria.execute("SELECT * FROM t") == [(1, "a")]


def test_error_of_a_withdrawn_privilege_has_its_grant(maria: Maria) -> None:
    """The table is that of the rows or of the ledger. After the GRANT the flush continues."""
    user = f"u{maria.database[-8:]}"
    maria.execute(TABLE.format(key=""))
    maria.server.execute(f"CREATE USER {user} IDENTIFIED BY 'p'")
    try:
        for table in ("t", "wal_sink_ledger"):
            agreed(maria.target())  # creates the ledger
            maria.server.execute(
                f"GRANT SELECT, INSERT, UPDATE ON {maria.database}.{table} TO {user}"
            )
        url = maria.url.replace("root@", f"{user}:p@")
        query = PlayedQuery(SqlAlchemyTarget(SqlAlchemyOptions(url=url, table="t")), SCHEMA)
        run = query.run()
        for number, table in enumerate(("t", "wal_sink_ledger")):
            run.batch([(number, "a")])
            maria.server.execute(f"REVOKE INSERT, UPDATE ON {maria.database}.{table} FROM {user}")
            with pytest.raises(TargetRefused, match=r"command denied") as caught:
                query.flush()
            maria.server.execute(caught.value.remedy.partition(": ")[2])
            query.flush()
        assert len(maria.execute("SELECT * FROM t")) == 2
    finally:
        maria.server.execute(f"DROP USER {user}")


def test_autocommit_is_refused(maria: Maria) -> None:
    """Rows would be committed without the ledger row."""
    maria.execute(TABLE.format(key=""))
    with pytest.raises(SchemaMismatch, match="commits by itself"):
        agreed(maria.target("?autocommit=true"))


def test_isolation_of_the_server_is_not_inherited(maria: Maria) -> None:
    """A flusher that reads an uncommitted ledger row would trim rows that may be lost."""
    maria.execute(TABLE.format(key=""))
    maria.server.execute("SET GLOBAL TRANSACTION ISOLATION LEVEL READ UNCOMMITTED")
    try:
        target = maria.target()
        plan = agreed(target)
        with target.connect("query") as session, target.connect("query") as other:
            row = create(session, "query")
            assert isinstance(session, SqlSession)
            session.write(plan, ROW)
            assert session._ledger.move(row, following(row))
            assert maria.execute("SELECT epoch FROM wal_sink_ledger") == [(0,)], "no dirty read"
            assert row_of(other) == row
    finally:
        maria.server.execute("SET GLOBAL TRANSACTION ISOLATION LEVEL REPEATABLE READ")


@pytest.mark.parametrize("scheme", ["mysql", "mariadb"])
def test_idle_transaction_is_bounded_by_the_server(maria: Maria, scheme: str) -> None:
    """The server ends the transaction of a stalled flusher, whatever the URL of a MariaDB begins with."""
    maria.execute(TABLE.format(key=""))
    if isinstance(maria.server, MySql):  # has a time-out for idle connections only
        assert bounds(maria, "@@wait_timeout") == [(600,)]
        return
    maria.url = maria.url.replace("mysql", scheme, 1)
    maria.server.execute("SET GLOBAL max_statement_time = 100")
    try:
        bounded = bounds(maria, "@@idle_transaction_timeout, @@max_statement_time, @@wait_timeout")
    finally:
        maria.server.execute("SET GLOBAL max_statement_time = 0")
    assert bounded == [(60, 0.0, 28_800)]


def bounds(store: Store, names: str) -> list[Any]:
    """Return settings of a flusher's connection."""
    with contextlib.closing(store.target().open()) as connection:
        bounded: list[Any] = connection.query(f"SELECT {names}")
        return bounded


def test_ledger_that_ignores_case_is_refused(maria: Maria) -> None:
    """MariaDB's default collation ignores case."""
    maria.execute(TABLE.format(key=""))
    agreed(maria.target())
    text = "CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci"
    maria.execute(f"ALTER TABLE wal_sink_ledger {text}")
    with pytest.raises(SchemaMismatch, match="without upper and lower case"):
        agreed(maria.target())

"""Servers, storage engines and ledger tables that could lose a window or write it twice."""

from __future__ import annotations

import contextlib
import re
import uuid
from pathlib import Path

import pytest

from tests.sql.mariadb import MySql
from tests.sql.stores import ROW, SCHEMA, TABLE, Maria, Sqlite, Store, agreed, new_query
from wal_sink.errors import SchemaMismatch, TargetRefused
from wal_sink.model.ledger import Outcome
from wal_sink.targets.sqlalchemy.dialects import SQL_MODE
from wal_sink.testing.contracts.ledger import finish, following, row_of
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
    """The query was started again with another URL or ledger. The statements of the error can be pasted."""
    store.execute(TABLE.format(key=""))
    name = "wal_sink_ledger" if isinstance(store, Sqlite | Maria) else "elsewhere_{}.ledger"
    target = store.target(ledger_table=name.format(uuid.uuid4().hex[:8]))
    with target.connect("query") as session:
        words = "ledger. cannot be read: .*\n.*another database, schema or ledger table than before"
        with pytest.raises(TargetRefused, match=words) as caught:
            row_of(session)
        for statement in re.findall(r"CREATE .*?;", caught.value.remedy):
            store.paste(statement)
        assert session.read() is None


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


def test_autocommit_is_refused(maria: Maria) -> None:
    """Rows would be committed without the ledger row."""
    maria.execute(TABLE.format(key=""))
    with pytest.raises(SchemaMismatch, match="commits by itself"):
        agreed(maria.target("?autocommit=true"))


def test_settings_of_the_server_are_not_inherited(maria: Maria) -> None:
    """A URL of MariaDB may begin with `mariadb`. MySQL has a time-out for idle connections only."""
    server, url = maria.server, maria.url.replace("mysql", "mariadb", 1)
    isolation = "SHOW VARIABLES WHERE variable_name IN ('tx_isolation', 'transaction_isolation')"
    settings: dict[str, tuple[object, object]] = {
        server.execute(isolation)[-1][0]: ("READ-UNCOMMITTED", "READ-COMMITTED"),
        "sql_mode": ("ANSI_QUOTES,NO_BACKSLASH_ESCAPES", SQL_MODE),
        "time_zone": ("+09:00", "+00:00"),
        "lock_wait_timeout": (100, 1),
    }
    if isinstance(server, MySql):
        settings["wait_timeout"] = (100, 600)
    else:
        maria.url = url
        settings |= {"max_statement_time": (100, 0), "idle_transaction_timeout": (0, 60)}
    defaults = {name: server.execute(f"SELECT @@GLOBAL.{name}")[0][0] for name in settings}
    try:
        for name, (value, _) in settings.items():
            server.execute(f"SET GLOBAL {name} = %s", [value])
        with contextlib.closing(maria.target().open()) as connection:
            (row,) = connection.query(f"SELECT {', '.join(f'@@{name}' for name in settings)}")
    finally:
        for name, value in defaults.items():
            server.execute(f"SET GLOBAL {name} = %s", [value])
    session = dict(zip(settings, row, strict=True))
    assert {*session.pop("sql_mode").split(",")} == {*SQL_MODE.split(",")}
    assert session == {name: kept for name, (_, kept) in settings.items() if name in session}


def test_ledger_that_ignores_case_is_refused(maria: Maria) -> None:
    """MariaDB's default collation ignores case."""
    maria.execute(TABLE.format(key=""))
    agreed(maria.target())
    text = "CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci"
    maria.execute(f"ALTER TABLE wal_sink_ledger {text}")
    with pytest.raises(SchemaMismatch, match="without upper and lower case"):
        agreed(maria.target())

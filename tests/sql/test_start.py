"""What the target `sql` says at the start: everything that does not fit, and what is not exactly once."""

from __future__ import annotations

import contextlib
import pickle
import re
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.sql.mariadb import MariaDb, MySql
from tests.sql.stores import DuckDb, Maria, Postgresql, Sqlite, Store
from wal_sink.demo.servers.postgresql import Server
from wal_sink.errors import OptionError, SchemaMismatch, TargetRefused, TargetUnavailable
from wal_sink.model.plan import Plan, plan_key
from wal_sink.options import parse, public
from wal_sink.targets.base import Slice
from wal_sink.targets.sql.session import SqlSession
from wal_sink.targets.sqlalchemy import SqlAlchemyOptions, SqlAlchemyTarget
from wal_sink.testing.contracts.ledger import create, following, row_of
from wal_sink.testing.contracts.rows import deliver

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
TABLE = "CREATE TABLE t (id BIGINT NOT NULL, name VARCHAR(20){key})"


def target(store: Store, parameters: str = "", **given: Any) -> SqlAlchemyTarget:
    """Return a target of table `t`."""
    options: dict[str, Any] = {"table": "t", "lock_timeout": 1} | given
    return SqlAlchemyTarget(SqlAlchemyOptions(url=store.url + parameters, **options))


def agreed(of: SqlAlchemyTarget, schema: pa.Schema = SCHEMA) -> Plan:
    return of.plan(schema, plan_key(schema, of.name, of.shape))


def bring(of: SqlAlchemyTarget, rows: pa.RecordBatch) -> None:
    """Bring rows into the table, as a query of its own."""
    plan = agreed(of, rows.schema)
    with of.connect("query") as session:
        create(session, "query")
        deliver(session, plan, Slice(0, of.check(rows, plan), 0))


def test_everything_that_does_not_fit_is_in_one_error(tmp_path: Path) -> None:
    """Names, types and what the table requires, each with what to do."""
    store = Sqlite(tmp_path)
    store.execute("CREATE TABLE t (id BIGINT, at DATETIME, price DECIMAL(9,2), need TEXT NOT NULL)")
    columns = [("Id", pa.int64()), ("at", pa.int64()), ("price", pa.decimal128(9, 2))]
    with pytest.raises(SchemaMismatch) as caught:
        agreed(target(store), pa.schema(columns))
    for words in (
        "Id: the table has no such column. There is id, which differs",
        "at: the table's type is datetime",
        'cast("timestamp_ntz")',
        "price: the table's type is decimal(9,2), which cannot be written",
        "need: it takes no null, has no default, and is not in the DataFrame",
    ):
        assert words in str(caught.value)


@pytest.mark.parametrize("kind", [Sqlite, DuckDb, Maria])
def test_a_column_that_the_server_computes_takes_no_value(
    kind: type[Store], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The flush would stop; the others arrive without it."""
    store = made(kind, tmp_path, request)
    store.execute("CREATE TABLE t (id BIGINT, name TEXT, twice BIGINT AS (id * 2))")
    with pytest.raises(SchemaMismatch, match="twice: the server computes this column"):
        agreed(target(store), SCHEMA.append(pa.field("twice", pa.int64())))
    bring(target(store), pa.record_batch([[1], ["x"]], SCHEMA))
    assert store.execute("SELECT twice FROM t") == [(2,)]


ODD_NAMES = pa.schema(
    [*SCHEMA, *((name, pa.string()) for name in ("select", 'a"b', "a`b", "50%", "%s"))]
)


@pytest.mark.parametrize("kind", [Sqlite, DuckDb, Maria, Postgresql])
def test_a_missing_table_comes_with_ddl_that_can_be_pasted(
    kind: type[Store], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """What the error has, and what a check shows of createTable: a start makes none then, and rows arrive."""
    store = made(kind, tmp_path, request)
    ledger: dict[str, Any] = {"ledger_table": "ledger%d"}
    append = target(store, **ledger)
    upsert = target(store, **ledger, mode="upsert", create_table=True, key_columns="id,name")
    with pytest.raises(SchemaMismatch, match="There is no table t") as caught:
        agreed(append, ODD_NAMES)
    said = caught.value.remedy.partition("\n")[2]
    shown = upsert.dry_plan(ODD_NAMES, "key").creates
    row = pa.record_batch([[1], *[["x"]] * (len(ODD_NAMES) - 1)], schema=ODD_NAMES)
    for ddl, of in ((said, append), (shown, upsert)):
        store.paste(ddl)
        assert of.dry_plan(ODD_NAMES, "key").creates == ""
        bring(of, row)
        assert len(store.execute("SELECT id FROM t")) == 1
        store.execute("DROP TABLE t")
        store.execute(f"DROP TABLE {of.ledger_name}")


@pytest.mark.parametrize("kind", [Sqlite, DuckDb, Maria, Postgresql])
def test_a_table_that_is_there_with_another_key_is_refused(
    kind: type[Store], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Else rows would replace others than keyColumns says, or none, without a word."""
    store = made(kind, tmp_path, request)
    store.execute(TABLE.format(key=", PRIMARY KEY (id, name)"))
    makes: dict[str, Any] = {"mode": "upsert", "create_table": True}
    fits, other = (target(store, **makes, key_columns=key) for key in ("name,id", "id"))
    agreed(fits)
    assert fits.shape != other.shape, "the plan of the first would be taken for the second"
    with pytest.raises(SchemaMismatch, match="names id, and t is there with the key id, name"):
        agreed(other)


def made(kind: type[Store], tmp_path: Path, request: pytest.FixtureRequest) -> Store:
    """Make a database."""
    if kind is Maria:
        return Maria(request.getfixturevalue("mariadb"), request.getfixturevalue("database"))
    if kind is Postgresql:
        return Postgresql(request.getfixturevalue("postgresql"), request.getfixturevalue("schema"))
    assert kind is Sqlite or kind is DuckDb
    return kind(tmp_path)


@pytest.mark.parametrize("create", [False, True])
@pytest.mark.parametrize("kind", [Sqlite, DuckDb])
def test_a_table_whose_name_differs_in_case_is_hinted_at(
    kind: type[Sqlite | DuckDb], tmp_path: Path, *, create: bool
) -> None:
    """In a file both are one name: the catalogue knows none of the other's columns, and none can be made."""
    store = kind(tmp_path)
    store.execute(TABLE.format(key="").replace(" t ", " T "))
    with pytest.raises(SchemaMismatch, match=r"no table t\. There is T, which differs"):
        agreed(target(store, create_table=create))


@pytest.mark.parametrize(
    ("key", "mode", "said"),
    [
        (", PRIMARY KEY (id)", "append", "unique by the primary key"),
        ("", "upsert", "no primary key"),
        (", PRIMARY KEY (id), UNIQUE (name)", "upsert", "more than one unique index"),
    ],
)
@pytest.mark.parametrize("kind", [Sqlite, DuckDb])
def test_a_key_that_does_not_fit_the_mode_is_refused(
    tmp_path: Path, kind: type[Sqlite | DuckDb], key: str, mode: str, said: str
) -> None:
    """A row that it refuses would stop the flush."""
    store = kind(tmp_path)
    store.execute(TABLE.format(key=key))
    with pytest.raises(SchemaMismatch, match=said):
        agreed(target(store, mode=mode))


PARTS: dict[str, list[type[Store]]] = {
    "UNIQUE INDEX part ON t (name) WHERE id > 0": [Sqlite],
    "UNIQUE INDEX part ON t (lower(name))": [Sqlite, DuckDb],
    "UNIQUE INDEX part ON t (id, lower(name))": [Sqlite, DuckDb],
    "UNIQUE INDEX part ON t (name(3))": [Maria],
}
"""Indexes that say nothing of whole columns in all rows, by the databases that have them."""


@pytest.mark.parametrize("kind", [Sqlite, DuckDb, Maria])
def test_an_index_on_a_part_is_no_key(
    kind: type[Store], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """A delete by its columns would take other rows along; beside a key it may refuse a row."""
    store = made(kind, tmp_path, request)
    for index in (index for index, kinds in PARTS.items() if kind in kinds):
        for key, said in (("", "no primary key"), (", PRIMARY KEY (id)", "part .*expression")):
            store.execute(TABLE.format(key=key))
            store.execute(f"CREATE {index}")
            with pytest.raises(SchemaMismatch, match=said):
                agreed(target(store, mode="upsert"))
            store.execute("DROP TABLE t")


def test_a_key_that_sqlite_fills_in_refuses_no_row(tmp_path: Path) -> None:
    """A number of its own, and no other: without row ids there is none."""
    store, schema = Sqlite(tmp_path), pa.schema([("name", pa.string())])
    store.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, name TEXT)")
    bring(target(store), pa.record_batch([["a", "a"]], schema))
    assert store.execute("SELECT * FROM t") == [(1, "a"), (2, "a")]
    for refused in (
        "id BIGINT PRIMARY KEY, name TEXT)",
        "id INTEGER PRIMARY KEY, name TEXT) WITHOUT ROWID",
    ):
        store.execute("DROP TABLE t")
        store.execute(f"CREATE TABLE t ({refused}")
        with pytest.raises(SchemaMismatch, match=r"is unique by the primary key|takes no null"):
            agreed(target(store), schema)


@pytest.mark.parametrize(
    ("column", "index"), [("NOCASE", "BINARY"), ("BINARY", "NOCASE"), ("RTRIM", "NOCASE")]
)
def test_an_index_by_another_collation_is_no_key(tmp_path: Path, column: str, index: str) -> None:
    """A delete compares by the column's: it would take other rows along, or leave its own."""
    store = Sqlite(tmp_path)
    for by, primary in (index, True), (index, False), (column, True), (column, False):
        store.execute("DROP TABLE IF EXISTS t")
        key = f"(id, name COLLATE {by})"
        end = f", PRIMARY KEY {key}" if primary else ""
        store.execute(f"CREATE TABLE t (id BIGINT, name TEXT COLLATE {column}{end})")
        if not primary:
            store.execute(f"CREATE UNIQUE INDEX i ON t {key}")
        if by == column:
            agreed(target(store, mode="upsert"))
            continue
        with pytest.raises(SchemaMismatch, match="no primary key"):
            agreed(target(store, mode="upsert"))


# --- what is not exactly once ---


@pytest.mark.parametrize("table", ["t", "wal_sink_ledger"])
def test_an_engine_without_transactions_is_refused(
    mariadb: MariaDb, database: str, table: str
) -> None:
    """Of the rows or of the ledger, at the start and under a session; the remedy works."""
    store = Maria(mariadb, database)
    store.execute(TABLE.format(key=""))
    of = target(store)
    plan = agreed(of)
    rows = Slice(0, pa.record_batch([[1], ["x"]], SCHEMA), 0)
    with of.connect("query") as session:
        create(session, "query")
        store.execute(f"ALTER TABLE {table} ENGINE=MyISAM")
        with pytest.raises(SchemaMismatch, match=f"{table} has the storage engine MyISAM"):
            deliver(session, plan, rows)
    with pytest.raises(SchemaMismatch, match="MyISAM, which has no transactions") as caught:
        agreed(of)
    assert store.execute("SELECT * FROM t") == []
    store.execute(caught.value.remedy.removeprefix("Run: "))
    agreed(of)
    if isinstance(mariadb, MySql):
        return  # it has no tables of that kind
    store.execute(f"ALTER TABLE {table} ENGINE=Aria, ADD SYSTEM VERSIONING")
    with pytest.raises(SchemaMismatch, match="Aria, which has no transactions"):
        agreed(of)


def test_a_table_on_another_server_is_refused(mariadb: MariaDb, database: str) -> None:
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
        with pytest.raises(SchemaMismatch, match="FEDERATED, which does not commit together"):
            agreed(target(store))
        store.paste("DROP TABLE t")
    finally:
        mariadb.execute("UNINSTALL SONAME 'ha_federatedx'")


@pytest.mark.parametrize("kind", [Sqlite, DuckDb, Maria])
def test_a_view_is_refused(
    kind: type[Store], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """At the start, and in a table's place under a session: behind it may be tables without transactions."""
    is_maria = kind is Maria
    fixtures = map(request.getfixturevalue, ("mariadb", "database")) if is_maria else [tmp_path]
    store = kind(*fixtures)
    store.execute(TABLE.format(key=""))
    of = target(store)
    plan = agreed(of)
    with of.connect("query") as session:
        create(session, "query")
        store.paste("ALTER TABLE t RENAME TO u")
        store.paste("CREATE VIEW t AS SELECT * FROM u")
        with pytest.raises(SchemaMismatch, match=r"t is a view\."):
            deliver(session, plan, Slice(0, pa.record_batch([[1], ["x"]], SCHEMA), 0))
    with pytest.raises(SchemaMismatch, match=r"t is a view\."):
        agreed(of)


@pytest.mark.parametrize(
    ("table", "trigger", "name"),
    [
        ("id BIGINT, name TEXT", "SELECT raise( Rollback, 'no')", "trigger no"),
        ("id BIGINT, name TEXT NOT NULL ON CONFLICT ROLLBACK", "SELECT 'rollback'", "table t"),
    ],
)
def test_a_table_of_sqlite_that_ends_the_transaction_is_refused(
    tmp_path: Path, table: str, trigger: str, name: str
) -> None:
    """The rows before the refused one would be gone, and their savepoint; with ABORT the row alone is."""
    store = Sqlite(tmp_path)
    store.execute(f"CREATE TABLE t ({table})")
    store.execute(f"CREATE TRIGGER no BEFORE INSERT ON t WHEN NEW.id = 2 BEGIN {trigger}; END")
    with pytest.raises(SchemaMismatch, match=f"^{name} refuses a row by ROLLBACK"):
        agreed(target(store))
    store.execute("DROP TRIGGER no")
    store.execute("DROP TABLE t")
    store.execute("CREATE TABLE t (id BIGINT, name TEXT NOT NULL ON CONFLICT ABORT, rollback TEXT)")
    agreed(target(store))


@pytest.mark.parametrize(
    "made",
    [
        "CREATE UNLOGGED TABLE t (id BIGINT, name TEXT)",
        """CREATE TABLE t (id BIGINT, name TEXT) PARTITION BY RANGE (id);
           CREATE UNLOGGED TABLE part PARTITION OF t DEFAULT""",
    ],
)
def test_a_table_that_a_crash_of_postgresql_empties_is_refused(
    postgresql: Server, schema: str, made: str
) -> None:
    """As by target=postgresql: the ledger would say that the rows are there."""
    store = Postgresql(postgresql, schema)
    for statement in made.split(";"):
        store.execute(statement)
    with pytest.raises(SchemaMismatch, match="is unlogged"):
        agreed(target(store))


def test_a_table_whose_rows_are_hidden_from_the_user_is_refused(
    postgresql: Server, schema: str
) -> None:
    """A delete would find nothing, and say nothing."""
    store, role = Postgresql(postgresql, schema), f"role_{schema}"
    store.execute(TABLE.format(key=", PRIMARY KEY (id)"))
    store.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'x'; GRANT ALL ON SCHEMA {schema} TO {role}")
    store.execute(f"GRANT ALL ON t TO {role}; ALTER TABLE t ENABLE ROW LEVEL SECURITY")
    store.execute("CREATE POLICY p ON t USING (id > 5)")
    agreed(target(store, mode="upsert"))  # as the owner
    store.url = re.sub(r"//[^@/]*@", f"//{role}:x@", store.url)
    try:
        with pytest.raises(SchemaMismatch, match="has row-level security"):
            agreed(target(store, mode="upsert"))
    finally:
        store.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_a_role_whose_settings_would_stop_the_flush_gets_others(
    postgresql: Server, schema: str
) -> None:
    """By them a statement ends early, a text has no such character, and nothing is written."""
    store, role = Postgresql(postgresql, schema), f"role_{schema}"
    store.execute("CREATE TABLE t (id BIGINT, name TEXT)")
    store.execute(f"CREATE ROLE {role} SUPERUSER LOGIN PASSWORD 'x'")
    for setting in (
        "statement_timeout = '5s'",
        "default_transaction_read_only = on",
        "client_encoding = 'latin1'",
    ):
        store.execute(f"ALTER ROLE {role} SET {setting}")
    store.url = re.sub(r"//[^@/]*@", f"//{role}:x@", store.url)
    of = target(store)
    try:
        connection = of.open()
        assert connection.query("SHOW statement_timeout") == [("0",)]
        connection.close()
        bring(of, pa.record_batch([[1], ["€"]], SCHEMA))
        assert store.execute("SELECT name FROM t") == [("€",)]
    finally:
        store.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


@pytest.mark.parametrize("kind", [DuckDb, Maria])
def test_a_key_that_changes_under_a_session_stops_the_flush(
    kind: type[Store], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """MariaDB would take any unique index for the key, or add a row a second time without one."""
    if kind is Maria:
        fixtures = map(request.getfixturevalue, ("mariadb", "database"))
        store: Store = Maria(*fixtures)
        changes = {
            "ALTER TABLE t DROP PRIMARY KEY": "no unique index now",
            "ALTER TABLE t ADD PRIMARY KEY (name)": r"by the primary key \(name\) now",
            "ALTER TABLE t DROP PRIMARY KEY, ADD PRIMARY KEY (id), ADD UNIQUE u (name)": r"u \(name\) now",
        }
    else:
        store = DuckDb(tmp_path)
        changes = {"CREATE UNIQUE INDEX u ON t (name)": r"u \(name\) now"}
    store.execute(TABLE.format(key=", PRIMARY KEY (id)"))
    of = target(store, mode="upsert")
    plan = agreed(of)
    for change, said in changes.items():
        store.execute(change)
        with of.connect(change[-20:]) as session:
            create(session, change[-20:])
            with pytest.raises(SchemaMismatch, match=f"its key was id, .*{said}"):
                deliver(session, plan, Slice(0, pa.record_batch([[1], ["x"]], SCHEMA), 0))
    assert store.execute("SELECT * FROM t") == []


@pytest.mark.parametrize("kind", [Sqlite, DuckDb])
def test_a_file_that_is_replaced_under_a_session_takes_no_row(
    tmp_path: Path, kind: type[Sqlite | DuckDb]
) -> None:
    """Rows in the open one, which has no name any more, would be lost, and trimmed from the log."""
    store = kind(tmp_path)
    store.execute(TABLE.format(key=""))
    if kind is Sqlite:
        store.execute("PRAGMA journal_mode = WAL")  # without it SQLite finds that out, at a write
    of = target(store)
    plan = agreed(of)
    store.path.with_suffix(".backup").write_bytes(store.path.read_bytes())
    rows = Slice(0, pa.record_batch([[1], ["x"]], SCHEMA), 0)
    with of.connect("query") as session:
        create(session, "query")
        store.path.with_suffix(".backup").replace(store.path)
        with pytest.raises(TargetUnavailable, match="another file than the one that was opened"):
            deliver(session, plan, rows)


@pytest.mark.parametrize("kind", [Sqlite, DuckDb, Maria])
def test_a_database_without_the_ledger_is_named_as_another_one(
    kind: type[Store], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """A query that is started with the URL of another database has its plan: none is made there."""
    store = made(kind, tmp_path, request)
    store.execute(TABLE.format(key=""))
    with target(store).connect("query") as session:
        words = "wal_sink_ledger cannot be read: .*\n.*another database than this query wrote to"
        with pytest.raises(TargetRefused, match=words):
            row_of(session)


def test_a_server_that_replicates_by_statement_is_refused(mariadb: MariaDb, database: str) -> None:
    """A replica may take other rows than the server has."""
    store = Maria(mariadb, database)
    store.execute(TABLE.format(key=""))
    mariadb.execute("SET GLOBAL binlog_format = 'STATEMENT'")
    try:
        with pytest.raises(SchemaMismatch, match="replicates by statement"):
            agreed(target(store))
    finally:
        mariadb.execute("SET GLOBAL binlog_format = 'MIXED'")
    agreed(target(store))


def test_autocommit_is_refused(mariadb: MariaDb, database: str) -> None:
    """Rows would be there without the ledger."""
    store = Maria(mariadb, database)
    store.execute(TABLE.format(key=""))
    with pytest.raises(SchemaMismatch, match="autocommit"):
        agreed(target(store, "?autocommit=true"))


def test_a_dirty_read_is_not_inherited(mariadb: MariaDb, database: str) -> None:
    """An epoch that is not committed must not be read: its rows would be trimmed, and may be lost."""
    store = Maria(mariadb, database)
    store.execute(TABLE.format(key=""))
    mariadb.execute("SET GLOBAL TRANSACTION ISOLATION LEVEL READ UNCOMMITTED")
    try:
        of = target(store)
        plan = agreed(of)
        with of.connect("query") as session, of.connect("query") as other:
            seen = create(session, "query")
            assert isinstance(session, SqlSession)
            session.write(plan, Slice(0, pa.record_batch([[1], ["x"]], SCHEMA), 0))
            assert session._ledger.replace(seen, following(seen), session._lock_id)
            assert store.execute("SELECT epoch FROM wal_sink_ledger") == [(0,)], "no dirty read"
            assert row_of(other) == seen
    finally:
        mariadb.execute("SET GLOBAL TRANSACTION ISOLATION LEVEL REPEATABLE READ")


@pytest.mark.parametrize("scheme", ["mysql", "mariadb"])
def test_what_the_server_bounds(mariadb: MariaDb, database: str, scheme: str) -> None:
    """A stalled flusher gives the ledger row back, whatever the URL of a MariaDB begins with."""
    store = Maria(mariadb, database)
    store.execute(TABLE.format(key=""))
    if isinstance(mariadb, MySql):  # it bounds no transaction, but a silent connection
        assert bounds(store, "@@wait_timeout") == [(600,)]
        return
    store.url = store.url.replace("mysql", scheme, 1)
    mariadb.execute("SET GLOBAL max_statement_time = 100")
    try:
        found = bounds(store, "@@idle_transaction_timeout, @@max_statement_time, @@wait_timeout")
    finally:
        mariadb.execute("SET GLOBAL max_statement_time = 0")
    assert found == [(60, 0.0, 28_800)]


def test_a_commit_to_sqlite_survives_a_power_loss(tmp_path: Path) -> None:
    """Its folder is synced when the journal is deleted: the level EXTRA."""
    store = Sqlite(tmp_path)
    with contextlib.closing(target(store).open()) as connection:
        assert connection.query("PRAGMA synchronous") == [(3,)]


def bounds(store: Store, names: str) -> list[Any]:
    """Return settings of a flusher's connection."""
    with contextlib.closing(target(store).open()) as connection:
        found: list[Any] = connection.query(f"SELECT {names}")
        return found


def test_a_ledger_that_takes_capitals_for_small_letters_is_refused(
    mariadb: MariaDb, database: str
) -> None:
    """As MariaDB's default collation does."""
    store = Maria(mariadb, database)
    store.execute(TABLE.format(key=""))
    agreed(target(store))
    text = "CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci"
    store.execute(f"ALTER TABLE wal_sink_ledger {text}")
    with pytest.raises(SchemaMismatch, match="without upper and lower case"):
        agreed(target(store))


def test_a_column_that_does_not_hold_every_text_is_refused(mariadb: MariaDb, database: str) -> None:
    """A row with a character that it lacks would stop the flush."""
    mariadb.execute(
        "CREATE TABLE t (id BIGINT, name VARCHAR(20) CHARACTER SET latin1)", database=database
    )
    with pytest.raises(SchemaMismatch, match=r"varchar\(20\) of character set latin1"):
        agreed(target(Maria(mariadb, database)))


def test_a_type_that_sqlalchemy_does_not_know(mariadb: MariaDb, database: str) -> None:
    """A column of it stands beside others, and is named where the DataFrame has it."""
    store = Maria(mariadb, database)
    type_ = "vector(3)" if isinstance(mariadb, MySql) else "point"
    store.execute(f"CREATE TABLE t (id BIGINT, name TEXT, other {type_})")
    agreed(target(store))
    with pytest.raises(SchemaMismatch, match=f"table's type is {type_[:5]}.*cannot be written"):
        agreed(target(store), SCHEMA.append(pa.field("other", pa.string())))


def test_a_zero_stays_one_under_auto_increment(mariadb: MariaDb, database: str) -> None:
    """MariaDB would make the next number of it, a new row each time."""
    store = Maria(mariadb, database)
    store.execute("CREATE TABLE t (id BIGINT AUTO_INCREMENT PRIMARY KEY, name TEXT)")
    bring(target(store, mode="upsert"), pa.record_batch([[0, 0], ["a", "b"]], SCHEMA))
    assert store.execute("SELECT id, name FROM t") == [(0, "b")]


def test_keys_are_equal_as_duckdb_says(tmp_path: Path) -> None:
    """By collation and type of the table: of two rows of a key the last one stays, and a delete finds it."""
    store = DuckDb(tmp_path)
    store.execute(
        "CREATE TABLE t (id UUID, name VARCHAR COLLATE NOCASE, v INT, PRIMARY KEY (id, name))"
    )
    of = target(store, mode="upsert", operation_column="op")
    schema = pa.schema(
        [("id", pa.string()), ("name", pa.string()), ("v", pa.int32()), ("op", pa.string())]
    )
    small = "abcdefab-0000-0000-0000-000000000000"
    keys = [(small, "a"), (small.upper(), "A"), (small, "gone"), (small.upper(), "GONE")] * 50
    rows = [(*key, v, "upsert") for v, key in enumerate(keys)] + [
        (small.upper(), "Gone", None, "delete")
    ]
    bring(of, pa.record_batch([*zip(*rows, strict=True)], schema))
    assert store.execute("SELECT v FROM t") == [(197,)]


# --- a table that is made ---


@pytest.mark.parametrize("kind", ["sqlite", "duckdb", "mariadb"])
def test_a_table_is_made(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """From the DataFrame's schema; a check shows it, and makes nothing."""
    if kind == "mariadb":
        store: Store = Maria(
            request.getfixturevalue("mariadb"), request.getfixturevalue("database")
        )
    else:
        store = Sqlite(tmp_path) if kind == "sqlite" else DuckDb(tmp_path)
    partitions = "id" if kind == "mariadb" else ""
    made: dict[str, Any] = {
        "create_table": True,
        "key_columns": "id,name",
        "partition_columns": partitions,
    }
    of = target(store, mode="upsert", **made)
    schema = pa.schema(
        [
            *SCHEMA,
            ("at", pa.timestamp("us", "UTC")),
            ("day", pa.date32()),
            ("small", pa.int8()),
            ("yes", pa.bool_()),
            ("real", pa.float32()),
            ("double", pa.float64()),
            ("bytes", pa.binary()),
            *([] if kind == "sqlite" else [("price", pa.decimal128(9, 2))]),
        ]
    )
    shown = of.dry_plan(schema, "key")
    assert "PRIMARY KEY" in shown.creates
    with pytest.raises(Exception, match=r"t'|table"):  # there is none
        store.execute("SELECT * FROM t")
    plan = of.plan(schema, "key")
    assert [(c.name, c.role) for c in plan.columns] == [(c.name, c.role) for c in shown.columns]
    assert of.plan(schema, "key") == plan
    row = {name: [None] for name in schema.names} | {"id": [1], "name": ["x"], "yes": [True]}
    for _ in range(2):
        with of.connect("query") as session:
            create(session, "query")
            batch = of.check(pa.record_batch(row, schema=schema), plan)
            deliver(session, plan, Slice(0, batch, 0))
    assert [tuple(each) for each in store.execute("SELECT id, name, yes FROM t")] == [(1, "x", 1)]


def test_partitions_are_made_where_they_can_be_had(tmp_path: Path) -> None:
    """SQLite has none."""
    with pytest.raises(OptionError, match="makes no partitions in SQLite"):
        target(Sqlite(tmp_path), create_table=True, partition_columns="id")


def test_columns_without_a_type_come_with_their_casts(tmp_path: Path) -> None:
    """As a chain that can be pasted, with which the table can be made."""
    columns = [("id", pa.int64()), ("cost", pa.decimal128(10, 2)), ("tags", pa.list_(pa.string()))]
    with pytest.raises(SchemaMismatch) as caught:
        agreed(target(Sqlite(tmp_path), create_table=True), pa.schema(columns))
    assert caught.value.what == (
        "SQLite has no type for cost (decimal(10,2)), tags (array<string>)."
    )
    chain = (
        '.withColumn("cost", F.col("cost").cast("string")).withColumn("tags", F.to_json("tags"))'
    )
    assert caught.value.remedy == f"Make texts of them in the DataFrame: {chain}."


# --- options ---


def test_a_refused_connection_names_the_options_to_correct(tmp_path: Path) -> None:
    """A file that is no database stands for a wrong password: the driver's error comes the same way."""
    (tmp_path / "a.db").write_bytes(b"no database" * 1_000)
    with pytest.raises(OptionError, match=r"sql at sqlite:.*a\.db refuses: ") as caught:
        agreed(target(Sqlite(tmp_path)))
    assert "Correct sql.url or sql.password (or WAL_SINK_SQL_PASSWORD)" in caught.value.remedy


DROPPING = {
    "sqlite": (
        "CREATE TRIGGER odd BEFORE INSERT ON t WHEN NEW.id % 2 BEGIN SELECT RAISE(IGNORE); END",
    ),
    "postgresql": (
        """CREATE FUNCTION odd() RETURNS trigger LANGUAGE plpgsql AS
        'BEGIN RETURN CASE WHEN NEW.id % 2 = 0 THEN NEW END; END'""",
        "CREATE TRIGGER odd BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION odd()",
    ),
    "mariadb": (),
}
"""What lets a table drop odd rows without an error; nothing does in MariaDB."""


@pytest.mark.parametrize(("mode", "key"), [("append", ""), ("upsert", ", PRIMARY KEY (id)")])
@pytest.mark.parametrize("kind", DROPPING)
def test_a_table_that_drops_rows_without_an_error_is_warned_of(
    kind: str,
    mode: str,
    key: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Once, with the count; a table that takes all is not."""
    store: Store = Sqlite(tmp_path)
    if kind == "postgresql":
        store = Postgresql(request.getfixturevalue("postgresql"), request.getfixturevalue("schema"))
    if kind == "mariadb":
        store = Maria(request.getfixturevalue("mariadb"), request.getfixturevalue("database"))
    store.execute(TABLE.format(key=key))
    rows = pa.record_batch([pa.array(range(4), pa.int64()), pa.array("abcd")], SCHEMA)
    for ledger_table in ("first", "second"):
        bring(target(store, mode=mode, ledger_table=ledger_table), rows)
    assert "says nothing of the others" not in caplog.text
    for statement in DROPPING[kind]:
        store.execute(statement)
    bring(target(store, mode=mode, ledger_table="third"), rows)
    assert caplog.text.count("has added 2 of 4 rows") == bool(DROPPING[kind])


def test_the_password_is_kept_apart_from_the_url() -> None:
    """It is in no log, and comes from the environment, too."""
    given = {"sql.url": "mysql+pymysql://me:s%40cret@db:3306/shop", "table": "t"}
    options = parse(given, SqlAlchemyOptions)
    assert (options.url, options.password) == ("mysql+pymysql://me@db:3306/shop", "s@cret")
    assert "s@cret" not in str(public(options)) + repr(options)
    of = SqlAlchemyTarget(options)
    assert pickle.loads(pickle.dumps(of)).options == options


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("shop.db", "not a URL of a database"),
        ("snowflake://me@there/db", "not known whether a window"),
        ("sqlite://", "in memory"),
        ("duckdb:///:memory:", "in memory"),
        ("duckdb:///:memory:shop", "in memory"),
        ("sqlite:///file:shop?mode=memory&cache=shared&uri=true", "in memory"),
        ("sqlite:///shop.db", "relative to the folder"),
        ("mssql+pyodbc://db/shop?odbc_connect=x", "parameter odbc_connect"),
        ("postgresql://me@db/shop?password=x", "parameter password"),
    ],
)
def test_a_url_that_cannot_be_used_is_refused(url: str, said: str) -> None:
    """Before anything connects, and without a secret in the error."""
    with pytest.raises(OptionError, match=said):
        SqlAlchemyOptions(url=url, table="t")


@pytest.mark.parametrize(
    ("url", "driver", "package", "scheme"),
    [
        ("mssql+pymssql://me@db/shop", "pymssql", "pyodbc", "mssql+pyodbc://"),
        ("mysql://me@db/shop", "MySQLdb", "pymysql", "mysql+pymysql://"),
    ],
)
def test_a_driver_that_is_missing_is_named(
    url: str, driver: str, package: str, scheme: str
) -> None:
    """With a package that exists, and the URL for it."""
    options = SqlAlchemyOptions(url=url, table="t")
    with pytest.raises(OptionError, match=f"driver {driver} is not installed") as caught:
        SqlAlchemyTarget(options).plan(SCHEMA, "key")
    assert f"pip install '{package}'" in caught.value.remedy
    assert scheme in caught.value.remedy


def test_a_file_takes_no_password_of_another_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The variable is there for MariaDB in the same process, and SQLAlchemy refuses it for SQLite."""
    monkeypatch.setenv("WAL_SINK_SQL_PASSWORD", "of MariaDB")
    store = Sqlite(tmp_path)
    store.execute(TABLE.format(key=""))
    agreed(target(store))


def test_a_file_of_duckdb_is_open_in_transactions_alone(tmp_path: Path) -> None:
    """Else Spark's planner, another process, makes no plan beside a flusher: a query did not start again."""
    store = DuckDb(tmp_path)
    store.execute(TABLE.format(key=""))
    of = target(store)
    elsewhere = (
        f"import duckdb; print(duckdb.connect({str(store.path)!r}).sql('FROM t').fetchall())"
    )

    def read() -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", elsewhere]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    plan = agreed(of)
    with of.connect("query") as session:
        create(session, "query")
        deliver(session, plan, Slice(0, pa.record_batch([[1], ["x"]], SCHEMA), 0))
        assert read().stdout == "[(1, 'x')]\n"
        session.write(plan, Slice(1, pa.record_batch([[2], ["y"]], SCHEMA), 0))
        assert "Could not set lock" in read().stderr


def test_a_lock_of_duckdb_is_waited_for(tmp_path: Path) -> None:
    """Another process has the file open, for a moment."""
    store = DuckDb(tmp_path)
    store.execute(TABLE.format(key=""))
    opened = f"import duckdb, time; c = duckdb.connect({str(store.path)!r})"
    hold = f"{opened}; print(1, flush=True); time.sleep(1)"
    for timeout, passes in ((0.1, False), (20, True)):
        with subprocess.Popen([sys.executable, "-c", hold], stdout=subprocess.PIPE) as other:
            assert other.stdout is not None
            other.stdout.readline()
            of = target(store, lock_timeout=timeout)
            with contextlib.nullcontext() if passes else pytest.raises(TargetUnavailable):
                agreed(of)


def test_a_lock_is_waited_for_and_passes(tmp_path: Path) -> None:
    """Another process writes to the file."""
    store = Sqlite(tmp_path)
    store.execute(TABLE.format(key=""))
    of = target(store, lock_timeout=0.05)
    agreed(of)
    other = sqlite3.connect(store.path)
    other.execute("BEGIN IMMEDIATE")
    try:
        with pytest.raises(TargetUnavailable, match="database is locked"):
            agreed(of)
    finally:
        other.close()
    agreed(of)

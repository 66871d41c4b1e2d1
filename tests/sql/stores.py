"""The databases of these tests, without the code under test; and the targets that write to them."""

from __future__ import annotations

import contextlib
import sqlite3
import uuid
from abc import abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
import sqlalchemy as sa

from tests.sql.mariadb import MariaDb
from wal_sink.demo.postgresql import Server
from wal_sink.model.plan import Plan, plan_key
from wal_sink.targets.base import RowSlice, Session, Target
from wal_sink.targets.postgresql import PostgresqlOptions, PostgresqlTarget
from wal_sink.targets.sql.keyed_target import KeyedTarget
from wal_sink.targets.sqlalchemy import SqlAlchemyOptions, SqlAlchemyTarget
from wal_sink.testing.contracts.ledger import create
from wal_sink.testing.contracts.rows import deliver

APPEND = "CREATE TABLE t (k VARCHAR(50), n INTEGER, v BIGINT, t TEXT, d DOUBLE PRECISION)"
KEYED = "CREATE TABLE t (k VARCHAR(50) NOT NULL, n INTEGER NOT NULL, v BIGINT, t TEXT, PRIMARY KEY (n, k))"


class Store:
    """A database for one test."""

    url: str

    def target(self, parameters: str = "", **options: Any) -> KeyedTarget:
        """Return a target of table `t`."""
        of_table: dict[str, Any] = {"table": "t", "lock_timeout": 1} | options
        return SqlAlchemyTarget(SqlAlchemyOptions(url=self.url + parameters, **of_table))

    @abstractmethod
    def execute(self, sql: str) -> list[Any]:
        """Run a statement by the driver, and return its rows."""

    def paste(self, sql: str) -> None:
        """Run a statement exactly as it is."""
        self.execute(sql)

    def refuse_long(self) -> None:
        """Let the database refuse new rows with a long text in `t.t`."""
        raise NotImplementedError

    def accept_long(self) -> None:
        """Let the database accept long texts again."""
        raise NotImplementedError


class Sqlite(Store):
    """A file of SQLite."""

    def __init__(self, path: Path) -> None:
        self.path = path / "a.db"
        self.url = f"sqlite:///{self.path}"

    def execute(self, sql: str) -> list[Any]:
        connection = sqlite3.connect(self.path)
        try:
            with connection:
                return connection.execute(sql).fetchall()
        finally:
            connection.close()

    def refuse_long(self) -> None:
        self.execute(
            "CREATE TRIGGER IF NOT EXISTS short BEFORE INSERT ON t WHEN length(NEW.t) > 4000"
            " BEGIN SELECT RAISE(ABORT, 'too long'); END"
        )

    def accept_long(self) -> None:
        self.execute("DROP TRIGGER IF EXISTS short")


class DuckDb(Store):
    """A file of DuckDB."""

    def __init__(self, path: Path) -> None:
        self.path = path / "a.duckdb"
        self.url = f"duckdb:///{self.path}"

    def execute(self, sql: str) -> list[Any]:
        connection = duckdb.connect(str(self.path))
        try:
            rows: list[Any] = connection.execute(sql).fetchall()
            return rows
        finally:
            connection.close()


class Maria(Store):
    """A database of a MariaDB server."""

    def __init__(self, server: MariaDb, database: str) -> None:
        self.server, self.database = server, database
        self.url = server.url(database)

    def execute(self, sql: str) -> list[Any]:
        if sql.startswith("CREATE TABLE"):
            sql = sql.replace(" TEXT", " LONGTEXT") + " CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
        return self.server.execute(sql, database=self.database)

    def paste(self, sql: str) -> None:
        self.server.execute(sql, database=self.database)

    def refuse_long(self) -> None:
        self.accept_long()
        self.execute(
            "CREATE TRIGGER short BEFORE INSERT ON t FOR EACH ROW IF length(NEW.t) > 4000 THEN"
            " SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'too long'; END IF"
        )

    def accept_long(self) -> None:
        self.execute("DROP TRIGGER IF EXISTS short")


class Postgresql(Store):
    """A schema of a PostgreSQL server."""

    def __init__(self, server: Server, schema: str) -> None:
        self.server, self.schema = server, schema
        self.url = server.uri

    def target(self, parameters: str = "", **options: Any) -> KeyedTarget:
        name = options.pop("table", "t")
        table = name if "." in name else f"{self.schema}.{name}"
        of_table: dict[str, Any] = {"uri": self.url + parameters, "lock_timeout": 1} | options
        return PostgresqlTarget(PostgresqlOptions(table=table, **of_table))

    def execute(self, sql: str) -> list[Any]:
        return self.server.execute(f"SET search_path = {self.schema}; {sql}")

    def refuse_long(self) -> None:
        self.accept_long()
        self.execute("ALTER TABLE t ADD CONSTRAINT short CHECK (length(t) < 4000) NOT VALID")

    def accept_long(self) -> None:
        self.execute("ALTER TABLE t DROP CONSTRAINT IF EXISTS short")


sa.dialects.registry.register(
    "unknown.psycopg", "sqlalchemy.dialects.postgresql.psycopg", "PGDialect_psycopg"
)


class Unknown(Postgresql):
    """A database without a dialect of its own: PostgreSQL under another name."""

    def __init__(self, server: Server, schema: str) -> None:
        super().__init__(server, schema)
        uri = server.uri.replace("postgresql://", "unknown+psycopg://")
        self.url = f"{uri}?options=-csearch_path%3D{schema}%20-clock_timeout%3D1000"

    target = Store.target


STORES = [
    Sqlite,
    DuckDb,
    pytest.param(Maria, marks=pytest.mark.mariadb),
    pytest.param(Postgresql, marks=pytest.mark.postgresql),
]
"""The kinds of databases, as parameters of a test or a fixture."""


def new_store(kind: Any, request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Make a database of a kind."""
    if kind is Maria:
        return Maria(request.getfixturevalue("mariadb"), request.getfixturevalue("database"))
    if issubclass(kind, Postgresql):
        return kind(request.getfixturevalue("postgresql"), request.getfixturevalue("schema"))
    return kind(tmp_path)


SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
TABLE = "CREATE TABLE t (id BIGINT NOT NULL, name VARCHAR(20){key})"
ROW = RowSlice(0, pa.record_batch([[1], ["x"]], SCHEMA), 0)


def agreed(target: Target, schema: pa.Schema = SCHEMA) -> Plan:
    """Return the plan of a start."""
    return target.plan(schema, plan_key(schema, target.name, target.shape))


@contextlib.contextmanager
def new_query(target: Target) -> Iterator[Session]:
    """Open the session of a new query, and create its ledger row."""
    query_id = uuid.uuid4().hex
    with target.connect(query_id) as session:
        create(session, query_id)
        yield session


def bring(target: Target, *batches: pa.RecordBatch) -> None:
    """Bring batches of one schema into the table, as one window of a new query."""
    plan = agreed(target, batches[0].schema)
    with new_query(target) as session:
        deliver(session, plan, *(RowSlice(0, target.check(rows, plan), 0) for rows in batches))

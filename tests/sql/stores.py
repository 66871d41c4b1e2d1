"""The databases of these tests: each is asked by its driver alone, beside the target."""

from __future__ import annotations

import sqlite3
from abc import abstractmethod
from pathlib import Path
from typing import Any

import duckdb

from tests.sql.mariadb import MariaDb
from wal_sink.demo.servers.postgresql import Server

APPEND = "CREATE TABLE t (k VARCHAR(50), n INTEGER, v BIGINT, t TEXT, d DOUBLE PRECISION)"
KEYED = "CREATE TABLE t (k VARCHAR(50) NOT NULL, n INTEGER NOT NULL, v BIGINT, t TEXT, PRIMARY KEY (n, k))"


class Store:
    """A database for one test."""

    url: str

    @abstractmethod
    def execute(self, sql: str) -> list[Any]:
        """Run a statement by the driver alone."""

    def paste(self, sql: str) -> None:
        """Run a statement as it is."""
        self.execute(sql)

    @abstractmethod
    def refuse_long(self) -> None:
        """Refuse new rows whose text is long; a table in which there are some stays."""

    @abstractmethod
    def take_long(self) -> None:
        """Take them again."""


class Sqlite(Store):
    """A file."""

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

    def take_long(self) -> None:
        self.execute("DROP TRIGGER IF EXISTS short")


class DuckDb(Store):
    """A file."""

    def __init__(self, path: Path) -> None:
        self.path = path / "a.duckdb"
        self.url = f"duckdb:///{self.path}"

    def execute(self, sql: str) -> list[Any]:
        connection = duckdb.connect(str(self.path))
        try:
            found: list[Any] = connection.execute(sql).fetchall()
            return found
        finally:
            connection.close()

    def refuse_long(self) -> None:
        self._remake(", CHECK (length(t) <= 4000))")

    def take_long(self) -> None:
        self._remake(")")

    def _remake(self, end: str) -> None:
        """Make the table anew: DuckDB neither adds a constraint to a table, nor has triggers."""
        self.execute(
            "UPDATE t SET t = 'was long' WHERE length(t) > 4000; ALTER TABLE t RENAME TO was;"
            f" {APPEND.removesuffix(')')}{end}; INSERT INTO t SELECT * FROM was; DROP TABLE was"
        )


class Maria(Store):
    """A database of the server."""

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
        self.take_long()
        self.execute(
            "CREATE TRIGGER short BEFORE INSERT ON t FOR EACH ROW IF length(NEW.t) > 4000 THEN"
            " SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'too long'; END IF"
        )

    def take_long(self) -> None:
        self.execute("DROP TRIGGER IF EXISTS short")


class Postgresql(Store):
    """A schema of the server."""

    def __init__(self, server: Server, schema: str) -> None:
        self.server, self.schema = server, schema
        uri = server.uri.replace("postgresql://", "postgresql+psycopg://")
        self.url = f"{uri}?options=-csearch_path%3D{schema}"

    def execute(self, sql: str) -> list[Any]:
        return self.server.execute(f"SET search_path = {self.schema}; {sql}")

    def refuse_long(self) -> None:
        self.take_long()
        self.execute("ALTER TABLE t ADD CONSTRAINT short CHECK (length(t) <= 4000) NOT VALID")

    def take_long(self) -> None:
        self.execute("ALTER TABLE t DROP CONSTRAINT IF EXISTS short")

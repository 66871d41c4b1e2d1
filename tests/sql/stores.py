"""The databases of these tests: each is asked by its driver alone, beside the target."""

from __future__ import annotations

import sqlite3
from abc import abstractmethod
from pathlib import Path
from typing import Any

import duckdb

from tests.sql.mariadb import MariaDb
from wal_sink.testing.servers.postgresql import Server

APPEND = "CREATE TABLE t (k VARCHAR(50), n INTEGER, v BIGINT, t TEXT, d DOUBLE PRECISION)"
KEYED = "CREATE TABLE t (k VARCHAR(50) NOT NULL, n INTEGER NOT NULL, v BIGINT, t TEXT, PRIMARY KEY (n, k))"


class Store:
    """A database for one test."""

    url: str

    @abstractmethod
    def execute(self, sql: str) -> list[Any]:
        """Run a statement by the driver alone."""


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


class Maria(Store):
    """A database of the server."""

    def __init__(self, server: MariaDb, database: str) -> None:
        self.server, self.database = server, database
        self.url = server.url(database)

    def execute(self, sql: str) -> list[Any]:
        if sql.startswith("CREATE TABLE"):
            sql = sql.replace(" TEXT", " LONGTEXT") + " CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
        return self.server.execute(sql, database=self.database)


class Postgresql(Store):
    """A schema of the server."""

    def __init__(self, server: Server, schema: str) -> None:
        self.server, self.schema = server, schema
        uri = server.uri.replace("postgresql://", "postgresql+psycopg://")
        self.url = f"{uri}?options=-csearch_path%3D{schema}"

    def execute(self, sql: str) -> list[Any]:
        return self.server.execute(f"SET search_path = {self.schema}; {sql}")

"""The parts about SQL databases: wal_sink and JDBC in `foreachBatch`, append and upsert."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql.streaming.readwriter import DataStreamWriter

from tests.benchmarks.bench import Bench
from tests.benchmarks.figure import Figure, Target, at_least
from tests.benchmarks.figures.spark_sinks import OURS, Way, figures, rounds
from tests.benchmarks.rows import Source
from tests.sql.mariadb import MariaDb
from wal_sink.demo.servers.postgresql import Server
from wal_sink.demo.servers.process import Child

QUARANTINE, SQL = "wal_sink, quarantine", "wal_sink, target=sql"
JDBC, TUNED = "JDBC", "JDBC, rewritten"


class Database(NamedTuple):
    """A database in its own server."""

    title: str
    server: Child
    execute: Callable[[str], list[tuple[int, ...]]]
    """Runs a statement in its own transaction, and returns its rows."""
    types: Mapping[str, str]
    """The database's types, by CQL type."""
    ours: Mapping[str, Mapping[str, str]]
    """The options of wal_sink's targets, by contender."""
    jdbc: Mapping[str, str]
    """The options of Spark's JDBC writer."""
    rewritten: Mapping[str, str]
    """Options with which the JDBC driver sends many rows in one statement."""
    merge: str
    """The end of a statement that replaces the row of a key."""
    change: str
    """The assignment of a column in that statement."""
    settle: str = "SELECT 1"
    """A statement that writes cached pages to disk, so that the next table does not pay for them."""

    def writer(self, mode: str, name: str) -> Callable[[DataFrame, str], DataStreamWriter]:
        """Return a function that writes a stream to a table by wal_sink."""
        options = {**self.ours[name], f"{self.ours[name]['target']}.mode": mode}
        return lambda rows, table: rows.writeStream.format("wal_sink").options(
            **options, table=table
        )

    def by_jdbc(
        self, mode: str, settings: Mapping[str, str]
    ) -> Callable[[DataFrame, str], DataStreamWriter]:
        """Return a function that writes a stream to a table by `foreachBatch` and JDBC."""

        def write(rows: DataFrame, table: str) -> DataStreamWriter:
            names = ", ".join(rows.columns)
            changes = ", ".join(
                self.change.format(column) for column in rows.columns if column != "id"
            )

            def save(batch: DataFrame, into: str, how: str) -> None:
                writer = batch.write.format("jdbc").options(**self.jdbc, **settings, dbtable=into)
                writer.option("truncate", "true").mode(how).save()

            def append(batch: DataFrame, _epoch: int) -> None:
                save(batch, table, "append")

            def upsert(batch: DataFrame, _epoch: int) -> None:
                save(batch, f"staged_{table}", "overwrite")
                self.execute(
                    f"INSERT INTO {table} ({names}) SELECT {names} FROM staged_{table}"
                    f" {self.merge} {changes}"
                )

            return rows.writeStream.foreachBatch(upsert if mode == "upsert" else append)

        return write


def postgresql(bench: Bench) -> list[Figure]:
    """Compare `target=postgresql` with JDBC, and with itself with quarantine."""
    with Server({"max_wal_size": "4GB"}) as server:
        uri = {"target": "postgresql", "postgresql.uri": server.uri}
        database = Database(
            "PostgreSQL",
            server,
            server.execute,
            {"text": "text", "bigint": "bigint", "timestamp": "timestamptz"},
            {
                OURS: uri,
                QUARANTINE: {**uri, "onInvalidRow": "quarantine"},
            },
            {
                "url": f"jdbc:postgresql://{server.host}:{server.port}/postgres",
                "driver": "org.postgresql.Driver",
                "user": "postgres",
                "password": server.password,
            },
            {"reWriteBatchedInserts": "true"},
            "ON CONFLICT (id) DO UPDATE SET",
            "{0} = EXCLUDED.{0}",
            "CHECKPOINT",
        )
        return _compare(
            bench,
            database,
            [
                (OURS, JDBC, at_least(3)),
                (OURS, TUNED, at_least(3)),
                (QUARANTINE, OURS, None),
            ],
        )


def mariadb(bench: Bench) -> list[Figure]:
    """Compare `target=sql` with JDBC."""
    settings = ("--innodb-log-file-size=1G", "--innodb-buffer-pool-size=1G")
    with MariaDb(*settings, "--innodb-flush-log-at-trx-commit=1") as server:
        server.execute("CREATE DATABASE bench CHARACTER SET utf8mb4")
        # Spark quotes names for MySQL where the URL is one of MySQL; else MariaDB takes them for texts.
        database = Database(
            "MariaDB",
            server,
            lambda sql: server.execute(sql, database="bench"),
            {"text": "varchar(255)", "bigint": "bigint", "timestamp": "datetime(6)"},
            {SQL: {"target": "sql", "sql.url": server.url("bench")}},
            {
                "url": f"jdbc:mysql://{server.host}:{server.port}/bench?permitMysqlScheme",
                "driver": "org.mariadb.jdbc.Driver",
                "user": "root",
                "password": "",
            },
            {"useBulkStmts": "true"},
            "ON DUPLICATE KEY UPDATE",
            "{0} = VALUES({0})",
        )
        return _compare(bench, database, [(SQL, JDBC, None), (SQL, TUNED, None)])


def _compare(
    bench: Bench, database: Database, pairs: list[tuple[str, str, Target | None]]
) -> list[Figure]:
    """Return rows a second and CPU of the first contender of each pair, divided by those of the second.

    :param pairs: (ours, other, target of the rows a second).
    """
    source = Source(shape="grouped", rows=bench.sizes.scattered)
    typed = ", ".join(f"{name} {database.types[kind]}" for name, kind in source.columns.items())

    def make(table: str) -> None:
        key = ", PRIMARY KEY (id)" if table.startswith("upsert") else ""
        database.execute(f"CREATE TABLE {table} ({typed}{key})")
        database.execute(f"CREATE TABLE staged_{table} ({typed})")
        database.execute(database.settle)

    def wrong(table: str) -> str | None:
        query = f"SELECT count(*), coalesce(sum(id), 0), coalesce(sum(amount), 0) FROM {table}"
        result = tuple(map(int, database.execute(query)[0]))
        return None if result == source.totals() else f"{result}, not {source.totals()}"

    figured = []
    for mode in ("append", "upsert"):
        ways = [Way(name, database.writer(mode, name)) for name in database.ours]
        ways += [
            Way(JDBC, database.by_jdbc(mode, {})),
            Way(TUNED, database.by_jdbc(mode, database.rewritten)),
        ]
        found_rows = rounds(bench, source, database.server, mode, ways, make, wrong)
        for ours, other, target in pairs:
            title = f"{database.title}, {mode}, {ours}"
            figured += figures(title, found_rows, other, target, ours=ours)
    return figured

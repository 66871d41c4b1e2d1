"""The parts about SQL databases: wal_sink and JDBC in `foreachBatch`, append and upsert."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql.streaming.readwriter import DataStreamWriter

from tests.benchmarks.bench import Bench
from tests.benchmarks.contenders.contender import Contender, Store
from tests.benchmarks.contenders.ours import NAME
from tests.benchmarks.figure import Figure, Target, at_least
from tests.benchmarks.figures.rounds import rounds
from tests.benchmarks.figures.spark_sinks import figures, sink
from tests.benchmarks.rows import COLUMNS, Source
from tests.benchmarks.table import RowsWrong
from tests.sql.mariadb import MariaDb
from wal_sink.demo.postgresql import Server
from wal_sink.demo.server import Child

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

    def sink(self, mode: str, name: str) -> Contender:
        """Return wal_sink as a contender."""
        options = {**self.ours[name], f"{self.ours[name]['target']}.mode": mode}
        return sink(lambda table: {**options, "table": table}, name)

    def by_jdbc(self, name: str, mode: str, settings: Mapping[str, str]) -> Contender:
        """Return JDBC in `foreachBatch` as a contender; an upsert uses a staging table."""

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

        return Contender(name, write)


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
                NAME: uri,
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
                (NAME, JDBC, at_least(3)),
                (NAME, TUNED, at_least(3)),
                (QUARANTINE, NAME, None),
            ],
        )


def mariadb(bench: Bench) -> list[Figure]:
    """Compare `target=sql` with JDBC."""
    settings = ("--innodb-log-file-size=1G", "--innodb-buffer-pool-size=1G")
    with MariaDb(*settings, "--innodb-flush-log-at-trx-commit=1") as server:
        server.execute("CREATE DATABASE bench CHARACTER SET utf8mb4")
        # Spark quotes names as MySQL does only for a URL of MySQL; MariaDB takes other quotes for texts.
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
    typed = ", ".join(f"{name} {database.types[kind]}" for name, kind in COLUMNS.items())

    def make(mode: str) -> str:
        table = bench.new_name(mode)
        key = ", PRIMARY KEY (id)" if mode == "upsert" else ""
        database.execute(f"CREATE TABLE {table} ({typed}{key})")
        database.execute(f"CREATE TABLE staged_{table} ({typed})")
        database.execute(database.settle)
        return table

    def check(table: str, source: Source) -> None:
        query = f"SELECT count(*), coalesce(sum(id), 0), coalesce(sum(amount), 0) FROM {table}"
        totals = tuple(map(int, database.execute(query)[0]))
        if totals != source.totals():
            raise RowsWrong(f"{table} has {totals}, not {source.totals()}")

    measured = []
    for mode in ("append", "upsert"):
        store = Store(
            f"{database.title}, {mode}", partial(make, mode), check, server=database.server
        )
        contenders = [database.sink(mode, name) for name in database.ours]
        contenders += [
            database.by_jdbc(JDBC, mode, {}),
            database.by_jdbc(TUNED, mode, database.rewritten),
        ]
        result = rounds(bench, store, source, contenders, bench.sizes.side_rounds)
        for ours, other, target in pairs:
            measured += figures(f"{store.title}, {ours}", result, other, target, ours=ours)
    return measured

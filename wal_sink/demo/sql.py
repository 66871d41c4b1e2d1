"""SQLite in the demo. The query with `foreachBatch` appends its rows by `to_sql` of pandas."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import sqlalchemy
from pyspark.sql import DataFrame

from wal_sink.demo.pauses import Pausing
from wal_sink.demo.queries import Query
from wal_sink.demo.stores import FileStore
from wal_sink.targets.sqlalchemy import SqlAlchemyTarget


class PausingSql(Pausing, SqlAlchemyTarget):
    """A SQL database with pauses."""


class Sql(FileStore):
    """SQLite as a store. Each table has its own file, since a file has one writer, and writers pause."""

    target, title = "sql", "SQLite"

    def options(self, table: str) -> Mapping[str, str]:
        """Return the options of the sink for a table."""
        return {
            "sql.url": self._url(table),
            "table": table,
            "createTable": "true",
        }

    def write(self, batch: DataFrame, table: str) -> None:
        """Append a micro-batch in a transaction. A repeated micro-batch is appended twice."""
        engine = self._engine(table)
        rows: Any = batch.toPandas()
        rows.to_sql(table, engine, if_exists="append", index=False)
        engine.dispose()

    def count(self, table: str) -> int:
        """Count the rows of a table."""
        with self._engine(table).connect() as connection:
            if not sqlalchemy.inspect(connection).has_table(table):
                return 0
            rows = sqlalchemy.select(sqlalchemy.func.count()).select_from(sqlalchemy.table(table))
            return int(connection.execute(rows).scalar_one())

    def rows(self, query: Query) -> Iterable[Sequence[Any]]:
        """Return the rows of the query's table."""
        with self._engine(query.table).connect() as connection:
            table = sqlalchemy.Table(query.table, sqlalchemy.MetaData(), autoload_with=connection)
            columns = [table.columns[name] for name in query.columns]
            return [tuple(row) for row in connection.execute(sqlalchemy.select(*columns))]

    def _url(self, table: str) -> str:
        return f"sqlite:///{self.address}/{table}.db"

    def _engine(self, table: str) -> Any:
        return sqlalchemy.create_engine(self._url(table), poolclass=sqlalchemy.pool.NullPool)

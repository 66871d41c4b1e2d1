"""Iceberg tables in the demo: a SQL catalog in a file. The control appends by pyiceberg."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pyiceberg.catalog import Catalog, load_catalog
from pyspark.sql import DataFrame

from wal_sink.demo.pauses import Pausing
from wal_sink.demo.queries import Query
from wal_sink.demo.stores import FileStore
from wal_sink.targets.iceberg import IcebergTarget

_CATALOG = "demo"
"""The name of the catalog. A SQL catalog finds a table only under the name with which it was made."""


class PausingIceberg(Pausing, IcebergTarget):
    """Iceberg with pauses."""


class Iceberg(FileStore):
    """Iceberg tables as a store. A repeated micro-batch of the control is a second snapshot."""

    target, title = "iceberg", "Apache Iceberg"

    def create(self) -> None:
        """Make the catalog and the namespace."""
        self._catalog().create_namespace("demo")

    def options(self, table: str) -> Mapping[str, str]:
        """Return the options of the sink for a table."""
        catalog = {f"iceberg.catalog.{name}": value for name, value in self._properties.items()}
        return {
            "table": f"demo.{table}",
            "createTable": "true",
            "iceberg.catalog.name": _CATALOG,
            **catalog,
        }

    def write(self, batch: DataFrame, table: str) -> None:
        """Append a micro-batch."""
        rows = batch.toArrow()
        self._catalog().create_table_if_not_exists(f"demo.{table}", rows.schema).append(rows)

    def count(self, table: str) -> int:
        """Count the rows of a table."""
        catalog = self._catalog()
        if not catalog.table_exists(f"demo.{table}"):
            return 0
        return int(catalog.load_table(f"demo.{table}").scan().count())

    def rows(self, query: Query) -> Iterable[Sequence[Any]]:
        """Return the rows of the query's table."""
        scan = self._catalog().load_table(f"demo.{query.table}").scan()
        table = scan.to_arrow().select(query.columns)
        return zip(*(column.to_pylist() for column in table.columns), strict=True)

    @property
    def _properties(self) -> dict[str, str]:
        return {
            "type": "sql",
            "uri": f"sqlite:///{self.address}/catalog.db",
            "warehouse": f"file://{self.address}",
        }

    def _catalog(self) -> Catalog:
        return load_catalog(_CATALOG, **self._properties)

"""Delta tables in the demo: local folders. The control appends by delta-rs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from deltalake import DeltaTable, write_deltalake
from pyspark.sql import DataFrame

from wal_sink.demo.pauses import Pausing
from wal_sink.demo.queries import Query
from wal_sink.demo.stores import FileStore
from wal_sink.targets.delta import DeltaTarget


class PausingDelta(Pausing, DeltaTarget):
    """Delta Lake with pauses."""


class Delta(FileStore):
    """Delta tables as a store. A repeated micro-batch of the control is a second commit."""

    target, title = "delta", "Delta Lake"

    def options(self, table: str) -> Mapping[str, str]:
        """Return the options of the sink for a table."""
        return {
            "delta.path": self._path(table),
            "createTable": "true",
        }

    def write(self, batch: DataFrame, table: str) -> None:
        """Append a micro-batch."""
        write_deltalake(self._path(table), batch.toArrow(), mode="append")

    def count(self, table: str) -> int:
        """Count the rows of a table."""
        if not DeltaTable.is_deltatable(self._path(table)):
            return 0
        return int(DeltaTable(self._path(table)).to_pyarrow_dataset().count_rows())

    def rows(self, query: Query) -> Iterable[Sequence[Any]]:
        """Return the rows of the query's table."""
        table = DeltaTable(self._path(query.table)).to_pyarrow_table(columns=list(query.columns))
        return zip(*(column.to_pylist() for column in table.columns), strict=True)

    def _path(self, table: str) -> str:
        return f"{self.address}/{table}"

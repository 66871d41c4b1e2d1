"""The options of a `cell_store`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from msgspec import Meta

from wal_sink.targets.cassandra.row_options import RowOptions
from wal_sink.targets.cassandra.totals.given import totals_shape
from wal_sink.targets.cassandra.types.absent import absent_shape
from wal_sink.targets.cassandra.types.collection_mode import modes_shape
from wal_sink.targets.cassandra.types.write_mode import mode_shape
from wal_sink.targets.operations import operation_shape


class CellStoreOptions(RowOptions, frozen=True, kw_only=True):
    """Options of the in-memory target."""

    keys: Annotated[
        str,
        Meta(description="key columns, comma-separated; of several tables with semicolons between"),
    ]
    columns: Annotated[
        str, Meta(description="of several tables the columns of each, in the same way")
    ] = ""
    lists: Annotated[
        str, Meta(description="columns that are lists, and not frozen, comma-separated")
    ] = ""
    nulls: Annotated[str, Meta(description="unset keeps an older value, write clears it")] = "unset"

    @property
    def shape(self) -> Mapping[str, str]:
        """What shapes what is written, see `Target.shape`."""
        tables = {"tables": self.tables, "columns": self.columns, "tableColumn": self.table_column}
        return {
            "keys": self.keys,
            "nulls": self.nulls,
            **({"lists": self.lists} if self.lists else {}),
            **operation_shape(self.operation_column, self.words),
            **self.times.shape,
            **mode_shape(self.write_mode),
            **modes_shape(self.changes),
            **absent_shape(self.if_not_exists),
            **totals_shape(self.add_columns),
            **(tables if self.tables else {}),
        }

"""The options of a `cell_store`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec
from msgspec import Meta

from wal_sink.options import Options
from wal_sink.targets.cassandra.times.given import (
    EVENT_COLUMN,
    EXPIRES_COLUMN,
    TTL,
    TTL_COLUMN,
    EventColumn,
    ExpiresColumn,
    RowTimes,
    Ttl,
    TtlColumn,
)
from wal_sink.targets.cassandra.types.write_mode import WriteMode
from wal_sink.targets.operations import Operation, OperationColumn, Operations, read_words
from wal_sink.targets.tables import TableColumn, Tables


class CellStoreOptions(Options, frozen=True, kw_only=True):
    """Options of the in-memory target."""

    keys: Annotated[
        str,
        Meta(description="key columns, comma-separated; of several tables with semicolons between"),
    ]
    columns: Annotated[
        str, Meta(description="of several tables the columns of each, in the same way")
    ] = ""
    tables: Tables = ""
    table_column: TableColumn = msgspec.field(name="tableColumn", default="")
    nulls: Annotated[str, Meta(description="unset keeps an older value, write clears it")] = "unset"
    operation_column: OperationColumn = msgspec.field(name="operationColumn", default="")
    operations: Operations = msgspec.field(name="operations", default="")

    write_mode: WriteMode = msgspec.field(name="cassandra.writeMode", default="insert")
    ttl: Ttl = msgspec.field(name=TTL, default=None)
    ttl_column: TtlColumn = msgspec.field(name=TTL_COLUMN, default="")
    expires_column: ExpiresColumn = msgspec.field(name=EXPIRES_COLUMN, default="")
    event_column: EventColumn = msgspec.field(name=EVENT_COLUMN, default="")

    @property
    def times(self) -> RowTimes:
        """What is said of the times of rows."""
        return RowTimes(
            ttl_s=self.ttl,
            ttl_column=self.ttl_column,
            expires_column=self.expires_column,
            event_column=self.event_column,
        )

    @property
    def words(self) -> Mapping[str, Operation]:
        """What each word of the operation column means."""
        return read_words(self.operation_column, self.operations)

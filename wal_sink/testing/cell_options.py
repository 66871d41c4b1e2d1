"""The options of a `cell_store`."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from wal_sink.targets.cassandra.row_options import RowOptions


class CellStoreOptions(RowOptions, frozen=True, kw_only=True):
    """Options of the in-memory target."""

    keys: Annotated[
        str,
        Meta(description="key columns, comma-separated; of several tables with semicolons between"),
    ]
    columns: Annotated[
        str, Meta(description="of several tables the columns of each, in the same way")
    ] = ""
    nulls: Annotated[str, Meta(description="unset keeps an older value, write clears it")] = "unset"

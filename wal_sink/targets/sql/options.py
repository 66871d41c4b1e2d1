"""The options that every SQL target has."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from wal_sink.options import Options


class SqlOptions(Options, frozen=True, kw_only=True):
    """The base of a SQL target's options, which add where to connect."""

    table: Annotated[
        str,
        Meta(
            min_length=1, description="table that rows are added to, such as orders or shop.orders"
        ),
    ]
    # A target declares it again under its own name, such as postgresql.ledgerTable.
    ledger_table: Annotated[
        str,
        Meta(
            min_length=1,
            description="table with one row for each query, in the same database; created if it is missing",
        ),
    ] = msgspec.field(name="ledgerTable", default="wal_sink_ledger")

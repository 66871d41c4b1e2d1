"""Names in CQL: always quoted in statements, so that reserved words and capitals mean themselves."""

from __future__ import annotations

import re
from typing import NamedTuple

from wal_sink.targets.names import did_you_mean, quote

__all__ = ["TableName", "did_you_mean", "is_table_name", "quote"]


class TableName(NamedTuple):
    """The exact names of a table and its keyspace, unquoted, as `system_schema` has them."""

    keyspace: str
    table: str

    def __str__(self) -> str:
        """Quote both, as they stand in statements, plans and errors."""
        return f"{quote(self.keyspace)}.{quote(self.table)}"


def is_table_name(name: str) -> bool:
    """Whether Cassandra allows the name for a keyspace or a table; columns may be called anything."""
    return re.fullmatch(r"[A-Za-z0-9_]{1,222}", name) is not None

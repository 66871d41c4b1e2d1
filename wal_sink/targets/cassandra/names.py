"""Names in CQL: always quoted in statements, so that reserved words and capitals mean themselves."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import NamedTuple


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


def quote(name: str) -> str:
    """Quote an identifier; its case is kept."""
    return '"' + name.replace('"', '""') + '"'


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a sentence that suggests the known name nearest to `name`; empty when none is near."""
    known = sorted(known)
    for other in known:
        if other.lower() == name.lower():
            return f"There is {other}, which differs in upper and lower case only: names are exact."
    by_lower = {other.lower(): other for other in known}
    found = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
    return f"Did you mean {by_lower[found[0]]}?" if found else ""

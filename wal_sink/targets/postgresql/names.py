"""Names in PostgreSQL: always quoted in statements, so that reserved words and capitals mean themselves."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import NamedTuple, Self

DEFAULT_SCHEMA = "public"
MAX_BYTES = 63
"""Of a name; the server cuts longer ones off."""


class TableName(NamedTuple):
    """The exact names of a table and its schema, unquoted, as `pg_catalog` has them."""

    schema: str
    table: str

    def __str__(self) -> str:
        """Quote both, as they stand in statements, plans and errors."""
        return f"{quote(self.schema)}.{quote(self.table)}"

    @classmethod
    def parse(cls, text: str, schema: str = DEFAULT_SCHEMA) -> Self:
        """Read `table` or `schema.table`.

        :param schema: where the text names none.
        """
        named, dot, table = text.partition(".")
        return cls(named, table) if dot else cls(schema, text)


def is_name(name: str) -> bool:
    """Whether PostgreSQL keeps the name as it is."""
    return 0 < len(name.encode()) <= MAX_BYTES and "\0" not in name


def quote(name: str) -> str:
    """Quote an identifier; its case is kept."""
    return '"' + name.replace('"', '""') + '"'


def listed(names: Iterable[str]) -> str:
    """Quote identifiers, as statements list them."""
    return ", ".join(map(quote, names))


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a sentence that suggests the known name nearest to `name`; empty when none is near."""
    known = sorted(known)
    for other in known:
        if other.lower() == name.lower():
            return f"There is {other}, which differs in upper and lower case only: names are exact."
    by_lower = {other.lower(): other for other in known}
    found = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
    return f"Did you mean {by_lower[found[0]]}?" if found else ""

"""Names in PostgreSQL: always quoted in statements, so that reserved words and capitals mean themselves."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Self

from wal_sink.targets.names import did_you_mean, quote

__all__ = [
    "DEFAULT_SCHEMA",
    "MAX_BYTES",
    "TableName",
    "did_you_mean",
    "is_name",
    "listed",
    "quote",
]

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


def listed(names: Iterable[str]) -> str:
    """Quote identifiers, as statements list them."""
    return ", ".join(map(quote, names))

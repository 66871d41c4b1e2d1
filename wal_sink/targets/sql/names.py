"""Names of tables and columns: which table is meant, and which names are too long for a database. No I/O."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Self

from wal_sink.model.codec import digest
from wal_sink.targets.columns import does_not_fit
from wal_sink.targets.names import quote


class TableName(NamedTuple):
    """The exact names of a table and its schema; an empty one: where the connection looks by itself."""

    schema: str
    table: str

    def __str__(self) -> str:
        """Quote them by the SQL standard."""
        return ".".join(quote(part) for part in self if part)

    @classmethod
    def parse(cls, text: str, schema: str = "") -> Self:
        """Read `table` or `schema.table`.

        :param schema: where the text names none.
        """
        named, dot, table = text.partition(".")
        return cls(named, table) if dot else cls(schema, text)


class Longest(NamedTuple):
    """The longest name of a table or a column that a database takes."""

    most: int = 2**31
    unit: str = "characters"
    """Or bytes: of UTF-8."""

    def __str__(self) -> str:
        return f"{self.most} {self.unit}"

    def size(self, name: str) -> int:
        """Return how long a name is."""
        return len(name.encode()) if self.unit == "bytes" else len(name)

    def cut(self, name: str, end: str = "") -> str:
        """Return a name of the longest size at most, which ends so."""
        most = self.most - len(end)
        if self.unit == "bytes":
            return name.encode()[:most].decode(errors="ignore") + end
        return name[:most] + end


def refuse_long_names(names: Iterable[str], longest: Longest, table: str, title: str) -> None:
    """Refuse columns whose names the database refuses, or cuts: two of them may then be the same.

    :param title: of the database.
    :raises SchemaMismatch: with a line for each, which has a shorter name.
    """
    problems = []
    for name in names:
        if longest.size(name) > longest.most:
            shorter = longest.cut(name, f"_{digest(name.encode())[:6]}")
            problems.append(
                f"{name}: the name is longer than {longest}, the most that {title} takes. Rename it,"
                f' .withColumnRenamed("{name}", "{shorter}").'
            )
    if problems:
        raise does_not_fit(table, problems)

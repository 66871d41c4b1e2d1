"""What a database cannot take: names that are too long, and rows that are too wide. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from wal_sink.errors import SchemaMismatch
from wal_sink.model.codec import digest
from wal_sink.targets.columns import does_not_fit


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


ROW_BYTES = 8_160
"""Of a row of PostgreSQL in its table: a page of 8 kB. A value of a length that varies may lie elsewhere."""
HEAD_BYTES = 24
_WIDTHS: Mapping[str, int] = {
    **dict.fromkeys(("bigint", "double precision", "time without time zone"), 8),
    **dict.fromkeys(("timestamp with time zone", "timestamp without time zone", "timestamp"), 8),
    **dict.fromkeys(("integer", "real", "date"), 4),
    "smallint": 2,
    "boolean": 1,
    "uuid": 16,
    "interval": 16,
}


def fixed_bytes(words: str) -> int | None:
    """Return how many bytes a value of PostgreSQL has in its row; None: its length varies.

    :param words: the type.
    """
    return None if words.endswith("[]") else _WIDTHS.get(words.partition("(")[0].strip())


def refuse_wide_row(types: Iterable[str], table: str) -> None:
    """Refuse a table of PostgreSQL that can take no row in which all columns have a value.

    :param types: of the columns that are written.
    :raises SchemaMismatch: their values of fixed length alone are longer than a page.
    """
    widths = [fixed_bytes(words) or 0 for words in types]
    total = HEAD_BYTES + sum(widths)
    if total > ROW_BYTES:
        raise SchemaMismatch(
            f"A row of {table} has {total:,} bytes in {sum(map(bool, widths)):,} columns of fixed length, and"
            f" PostgreSQL takes {ROW_BYTES:,} bytes (a page): it would refuse every row without nulls.",
            'Put columns of one type together into an array, .withColumn("v", F.array("a", "b", …)), and drop'
            " them; or write to two tables.",
        )

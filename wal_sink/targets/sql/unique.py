"""Unique indexes of a table: which one decides what a row replaces, and which could refuse a row. No I/O."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from wal_sink.errors import SchemaMismatch
from wal_sink.model.plan import Column
from wal_sink.targets.sql_text import quote


class Unique(NamedTuple):
    """A unique index, also of a primary key or a constraint."""

    name: str
    columns: tuple[str, ...]
    """In the index's order; of one on expressions some or none."""
    plain: bool = True
    """On whole columns alone, of all rows, and checked at once: it can decide what a row replaces."""
    dropped_by: str = ""
    """The statement that drops it; empty where none is known."""

    @property
    def text(self) -> str:
        """The index as errors name it."""
        part = [] if self.plain else ["by a part or an expression, or deferrable"]
        return f"{self.name} ({', '.join([*self.columns, *part])})"

    @property
    def drop(self) -> str:
        """What to run or drop."""
        return self.dropped_by or f"{self.name}."


def upsert_key(
    table: object, unique: Sequence[Unique], columns: Sequence[Column], mode: str
) -> Unique:
    """Return the index whose columns decide which row is replaced: the primary key, or the only one.

    An index on expressions, on the beginning of a text, or of some rows only decides nothing. Every other one
    would find another row, or refuse the row.

    :param unique: those of the table, the primary key first.
    :param columns: of the plan.
    :param mode: the option, such as `sql.mode`.
    :raises SchemaMismatch: there is none, or several; or one of its columns is not in the DataFrame.
    """
    key = next((index for index in unique if index.plain), None)
    others = [index for index in unique if index is not key]
    listed = ", ".join(index.text for index in others)
    if key is None:
        raise SchemaMismatch(
            f"{table} has no primary key, by which {mode} = upsert finds the row to replace."
            + (f" These do not serve: {listed}." if others else ""),
            f"Give it one; or set {mode} to append.",
        )
    written = {column.in_table for column in columns}
    missing = [name for name in key.columns if name not in written]
    if others:
        raise SchemaMismatch(
            f"{table} has more than one unique index: {key.text} finds the row to replace, and {listed}"
            " would find another one, or refuse the row.",
            _own_table(table, others[0], columns)
            if missing
            else f"Drop the others: {' '.join(index.drop for index in others)}",
        )
    if missing:
        raise SchemaMismatch(
            f"{', '.join(missing)}: in the key of {table} and not in the DataFrame.",
            "Add it to the DataFrame, or make a key of columns that it has.",
        )
    return key


def refuse_unique(
    table: object, unique: Sequence[Unique], columns: Sequence[Column], mode: str
) -> None:
    """Refuse to append where a unique index could refuse a row: a task cannot know, and the flush would stop.

    An index with a column that the DataFrame lacks, such as a number that the database counts, refuses
    nothing.

    :param columns: of the plan.
    :param mode: the option, such as `sql.mode`.
    :raises SchemaMismatch: there is such an index.
    """
    written = {column.in_table for column in columns}
    for index in unique:
        if written >= {*index.columns}:
            works = len(unique) == 1 and index.plain
            raise SchemaMismatch(
                f"{table} is unique by {index.text}: a second row of the same key would be refused by the"
                " server, and stop the flush.",
                f"Set {mode} to upsert, which replaces the row of the key; or drop the index: {index.drop}"
                if works
                else f"{_own_table(table, index, columns)} Or drop the index: {index.drop}",
            )


def _own_table(table: object, index: Unique, columns: Sequence[Column]) -> str:
    """Return how the rows get into a table whose only key is that of an index."""
    listed = ", ".join(_as_pasted(column.in_table) for column in columns)
    new, key = f"{table}_rows", ", ".join(map(_as_pasted, index.columns))
    made = f"CREATE TABLE {new} AS SELECT {listed} FROM {table} WHERE 1 = 0;"  # noqa: S608 -- to read
    return (
        f"Write to a table of its own, whose only key is that of {index.name}, with option table={new} and"
        f" mode upsert: {made} ALTER TABLE {new} ADD PRIMARY KEY ({key});"
    )


def _as_pasted(name: str) -> str:
    """Return a name as every database takes it: MariaDB quotes by other signs, where a quote is needed."""
    return name if re.fullmatch("[a-z_][a-z0-9_]*", name) else quote(name)


def changes_of_key(key: Sequence[str], unique: Sequence[Unique]) -> Sequence[str]:
    """Return how a table's unique indexes differ from the one that `upsert_key` took."""
    if len(unique) == 1 and unique[0].plain and {*unique[0].columns} == {*key}:
        return ()
    now = ", ".join(index.text for index in unique)
    now = f"is unique by {now}" if unique else "has no unique index"
    return [f"its key was {', '.join(key)}, and it {now} now"]

"""Unique indexes of a table: which one decides what a row replaces, and which could refuse a row. No I/O."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import NamedTuple

from wal_sink.errors import SchemaMismatch
from wal_sink.model.plan import Column
from wal_sink.targets.names import quote


class Unique(NamedTuple):
    """A unique index, also of a primary key or a constraint."""

    name: str
    columns: tuple[str, ...]
    """In the index's order; of one on expressions some or none."""
    primary: bool = False
    plain: bool = True
    """On whole columns alone, of all rows, and checked at once: it can decide what a row replaces."""
    schema: str = ""
    table: str = ""
    """The table, quoted, or the one of its partitions that alone has the index; empty where no statement of
    the database is known that drops one."""

    @property
    def text(self) -> str:
        """As errors name it."""
        parts = [
            *self.columns,
            *([] if self.plain else ["by a part or an expression, or deferrable"]),
        ]
        return f"{self.name}{self.table and f' of {self.table}'} ({', '.join(parts)})"

    @property
    def drop(self) -> str:
        """The statement that drops it; or its name, where that is another one in each database."""
        if not self.table:
            return f"{self.name}."
        constraint = f"ALTER TABLE {self.table} DROP CONSTRAINT"
        if self.primary:
            return f"{constraint} {quote(self.name)};"
        return (
            f"DROP INDEX {quote(self.schema)}.{quote(self.name)}; (of a constraint: {constraint})"
        )


_UNFIT = "of some rows alone, by an expression or another collation, or deferrable"
"""Why an index is not plain."""


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
    if key is None:
        unfit = ", ".join(index.text for index in unique)
        raise SchemaMismatch(
            f"{table} has no primary key, by which {mode} = upsert finds the row to replace."
            + (f" These do not serve: {unfit} ({_UNFIT})." if unfit else ""),
            f"Give it one; or set {mode} to append.",
        )
    others = [index for index in unique if index is not key]
    written = {column.in_table for column in columns}
    if others and not written >= {*key.columns}:
        raise SchemaMismatch(
            f"{table} has more than one unique index: {key.text} would find the row to replace, and the"
            f" DataFrame does not have all of its columns; {', '.join(index.text for index in others)} would"
            " refuse a row.",
            _own_table(table, others[0], columns),
        )
    if others:
        raise SchemaMismatch(
            f"{table} has more than one unique index: {key.text} finds the row to replace, and"
            f" {', '.join(index.text for index in others)} would find another one, or refuse the row.",
            f"Drop the others: {' '.join(index.drop for index in others)}",
        )
    if missing := [name for name in key.columns if name not in written]:
        raise SchemaMismatch(
            f"{', '.join(missing)}: in the key of {table} and not in the DataFrame.",
            "Add it to the DataFrame, or make a key of columns that it has.",
        )
    return key


def refuse_unique(
    table: object,
    unique: Sequence[Unique],
    columns: Sequence[Column],
    filled: Collection[str],
    mode: str,
) -> None:
    """Refuse to append where a unique index could refuse a row: a task cannot know, and the flush would stop.

    An index with a column that the database fills in, such as a number of its own, refuses nothing.

    :param columns: of the plan.
    :param filled: the columns that the database fills in, where a row has none.
    :param mode: the option, such as `sql.mode`.
    :raises SchemaMismatch: there is such an index.
    """
    free = {*filled} - {column.name for column in columns}
    for index in unique:
        if not free & {*index.columns}:
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


def changes_of_key(
    key: Sequence[str], unique: Sequence[Unique], *, alone: bool = False
) -> Sequence[str]:
    """Return how a table's unique indexes differ from the one that `upsert_key` took.

    :param alone: whether an upsert takes any unique index for the key, and not the one that it names.
    """
    same = [index.plain and {*index.columns} == {*key} for index in unique]
    if (all(same) and len(same) == 1) or (any(same) and not alone):
        return ()
    now = (
        f"is unique by {', '.join(index.text for index in unique)}"
        if unique
        else "has no unique index"
    )
    return [f"its key was {', '.join(key)}, and it {now} now"]

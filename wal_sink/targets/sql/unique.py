"""Unique indexes of a table: the index that is the key of an upsert, and indexes that refuse rows. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from wal_sink.errors import SchemaMismatch
from wal_sink.model.plan import Column


class Unique(NamedTuple):
    """A unique index, which may belong to a primary key or a constraint."""

    name: str
    columns: tuple[str, ...]
    """The columns in the order of the index; expressions are left out."""
    plain: bool = True
    """True if the index can be the key of an upsert: it has whole columns only, covers all rows, and is
    checked at once."""
    dropped_by: str = ""
    """The statement that drops the index; empty if it is not known."""

    @property
    def text(self) -> str:
        """The index with its columns, for errors."""
        part = [] if self.plain else ["by a part or an expression, or deferrable"]
        return f"{self.name} ({', '.join([*self.columns, *part])})"

    @property
    def drop(self) -> str:
        """The statement that drops the index, or its name."""
        return self.dropped_by or f"{self.name}."


def upsert_key(
    table: str,
    unique: Sequence[Unique],
    columns: Sequence[Column],
    mode: str,
    quote: Callable[[str], str],
) -> Unique:
    """Return the key of an upsert: the primary key, or the only unique index.

    A second unique index would refuse rows, or an upsert would replace the row that this index finds.

    :param unique: the unique indexes of the table, the primary key first.
    :param columns: the columns of the plan.
    :param mode: the name of the option, such as `sql.mode`.
    :param quote: quotes a name as the database does.
    :raises SchemaMismatch: the table has no such index, or several; or the DataFrame lacks one of its
        columns.
    """
    key = next((index for index in unique if index.plain), None)
    others = [index for index in unique if index is not key]
    listed = ", ".join(index.text for index in others)
    if key is None:
        raise SchemaMismatch(
            f"{table} has no primary key, by which {mode} = upsert finds the row to replace."
            + (f" These unique indexes cannot be the key: {listed}." if others else ""),
            f"Give the table a primary key; or set {mode} to append.",
        )
    written = {column.in_table for column in columns}
    missing = [name for name in key.columns if name not in written]
    if others:
        raise SchemaMismatch(
            f"{table} has more than one unique index: {key.text} finds the row to replace, and {listed}"
            " would find another one, or refuse the row.",
            _own_table(table, others[0], columns, mode, quote)
            if missing
            else f"Drop the others: {' '.join(index.drop for index in others)}",
        )
    if missing:
        raise SchemaMismatch(
            f"Columns of the key of {table} are not in the DataFrame: {', '.join(missing)}.",
            "Add them to the DataFrame, or make a key of columns that the DataFrame has.",
        )
    return key


def refuse_unique_for_append(
    table: str,
    unique: Sequence[Unique],
    columns: Sequence[Column],
    mode: str,
    quote: Callable[[str], str],
) -> None:
    """Refuse to append to a table with a unique index on columns of the DataFrame: it could refuse a row.

    An index with a column that the DataFrame lacks is accepted: the database fills the column, such as with
    the next number.

    :param columns: the columns of the plan.
    :param mode: the name of the option, such as `sql.mode`.
    :param quote: quotes a name as the database does.
    :raises SchemaMismatch: the table has such an index.
    """
    written = {column.in_table for column in columns}
    for index in unique:
        if written >= {*index.columns}:
            is_key = len(unique) == 1 and index.plain
            raise SchemaMismatch(
                f"{table} is unique by {index.text}: a second row of the same key would be refused by the"
                " server, and stop the flush.",
                f"Set {mode} to upsert, which replaces the row of the key; or drop the index: {index.drop}"
                if is_key
                else f"{_own_table(table, index, columns, mode, quote)}Or drop the index: {index.drop}",
            )


def _own_table(
    table: str,
    index: Unique,
    columns: Sequence[Column],
    mode: str,
    quote: Callable[[str], str],
) -> str:
    """Return the remedy to write to another table, which has only this index."""
    *schema, name = table.split(".")
    former, new = (".".join(map(quote, [*schema, last])) for last in (name, f"{name}_rows"))
    listed, key = (
        ", ".join(map(quote, names))
        for names in ([column.in_table for column in columns], index.columns)
    )
    create = f"CREATE TABLE {new} AS SELECT {listed} FROM {former} WHERE 1 = 0;"  # noqa: S608 -- to read
    return (
        f"Write to a table of its own, whose only key is that of {index.name}, with option table={table}_rows"
        f" and {mode}=upsert:\n{create}\nALTER TABLE {new} ADD PRIMARY KEY ({key});\n"
    )


def changes_of_key(key: Sequence[str], unique: Sequence[Unique]) -> Sequence[str]:
    """Return how a table's unique indexes differ from the key of a plan, as clauses for an error."""
    if len(unique) == 1 and unique[0].plain and {*unique[0].columns} == {*key}:
        return ()
    now = ", ".join(index.text for index in unique)
    now = f"is unique by {now}" if unique else "has no unique index"
    return [f"its key was {', '.join(key)}, and it {now} now"]

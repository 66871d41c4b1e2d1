"""Statements that bring rows into a table by its key: of several rows of a key the last one counts. Pure.

For databases that are given many rows at once, in a temporary table or as Arrow. The server decides which
keys are equal, as its unique index does: so the columns of the rows have the table's types and collations.
"""

from __future__ import annotations

from collections.abc import Sequence

from wal_sink.targets.names import quote

ORDINAL = "wal_sink:ordinal"
"""The column of the rows with the position of each in its batch."""
DELETED = "wal_sink:deleted"
"""Their column that says whether a row is a delete, where the plan has an operation column."""


def delete(table: str, key: Sequence[str], rows: str) -> str:
    """Return the statement that deletes each key of which some row is a delete.

    Also where the last row of the key is an upsert: what comes after a delete is a new row, which has nothing
    of the old one in columns that the DataFrame lacks.

    :param table: its name, quoted, as those in `key`.
    :param rows: the query of them.
    """
    same = " AND ".join(f"there.{name} = gone.{name}" for name in key)
    return (
        f"DELETE FROM {table} AS there USING (SELECT DISTINCT {', '.join(key)} FROM ({rows}) AS staged"  # noqa: S608
        f" WHERE {quote(DELETED)}) AS gone WHERE {same}"
    )


def upsert(
    table: str, names: Sequence[str], key: Sequence[str], rows: str, *, deletes: bool
) -> str:
    """Return the statement that adds rows, or replaces those of their keys.

    :param table: its name, quoted, as those in `names` and `key`.
    :param rows: the query of them.
    :param deletes: whether they may be deletes: keys whose last row is one are left out.
    """
    listed, by = ", ".join(names), ", ".join(key)
    last = (
        f"SELECT DISTINCT ON ({by}) {'*' if deletes else listed} FROM ({rows}) AS staged"  # noqa: S608
        f" ORDER BY {by}, {quote(ORDINAL)} DESC"
    )
    if deletes:
        last = f"SELECT {listed} FROM ({last}) AS last WHERE NOT {quote(DELETED)}"  # noqa: S608
    others = [name for name in names if name not in key]
    return f"INSERT INTO {table} ({listed}) {last}{on_conflict(key, others)}"


def on_conflict(key: Sequence[str], others: Sequence[str]) -> str:
    """Return what ends an INSERT that replaces rows; all names are quoted."""
    changes = ", ".join(f"{name} = excluded.{name}" for name in others)
    return f" ON CONFLICT ({', '.join(key)}) DO {f'UPDATE SET {changes}' if changes else 'NOTHING'}"

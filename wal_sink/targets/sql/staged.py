"""Statements that bring rows into a table by its key: of several rows of a key the last one counts. Pure.

For databases that are given many rows at once, in a temporary table or as Arrow. The server decides which
keys are equal, as its unique index does: so the columns of the rows have the table's types and collations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from wal_sink.targets.names import quote

ORDINAL = "wal_sink:ordinal"
"""The column of the rows with the position of each in its batch."""
DELETED = "wal_sink:deleted"
"""Their column that says whether a row is a delete, where the plan has an operation column."""


FLAG = "wal_sink:unavailable {}"
"""Their column that says which cells of a column, by its place, are unavailable; only where some are."""


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


class PartialRows(NamedTuple):
    """Statements for rows of which some have unavailable cells."""

    write: tuple[str, ...]
    new: str
    """Counts the rows with such a cell whose key is not in the table; to be run before the others."""


def partial(
    table: str,
    names: Sequence[str],
    key: Sequence[str],
    rows: str,
    flags: Mapping[str, str],
    *,
    deletes: bool,
) -> PartialRows:
    """Return the statements that add or replace whole rows, and change others where they have values.

    An unavailable cell has the last value that a row of its key has before it, after the last delete; else
    that of the table.

    :param table: its name, quoted, as those in `names` and `key`; and `rows`, `deletes`: see `upsert`. The
        keys of deletes are deleted before.
    :param flags: by the names of some columns those of their flags in the rows, quoted.
    """
    by, ordinal = ", ".join(key), quote(ORDINAL)
    if deletes:
        gone = f"max({ordinal}) FILTER (WHERE {quote(DELETED)}) OVER (PARTITION BY {by})"
        rows = (
            f"SELECT * FROM (SELECT *, {gone} AS wal_sink_gone FROM ({rows}) AS staged) AS staged"  # noqa: S608
            f" WHERE wal_sink_gone IS NULL OR {ordinal} > wal_sink_gone"
        )
    values = [_last_value(name, flags.get(name), by) for name in names]
    values += [
        f"bool_and(staged.{flag}) OVER (PARTITION BY {by}) AS {flag}" for flag in flags.values()
    ]
    last = (
        f"(SELECT DISTINCT ON ({by}) {', '.join(values)} FROM ({rows}) AS staged"  # noqa: S608
        f" ORDER BY {by}, {ordinal} DESC) AS new"
    )
    is_partial = f"({' OR '.join(f'new.{flag}' for flag in flags.values())})"
    same = " AND ".join(f"there.{name} = new.{name}" for name in key)
    listed, others = ", ".join(names), [name for name in names if name not in key]
    changes = ", ".join(_assigned(name, flags.get(name)) for name in others)
    whole = f"INSERT INTO {table} ({listed}) SELECT {listed} FROM {last} WHERE NOT {is_partial}"  # noqa: S608
    update = f"UPDATE {table} AS there SET {changes} FROM {last} WHERE {same} AND {is_partial}"  # noqa: S608
    missing = f"NOT EXISTS (SELECT 1 FROM {table} AS there WHERE {same})"  # noqa: S608
    return PartialRows(
        (f"{whole}{on_conflict(key, others)}", update),
        f"SELECT count(*) FROM {last} WHERE {is_partial} AND {missing}",  # noqa: S608
    )


def _last_value(name: str, flag: str | None, by: str) -> str:
    if flag is None:
        return f"staged.{name}"
    order = f"staged.{flag}, staged.{quote(ORDINAL)} DESC"
    return f"first_value(staged.{name}) OVER (PARTITION BY {by} ORDER BY {order}) AS {name}"


def _assigned(name: str, flag: str | None) -> str:
    value = (
        f"new.{name}"
        if flag is None
        else f"CASE WHEN new.{flag} THEN there.{name} ELSE new.{name} END"
    )
    return f"{name} = {value}"

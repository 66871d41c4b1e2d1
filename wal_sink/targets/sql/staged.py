"""Brings rows into a table by statements that read them from a temporary table, or from Arrow.

Of several rows of a key the last one counts. The server decides which keys are equal, as its unique index
does: so the columns of the rows have the table's types and collations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from wal_sink.model.plan import Plan
from wal_sink.targets.casts import key_of
from wal_sink.targets.deletes import are_deletes
from wal_sink.targets.sql_text import quote
from wal_sink.targets.unavailable import flags_of, new_row_error

ORDINAL = "wal_sink:ordinal"
"""The column of the rows with the position of each in its batch."""
DELETED = "wal_sink:deleted"
"""Their column that says whether a row is a delete; only where one is, or where there are no rows."""
FLAG = "wal_sink:unavailable {}"
"""Their column that says which cells of a column, by its place, are unavailable; only where some are."""


class Staged(NamedTuple):
    """The rows of a batch with columns beside the table's."""

    batch: pa.RecordBatch
    added: Mapping[str, str]
    """The types of these columns, by their names."""
    flags: Mapping[str, str]
    """By columns with unavailable cells the names of their flags."""

    @property
    def deletes(self) -> bool:
        """Whether rows may be deletes."""
        return DELETED in self.added


def staged(plan: Plan, batch: pa.RecordBatch) -> Staged:
    """Return rows of the log as the statements read them."""
    rows = batch.select([column.name for column in plan.of_table().columns])
    added: dict[str, pa.Array] = {ORDINAL: pa.array(range(rows.num_rows), pa.int64())}
    if plan.operation is not None:
        deletes = are_deletes(batch.column(plan.operation))
        if not rows.num_rows or pc.any(deletes).as_py():
            added[DELETED] = deletes
    unavailable = flags_of(batch, plan)
    flags = {name: FLAG.format(place) for place, name in enumerate(unavailable)}
    added |= {flags[name]: values for name, values in unavailable.items()}
    for name, values in added.items():
        rows = rows.append_column(name, values)
    types = {name: "bigint" if name == ORDINAL else "boolean" for name in added}
    return Staged(rows, types, flags)


def write(
    cursor: Any, plan: Plan, rows: Staged, query: str, quoted: Callable[[str], str] = quote
) -> None:
    """Bring staged rows into the table.

    :param query: of the rows.
    :param quoted: quotes a name.
    :raises InvalidRow: a row with an unavailable cell is new.
    :raises Exception: of the driver.
    """
    for statement in _statements(plan, rows, query, quoted):
        cursor.execute(statement)
        if statement.startswith("SELECT") and cursor.fetchall()[0][0]:
            raise new_row_error()


def _statements(
    plan: Plan, rows: Staged, query: str, quoted: Callable[[str], str]
) -> Iterator[str]:
    """Yield the statements; a SELECT counts rows that cannot be written."""
    names = [quoted(column.name) for column in plan.of_table().columns]
    key = [quoted(name) for name in key_of(plan)]
    if not key:
        listed = ", ".join(names)
        yield f"INSERT INTO {plan.table} ({listed}) SELECT {listed} FROM ({query}) AS staged"  # noqa: S608
        return
    if rows.deletes:
        yield delete(plan.table, key, query)
        query = after_delete(key, query)
    if rows.flags:
        flags = {quoted(name): quoted(flag) for name, flag in rows.flags.items()}
        yield from partial(plan.table, names, key, query, flags)
    else:
        yield upsert(plan.table, names, key, query)


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


def after_delete(key: Sequence[str], rows: str) -> str:
    """Return the query of the rows that come after the last delete of their keys."""
    ordinal = quote(ORDINAL)
    gone = f"max({ordinal}) FILTER (WHERE {quote(DELETED)}) OVER (PARTITION BY {', '.join(key)})"
    return (
        f"SELECT * FROM (SELECT *, {gone} AS wal_sink_gone FROM ({rows}) AS staged) AS staged"  # noqa: S608
        f" WHERE wal_sink_gone IS NULL OR {ordinal} > wal_sink_gone"
    )


def upsert(table: str, names: Sequence[str], key: Sequence[str], rows: str) -> str:
    """Return the statement that adds rows, or replaces those of their keys.

    :param table: its name, quoted, as those in `names` and `key`.
    :param rows: the query of them, without deletes.
    """
    listed, by = ", ".join(names), ", ".join(key)
    last = (
        f"SELECT DISTINCT ON ({by}) {listed} FROM ({rows}) AS staged"  # noqa: S608
        f" ORDER BY {by}, {quote(ORDINAL)} DESC"
    )
    others = [name for name in names if name not in key]
    return f"INSERT INTO {table} ({listed}) {last}{on_conflict(key, others)}"


def on_conflict(key: Sequence[str], others: Sequence[str]) -> str:
    """Return what ends an INSERT that replaces rows; all names are quoted."""
    changes = ", ".join(f"{name} = excluded.{name}" for name in others)
    return f" ON CONFLICT ({', '.join(key)}) DO {f'UPDATE SET {changes}' if changes else 'NOTHING'}"


def partial(
    table: str, names: Sequence[str], key: Sequence[str], rows: str, flags: Mapping[str, str]
) -> Iterator[str]:
    """Yield the statements for rows of which some have unavailable cells: each has the last value before it.

    The first one counts the rows with such a cell whose key is not in the table. Whole rows are added or
    replaced, others change a row where they have values.

    :param table: its name, quoted, as those in `names` and `key`; and `rows`: see `upsert`.
    :param flags: by the names of some columns those of their flags in the rows, quoted.
    """
    by = ", ".join(key)
    values = [_last_value(name, flags.get(name), by) for name in names]
    values += [
        f"bool_and(staged.{flag}) OVER (PARTITION BY {by}) AS {flag}" for flag in flags.values()
    ]
    last = (
        f"(SELECT DISTINCT ON ({by}) {', '.join(values)} FROM ({rows}) AS staged"  # noqa: S608
        f" ORDER BY {by}, {quote(ORDINAL)} DESC) AS new"
    )
    is_partial = f"({' OR '.join(f'new.{flag}' for flag in flags.values())})"
    same = " AND ".join(f"there.{name} = new.{name}" for name in key)
    listed, others = ", ".join(names), [name for name in names if name not in key]
    changes = ", ".join(_assigned(name, flags.get(name)) for name in others)
    missing = f"NOT EXISTS (SELECT 1 FROM {table} AS there WHERE {same})"  # noqa: S608
    yield f"SELECT count(*) FROM {last} WHERE {is_partial} AND {missing}"  # noqa: S608
    whole = f"INSERT INTO {table} ({listed}) SELECT {listed} FROM {last} WHERE NOT {is_partial}"  # noqa: S608
    yield f"{whole}{on_conflict(key, others)}"
    yield f"UPDATE {table} AS there SET {changes} FROM {last} WHERE {same} AND {is_partial}"  # noqa: S608


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

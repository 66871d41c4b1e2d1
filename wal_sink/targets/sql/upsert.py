"""Writes rows by statements that read them from a temporary table, or from Arrow (DuckDB).

Several rows of a batch may have one key; then the last row counts. The server decides which keys are equal,
as its unique index does: the columns that the statements read have the table's types and collations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from wal_sink.model.plan import Plan
from wal_sink.targets.casts import key_of
from wal_sink.targets.cdc import are_deletes, flags_of, new_row_error
from wal_sink.targets.ddl import quote

ORDINAL = "wal_sink:ordinal"
"""The column with the position of a row in its batch."""
DELETED = "wal_sink:deleted"
"""The column that is true for a delete; left out if no row is a delete. A batch without rows has the column,
so that the batch runs every statement of its plan."""


def flag_column(position: int) -> str:
    """Return the name of the column that marks which cells of another column are unavailable.

    :param position: position of that other column among the columns with unavailable cells.
    """
    return f"wal_sink:unavailable {position}"


class SourceRows(NamedTuple):
    """The rows of a batch with added columns, such as `ORDINAL`."""

    batch: pa.RecordBatch
    added: Mapping[str, str]
    """The types of the added columns, by their names."""
    flags: Mapping[str, str]
    """The names of the `flag_column`s, by the columns with unavailable cells."""

    @property
    def deletes(self) -> bool:
        """True if the rows have the column `DELETED`: some of them may be deletes."""
        return DELETED in self.added


def source_rows(plan: Plan, batch: pa.RecordBatch) -> SourceRows:
    """Return rows of the log with the columns that the statements need."""
    rows = batch.select([column.name for column in plan.of_table().columns])
    added: dict[str, pa.Array] = {ORDINAL: pa.array(range(rows.num_rows), pa.int64())}
    if plan.operation is not None:
        deletes = are_deletes(batch.column(plan.operation))
        if not rows.num_rows or pc.any(deletes).as_py():
            added[DELETED] = deletes
    unavailable = flags_of(batch, plan)
    flags = {name: flag_column(position) for position, name in enumerate(unavailable)}
    added |= {flags[name]: values for name, values in unavailable.items()}
    for name, values in added.items():
        rows = rows.append_column(name, values)
    types = {name: "bigint" if name == ORDINAL else "boolean" for name in added}
    return SourceRows(rows, types, flags)


def write_from_query(
    cursor: Any, plan: Plan, rows: SourceRows, query: str, quoted: Callable[[str], str] = quote
) -> None:
    """Write rows into the table.

    :param query: a SELECT that reads `rows` on the server.
    :raises InvalidRow: a row has an unavailable cell, and the table has no row of its key.
    """
    for statement in _statements(plan, rows, query, quoted):
        cursor.execute(statement)
        if statement.startswith("SELECT") and cursor.fetchall()[0][0]:
            raise new_row_error()


def _statements(
    plan: Plan, rows: SourceRows, query: str, quoted: Callable[[str], str]
) -> Iterator[str]:
    """Yield the statements that write the rows. A SELECT counts rows with unavailable cells and new keys."""
    names = [quoted(column.name) for column in plan.of_table().columns]
    key = [quoted(name) for name in key_of(plan)]
    if not key:
        listed = ", ".join(names)
        yield f"INSERT INTO {plan.table} ({listed}) SELECT {listed} FROM ({query}) AS source"  # noqa: S608
        return
    if rows.deletes:
        yield delete(plan.table, key, query)
        query = after_delete(key, query)
    if rows.flags:
        flags = {quoted(name): quoted(flag) for name, flag in rows.flags.items()}
        yield from upsert_with_unavailable(plan.table, names, key, query, flags)
    else:
        yield upsert(plan.table, names, key, query)


def delete(table: str, key: Sequence[str], query: str) -> str:
    """Return the DELETE of all keys for which the batch has a delete.

    A key can have an upsert after its delete. The upsert then adds a new row, in which columns that the
    DataFrame lacks get their defaults, and not the values of the deleted row.

    :param table: quoted, as the names in `key`.
    """
    same = " AND ".join(f"existing.{name} = deleted.{name}" for name in key)
    return (
        f"DELETE FROM {table} AS existing USING (SELECT DISTINCT {', '.join(key)} FROM ({query}) AS source"  # noqa: S608
        f" WHERE {quote(DELETED)}) AS deleted WHERE {same}"
    )


def after_delete(key: Sequence[str], query: str) -> str:
    """Return a SELECT of the rows that come after the last delete of their keys."""
    ordinal = quote(ORDINAL)
    last = f"max({ordinal}) FILTER (WHERE {quote(DELETED)}) OVER (PARTITION BY {', '.join(key)})"
    return (
        f"SELECT * FROM (SELECT *, {last} AS wal_sink_last_delete FROM ({query}) AS source) AS source"  # noqa: S608
        f" WHERE wal_sink_last_delete IS NULL OR {ordinal} > wal_sink_last_delete"
    )


def upsert(table: str, names: Sequence[str], key: Sequence[str], query: str) -> str:
    """Return the statement that adds the last row of each key, or replaces the table's row of the key.

    :param table: quoted, as the names in `names` and `key`.
    :param query: a SELECT that returns the rows, without deletes.
    """
    listed, by = ", ".join(names), ", ".join(key)
    last = (
        f"SELECT DISTINCT ON ({by}) {listed} FROM ({query}) AS source"  # noqa: S608
        f" ORDER BY {by}, {quote(ORDINAL)} DESC"
    )
    others = [name for name in names if name not in key]
    return f"INSERT INTO {table} ({listed}) {last}{on_conflict(key, others)}"


def on_conflict(key: Sequence[str], others: Sequence[str]) -> str:
    """Return the end of an INSERT that replaces rows. All names are quoted."""
    changes = ", ".join(f"{name} = excluded.{name}" for name in others)
    return f" ON CONFLICT ({', '.join(key)}) DO {f'UPDATE SET {changes}' if changes else 'NOTHING'}"


def upsert_with_unavailable(
    table: str, names: Sequence[str], key: Sequence[str], query: str, flags: Mapping[str, str]
) -> Iterator[str]:
    """Yield the statements for rows with unavailable cells. All names are quoted.

    A cell that is unavailable in the last row of a key gets the last available value of the key in the batch.
    A row that then has all its values is added, or replaces the table's row. A row that still lacks values
    only changes the columns for which it has values. The first statement counts the rows that lack values and
    whose key is not in the table.

    :param flags: for each column with unavailable cells, the name of its `flag_column`.
    """
    by = ", ".join(key)
    values = [_last_value(name, flags.get(name), by) for name in names]
    values += [
        f"bool_and(source.{flag}) OVER (PARTITION BY {by}) AS {flag}" for flag in flags.values()
    ]
    last = (
        f"(SELECT DISTINCT ON ({by}) {', '.join(values)} FROM ({query}) AS source"  # noqa: S608
        f" ORDER BY {by}, {quote(ORDINAL)} DESC) AS new"
    )
    is_partial = f"({' OR '.join(f'new.{flag}' for flag in flags.values())})"
    same = " AND ".join(f"existing.{name} = new.{name}" for name in key)
    listed, others = ", ".join(names), [name for name in names if name not in key]
    changes = ", ".join(_assigned(name, flags.get(name)) for name in others)
    missing = f"NOT EXISTS (SELECT 1 FROM {table} AS existing WHERE {same})"  # noqa: S608
    yield f"SELECT count(*) FROM {last} WHERE {is_partial} AND {missing}"  # noqa: S608
    whole = f"INSERT INTO {table} ({listed}) SELECT {listed} FROM {last} WHERE NOT {is_partial}"  # noqa: S608
    yield f"{whole}{on_conflict(key, others)}"
    yield f"UPDATE {table} AS existing SET {changes} FROM {last} WHERE {same} AND {is_partial}"  # noqa: S608


def _last_value(name: str, flag: str | None, by: str) -> str:
    if flag is None:
        return f"source.{name}"
    order = f"source.{flag}, source.{quote(ORDINAL)} DESC"
    return f"first_value(source.{name}) OVER (PARTITION BY {by} ORDER BY {order}) AS {name}"


def _assigned(name: str, flag: str | None) -> str:
    value = (
        f"new.{name}"
        if flag is None
        else f"CASE WHEN new.{flag} THEN existing.{name} ELSE new.{name} END"
    )
    return f"{name} = {value}"

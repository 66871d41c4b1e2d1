"""Statements by which rows get into the table: added, replaced by key, deleted. Pure but for `write`."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import pyarrow as pa

from wal_sink.model.plan import Plan
from wal_sink.targets.arrow_values import are_deletes
from wal_sink.targets.casts import key_of
from wal_sink.targets.sql.ledger import with_values
from wal_sink.targets.sql.staged import DELETED, ORDINAL, on_conflict, upsert
from wal_sink.targets.sql.staged import delete as delete_keys
from wal_sink.targets.sqlalchemy.dialects import Dialect
from wal_sink.targets.sqlalchemy.literals import statements
from wal_sink.targets.sqlalchemy.types import driver_values

Quote = Callable[[str], str]


def write(
    connection: Any, backend: str, dialect: Dialect, quote: Quote, plan: Plan, batch: pa.RecordBatch
) -> int | None:
    """Write rows in the open transaction, in their order: of several rows of a key the last one counts.

    The server decides which keys are equal. Rows between two deletes are one `executemany`, or literals.

    :param batch: in the types of the plan, at least one row.
    :returns: how many rows at least the server says it has added or replaced; None: it does not say.
    :raises Exception: of the driver.
    """
    if backend == "duckdb":
        _write_arrow(connection, quote, plan, batch)
        return None  # it has neither triggers nor rules
    of_table = plan.of_table()
    names = [column.name for column in of_table.columns]
    for deletes, first, end in _runs(plan, batch):
        rows = batch.slice(first, end - first).select(key_of(plan) if deletes else names)
        counted = 0
        with contextlib.closing(connection.cursor()) as cursor:
            if dialect.upsert == "duplicate key" and not deletes:
                around = _around(dialect, quote, of_table)
                for text in statements(around, rows, connection.most_bytes):
                    cursor.execute(text)
                    counted += cursor.rowcount
            else:
                one = (
                    delete(dialect, quote, plan) if deletes else statement(dialect, quote, of_table)
                )
                values = (driver_values(backend, column) for column in rows.columns)
                cursor.executemany(one, list(zip(*values, strict=True)))
                counted = cursor.rowcount
    # Of MERGE a driver may count the last row alone; a delete, or a row that is all key, may change nothing.
    is_all_key = len(key_of(plan)) == len(names)
    uncounted = dialect.upsert == "merge" or plan.operation is not None or is_all_key
    return None if uncounted else int(counted)


def _runs(plan: Plan, batch: pa.RecordBatch) -> Iterator[tuple[bool, int, int]]:
    """Yield runs of rows that are all deletes, or none: whether they are, the first row, and the end."""
    if plan.operation is None:
        yield False, 0, batch.num_rows
        return
    begin = 0
    flags = are_deletes(batch.column(plan.operation)).to_pylist()
    for deletes, run in itertools.groupby(flags):
        end = begin + len(list(run))
        yield bool(deletes), begin, end
        begin = end


def statement(dialect: Dialect, quote: Quote, plan: Plan) -> str:
    """Return the statement that adds a row, or replaces the one of its key.

    :param plan: without the column that says what a row does.
    """
    names = [column.name for column in plan.columns]
    key = key_of(plan)
    others = [name for name in names if name not in key]
    if key and dialect.upsert == "merge":
        return _merge(dialect, quote, plan.table, names, key, others)
    values = ", ".join([dialect.parameter] * len(names))
    return f"({values})".join(
        with_values(each, dialect.parameter) for each in _around(dialect, quote, plan)
    )


def _around(dialect: Dialect, quote: Quote, plan: Plan) -> tuple[str, str]:
    """Return what an INSERT has before its values, and behind them."""
    names = [column.name for column in plan.columns]
    key = key_of(plan)
    before = f"INSERT INTO {plan.table} ({', '.join(map(quote, names))}) VALUES "  # noqa: S608 -- quoted
    others = [name for name in names if name not in key]
    return before, _on_duplicate(dialect.upsert, quote, key, others) if key else ""


def _on_duplicate(
    kind: Literal["conflict", "duplicate key", "merge"],
    quote: Quote,
    key: Sequence[str],
    others: Sequence[str],
) -> str:
    if kind == "duplicate key":
        changes = ", ".join(f"{quote(name)} = VALUES({quote(name)})" for name in others or key[:1])
        return f" ON DUPLICATE KEY UPDATE {changes}"
    return on_conflict([*map(quote, key)], [*map(quote, others)])


def _merge(
    dialect: Dialect,
    quote: Quote,
    table: str,
    names: Sequence[str],
    key: Sequence[str],
    others: Sequence[str],
) -> str:
    """Return a MERGE of one row: of SQL Server, with the hint that keeps two of them apart; or of Oracle."""
    oracle = dialect.parameter.startswith(":")
    row = ", ".join(f"{dialect.parameter} AS {quote(name)}" for name in names)
    same = " AND ".join(f"there.{quote(name)} = new.{quote(name)}" for name in key)
    changes = ", ".join(f"there.{quote(name)} = new.{quote(name)}" for name in others)
    listed, values = (
        ", ".join(f"{before}{quote(name)}" for name in names) for before in ("", "new.")
    )
    there, source = (
        (f"{table} there", f"(SELECT {row} FROM dual) new")  # noqa: S608 -- quoted names
        if oracle
        else (f"{table} WITH (HOLDLOCK) AS there", f"(SELECT {row}) AS new")
    )
    return (
        f"MERGE INTO {there} USING {source} ON ({same})"  # noqa: S608
        f"{f' WHEN MATCHED THEN UPDATE SET {changes}' if changes else ''}"
        f" WHEN NOT MATCHED THEN INSERT ({listed}) VALUES ({values}){'' if oracle else ';'}"
    )


def delete(dialect: Dialect, quote: Quote, plan: Plan) -> str:
    """Return the statement that deletes the row of a key."""
    same = " AND ".join(
        f"{with_values(quote(name), dialect.parameter)} = {dialect.parameter}"
        for name in key_of(plan)
    )
    return f"DELETE FROM {with_values(plan.table, dialect.parameter)} WHERE {same}"  # noqa: S608 -- quoted


# --- DuckDB, which reads Arrow as it is ---

_BATCH = "wal_sink_batch"


def _write_arrow(connection: Any, quote: Quote, plan: Plan, batch: pa.RecordBatch) -> None:
    """Write rows by statements that read the batch; keys are equal where DuckDB's index says so."""
    of_table, key = plan.of_table(), key_of(plan)
    rows = batch.select([column.name for column in of_table.columns])
    if key:
        rows = rows.append_column(ORDINAL, pa.array(range(rows.num_rows), pa.int64()))
    if plan.operation is not None:
        rows = rows.append_column(DELETED, are_deletes(batch.column(plan.operation)))
    cursor = connection.cursor()  # in whose transaction they are written
    connection.raw.register(_BATCH, rows)
    for each in arrow_statements(quote, of_table, deletes=plan.operation is not None):
        cursor.execute(each)
    # Not where it raises: nothing may come before ROLLBACK then, which forgets the batch, too.
    connection.raw.unregister(_BATCH)


def arrow_statements(quote: Quote, plan: Plan, *, deletes: bool) -> Iterator[str]:
    """Yield the statements that bring the rows of the registered batch into the table."""
    of_table = [column.name for column in plan.columns]
    names, key = ([quote(name) for name in each] for each in (of_table, key_of(plan)))
    if not key:
        listed = ", ".join(names)
        yield f"INSERT INTO {plan.table} ({listed}) SELECT {listed} FROM {_BATCH}"  # noqa: S608 -- quoted names
        return
    rows = _as_in_table(quote, plan, deletes=deletes)
    if deletes:
        yield delete_keys(plan.table, key, rows)
    yield upsert(plan.table, names, key, rows, deletes=deletes)


def _as_in_table(quote: Quote, plan: Plan, *, deletes: bool) -> str:
    """Return the query of the registered batch whose columns have the table's types and collations.

    By these two keys are equal or not: a uuid in small letters or capitals, a text without case. A collation
    comes from the table by UNION alone.
    """
    added = {ORDINAL: "BIGINT"} | ({DELETED: "BOOLEAN"} if deletes else {})
    given = [(quote(column.name), column.type) for column in plan.columns]
    cast = ", ".join(f"CAST({name} AS {type_}) AS {name}" for name, type_ in given)
    names = ", ".join(name for name, _ in given)
    none = ", ".join(f"CAST(NULL AS {type_}) AS {quote(name)}" for name, type_ in added.items())
    others = ", ".join(map(quote, added))
    return (
        f"SELECT {names}, {none} FROM {plan.table} WHERE false"  # noqa: S608 -- quoted names
        f" UNION ALL SELECT {cast}, {others} FROM {_BATCH}"
    )

"""Statements by which rows get into the table: added, replaced by key, deleted. Pure but for `write`."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from wal_sink.model.plan import Plan
from wal_sink.targets.arrow_values import are_deletes
from wal_sink.targets.casts import key_of
from wal_sink.targets.sql.ledger import with_values
from wal_sink.targets.sql.staged import DELETED, FLAG, ORDINAL, on_conflict, partial, upsert
from wal_sink.targets.sql.staged import delete as delete_keys
from wal_sink.targets.sqlalchemy.dialects import Dialect
from wal_sink.targets.sqlalchemy.literals import statements
from wal_sink.targets.sqlalchemy.types import driver_values
from wal_sink.targets.unavailable import flags_of, new_row_error

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
    for (deletes, unavailable), first, end in _runs(plan, batch):
        rows = batch.slice(first, end - first).select(key_of(plan) if deletes else names)
        counted = 0
        with contextlib.closing(connection.cursor()) as cursor:
            if unavailable:
                _update(cursor, backend, dialect, quote, plan, rows.drop_columns(unavailable))
            elif dialect.upsert == "duplicate key" and not deletes:
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
    uncounted = (
        dialect.upsert == "merge" or plan.operation is not None or plan.unavailable or is_all_key
    )
    return None if uncounted else int(counted)


Change = tuple[bool, list[str]]
"""Whether a row is a delete, and its columns that are unavailable."""


def _runs(plan: Plan, batch: pa.RecordBatch) -> Iterator[tuple[Change, int, int]]:
    """Yield runs of rows that change the table alike: how, the first row, and the end."""
    flags = flags_of(batch, plan)
    if plan.operation is None and not flags:
        yield (False, []), 0, batch.num_rows
        return
    deletes: list[bool] = [False] * batch.num_rows
    if plan.operation is not None:
        deletes = are_deletes(batch.column(plan.operation)).to_pylist()
    unavailable = [list[str]() for _ in deletes]
    for name, values in flags.items():
        for row in pc.indices_nonzero(values).to_pylist():
            unavailable[row].append(name)
    begin = 0
    for change, run in itertools.groupby(zip(deletes, unavailable, strict=True)):
        end = begin + len(list(run))
        yield change, begin, end
        begin = end


def _update(
    cursor: Any, backend: str, dialect: Dialect, quote: Quote, plan: Plan, rows: pa.RecordBatch
) -> None:
    """Change rows of the table, one after the other.

    :param rows: the columns that have values.
    :raises InvalidRow: the table has no row of a key.
    """
    key = key_of(plan)
    names = [name for name in rows.schema.names if name not in key]
    text = update(dialect, quote, plan, names)
    columns = rows.select([*(names or key[:1]), *key]).columns
    for values in zip(*(driver_values(backend, column) for column in columns), strict=True):
        cursor.execute(text, values)
        if cursor.rowcount == 0:
            raise new_row_error()


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


def update(dialect: Dialect, quote: Quote, plan: Plan, names: Sequence[str]) -> str:
    """Return the statement that changes some columns of the row of a key; of none, it finds the row."""
    changes, same = (
        separator.join(
            f"{with_values(quote(name), dialect.parameter)} = {dialect.parameter}"
            for name in listed
        )
        for separator, listed in ((", ", names or key_of(plan)[:1]), (" AND ", key_of(plan)))
    )
    table = with_values(plan.table, dialect.parameter)
    return f"UPDATE {table} SET {changes} WHERE {same}"  # noqa: S608 -- quoted


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
    unavailable = flags_of(batch, plan)
    flags = {name: FLAG.format(place) for place, name in enumerate(unavailable)}
    for name, values in unavailable.items():
        rows = rows.append_column(flags[name], values)
    cursor = connection.cursor()  # in whose transaction they are written
    connection.raw.register(_BATCH, rows)
    for each in arrow_statements(quote, of_table, flags, deletes=plan.operation is not None):
        cursor.execute(each)
        if each.startswith("SELECT") and cursor.fetchall()[0][0]:
            raise new_row_error()
    # Not where it raises: nothing may come before ROLLBACK then, which forgets the batch, too.
    connection.raw.unregister(_BATCH)


def arrow_statements(
    quote: Quote, plan: Plan, flags: Mapping[str, str], *, deletes: bool
) -> Iterator[str]:
    """Yield the statements that bring the rows of the registered batch into the table.

    :param flags: by columns with unavailable cells the names of their flags. A SELECT then counts the rows
        that cannot be written.
    """
    of_table = [column.name for column in plan.columns]
    names, key = ([quote(name) for name in each] for each in (of_table, key_of(plan)))
    if not key:
        listed = ", ".join(names)
        yield f"INSERT INTO {plan.table} ({listed}) SELECT {listed} FROM {_BATCH}"  # noqa: S608 -- quoted names
        return
    rows = _as_in_table(quote, plan, [*flags.values()], deletes=deletes)
    if deletes:
        yield delete_keys(plan.table, key, rows)
    if not flags:
        yield upsert(plan.table, names, key, rows, deletes=deletes)
        return
    quoted = {quote(name): quote(flag) for name, flag in flags.items()}
    change = partial(plan.table, names, key, rows, quoted, deletes=deletes)
    yield change.new
    yield from change.write


def _as_in_table(quote: Quote, plan: Plan, flags: Sequence[str], *, deletes: bool) -> str:
    """Return the query of the registered batch whose columns have the table's types and collations.

    By these two keys are equal or not: a uuid in small letters or capitals, a text without case. A collation
    comes from the table by UNION alone.
    """
    added = {ORDINAL: "BIGINT"} | dict.fromkeys([*([DELETED] * deletes), *flags], "BOOLEAN")
    given = [(quote(column.name), column.type) for column in plan.columns]
    cast = ", ".join(f"CAST({name} AS {type_}) AS {name}" for name, type_ in given)
    names = ", ".join(name for name, _ in given)
    none = ", ".join(f"CAST(NULL AS {type_}) AS {quote(name)}" for name, type_ in added.items())
    others = ", ".join(map(quote, added))
    return (
        f"SELECT {names}, {none} FROM {plan.table} WHERE false"  # noqa: S608 -- quoted names
        f" UNION ALL SELECT {cast}, {others} FROM {_BATCH}"
    )

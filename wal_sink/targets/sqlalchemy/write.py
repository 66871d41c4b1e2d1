"""Statements by which rows get into the table: added, replaced by key, deleted. Pure but for `write`."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

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


class Sql(NamedTuple):
    """How a database writes statements."""

    backend: str
    """With which the URL begins."""
    dialect: Dialect
    parameter: str
    """What stands for a value."""
    quote: Quote


def write(sql: Sql, connection: Any, plan: Plan, batch: pa.RecordBatch) -> None:
    """Write rows in the open transaction, in their order: of several rows of a key the last one counts.

    The server decides which keys are equal. Rows between two deletes are one `executemany`, or literals.

    :param batch: in the types of the plan, at least one row.
    :raises Exception: of the driver.
    """
    if sql.backend == "duckdb":
        _write_arrow(connection, sql.quote, plan, batch)
        return
    of_table = plan.of_table()
    names = [column.name for column in of_table.columns]
    with contextlib.closing(connection.cursor()) as cursor:
        for (deletes, unavailable), first, end in _runs(plan, batch):
            rows = batch.slice(first, end - first).select(key_of(plan) if deletes else names)
            if unavailable:
                _update(sql, cursor, plan, rows.drop_columns(unavailable))
            elif sql.dialect.is_mysql and not deletes:
                for text in statements(_around(sql, of_table), rows, connection.most_bytes):
                    cursor.execute(text)
            else:
                one = delete(sql, plan) if deletes else statement(sql, of_table)
                values = (driver_values(sql.backend, column) for column in rows.columns)
                cursor.executemany(one, list(zip(*values, strict=True)))


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


def _update(sql: Sql, cursor: Any, plan: Plan, rows: pa.RecordBatch) -> None:
    """Change rows of the table, one after the other.

    :param rows: the columns that have values.
    :raises InvalidRow: the table has no row of a key.
    """
    key = key_of(plan)
    names = [name for name in rows.schema.names if name not in key]
    text = update(sql, plan, names)
    columns = rows.select([*(names or key[:1]), *key]).columns
    for values in zip(*(driver_values(sql.backend, column) for column in columns), strict=True):
        cursor.execute(text, values)
        if cursor.rowcount == 0:
            raise new_row_error()


def statement(sql: Sql, plan: Plan) -> str:
    """Return the statement that adds a row, or replaces the one of its key.

    :param plan: without the column that says what a row does.
    """
    values = ", ".join([sql.parameter] * len(plan.columns))
    return f"({values})".join(with_values(part, sql.parameter) for part in _around(sql, plan))


def _around(sql: Sql, plan: Plan) -> tuple[str, str]:
    """Return what an INSERT has before its values, and after them."""
    names, key = [column.name for column in plan.columns], key_of(plan)
    begin = f"INSERT INTO {plan.table} ({', '.join(map(sql.quote, names))}) VALUES "  # noqa: S608 -- quoted
    others = [name for name in names if name not in key]
    return begin, _on_duplicate(sql, key, others) if key else ""


def _on_duplicate(sql: Sql, key: Sequence[str], others: Sequence[str]) -> str:
    if sql.dialect.is_mysql:
        names = map(sql.quote, others or key[:1])
        return f" ON DUPLICATE KEY UPDATE {', '.join(f'{n} = VALUES({n})' for n in names)}"
    return on_conflict([*map(sql.quote, key)], [*map(sql.quote, others)])


def update(sql: Sql, plan: Plan, names: Sequence[str]) -> str:
    """Return the statement that changes some columns of the row of a key; of none, it finds the row."""
    changes, same = (
        separator.join(
            f"{with_values(sql.quote(name), sql.parameter)} = {sql.parameter}" for name in columns
        )
        for separator, columns in ((", ", names or key_of(plan)[:1]), (" AND ", key_of(plan)))
    )
    table = with_values(plan.table, sql.parameter)
    return f"UPDATE {table} SET {changes} WHERE {same}"  # noqa: S608 -- quoted


def delete(sql: Sql, plan: Plan) -> str:
    """Return the statement that deletes the row of a key."""
    same = " AND ".join(
        f"{with_values(sql.quote(name), sql.parameter)} = {sql.parameter}" for name in key_of(plan)
    )
    return f"DELETE FROM {with_values(plan.table, sql.parameter)} WHERE {same}"  # noqa: S608 -- quoted


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
    for text in arrow_statements(quote, of_table, flags, deletes=plan.operation is not None):
        cursor.execute(text)
        if text.startswith("SELECT") and cursor.fetchall()[0][0]:
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
    names = [quote(column.name) for column in plan.columns]
    key = [quote(name) for name in key_of(plan)]
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
    typed = [(quote(column.name), column.type) for column in plan.columns]
    cast = ", ".join(f"CAST({name} AS {type_}) AS {name}" for name, type_ in typed)
    names = ", ".join(name for name, _ in typed)
    none = ", ".join(f"CAST(NULL AS {type_}) AS {quote(name)}" for name, type_ in added.items())
    others = ", ".join(map(quote, added))
    return (
        f"SELECT {names}, {none} FROM {plan.table} WHERE false"  # noqa: S608 -- quoted names
        f" UNION ALL SELECT {cast}, {others} FROM {_BATCH}"
    )

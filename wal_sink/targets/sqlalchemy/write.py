"""Writes rows into the table: adds them, or replaces and deletes rows by key."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from wal_sink.errors import InvalidRow
from wal_sink.model.plan import Plan
from wal_sink.targets.casts import key_of
from wal_sink.targets.cdc import are_deletes, flags_of, new_row_error
from wal_sink.targets.sql.database import Database
from wal_sink.targets.sql.ledger import with_values
from wal_sink.targets.sql.upsert import SourceRows, on_conflict, source_rows, write_from_query
from wal_sink.targets.sqlalchemy.dialects import DUCKDB, SQLITE, Dialect


def write(
    target: Database, dialect: Dialect, connection: Any, plan: Plan, batch: pa.RecordBatch
) -> None:
    """Write rows in the open transaction, in their order. Of several rows with one key the last row counts.

    The server decides which keys are equal. Consecutive rows of the same kind are written together.

    :param batch: at least one row, with columns in the types of the plan.
    """
    with contextlib.closing(connection.cursor()) as cursor:
        if dialect is DUCKDB:
            _write_arrow(target, cursor, connection.raw, plan, batch)
            return
        of_table = plan.of_table()
        names = [column.name for column in of_table.columns]
        for (deletes, unavailable), first, end in _runs(plan, batch):
            rows = batch.slice(first, end - first).select(key_of(plan) if deletes else names)
            if unavailable:
                _update(target, dialect, cursor, plan, rows.drop_columns(unavailable))
            elif dialect.is_mysql and not deletes:
                for text in _statements(
                    _around(target, dialect, of_table), rows, connection.most_bytes
                ):
                    cursor.execute(text)
            else:
                text = delete(target, plan) if deletes else insert(target, dialect, of_table)
                cursor.executemany(text, list(_values(dialect, rows)))


def _values(dialect: Dialect, rows: pa.RecordBatch) -> Iterator[tuple[object, ...]]:
    is_sqlite = dialect is SQLITE
    utc = is_sqlite or dialect.is_mysql
    columns = (_driver_values(column, utc=utc, as_texts=is_sqlite) for column in rows.columns)
    return zip(*columns, strict=True)


def _driver_values(values: pa.Array, *, utc: bool, as_texts: bool) -> list[object]:
    """Return the values of a column for the driver's `executemany`.

    :param utc: True if an instant is passed without a time zone, in UTC.
    :param as_texts: True if dates and times are texts, in SQLAlchemy's form for SQLite.
    """
    if pt.is_timestamp(values.type) and utc:
        values = values.cast(pa.timestamp("us"))
    objects: list[Any] = values.to_pylist()
    if as_texts and pt.is_temporal(values.type):
        form = (" ", "microseconds") if pt.is_timestamp(values.type) else ()
        return [None if o is None else o.isoformat(*form) for o in objects]
    return objects


Change = tuple[bool, list[str]]
"""True for a delete, and the columns with unavailable cells."""


def _runs(plan: Plan, batch: pa.RecordBatch) -> Iterator[tuple[Change, int, int]]:
    """Yield the runs of consecutive rows with the same change: the change, the first row, and the end."""
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
    target: Database, dialect: Dialect, cursor: Any, plan: Plan, rows: pa.RecordBatch
) -> None:
    """Update rows of the table one by one.

    :param rows: the key and the available columns of each row.
    """
    key = key_of(plan)
    names = [name for name in rows.schema.names if name not in key] or key[:1]
    changes = _equal(target, names, ", ")
    table = with_values(plan.table, target.parameter)
    text = f"UPDATE {table} SET {changes} WHERE {_equal(target, key, ' AND ')}"  # noqa: S608 -- quoted
    for values in _values(dialect, rows.select([*names, *key])):
        cursor.execute(text, values)
        if cursor.rowcount == 0:
            raise new_row_error()


def insert(target: Database, dialect: Dialect, plan: Plan) -> str:
    """Return the statement that adds a row, or replaces the row of its key.

    :param plan: without the operation column.
    """
    values = ", ".join([target.parameter] * len(plan.columns))
    around = (with_values(part, target.parameter) for part in _around(target, dialect, plan))
    return f"({values})".join(around)


def _around(target: Database, dialect: Dialect, plan: Plan) -> tuple[str, str]:
    names = [target.quote(column.name) for column in plan.columns]
    key = [target.quote(name) for name in key_of(plan)]
    begin = f"INSERT INTO {plan.table} ({', '.join(names)}) VALUES "  # noqa: S608 -- quoted
    others = [name for name in names if name not in key]
    if not key:
        return begin, ""
    if dialect.is_mysql:
        changes = ", ".join(f"{name} = VALUES({name})" for name in others or key[:1])
        return begin, f" ON DUPLICATE KEY UPDATE {changes}"
    return begin, on_conflict(key, others)


def delete(target: Database, plan: Plan) -> str:
    """Return the statement that deletes the row of a key."""
    table = with_values(plan.table, target.parameter)
    return f"DELETE FROM {table} WHERE {_equal(target, key_of(plan), ' AND ')}"  # noqa: S608 -- quoted


def _equal(target: Database, names: Sequence[str], separator: str) -> str:
    """Return `column = placeholder` for columns: as conditions, or as assignments."""
    parameter = target.parameter
    return separator.join(
        f"{with_values(target.quote(name), parameter)} = {parameter}" for name in names
    )


# --- DuckDB reads Arrow ---

_BATCH = "wal_sink_batch"


def _write_arrow(
    target: Database, cursor: Any, raw: Any, plan: Plan, batch: pa.RecordBatch
) -> None:
    """Write rows by statements that read the batch."""
    rows = source_rows(plan, batch)
    raw.register(_BATCH, rows.batch)
    query = _as_in_table(target, plan, rows) if key_of(plan) else f"SELECT * FROM {_BATCH}"  # noqa: S608
    write_from_query(cursor, plan, rows, query, target.quote)
    # After an error only ROLLBACK may follow. It also unregisters the batch.
    raw.unregister(_BATCH)


def _as_in_table(target: Database, plan: Plan, rows: SourceRows) -> str:
    """Return a SELECT of the registered batch, in the table's types and collations.

    Type and collation decide which keys are equal: "A" and "a" are one key as a uuid, or under NOCASE. DuckDB
    applies a column's collation only in a UNION with the table.
    """
    typed = [(target.quote(column.name), column.type) for column in plan.of_table().columns]
    cast = ", ".join(f"CAST({name} AS {type_}) AS {name}" for name, type_ in typed)
    names = ", ".join(name for name, _ in typed)
    added = {target.quote(name): type_ for name, type_ in rows.added.items()}
    none = ", ".join(f"CAST(NULL AS {type_}) AS {name}" for name, type_ in added.items())
    return (
        f"SELECT {names}, {none} FROM {plan.table} WHERE false"  # noqa: S608 -- quoted names
        f" UNION ALL SELECT {cast}, {', '.join(added)} FROM {_BATCH}"
    )


# --- MySQL and MariaDB read literals ---

# Arrow formats a column at once, in a tenth of the time of pymysql's `executemany`. The server closes the
# connection if a statement is too long, so the size of each row is computed first.


_USUAL = 1024 * 1024
"""The most bytes of a statement, unless one row is longer."""


def _statements(around: tuple[str, str], batch: pa.RecordBatch, most: int) -> Iterator[str]:
    """Yield statements that insert the rows, in their order.

    :param around: the text of a statement before its rows, and the text after them.
    :param batch: at least one row. All numbers are finite.
    :param most: the largest number of bytes in a statement.
    :raises InvalidRow: a statement with one row is longer.
    """
    rows = _rows(batch)
    space = most - len("".join(around).encode())
    sizes, texts = pc.binary_length(rows).to_pylist(), rows.to_pylist()
    begin = total = 0
    for row, size in enumerate(sizes):
        if size > space:
            raise InvalidRow(
                f"A statement with the row has {most - space + size:,} bytes, and the server's"
                f" max_allowed_packet is {most:,}.",
                "Raise max_allowed_packet on the server, or filter such rows out.",
            )
        if row > begin and total + size > min(space, _USUAL):
            yield ",".join(texts[begin:row]).join(around)
            begin, total = row, 0
        total += size + 1
    yield ",".join(texts[begin:]).join(around)


def _rows(batch: pa.RecordBatch) -> pa.StringArray:
    cells = [_literals(column).fill_null("NULL") for column in batch.columns]
    commas = [part for cell in cells for part in (",", cell)]
    return pc.binary_join_element_wise("(", *commas[1:], ")", "")


def _literals(values: pa.Array) -> pa.StringArray:
    """Return values as literals for the SQL mode of the connection. A null stays null."""
    type_ = values.type
    if pt.is_boolean(type_) or pt.is_integer(type_):
        return values.cast(pa.int8() if pt.is_boolean(type_) else type_).cast(pa.string())
    if pt.is_floating(
        type_
    ):  # MySQL reads a number without exponent as a decimal of up to 65 digits
        texts = values.cast(pa.float64()).cast(pa.string())
        with_exponent = pc.binary_join_element_wise(texts, "e0", "")
        return pc.if_else(pc.match_substring(texts, "e"), texts, with_exponent)
    if pt.is_decimal(type_):  # Arrow formats some with an exponent, which MySQL reads as a double
        return _each(values, lambda value: format(value, "f"))
    if pt.is_binary(type_):
        return _each(values, lambda value: f"X'{value.hex()}'")
    if pt.is_timestamp(type_):
        values = values.cast(pa.timestamp(type_.unit))  # in UTC
    texts = pc.replace_substring(values.cast(pa.string()), "\\", "\\\\")
    return pc.binary_join_element_wise("'", pc.replace_substring(texts, "'", "''"), "'", "")


def _each(values: pa.Array, literal: Callable[[Any], str]) -> pa.StringArray:
    texts = (None if value is None else literal(value) for value in values.to_pylist())
    return pa.array(texts, pa.string())

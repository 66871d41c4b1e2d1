"""SQL that targets run or that errors show: quoted names, CREATE TABLE; no I/O."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

import pyarrow as pa

from wal_sink.model.plan import spark_ddl
from wal_sink.targets.table_options import Layout


def quote(name: str) -> str:
    """Quote an identifier; its case is kept."""
    return '"' + name.replace('"', '""') + '"'


def listed(names: Iterable[str]) -> str:
    """Quote identifiers, as statements list them."""
    return ", ".join(map(quote, names))


def unquoted(names: str) -> str:
    """Return quoted identifiers with dots between them as a person writes them in an option.

    By the SQL standard, or as MySQL quotes them; others are returned as they are.
    """
    parts = re.findall(r'"(?:[^"]|"")*"|`(?:[^`]|``)*`', names)
    return ".".join(part[1:-1].replace(part[-1] * 2, part[-1]) for part in parts) or names


def spark_statement(
    table: object, schema: pa.Schema, layout: Layout, using: str, more: str = ""
) -> str:
    """Return Spark's CREATE TABLE; columns of the key take no null.

    :param table: its name, quoted.
    :param using: the format.
    :param more: what comes after the partitions.
    """
    columns = ", ".join(
        f"`{field.name}` {spark_ddl(field.type)}{' NOT NULL' if field.name in layout.key else ''}"
        for field in schema
    )
    by = f" PARTITIONED BY ({', '.join(layout.partition)})" if layout.partition else ""
    return f"CREATE TABLE {table} ({columns}) USING {using}{by}{more}"


def create_statement(
    table: object,
    schema: pa.Schema,
    layout: Layout,
    type_of: Callable[[pa.Field], str],
    quote: Callable[[str], str],
    suffix: str = "",
) -> str:
    """Return a CREATE TABLE by the SQL standard; columns of the key take no null.

    :param table: its name, quoted.
    :param schema: of the columns that are written.
    :param type_of: the type of a column, in the database's words.
    :param suffix: what comes after the columns, such as the partitions.
    """
    lines = [
        f"  {quote(field.name)} {type_of(field)}{' NOT NULL' if field.name in layout.key else ''}"
        for field in schema
    ]
    if layout.key:
        lines.append(f"  PRIMARY KEY ({', '.join(map(quote, layout.key))})")
    body = ",\n".join(lines)
    return f"CREATE TABLE {table} (\n{body}\n){suffix and f' {suffix}'}"

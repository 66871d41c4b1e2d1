"""Texts of SQL that targets run or that errors show: quoted names, and CREATE TABLE. No I/O."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence

import pyarrow as pa

from wal_sink.model.plan import spark_ddl
from wal_sink.targets.table_options import Layout


def quote(name: str) -> str:
    """Quote an identifier by the SQL standard. Its case is kept."""
    return '"' + name.replace('"', '""') + '"'


def spark_name(name: str) -> str:
    """Quote an identifier as Spark's SQL does."""
    return "`" + name.replace("`", "``") + "`"


def listed(names: Iterable[str]) -> str:
    """Return quoted identifiers, separated by commas."""
    return ", ".join(map(quote, names))


_QUOTED = r'"(?:[^"]|"")*"|`(?:[^`]|``)*`'


def unquoted(names: str) -> str:
    """Return quoted identifiers with dots between them as an option names them, without quotes.

    Accepts quotes of the SQL standard and of MySQL. Any other text is returned unchanged.
    """
    if not re.fullmatch(rf"(?:{_QUOTED})(?:\.(?:{_QUOTED}))*", names):
        return names
    parts = re.findall(_QUOTED, names)
    return ".".join(part[1:-1].replace(part[-1] * 2, part[-1]) for part in parts)


def spark_table(parts: Iterable[str]) -> str:
    """Return a table's name for Spark's SQL. Only parts that need quotes have them."""
    return ".".join(
        part if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", part) else spark_name(part)
        for part in parts
    )


def spark_statement(
    table: str, schema: pa.Schema, key: Collection[str], partition: Sequence[str], using: str
) -> str:
    """Return Spark's CREATE TABLE. Columns of the key take no null.

    :param table: the name, quoted where it is necessary.
    :param partition: partition columns or transforms of them, quoted.
    :param using: the format.
    """
    columns = ", ".join(
        f"{spark_name(field.name)} {spark_ddl(field.type)}{' NOT NULL' if field.name in key else ''}"
        for field in schema
    )
    by = f" PARTITIONED BY ({', '.join(partition)})" if partition else ""
    return f"CREATE TABLE {table} ({columns}) USING {using}{by}"


def create_statement(
    table: str,
    schema: pa.Schema,
    layout: Layout,
    type_of: Callable[[pa.Field], str],
    quote_name: Callable[[str], str],
    suffix: str = "",
) -> str:
    """Return a CREATE TABLE by the SQL standard. Columns of the key take no null.

    :param table: the quoted name.
    :param schema: the columns that are written.
    :param type_of: returns the type of a column in the database's words.
    :param quote_name: quotes a name as the database does.
    :param suffix: the text after the columns, such as the partitions.
    """
    lines = [
        f"  {quote_name(field.name)} {type_of(field)}{' NOT NULL' if field.name in layout.key else ''}"
        for field in schema
    ]
    if layout.key:
        lines.append(f"  PRIMARY KEY ({', '.join(map(quote_name, layout.key))})")
    body = ",\n".join(lines)
    end = f" {suffix}" if suffix else ""
    return f"CREATE TABLE {table} (\n{body}\n){end}"

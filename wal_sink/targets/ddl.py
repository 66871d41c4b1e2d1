"""DDL: the options of a table that a start creates, its CREATE TABLE, and names quoted for SQL. No I/O.

With option createTable a start creates a missing table from the DataFrame's schema, and `wal_sink.check`
shows the statement. Without the option, the error for a missing table has the statement. A target with this
option derives its options from `TableOptions`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Annotated, ClassVar, NamedTuple

import msgspec
import pyarrow as pa

from wal_sink.errors import OptionError, SchemaMismatch
from wal_sink.model.spark_types import spark_ddl
from wal_sink.options import SHAPES, Options, about, refuse_repeated
from wal_sink.unknown_names import did_you_mean

CREATE_TABLE, KEY_COLUMNS, PARTITION_COLUMNS = "createTable", "keyColumns", "partitionColumns"


class Layout(NamedTuple):
    """The key and the partitions of a new table."""

    key: tuple[str, ...] = ()
    partition: tuple[str, ...] = ()


NO_LAYOUT = Layout()

_COMMA = re.compile(r",(?![^()]*\))")
"""A comma outside of parentheses, since a partition may be `bucket(16, id)`."""


def without_effect(option: str, problem: str, other: str, value: str = "upsert") -> OptionError:
    """Return the error for an option that has no effect without a value of another option.

    :param problem: why the option has no effect. Continues "Option … is given ".
    :param other: the other option.
    :param value: the value of the other option with which `option` has an effect.
    """
    return OptionError(
        f"Option {option} is given {problem}.",
        f"Set {other} to {value}, or leave out {option}.",
    )


class TableOptions(Options, frozen=True, kw_only=True):
    """Base class for the options of a target that creates tables."""

    key_alone: ClassVar[bool] = False
    """True if keyColumns has an effect without createTable, since the target reads it for every table."""

    create_table: Annotated[
        bool, about("whether a missing table is created from the DataFrame's schema")
    ] = msgspec.field(name=CREATE_TABLE, default=False)
    key_columns: Annotated[
        str,
        about(
            "columns of the key, comma-separated; a table that createTable creates has this key",
            SHAPES,
        ),
    ] = msgspec.field(name=KEY_COLUMNS, default="")
    partition_columns: Annotated[
        str,
        about("columns by which a table that createTable creates is partitioned, comma-separated"),
    ] = msgspec.field(name=PARTITION_COLUMNS, default="")

    @property
    def layout(self) -> Layout:
        """The key and the partitions of a new table.

        :raises OptionError: a column is repeated, or an option would have no effect.
        """
        listed = []
        options = {KEY_COLUMNS: self.key_columns, PARTITION_COLUMNS: self.partition_columns}
        for option, text in options.items():
            names = tuple(name.strip() for name in _COMMA.split(text) if name.strip())
            is_read = self.create_table or (option == KEY_COLUMNS and self.key_alone)
            if names and not is_read:
                problem = f"without {CREATE_TABLE}: an existing table stays as it is"
                raise without_effect(option, problem, CREATE_TABLE, "true")
            refuse_repeated(option, names)
            listed.append(names)
        return Layout(*listed)


def refuse_key_and_mode(option: str, mode: str, layout: Layout) -> None:
    """Check that a new table has a key if the mode is upsert, and no key if the mode is append.

    In mode append, a table with a key would refuse the second of two rows with the same key.

    :param option: the option that sets `mode`.
    :param mode: append or upsert.
    :raises OptionError: the key is missing in mode upsert, or is given in mode append.
    """
    if mode == "upsert" and not layout.key:
        raise OptionError(
            f"Option {CREATE_TABLE} is true and {option} is upsert: the new table needs a key.",
            f"Name its columns in {KEY_COLUMNS}.",
        )
    if mode == "append" and layout.key:
        raise without_effect(
            KEY_COLUMNS, f"and {option} is append: a second row of a key would be refused", option
        )


def refuse_unknown_columns(layout: Layout, schema: pa.Schema) -> None:
    """Refuse a layout that names a key or partition column which the DataFrame does not have.

    :param schema: the columns that are written.
    :raises SchemaMismatch: the DataFrame lacks a column.
    """
    for option, names in zip((KEY_COLUMNS, PARTITION_COLUMNS), layout, strict=True):
        for name in names:
            if name not in schema.names:
                raise SchemaMismatch(
                    f"Option {option} names {name}, and the DataFrame has {', '.join(schema.names)}."
                    f" {did_you_mean(name, schema.names)}".rstrip(),
                    f"Correct {option}, or add the column.",
                )


def refuse_other_key(table: object, layout: Layout, key: Collection[str]) -> None:
    """Refuse an existing table with another key than keyColumns names.

    With another key, rows would replace other rows than the user expects.

    :param key: the key of the table, by the DataFrame's names.
    :raises SchemaMismatch: the table has another key.
    """
    if layout.key and {*layout.key} != {*key}:
        raise SchemaMismatch(
            f"Option {KEY_COLUMNS} names {', '.join(layout.key)}, and {table} exists with the key"
            f" {', '.join(key)}.",
            f"Correct {KEY_COLUMNS}, or create the table again with this key.",
        )


# --- CREATE TABLE ---------------------------------------------------------------------------------


def spark_statement(
    table: str, schema: pa.Schema, key: Collection[str], partition: Sequence[str], using: str
) -> str:
    """Return Spark's CREATE TABLE. Columns of the key take no null.

    :param table: the name, quoted where it is necessary.
    :param partition: partition columns or transforms of them, quoted.
    :param using: the format of the table, such as "DELTA".
    """
    columns = ", ".join(_columns(schema, key, lambda field: spark_ddl(field.type), spark_name))
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
    """Return a CREATE TABLE of standard SQL, with a primary key. Columns of the key take no null.

    :param table: the quoted name.
    :param schema: the columns that are written.
    :param type_of: returns the type of a column in the database's words.
    :param quote_name: quotes a name as the database does.
    :param suffix: the text after the columns, such as the partitions.
    """
    lines = _columns(schema, layout.key, type_of, quote_name)
    if layout.key:
        lines.append(f"PRIMARY KEY ({', '.join(map(quote_name, layout.key))})")
    body = ",\n  ".join(lines)
    return f"CREATE TABLE {table} (\n  {body}\n) {suffix}".rstrip()


def _columns(
    schema: pa.Schema,
    key: Collection[str],
    type_of: Callable[[pa.Field], str],
    quote_name: Callable[[str], str],
) -> list[str]:
    return [
        f"{quote_name(field.name)} {type_of(field)}{' NOT NULL' if field.name in key else ''}"
        for field in schema
    ]


# --- names ----------------------------------------------------------------------------------------


def quote(name: str) -> str:
    """Quote an identifier as standard SQL does. A quoted identifier keeps its case."""
    return '"' + name.replace('"', '""') + '"'


def spark_name(name: str) -> str:
    """Quote an identifier as Spark's SQL does."""
    return "`" + name.replace("`", "``") + "`"


def listed(names: Iterable[str]) -> str:
    """Quote identifiers as standard SQL does, and separate them by commas."""
    return ", ".join(map(quote, names))


_QUOTED = r'"(?:[^"]|"")*"|`(?:[^`]|``)*`'


def unquoted(names: str) -> str:
    """Remove the quotes of a table's name, such as `"shop"."orders"`. Any other text is returned unchanged.

    The quotes are double quotes, as in standard SQL, or backticks, as in MySQL.
    """
    if not re.fullmatch(rf"(?:{_QUOTED})(?:\.(?:{_QUOTED}))*", names):
        return names
    parts = re.findall(_QUOTED, names)
    return ".".join(part[1:-1].replace(part[-1] * 2, part[-1]) for part in parts)


def spark_table(parts: Iterable[str]) -> str:
    """Return a table's name for Spark's SQL. Only parts that need quotes get them."""
    return ".".join(
        part if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", part) else spark_name(part)
        for part in parts
    )

"""Names in CQL: always quoted in statements, so that reserved words and capitals mean themselves."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import NamedTuple

from wal_sink.errors import OptionError
from wal_sink.targets.create_table import CREATE_TABLE, KEY_COLUMNS, PARTITION_COLUMNS, Layout
from wal_sink.targets.names import did_you_mean, quote

__all__ = [
    "Key",
    "TableName",
    "did_you_mean",
    "is_table_name",
    "primary_key",
    "quote",
    "read_columns",
    "read_tables",
]

COLUMNS_OPTION = "cassandra.columns"
_EXAMPLE = f'Write it as {COLUMNS_OPTION}={{"customerId": "customer_id"}}'


class TableName(NamedTuple):
    """The exact names of a table and its keyspace, unquoted, as `system_schema` has them."""

    keyspace: str
    table: str

    def __str__(self) -> str:
        """Quote both, as they stand in statements, plans and errors."""
        return f"{quote(self.keyspace)}.{quote(self.table)}"


def is_table_name(name: str) -> bool:
    """Whether Cassandra allows the name for a keyspace or a table; columns may be called anything."""
    return re.fullmatch(r"[A-Za-z0-9_]{1,222}", name) is not None


class Key(NamedTuple):
    """The primary key of a new table, by the DataFrame's names."""

    partition: tuple[str, ...]
    clustering: tuple[str, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """All of them, in their order."""
        return self.partition + self.clustering


def primary_key(layout: Layout) -> Key:
    """Return the key of a new table: the partition key, by default the first column, then the others.

    :raises OptionError: there is none, or a column of the partition key is not in it.
    """
    key, partition = layout.key, layout.partition or layout.key[:1]
    if not key:
        raise OptionError(
            f"Option {CREATE_TABLE} is true and {KEY_COLUMNS} names no column: a table of Cassandra has a"
            " primary key.",
            f"List its columns in {KEY_COLUMNS}, and those of the partition key in {PARTITION_COLUMNS} where"
            " it is not the first column alone.",
        )
    if lacking := [name for name in partition if name not in key]:
        raise OptionError(
            f"Option {PARTITION_COLUMNS} names {lacking[0]}, and {KEY_COLUMNS} does not.",
            f"List in {KEY_COLUMNS} all columns of the primary key, those of the partition key included.",
        )
    return Key(partition, tuple(name for name in key if name not in partition))


def read_columns(text: str) -> Mapping[str, str]:
    """Return which column of the table a column of the DataFrame is written to, from the option's text.

    :returns: the table's by the DataFrame's names, for those that differ.
    :raises OptionError: it cannot be understood, or two columns are written to one.
    """
    if not text.strip():
        return {}
    try:
        pairs = json.loads(text, object_pairs_hook=tuple)  # of an object; an array is a list
    except ValueError:
        pairs = None
    if not isinstance(pairs, tuple):
        raise OptionError(
            f"Option {COLUMNS_OPTION} is not a JSON object: {text}",
            f"{_EXAMPLE}, in double quotes.",
        )
    found: dict[str, str] = {}
    for name, column in pairs:
        if not isinstance(column, str) or not name or not column:
            raise OptionError(
                f"Option {COLUMNS_OPTION} says that {name!r} is written to {column!r}, which is no name.",
                f"{_EXAMPLE}: the DataFrame's name, then the table's.",
            )
        if name in found:
            raise OptionError(
                f"Option {COLUMNS_OPTION} has the column {name!r} twice.",
                "Leave out one of the two.",
            )
        if column in found.values():
            raise OptionError(
                f"Option {COLUMNS_OPTION} has two columns that are written to {column!r}.",
                "A column of the table gets its values from one: drop the other one, or coalesce the two.",
            )
        found[name] = column
    return {name: column for name, column in found.items() if name != column}


def read_tables(table: str, tables: str, table_column: str) -> tuple[str, ...]:
    """Return the names of the tables, from the three options as they were given; at least one.

    :raises OptionError: the options contradict each other, or a name cannot be one.
    """
    if not tables.strip():
        if table_column:
            raise OptionError(
                "Option tableColumn is given without tables, which says what the column may name.",
                'Add .option("tables", …): the names of all tables, comma-separated.',
            )
        if not table.strip():
            raise OptionError(
                "Option table is missing.",
                'Add .option("table", …): the table to write to, exact name; or tables, for several.',
            )
        _refuse_bad_table(table)
        return (table,)
    if table.strip():
        raise OptionError(
            "Options table and tables are given together.",
            f"Leave out one of them. To write to {table} and others: tables={table},…",
        )
    names = tuple(name.strip() for name in tables.split(","))
    for name in names:
        if "." in name or not is_table_name(name):
            raise OptionError(
                f"Option tables: {name!r} cannot be the name of a table.",
                "Write the exact names, comma-separated, without quotes and without the keyspace: all tables"
                " are in option keyspace.",
            )
        if names.count(name) > 1:
            raise OptionError(f"Option tables has {name} twice.", "Leave out one of the two.")
    return names


def _refuse_bad_table(table: str) -> None:
    if "," in table:
        raise OptionError(
            f"Option table names several tables: {table}.",
            f'Write .option("tables", "{table}"): each row goes to every one of them.',
        )
    if "." in table:
        keyspace, _, name = table.partition(".")
        raise OptionError(
            f"Option table holds a keyspace too: {table}.",
            f'Write .option("keyspace", "{keyspace}").option("table", "{name}").',
        )
    refuse_bad_name("table", table)


def refuse_bad_name(option: str, name: str) -> None:
    """Refuse what no keyspace or table is called.

    :raises OptionError: Cassandra does not allow the name.
    """
    if not is_table_name(name):
        raise OptionError(
            f"Option {option}: {name!r} cannot be a name in Cassandra.",
            "Names of keyspaces and tables are letters, digits and underscores; write the exact "
            "name, without quotes.",
        )

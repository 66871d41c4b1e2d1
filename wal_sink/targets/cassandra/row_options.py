"""Declares the options that say what becomes of rows. Pure.

What these options do is in `rows`, which takes longer to import.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from wal_sink.errors import OptionError
from wal_sink.options import SECONDS, SHAPES, about, fields
from wal_sink.targets.cassandra.row_plan import MAX_TTL_S, TableName
from wal_sink.targets.create_table import (
    CREATE_TABLE,
    KEY_COLUMNS,
    PARTITION_COLUMNS,
    Layout,
)
from wal_sink.targets.operations import OPERATION_COLUMN, OperationOptions, json_pairs

COLUMNS_OPTION = "cassandra.columns"
WRITE_MODE = "cassandra.writeMode"
TTL = "cassandra.ttl"
TTL_COLUMN = "cassandra.ttlColumn"
EXPIRES_AT_COLUMN = "cassandra.expiresAtColumn"
TIMESTAMP_COLUMN = "cassandra.timestampColumn"


_TTLS = (TTL, TTL_COLUMN, EXPIRES_AT_COLUMN)
"""Of these options one may be given."""


class RowOptions(OperationOptions, frozen=True, kw_only=True):
    """To which table a row goes, by which statement, with which times, and which rows are deletes.

    :raises OptionError: when constructed with values that contradict each other.
    """

    keyspace: Annotated[
        str, about("Keyspace of the table, by its exact name", SHAPES, min_length=1)
    ]
    table: Annotated[str, about("Table to write to, by its exact name", SHAPES, min_length=1)]
    nulls: Annotated[
        Literal["unset", "write"],
        about(
            "unset: a null leaves the older value. write: a null clears it, by a tombstone", SHAPES
        ),
    ] = msgspec.field(name="cassandra.nulls", default="unset")
    columns: Annotated[
        str,
        about(
            'JSON object of columns with another name in the table, such as {"customerId":'
            ' "customer_id"}: the name in the DataFrame, then that in the table',
            SHAPES,
        ),
    ] = msgspec.field(name=COLUMNS_OPTION, default="")
    write_mode: Annotated[
        Literal["insert", "update"],
        about(
            "insert: a row without values exists, too. update: a row exists as long as one of its values"
            " does",
            SHAPES,
        ),
    ] = msgspec.field(name=WRITE_MODE, default="insert")
    ttl: Annotated[
        Annotated[int, Meta(ge=1, le=MAX_TTL_S)] | None,
        about(
            f"How long every row lives after it was published, 1 to {MAX_TTL_S} seconds."
            " Default: for ever, or what the table says",
            SECONDS,
            SHAPES,
        ),
    ] = msgspec.field(name=TTL, default=None)
    ttl_column: Annotated[
        str, about("Column with the seconds that each row lives. It is not written", SHAPES)
    ] = msgspec.field(name=TTL_COLUMN, default="")
    expires_at_column: Annotated[
        str, about("Timestamp column with the time until which each row lives", SHAPES)
    ] = msgspec.field(name=EXPIRES_AT_COLUMN, default="")
    timestamp_column: Annotated[
        str,
        about(
            "Column with the time of the event: a timestamp, or a bigint of microseconds since 1970. Of"
            " two versions of a row the later event stays",
            SHAPES,
        ),
    ] = msgspec.field(name=TIMESTAMP_COLUMN, default="")

    def __post_init__(self) -> None:
        _refuse_bad_table(self.table)
        _ = self.words
        layout = self.layout
        if self.create_table:
            primary_key(layout)
        given = self.given
        for one, other in itertools.combinations(_TTLS, 2):
            if one in given and other in given:
                raise OptionError(
                    f"Options {one} and {other} are given together: each says how long a row lives.",
                    "Keep one of them.",
                )
        self._refuse_two_meanings()

    @property
    def data(self) -> TableName:
        """The table to write to."""
        return TableName(self.keyspace, self.table)

    @property
    def column_names(self) -> Mapping[str, str]:
        """The table's names of columns that have another one there, by the DataFrame's."""
        return read_columns(self.columns)

    @property
    def controls(self) -> dict[str, str]:
        """The columns that say what becomes of a row, by the options that name them."""
        named = {
            OPERATION_COLUMN: self.operation_column,
            TTL_COLUMN: self.ttl_column,
            EXPIRES_AT_COLUMN: self.expires_at_column,
            TIMESTAMP_COLUMN: self.timestamp_column,
        }
        return {option: column for option, column in named.items() if column}

    @property
    def given(self) -> list[str]:
        """The options that have another value than their default."""
        return [
            option.name
            for option in fields(type(self))
            if getattr(self, option.field) not in (option.default, "")
        ]

    def _refuse_two_meanings(self) -> None:
        """Refuse two meanings of a column, and another name for one that the table does not have."""
        options: dict[str, str] = {}
        others = self.column_names
        for option, column in self.controls.items():
            if (other := options.setdefault(column, option)) != option:
                raise OptionError(
                    f"Options {other} and {option} both name column {column}.",
                    "Name a column for each of them.",
                )
            if column in others and option == OPERATION_COLUMN:
                raise OptionError(
                    f"Option {COLUMNS_OPTION} names {column}, which {option} names, too: it is not written.",
                    f"Leave it out of {COLUMNS_OPTION}.",
                )


_EXAMPLE = f'Write it as {COLUMNS_OPTION}={{"customerId": "customer_id"}}'


def primary_key(layout: Layout) -> Layout:
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
    return Layout((*partition, *(name for name in key if name not in partition)), partition)


def read_columns(text: str) -> Mapping[str, str]:
    """Return which column of the table a column of the DataFrame is written to, from the option's text.

    :returns: the table's by the DataFrame's names, for those that differ.
    :raises OptionError: it cannot be understood, or two columns are written to one.
    """
    if not text.strip():
        return {}
    found: dict[str, str] = {}
    for name, column in json_pairs(COLUMNS_OPTION, text, _EXAMPLE):
        if not isinstance(column, str) or not name or not column:
            raise OptionError(
                f"Option {COLUMNS_OPTION} says that {name!r} is written to {column!r}, which is no name.",
                f"{_EXAMPLE}: the DataFrame's name, then the table's.",
            )
        if column in found.values():
            raise OptionError(
                f"Option {COLUMNS_OPTION} has two columns that are written to {column!r}.",
                "A column of the table gets its values from one: drop the other one, or coalesce the two.",
            )
        found[name] = column
    return {name: column for name, column in found.items() if name != column}


def _refuse_bad_table(table: str) -> None:
    if "," in table:
        raise OptionError(
            f"Option table names several tables: {table}.",
            "Name each table by a target of its own, by option targets; or write each by a query of its own.",
        )
    if "." in table:
        keyspace, _, name = table.partition(".")
        raise OptionError(
            f"Option table holds a keyspace too: {table}.",
            f'Write .option("keyspace", "{keyspace}").option("table", "{name}").',
        )
    refuse_bad_name("table", table)


def refuse_bad_name(option: str, name: str) -> None:
    """Refuse what no keyspace or table is called; columns may be called anything.

    :raises OptionError: Cassandra does not allow the name.
    """
    if not re.fullmatch(r"[A-Za-z0-9_]{1,222}", name):
        raise OptionError(
            f"Option {option}: {name!r} cannot be a name in Cassandra.",
            "Names of keyspaces and tables are letters, digits and underscores; write the exact "
            "name, without quotes. A table's keyspace is in option keyspace.",
        )

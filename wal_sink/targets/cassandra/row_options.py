"""Declares the options that say what becomes of rows, and which of them contradict each other. Pure.

Each row feature has its options here; what they do is in `features/`, which takes longer to import.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Literal, NamedTuple, get_args

import msgspec
from msgspec import Meta

from wal_sink.errors import OptionError
from wal_sink.options import COLUMN, SECONDS, SHAPES, about, fields, of_column
from wal_sink.targets.cassandra.row_plan import ADDED_COLUMN, MOST_TTL_S, Change, TableName
from wal_sink.targets.create_table import (
    CREATE_TABLE,
    KEY_COLUMNS,
    PARTITION_COLUMNS,
    Layout,
    listed_names,
)
from wal_sink.targets.operations import OPERATION_COLUMN, OperationOptions, json_pairs

COLUMNS_OPTION = "cassandra.columns"
TABLES, TABLE_COLUMN = "tables", "tableColumn"
WRITE_MODE = "cassandra.writeMode"
COLLECTIONS = f"cassandra.collections.{COLUMN}"
IF_NOT_EXISTS = "cassandra.ifNotExists"
ADD_COLUMNS = "cassandra.addColumns"
ADD_COLUMNS_AFTER = "cassandra.addColumnsAfter"
TTL = "cassandra.ttl"
TTL_COLUMN = "cassandra.ttlColumn"
EXPIRES_COLUMN = "cassandra.expiresAtColumn"
EVENT_COLUMN = "cassandra.timestampColumn"

_OVERWRITE = "overwrite"
_CHANGES = (_OVERWRITE, *get_args(Change))


class Conflict(NamedTuple):
    """Two options that cannot be given together."""

    one: str
    other: str
    why: str
    remedy: str


_ONE_LIFE = ("each says how long a row lives", "Keep one of them.")
_EXPIRING_TOTAL = ("a total that expires forgets what was added", "Leave out the life.")
_BY_ITSELF = "Leave out one of the two; or write such rows by a query of their own."

CONFLICTS = (
    Conflict(TTL, TTL_COLUMN, *_ONE_LIFE),
    Conflict(TTL, EXPIRES_COLUMN, *_ONE_LIFE),
    Conflict(TTL_COLUMN, EXPIRES_COLUMN, *_ONE_LIFE),
    Conflict(
        COLLECTIONS,
        EVENT_COLUMN,
        "of two rows of one key and one event time the later one is written, and elements of the other would"
        " be lost",
        f"Leave out {EVENT_COLUMN}: rows then have their places in the stream for their times; or write the"
        " collection whole, by overwrite.",
    ),
    Conflict(
        TABLES,
        EVENT_COLUMN,
        "rows of one key and one event time are settled by the key of one table",
        "Write each table by a query of its own, or name several targets by option targets.",
    ),
    Conflict(
        ADD_COLUMNS,
        OPERATION_COLUMN,
        "a delete takes what was added along, and which row was the last: a flush that is repeated would add"
        " again what lies before it",
        "Set a total to null by a query of its own.",
    ),
    Conflict(
        ADD_COLUMNS,
        TABLES,
        "each row has one total to be added to",
        "Write each table by a query of its own, or name several targets by option targets.",
    ),
    Conflict(
        "table",
        TABLES,
        "each says where rows go",
        "Leave out one of them. To write to several tables: tables=a,b",
    ),
    Conflict(ADD_COLUMNS, TTL, *_EXPIRING_TOTAL),
    Conflict(ADD_COLUMNS, TTL_COLUMN, *_EXPIRING_TOTAL),
    Conflict(ADD_COLUMNS, EXPIRES_COLUMN, *_EXPIRING_TOTAL),
    Conflict(
        ADD_COLUMNS,
        EVENT_COLUMN,
        "totals are added in the order of the rows, whenever their events were",
        "Leave out the event time.",
    ),
    Conflict(ADD_COLUMNS, WRITE_MODE, "totals are written by INSERT", "Leave out update."),
    Conflict(
        ADD_COLUMNS,
        COLLECTIONS,
        "of several rows of a key the newest one's elements would be written alone",
        "Write sets and maps by a query of their own, or whole.",
    ),
    Conflict(
        IF_NOT_EXISTS,
        EVENT_COLUMN,
        "Cassandra itself dates an insert that has a condition, so no event can decide",
        _BY_ITSELF,
    ),
    Conflict(
        IF_NOT_EXISTS,
        OPERATION_COLUMN,
        "a repeated insert would bring back what a delete behind it has deleted",
        _BY_ITSELF,
    ),
    Conflict(IF_NOT_EXISTS, WRITE_MODE, "an UPDATE has no such condition", _BY_ITSELF),
    Conflict(IF_NOT_EXISTS, COLLECTIONS, "elements are changed by UPDATE", _BY_ITSELF),
    Conflict(
        CREATE_TABLE,
        TABLES,
        "each of several tables has some of the columns, and a key of its own",
        "Create them: without createTable, `wal_sink.check` says which are missing.",
    ),
    Conflict(IF_NOT_EXISTS, ADD_COLUMNS, "totals are written over and over", _BY_ITSELF),
)


class RowOptions(OperationOptions, frozen=True, kw_only=True):
    """To which tables a row goes, by which statement, with which times, and which rows are deletes.

    :raises OptionError: when constructed with values that contradict each other.
    """

    keyspace: Annotated[
        str, about("Keyspace of the table, by its exact name", SHAPES, min_length=1)
    ]
    table: Annotated[str, about("Table to write to, by its exact name", SHAPES)] = ""
    tables: Annotated[
        str,
        about(
            "Several tables, comma-separated, instead of table. Each row goes to every one of them, with"
            " the columns that this table has",
            SHAPES,
        ),
    ] = ""
    table_column: Annotated[
        str,
        about(
            "A string column that names the table of each row, one of tables. It is not written",
            SHAPES,
        ),
    ] = msgspec.field(name=TABLE_COLUMN, default="")
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
    collections: Annotated[
        dict[str, str],
        about(
            "For a set or a map that is not frozen. overwrite: it is written whole. add: elements are"
            " added. remove: elements are taken out, those of a map by an array of keys",
            SHAPES,
        ),
    ] = msgspec.field(name=COLLECTIONS, default_factory=dict)
    if_not_exists: Annotated[
        bool,
        about(
            "true: a row is written only if there is none with its key, by a round of Paxos for each."
            " false: the newest row of a key stays",
            SHAPES,
        ),
    ] = msgspec.field(name=IF_NOT_EXISTS, default=False)
    add_columns: Annotated[
        str,
        about(
            "Columns, comma-separated, whose values are added to those in the table. The"
            " table needs"
            f" a column {ADDED_COLUMN} text for it",
            SHAPES,
        ),
    ] = msgspec.field(name=ADD_COLUMNS, default="")
    add_columns_after: Annotated[
        str,
        about(
            "Ids of former queries, comma-separated, that have added to the table and never will again"
        ),
    ] = msgspec.field(name=ADD_COLUMNS_AFTER, default="")
    ttl: Annotated[
        Annotated[int, Meta(ge=1, le=MOST_TTL_S)] | None,
        about(
            f"How long every row lives after it was published, 1 to {MOST_TTL_S} seconds."
            " Default: for ever, or what the table says",
            SECONDS,
            SHAPES,
        ),
    ] = msgspec.field(name=TTL, default=None)
    ttl_column: Annotated[
        str, about("Column with the seconds that each row lives. It is not written", SHAPES)
    ] = msgspec.field(name=TTL_COLUMN, default="")
    expires_column: Annotated[
        str, about("Timestamp column with the time until which each row lives", SHAPES)
    ] = msgspec.field(name=EXPIRES_COLUMN, default="")
    event_column: Annotated[
        str,
        about(
            "Column with the time of the event: a timestamp, or a bigint of microseconds since 1970. Of"
            " two versions of a row the later event stays",
            SHAPES,
        ),
    ] = msgspec.field(name=EVENT_COLUMN, default="")

    def __post_init__(self) -> None:
        read_tables(self.table, self.tables, self.table_column)
        _ = self.words
        layout = self.layout
        if self.create_table:
            primary_key(layout)
        given = self.given
        for one, other, why, remedy in CONFLICTS:
            if one in given and other in given:
                raise OptionError(
                    f"Options {given[one]} and {given[other]} are given together: {why}.", remedy
                )
        self._refuse_two_meanings()
        _ = self.added, self.after

    @property
    def data(self) -> tuple[TableName, ...]:
        """The tables to write to."""
        found = read_tables(self.table, self.tables, self.table_column)
        return tuple(TableName(self.keyspace, name) for name in found)

    @property
    def column_names(self) -> Mapping[str, str]:
        """The table's names of columns that have another one there, by the DataFrame's."""
        return read_columns(self.columns)

    @property
    def changes(self) -> Mapping[str, Change]:
        """What is done to collections that are not written whole, by column in lower case.

        :raises OptionError: a word is unknown.
        """
        found: dict[str, Change] = {}
        for column, given in self.collections.items():
            word = given.strip().lower()
            if word not in _CHANGES:
                raise OptionError(
                    f"Option {of_column(COLLECTIONS, column)} is {given}.",
                    f"Write one of {', '.join(_CHANGES)}: the column is written whole, its elements are added"
                    " to what the row has, or taken out.",
                )
            if word != _OVERWRITE:
                found[column] = msgspec.convert(word, Change)
        return found

    @property
    def added(self) -> tuple[str, ...]:
        """The columns whose values are added to what the table holds."""
        return listed_names(ADD_COLUMNS, self.add_columns)

    @property
    def after(self) -> tuple[str, ...]:
        """The queries that have added to totals before, and never will again."""
        return listed_names(ADD_COLUMNS_AFTER, self.add_columns_after)

    @property
    def controls(self) -> dict[str, str]:
        """The columns that say what becomes of a row, by the options that name them."""
        named = {
            OPERATION_COLUMN: self.operation_column,
            TABLE_COLUMN: self.table_column,
            TTL_COLUMN: self.ttl_column,
            EXPIRES_COLUMN: self.expires_column,
            EVENT_COLUMN: self.event_column,
        }
        return {option: column for option, column in named.items() if column}

    @property
    def given(self) -> dict[str, str]:
        """The options that have another value than their default, as a user writes them, by their names."""
        found = {
            option.name: option.name
            for option in fields(type(self))
            if getattr(self, option.field) not in (option.default, "", {})
        }
        found.pop(COLLECTIONS, None)
        if changed := next(iter(self.changes), None):
            found[COLLECTIONS] = of_column(COLLECTIONS, changed)
        return found

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
            if column in others and option in (OPERATION_COLUMN, TABLE_COLUMN):
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


def read_tables(table: str, tables: str, table_column: str) -> tuple[str, ...]:
    """Return the names of the tables, from the three options as they were given; at least one.

    :raises OptionError: the options contradict each other, or a name cannot be one.
    """
    names = listed_names(TABLES, tables)
    if not names:
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
    for name in names:
        refuse_bad_name(TABLES, name)
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
    """Refuse what no keyspace or table is called; columns may be called anything.

    :raises OptionError: Cassandra does not allow the name.
    """
    if not re.fullmatch(r"[A-Za-z0-9_]{1,222}", name):
        raise OptionError(
            f"Option {option}: {name!r} cannot be a name in Cassandra.",
            "Names of keyspaces and tables are letters, digits and underscores; write the exact "
            "name, without quotes. A table's keyspace is in option keyspace.",
        )

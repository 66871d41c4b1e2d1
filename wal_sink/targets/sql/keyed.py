"""The base of targets whose rows are added, or replaced and deleted by key, and which make their tables.

A target derives both classes. What their errors name as an option begins with the target's name.
"""

from __future__ import annotations

import contextlib
import re
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, Self
from urllib.parse import unquote

import msgspec
import pyarrow as pa
import pyarrow.types as pt

from wal_sink.errors import OptionError, SchemaMismatch
from wal_sink.model.plan import Plan, is_array, spark_ddl
from wal_sink.options import SECONDS, SHAPES, about, secret_parameter
from wal_sink.targets.base import ErrorClass
from wal_sink.targets.casts import KEY
from wal_sink.targets.client import importing
from wal_sink.targets.columns import (
    TableColumn,
    TableRules,
    cast_to,
    match_columns,
    with_column,
)
from wal_sink.targets.create_table import (
    CREATE_TABLE,
    KEY_COLUMNS,
    NO_LAYOUT,
    PARTITION_COLUMNS,
    Layout,
    create_statement,
    refuse_key_and_mode,
    refuse_other_key,
    refuse_unknown_columns,
)
from wal_sink.targets.names import quote
from wal_sink.targets.operations import (
    BY_POSITION,
    OperationOptions,
    described,
    with_operation,
    without_operation,
)
from wal_sink.targets.sql.database import Errors
from wal_sink.targets.sql.limits import Longest, refuse_long_names
from wal_sink.targets.sql.target import SqlTarget
from wal_sink.targets.sql.unique import Unique, refuse_unique, upsert_key

Table = Annotated[str, about("Table or schema.table, by its exact name", SHAPES, min_length=1)]
Mode = Annotated[
    Literal["append", "upsert"],
    about(
        "append: each row is added. upsert: a row replaces the one with its key, and of several rows"
        " with one key the last one stays",
        SHAPES,
    ),
]
RequestTimeout = Annotated[
    float, about("How long to wait for the answer to one statement, above 0", SECONDS, gt=0)
]
LockTimeout = Annotated[
    float,
    about(
        "How long to wait for a lock, such as another flusher's on the ledger row, above 0",
        SECONDS,
        gt=0,
    ),
]

LEDGER_TABLE = "wal_sink_ledger"


class TableName(NamedTuple):
    """The exact names of a table and its schema; an empty one: where the connection looks by itself."""

    schema: str
    table: str

    def __str__(self) -> str:
        """Quote them by the SQL standard."""
        return ".".join(quote(part) for part in self if part)

    @classmethod
    def parse(cls, text: str, schema: str = "") -> Self:
        """Read `table` or `schema.table`.

        :param schema: where the text names none.
        """
        named, dot, table = text.partition(".")
        return cls(named, table) if dot else cls(schema, text)


class KeyedOptions(OperationOptions, frozen=True, kw_only=True):
    """The base of the options, of which each target declares those below under its own names."""

    prefix: ClassVar[str]
    """The target's name, with which the names of its options begin."""
    default_schema: ClassVar[str] = ""
    """Of a table that is named without one."""
    if TYPE_CHECKING:
        table: str
        password: str
        mode: Literal["append", "upsert"]
        ledger_table: str

    @property
    def longest(self) -> Longest:
        """The longest name that the database takes."""
        return Longest()

    @property
    def data(self) -> TableName:
        """The table to write to."""
        return TableName.parse(self.table, self.default_schema)

    @property
    def ledger(self) -> TableName:
        """The ledger's table."""
        return TableName.parse(self.ledger_table or LEDGER_TABLE, self.default_schema)

    def keep_apart(self, field: str, password: str) -> None:
        """Take the password out of the URL.

        :param field: that has the URL.
        :param password: of the URL's parameters.
        :raises OptionError: there are two of them. No error shows the URL.
        """
        name = f"{self.prefix}.{field}"
        url, found = _without_password(name, getattr(self, field).strip(), self.prefix)
        found = found or password
        if found and self.password and found != self.password:
            raise OptionError(
                f"Option {name} has a password, and {self.prefix}.password another one.",
                "Give one of them.",
            )
        msgspec.structs.force_setattr(self, field, url)
        msgspec.structs.force_setattr(self, "password", found or self.password)

    def refuse_contradictions(self) -> None:
        """Refuse names of no table, and options that contradict each other.

        :raises OptionError: there are such.
        """
        mode = f"{self.prefix}.mode"
        names = {
            "table": self.table,
            f"{self.prefix}.ledgerTable": self.ledger_table or LEDGER_TABLE,
        }
        for option, name in names.items():
            parts = name.split(".")
            if max(map(self.longest.size, parts)) > self.longest.most:
                raise OptionError(
                    f"Option {option}: {name} is longer than {self.longest}, the most that the database"
                    " takes.",
                    "Give the table a shorter name.",
                )
            if len(parts) > 2 or not all(parts) or {",", "\0"} & {*name}:
                raise OptionError(
                    f"Option {option}: {name} is not the name of a table.",
                    "Write the exact name of one table, without quotes: table, or schema.table.",
                )
        if self.data == self.ledger:
            raise OptionError(
                f"Options table and {self.prefix}.ledgerTable both name {self.table}.",
                "Give the ledger a table of its own.",
            )
        layout = self.layout
        if self.create_table:
            refuse_key_and_mode(mode, self.mode, layout)
        self.refuse_without_key(mode, self.mode)


_URL = re.compile(r"(?P<scheme>[A-Za-z][\w+]*)://(?:(?P<login>[^/]*)@)?(?P<rest>[^@]*)")


def _without_password(option: str, url: str, prefix: str) -> tuple[str, str]:
    """Take a URL apart: the URL without its password, and the password."""
    found = _URL.fullmatch(url)
    if found is None:
        raise OptionError(
            f"Option {option} is not a URL of a database.",
            "Write it as scheme://user@host:port/database; a character such as @, / or # in user or password"
            " is written %40, %2F, %23.",
        )
    if name := secret_parameter(url):
        raise OptionError(
            f"Option {option} has the parameter {name}, which would be written to the log.",
            f"Leave it out. The user's password goes into {prefix}.password, or into"
            f" WAL_SINK_{prefix.upper()}_PASSWORD; a key may be without one.",
        )
    if found["login"] is None:
        return url, ""
    user, _, password = found["login"].partition(":")
    return f"{found['scheme']}://{user}@{found['rest']}", unquote(password)


class KeyedTarget(SqlTarget):
    """Adds rows, or replaces and deletes them by key.

    :param options: of a struct that is derived from `KeyedOptions`.
    """

    options: KeyedOptions
    errors: Errors
    """Of the drivers; set on the class."""
    title = "The database"
    """What errors call it."""
    begin = ""
    """What begins a transaction before CREATE TABLE, where the driver does not; set on the class."""

    client: ClassVar[str]
    """The module that imports the client, and whose `connect` opens a connection; set on the class."""

    # --- what a database has of its own ---

    @abstractmethod
    def lacks_table(self, connection: Any) -> bool:
        """Whether there is no table of the name, and a place for it."""

    @abstractmethod
    def new_type(self, source: pa.DataType, *, key: bool) -> str | None:
        """Return the type of a new column for one of the DataFrame's types; None: the database has none.

        :param key: whether the column is part of the key, of which a text needs a bound in some databases.
        """

    def table_end(self, partition: Sequence[str]) -> str:
        """Return what comes behind the columns of CREATE TABLE; here as PostgreSQL partitions a table.

        One partition takes all rows: others are made when they are wanted.
        """
        if not partition:
            return ""
        name = self.options.longest.cut(self.options.data.table, "_default")
        rest = self._quoted(TableName(self.options.data.schema, name))
        by_range = f"PARTITION BY RANGE ({', '.join(map(self.quote, partition))})"
        return f"{by_range};\nCREATE TABLE {rest} PARTITION OF {self.table_name} DEFAULT"

    # --- the target ---

    def open(self) -> Any:
        """Connect."""
        return self._client().connect(self.options)

    def load(self) -> None:
        """Import the client."""
        self._client()

    def _client(self) -> Any:
        """Import the client.

        :raises OptionError: it is not installed.
        """
        with importing(self):
            return import_module(self.client)

    def classify(self, error: Exception) -> ErrorClass:
        """Return what an exception of the driver means."""
        return self.errors.kind(error)

    def remedy(self, error: Exception) -> str:
        """Return what to do about an error at a start."""
        return self.errors.remedy(error)

    def is_locked(self, error: Exception) -> bool:
        """Return True if an error says that another session holds a lock."""
        return self.errors.is_locked(error)

    def refuses(self, error: Exception) -> bool:
        """Whether the database says that a row is wrong."""
        return self.errors.refuses(error)

    @property
    def table_name(self) -> str:
        """The table, quoted."""
        return self._quoted(self.options.data)

    @property
    def ledger_name(self) -> str:
        """The ledger's table, quoted."""
        return self._quoted(self.options.ledger)

    def _quoted(self, name: TableName) -> str:
        return ".".join(self.quote(part) for part in name if part)

    def described(self, place: str) -> Mapping[str, str]:
        """Return place, tables and mode, for `description`."""
        given = self.options
        modes = {"append": "each row is added", "upsert": "a row replaces the one with its key"}
        ledger = ".".join(part for part in given.ledger if part)
        return {
            "target": f"{self.name} at {place}",
            "table": f"{given.table}, ledger in {ledger}",
            "mode": f"{given.mode}: {modes[given.mode]} ({self.name}.mode)",
            **({"newest": BY_POSITION} if given.mode == "upsert" else {}),
            **described(given),
        }

    def match(
        self,
        schema: pa.Schema,
        key: str,
        columns: Sequence[TableColumn],
        unique: Sequence[Unique],
        rules: TableRules,
    ) -> Plan:
        """Compare the DataFrame with a table.

        :param unique: its unique indexes, the primary key first.
        :raises SchemaMismatch: it does not fit.
        """
        given, mode = self.options, f"{self.name}.mode"
        operation, table = given.operation_column, given.table
        written = without_operation(schema, operation, [each.name for each in columns], table)
        refuse_long_names(written.names, given.longest, table, self.title)
        matched = match_columns(written, columns, table, rules)
        self.refuse_row([column.type for column in matched])
        found: tuple[str, ...] = ()
        if given.mode == "upsert":
            found = upsert_key(table, unique, matched, mode).columns
            refuse_other_key(table, given.layout, found)
        else:
            filled = {each.name for each in columns if each.default or each.computed}
            refuse_unique(table, unique, matched, filled, mode)
        return Plan(
            key=key,
            target=self.name,
            table=self.table_name,
            columns=with_operation(matched, schema, operation),
            operations=dict(given.words) if operation else {},
            unavailable=given.unavailable_value,
            details={KEY: list(found)} if found else {},
        )

    def missing_table(self, schema: pa.Schema, hint: str) -> SchemaMismatch:
        """Return the error of a table that does not exist.

        :param hint: a sentence that says what it may be called; or empty.
        """
        return SchemaMismatch(
            f"There is no table {self.options.table}. {hint}".rstrip(),
            f"Correct option table, or create it, or set {CREATE_TABLE} to true:\n"
            f"{self.new_table(schema, NO_LAYOUT)};",
        )

    def new_table(self, schema: pa.Schema, layout: Layout) -> str:
        """Return what makes a table for the DataFrame.

        :raises SchemaMismatch: the database has no type for a column, or the layout names one that lacks.
        :raises OptionError: the layout cannot be had.
        """
        written = without_operation(schema, self.options.operation_column, (), self.options.table)
        refuse_unknown_columns(layout, written)
        refuse_long_names(written.names, self.options.longest, self.options.table, self.title)
        if strange := [each for each in written if self.new_type(each.type, key=False) is None]:
            types = (f"{each.name} ({spark_ddl(each.type)})" for each in strange)
            raise SchemaMismatch(
                f"{self.title} has no type for {', '.join(types)}.",
                f"Make texts of them in the DataFrame: {''.join(map(_as_text, strange))}.",
            )
        if layout.key and (
            outside := [each for each in layout.partition if each not in layout.key]
        ):
            raise OptionError(
                f"Option {PARTITION_COLUMNS} names {', '.join(outside)}, and {KEY_COLUMNS} does not: a"
                " key is unique inside each partition only.",
                f"Add it to {KEY_COLUMNS}, or leave it out of {PARTITION_COLUMNS}.",
            )

        type_of, end = partial(self.type_of, layout=layout), self.table_end(layout.partition)
        self.refuse_row(map(type_of, written))
        return create_statement(self.table_name, written, layout, type_of, self.quote, end)

    def refuse_row(self, types: Iterable[str]) -> None:
        """Refuse columns of types that no row of the database can have together."""

    def type_of(self, field: pa.Field, layout: Layout) -> str:
        """Return the type of a new column."""
        is_key = field.name in (*layout.key, *layout.partition)
        return self.new_type(field.type, key=is_key) or ""

    def make_table(self, connection: Any, schema: pa.Schema) -> str:
        """Make the table where createTable asks for it."""
        if not self.options.create_table or not self.lacks_table(connection):
            return ""
        statements = self.new_table(schema, self.options.layout)
        try:
            with contextlib.closing(connection.cursor()) as cursor:
                if self.begin:
                    cursor.execute(self.begin)
                cursor.execute(statements)
        except Exception:
            connection.rollback()
            if not self.lacks_table(connection):  # another process was quicker
                return ""
            raise
        return statements


def _as_text(field: pa.Field) -> str:
    """Return what makes a text of a column."""
    if is_array(field.type) or pt.is_map(field.type) or pt.is_struct(field.type):
        return with_column(field.name, f'F.to_json("{field.name}")')
    return cast_to(field.name, "string")

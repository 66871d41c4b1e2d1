"""The base of targets whose rows are added, or replaced and deleted by key, and which make their tables.

What its errors name as an option begins with the target's name.
"""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.types as pt

from wal_sink.errors import OptionError, SchemaMismatch
from wal_sink.model.plan import Plan, is_array, spark_ddl
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
    refuse_other_key,
    refuse_unknown_columns,
)
from wal_sink.targets.operations import (
    BY_POSITION,
    described,
    with_operation,
    without_operation,
)
from wal_sink.targets.sql.names import TableName, refuse_long_names
from wal_sink.targets.sql.options import KeyedOptions
from wal_sink.targets.sql.target import SqlTarget
from wal_sink.targets.sql.unique import Unique, refuse_unique, upsert_key


class KeyedTarget(SqlTarget):
    """Adds rows, or replaces and deletes them by key.

    :param options: of a struct that is derived from `KeyedOptions`.
    """

    options: KeyedOptions
    title = "The database"
    """What errors call it."""
    begin = ""
    """What begins a transaction before CREATE TABLE, where the driver does not; set on the class."""

    client: ClassVar[str]
    """The module that imports the client, and whose `connect` opens a connection; set on the class."""

    # --- what a database has of its own ---

    @abstractmethod
    def lacks_table(self, connection: Any) -> bool:
        """Return True if there is no table of the name, and a place for it."""

    @abstractmethod
    def new_type(self, source: pa.DataType, *, key: bool) -> str | None:
        """Return the type of a new column for one of the DataFrame's types; None: the database has none.

        :param key: whether the column is part of the key, of which a text needs a bound in some databases.
        """

    @abstractmethod
    def table_end(self, partition: Sequence[str]) -> str:
        """Return what comes after the columns of CREATE TABLE."""

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

    @property
    def table_name(self) -> str:
        """The table, quoted."""
        return self.quoted(self.options.data)

    @property
    def ledger_name(self) -> str:
        """The ledger's table, quoted."""
        return self.quoted(self.options.ledger)

    def quoted(self, name: TableName) -> str:
        """Return a name as statements write it."""
        return ".".join(self.quote(part) for part in name if part)

    def described(self, place: str) -> Mapping[str, str]:
        """Return place, tables and mode, for `description`."""
        options = self.options
        modes = {"append": "each row is added", "upsert": "a row replaces the one with its key"}
        ledger = ".".join(part for part in options.ledger if part)
        return {
            "target": f"{self.name} at {place}",
            "table": f"{options.table}, ledger in {ledger}",
            "mode": f"{options.mode}: {modes[options.mode]} ({self.name}.mode)",
            **({"newest": BY_POSITION} if options.mode == "upsert" else {}),
            **described(options),
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
        options, mode = self.options, f"{self.name}.mode"
        operation, table = options.operation_column, options.table
        written = without_operation(schema, operation, [column.name for column in columns], table)
        refuse_long_names(written.names, options.longest, table, self.title)
        matched = match_columns(written, columns, table, rules)
        self.refuse_row([column.type for column in matched])
        key_columns: tuple[str, ...] = ()
        if options.mode == "upsert":
            key_columns = upsert_key(table, unique, matched, mode).columns
            refuse_other_key(table, options.layout, key_columns)
        else:
            filled = {column.name for column in columns if column.default or column.computed}
            refuse_unique(table, unique, matched, filled, mode)
        return Plan(
            key=key,
            target=self.name,
            table=self.table_name,
            columns=with_operation(matched, schema, operation),
            operations=dict(options.words) if operation else {},
            unavailable=options.unavailable_value,
            details={KEY: list(key_columns)} if key_columns else {},
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
        strange = [field for field in written if self.new_type(field.type, key=False) is None]
        if strange:
            types = (f"{field.name} ({spark_ddl(field.type)})" for field in strange)
            raise SchemaMismatch(
                f"{self.title} has no type for {', '.join(types)}.",
                f"Make texts of them in the DataFrame: {''.join(map(_as_text, strange))}.",
            )
        if layout.key and (
            outside := [name for name in layout.partition if name not in layout.key]
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

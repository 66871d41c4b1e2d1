"""The base classes of the targets `postgresql` and `sql`: they create tables, and upsert by a unique index.

Errors name options in full, such as `sql.mode`, with the name of the target as the prefix.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from wal_sink.errors import SchemaMismatch
from wal_sink.model.plan import Column, Plan
from wal_sink.model.spark_types import is_array, is_text, spark_ddl
from wal_sink.targets.casts import KEY, CastRules, is_castable, key_of
from wal_sink.targets.client import importing
from wal_sink.targets.columns import (
    TableColumn,
    cast_to,
    match_columns,
    with_column,
)
from wal_sink.targets.ddl import (
    CREATE_TABLE,
    KEY_COLUMNS,
    NO_LAYOUT,
    Layout,
    create_statement,
    refuse_other_key,
    refuse_unknown_columns,
)
from wal_sink.targets.operation_options import (
    BY_POSITION,
    described,
    with_operation,
    without_operation,
)
from wal_sink.targets.sql import errors
from wal_sink.targets.sql.catalogue import Catalogue, Unique
from wal_sink.targets.sql.options import KeyedOptions, TableName
from wal_sink.targets.sql.target import SqlTarget
from wal_sink.targets.sql.types import NewTypes, Types, arrow_type, is_document, new_type
from wal_sink.unknown_names import did_you_mean

logger = logging.getLogger(__name__)


def _listed(unique: Iterable[Unique]) -> str:
    return ", ".join(index.text for index in unique)


class KeyedTarget(SqlTarget):
    """Adds rows, or replaces and deletes rows by key. Creates the table if createTable is set."""

    options: KeyedOptions
    # A subclass or its constructor sets these attributes.
    catalogue: type[Catalogue]
    title = "The database"
    """The name of the database in errors."""
    types: Types
    new: NewTypes
    longest = 2**31, "characters"
    """The length of the longest name of a table or a column, and its unit: characters or bytes."""

    # --- what a database overrides ---

    @abstractmethod
    def connector(self) -> Callable[[Any], Any]:
        """Import the client. Return the function that connects; its argument is the options."""

    @abstractmethod
    def table_end(self, partition: Sequence[str]) -> str:
        """Return the text of CREATE TABLE after the columns."""

    def takes(self, source: pa.DataType, type_: str, held: pa.DataType) -> bool:  # noqa: ARG002
        """Return True if a cast from the DataFrame's type keeps each value unchanged, or refuses the value.

        :param type_: the type of the column.
        :param held: the Arrow type that holds `type_`.
        """
        return is_castable(source, held)

    # --- the target ---

    def open(self) -> Any:
        """Connect.

        :raises OptionError: the client is not installed.
        """
        with importing(self):
            connect = self.connector()
        return connect(self.options)

    def load(self) -> None:
        """Import the client."""
        with importing(self):
            self.connector()

    @property
    def table_name(self) -> str:
        """The table, quoted."""
        return self.quoted(self.options.destination)

    @property
    def ledger_name(self) -> str:
        """The ledger's table, quoted."""
        return self.quoted(self.options.ledger)

    def quoted(self, name: TableName) -> str:
        """Quote schema and table."""
        return ".".join(self.quote(part) for part in name if part)

    @property
    def description(self) -> Mapping[str, str]:
        """The place, tables and mode of the query."""
        options = self.options
        modes = {"append": "each row is added", "upsert": "a row replaces the one with its key"}
        return {
            "target": f"{self.name} at {options.place}",
            "table": f"{options.table}, ledger in {options.ledger.text}",
            "mode": f"{options.mode}: {modes[options.mode]} ({self.name}.mode)",
            **({"newest": BY_POSITION} if options.mode == "upsert" else {}),
            **described(options),
        }

    def arrow_type(self, type_: str) -> pa.DataType | None:
        """Return the Arrow type that holds a type exactly, from `types`. None if there is no such type."""
        return arrow_type(self.types, type_)

    def columns(self, connection: Any) -> Sequence[TableColumn]:
        """Read the columns of the table."""
        return self._catalogue(connection).columns()

    def _catalogue(self, connection: Any) -> Catalogue:
        return self.catalogue(connection, self.options, self.quoted)

    def other_changes(self, connection: Any, plan: Plan) -> Sequence[str]:
        """Return how the unique indexes differ from the key of the plan."""
        key = key_of(plan)
        unique = self._catalogue(connection).unique() if key else ()
        if not key or (len(unique) == 1 and unique[0].plain and {*unique[0].columns} == {*key}):
            return ()
        present = f"is unique by {_listed(unique)}" if unique else "has no unique index"
        return [f"its key was {', '.join(key)}, and it {present} now"]

    # --- at a start ---

    def plan(self, schema: pa.Schema, key: str) -> Plan:
        """Create the table if createTable is set, and compare the DataFrame with the table."""
        if self.options.create_table:
            with self._connected() as connection:
                if not self.columns(connection):
                    statement = self.new_table(schema, self.options.layout)
                    self._make_schema(connection, self.options.destination)
                    what = f"The table {self.table_name}"
                    self._create(
                        connection, what, statement, lambda: bool(self.columns(connection))
                    )
                    logger.info("created the table: %s", statement)
        return super().plan(schema, key)

    def dry_plan(self, schema: pa.Schema, key: str) -> Plan:
        """Compare the DataFrame with the table, or with the table that createTable would create."""
        with self._connected() as connection:
            if not self.options.create_table or self.columns(connection):
                return self.agree(connection, schema, key)
            new_schema = self._new_schema(connection, self.options.destination)
        layout = self.options.layout
        statement = new_schema + self.new_table(schema, layout)
        columns = [
            TableColumn(field.name, self.type_of(field, layout), required=field.name in layout.key)
            for field in self._written(schema)
        ]
        unique = [Unique("the primary key", layout.key)] if layout.key else []
        return self.match(schema, key, columns, unique).that_creates(statement)

    def agree(self, connection: Any, schema: pa.Schema, key: str) -> Plan:
        """Compare the DataFrame with the table."""
        catalogue, table = self._catalogue(connection), self.options.table
        columns = catalogue.columns()
        if not columns:
            hint = did_you_mean(table, catalogue.other_tables())
            new_schema = self._new_schema(connection, self.options.destination)
            statement = new_schema + self.new_table(schema, NO_LAYOUT)
            raise errors.missing_table(table, hint, statement)
        return self.match(schema, key, columns, catalogue.unique())

    def match(
        self,
        schema: pa.Schema,
        key: str,
        columns: Sequence[TableColumn],
        unique: Sequence[Unique],
    ) -> Plan:
        """Return the plan for a table with these columns and unique indexes.

        :raises SchemaMismatch: the DataFrame does not fit.
        """
        options, table = self.options, self.options.table
        operation = options.operation_column
        written = without_operation(schema, operation, [column.name for column in columns], table)
        matched = match_columns(written, columns, table, KeyedRules(self))
        key_columns: tuple[str, ...] = ()
        if options.mode == "upsert":
            key_columns = self._upsert_key(unique, matched).columns
            refuse_other_key(table, options.layout, key_columns)
        else:
            self._refuse_unique_for_append(unique, matched)
        return Plan(
            key=key,
            target=self.name,
            table=self.table_name,
            columns=with_operation(matched, schema, operation),
            operations=dict(options.words) if operation else {},
            unavailable=options.unavailable_value,
            details={KEY: list(key_columns)} if key_columns else {},
        )

    # --- unique indexes ---

    def _upsert_key(self, unique: Sequence[Unique], columns: Sequence[Column]) -> Unique:
        """Return the key of an upsert: the primary key, or the only unique index.

        A second unique index is refused. Because of it the server could refuse a row, or replace a row with
        another key.
        """
        table, mode = self.options.table, f"{self.name}.mode"
        key = next((index for index in unique if index.plain), None)
        others = [index for index in unique if index is not key]
        if key is None:
            raise SchemaMismatch(
                f"{table} has no primary key, by which {mode} = upsert finds the row to replace."
                + (
                    f" These unique indexes cannot be the key: {_listed(others)}." if others else ""
                ),
                f"Give the table a primary key; or set {mode} to append.",
            )
        written = {column.in_table for column in columns}
        missing = [name for name in key.columns if name not in written]
        if others:
            raise SchemaMismatch(
                f"{table} has more than one unique index. An upsert replaces the row with the same"
                f" {key.text}. Because of {_listed(others)}, the database could replace another row, or"
                " refuse the row.",
                self._to_own_table(others[0]) if missing else f"Drop {_listed(others)}.",
            )
        if missing:
            raise SchemaMismatch(
                f"Columns of the key of {table} are not in the DataFrame: {', '.join(missing)}.",
                "Add them to the DataFrame, or make a key of columns that the DataFrame has.",
            )
        return key

    def _refuse_unique_for_append(
        self, unique: Sequence[Unique], columns: Sequence[Column]
    ) -> None:
        """Refuse to append to a table with a unique index whose columns are all in the DataFrame.

        The database fills a column that the DataFrame lacks, for example with the next number. So an index
        with such a column refuses no row.
        """
        written = {column.in_table for column in columns}
        for index in unique:
            if written >= {*index.columns}:
                upsert = f"Set {self.name}.mode to upsert, which replaces the row of the key; or "
                is_key = len(unique) == 1 and index.plain
                raise SchemaMismatch(
                    f"{self.options.table} is unique by {index.text}: a second row of the same key would be"
                    " refused by the server, and stop the flush.",
                    (upsert if is_key else f"{self._to_own_table(index)} Or ")
                    + f"drop {index.text}.",
                )

    def _to_own_table(self, index: Unique) -> str:
        """Return the options that write to another table, whose only unique index is `index`."""
        table = self.options.destination
        own = table._replace(table=f"{table.table}_rows").text
        return (
            f"Write to a table of its own, whose only key is that of {index.name}, with options table={own},"
            f" {self.name}.mode=upsert, {CREATE_TABLE}=true and {KEY_COLUMNS}={','.join(index.columns)}."
        )

    # --- a new table ---

    def _new_schema(self, connection: Any, name: TableName) -> str:
        """Return the CREATE SCHEMA that a new table needs, with a semicolon. Empty if the schema exists."""
        if not name.schema or self._catalogue(connection).has_schema(name.schema):
            return ""
        return f"CREATE SCHEMA {self.quote(name.schema)};\n"

    def _make_schema(self, connection: Any, name: TableName) -> None:
        """Create the schema of a new table unless it exists."""
        if statement := self._new_schema(connection, name).removesuffix(";\n"):
            exists = partial(self._catalogue(connection).has_schema, name.schema)
            self._create(connection, f"The schema {name.schema}", statement, exists)

    def _make_ledger(self, connection: Any) -> None:
        self._make_schema(connection, self.options.ledger)
        super()._make_ledger(connection)

    def ledger_statements(self, connection: Any) -> str:
        """Return the statements that create the ledger's table, and its schema if that is missing."""
        return self._new_schema(connection, self.options.ledger) + self.ledger_statement

    def new_table(self, schema: pa.Schema, layout: Layout) -> str:
        """Return the CREATE TABLE for the DataFrame.

        :raises SchemaMismatch: a column has no type in the database, a name is too long, or the DataFrame
            lacks a column of the layout.
        """
        written = self._written(schema)
        refuse_unknown_columns(layout, written)
        most, unit = self.longest
        names = [self.options.destination.table, *written.names]
        sizes = {name: len(name.encode() if unit == "bytes" else name) for name in names}
        if long := [name for name in names if sizes[name] > most]:
            raise SchemaMismatch(
                f"Names are longer than {most} {unit}, the most that {self.title} takes: {', '.join(long)}.",
                f'Rename a column, .withColumnRenamed("{long[-1]}", …), or the table, in option table.',
            )
        untyped = [field for field in written if not new_type(self.new, field.type, key=False)]
        if untyped:
            types = (f"{field.name} ({spark_ddl(field.type)})" for field in untyped)
            raise SchemaMismatch(
                f"{self.title} has no type for {', '.join(types)}.",
                f"Make texts of them in the DataFrame: {''.join(map(_as_text, untyped))}.",
            )
        type_of, end = partial(self.type_of, layout=layout), self.table_end(layout.partition)
        return create_statement(self.table_name, written, layout, type_of, self.quote, end)

    def type_of(self, field: pa.Field, layout: Layout) -> str:
        """Return the type of a new column."""
        is_key = field.name in (*layout.key, *layout.partition)
        return new_type(self.new, field.type, key=is_key) or ""

    def _written(self, schema: pa.Schema) -> pa.Schema:
        return without_operation(schema, self.options.operation_column, (), self.options.table)


class KeyedRules(CastRules):
    """Compares columns by the types of the database."""

    def __init__(self, target: KeyedTarget) -> None:
        super().__init__(target.arrow_type, target.table_name)
        self._target = target

    def about_type(self, field: pa.Field, column: TableColumn) -> Sequence[str]:
        """Propose another type for a column if Spark cannot cast its values to the present type."""
        type_ = new_type(self._target.new, field.type, key=False)
        held = self._target.arrow_type(column.type)
        for_text = held is not None and is_text(held) and is_document(field.type)
        if for_text and not self._target.takes(field.type, column.type, held):
            remedy = f"Make a text of it, {_as_text(field)}."
            return [self.types_differ(field, column.type, remedy)]
        if not type_ or (held is not None and _casts(field.type, held)):
            return super().about_type(field, column)
        remedy = f"No cast leads to that type. Change it to {type_}, or drop the column from the DataFrame."
        return [self.types_differ(field, column.type, remedy)]

    def is_castable(self, source: pa.DataType, words: str, holds: pa.DataType) -> bool:
        """Return True if a column of type `words` accepts the DataFrame's type, see `KeyedTarget.takes`."""
        return self._target.takes(source, words, holds)

    def to_add(self, field: pa.Field) -> str:
        """Return the ALTER TABLE that adds a column. Empty if the database has no type for the column."""
        type_ = new_type(self._target.new, field.type, key=False)
        add = f"ALTER TABLE {self._table} ADD COLUMN {self._target.quote(field.name)} {type_}"
        return f"run: {add};" if type_ else ""


def _casts(source: pa.DataType, to: pa.DataType) -> bool:
    """Return True if Spark can cast a type to another. Spark casts a struct or a map only to a text."""
    if is_array(source) and is_array(to):
        return _casts(source.value_type, to.value_type)
    return is_text(to) or not is_document(source)


def _as_text(field: pa.Field) -> str:
    if is_document(field.type):
        return with_column(field.name, f'F.to_json("{field.name}")')
    return cast_to(field.name, "string")

"""The base of targets whose rows are added, or replaced and deleted by key, and which make their tables.

Its errors name options in full, with the target's name in front.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.types as pt

from wal_sink.errors import SchemaMismatch
from wal_sink.model.plan import Plan, is_array, spark_ddl
from wal_sink.targets.casts import KEY, CastRules, is_castable, key_of
from wal_sink.targets.client import importing
from wal_sink.targets.columns import TableColumn, cast_to, match_columns, with_column
from wal_sink.targets.operations import (
    BY_POSITION,
    described,
    with_operation,
    without_operation,
)
from wal_sink.targets.sql.options import KeyedOptions, TableName
from wal_sink.targets.sql.session import run
from wal_sink.targets.sql.target import SqlTarget
from wal_sink.targets.sql.types import NewTypes, Types, arrow_type, new_type
from wal_sink.targets.sql.unique import Unique, changes_of_key, refuse_unique, upsert_key
from wal_sink.targets.sql_text import create_statement
from wal_sink.targets.table_options import (
    CREATE_TABLE,
    NO_LAYOUT,
    Layout,
    refuse_other_key,
    refuse_unknown_columns,
)
from wal_sink.text import did_you_mean

logger = logging.getLogger(__name__)


class KeyedTarget(SqlTarget):
    """Adds rows, or replaces and deletes them by key.

    :param options: of a struct that is derived from `KeyedOptions`.
    """

    options: KeyedOptions
    title = "The database"
    """What errors call it; set on the class or the target, as `types` and `new`."""
    types: Types
    """Which Arrow types hold the types of the database."""
    new: NewTypes
    """The types of new columns."""
    longest = 2**31, "characters"
    """The longest name of a table or a column; set on the class or the target."""

    client: ClassVar[str]
    """The module that imports the client, and whose `connect` opens a connection; set on the class."""

    # --- what a database has of its own ---

    @abstractmethod
    def unique(self, connection: Any) -> Sequence[Unique]:
        """Read the unique indexes of the table, the primary key first."""

    @abstractmethod
    def other_tables(self, connection: Any) -> Iterable[str]:
        """Read the names of tables, as option table has them, where there is none of that name."""

    @abstractmethod
    def warnings(self, connection: Any) -> Iterable[str]:
        """Read what the operator should know of table and server at the start."""

    @abstractmethod
    def table_end(self, partition: Sequence[str]) -> str:
        """Return what comes after the columns of CREATE TABLE."""

    def altered(self, column: TableColumn, type_: str | None) -> str:
        """Return the statement that gives a column another type; without one: that lets it take nulls.

        Empty for a database in which none does.
        """
        change = f"TYPE {type_}" if type_ else "DROP NOT NULL"
        return f"ALTER TABLE {self.table_name} ALTER COLUMN {self.quote(column.name)} {change};"

    def takes(self, source: pa.DataType, type_: str, held: pa.DataType) -> bool:  # noqa: ARG002
        """Return True if a column takes a type of the DataFrame: each value is kept, or refused.

        :param held: what `arrow_type` has for the column's type.
        """
        return is_castable(source, held)

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

    @property
    def description(self) -> Mapping[str, str]:
        """Return place, tables and mode."""
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
        """Return the Arrow type that holds a type of the database exactly; of some, one of several."""
        return arrow_type(self.types, type_)

    def other_changes(self, connection: Any, plan: Plan) -> Sequence[str]:
        """Ask the catalogue whether an upsert still finds the row by the same key."""
        key = key_of(plan)
        return changes_of_key(key, self.unique(connection)) if key else ()

    # --- at a start ---

    def plan(self, schema: pa.Schema, key: str) -> Plan:
        """Make the table where createTable asks for it, and compare the DataFrame with the table."""
        if self.options.create_table:
            with self._connected() as connection:
                if not self.columns(connection):
                    self._make(connection, self.new_table(schema, self.options.layout))
        return super().plan(schema, key)

    def dry_plan(self, schema: pa.Schema, key: str) -> Plan:
        """Compare the DataFrame with the table, or with the one that createTable would make."""
        options, layout = self.options, self.options.layout
        if options.create_table:
            with self._connected() as connection:
                lacks_table = not self.columns(connection)
            if lacks_table:
                statement = self.new_table(schema, layout)
                columns = [
                    TableColumn(
                        field.name, self.type_of(field, layout), required=field.name in layout.key
                    )
                    for field in self._written(schema)
                ]
                unique = [Unique("the primary key", layout.key)] if layout.key else []
                return self.match(schema, key, columns, unique).that_creates(statement)
        return super().dry_plan(schema, key)

    def agree(self, connection: Any, schema: pa.Schema, key: str) -> Plan:
        """Compare the DataFrame with the table.

        :raises SchemaMismatch: it does not fit.
        """
        columns, table = self.columns(connection), self.options.table
        if not columns:
            hint = did_you_mean(table, self.other_tables(connection))
            raise SchemaMismatch(
                f"There is no table {table}. {hint}".rstrip(),
                f"Correct option table, or create it, or set {CREATE_TABLE} to true:\n"
                f"{self.new_table(schema, NO_LAYOUT)};",
            )
        plan = self.match(schema, key, columns, self.unique(connection))
        for warning in self.warnings(connection):
            logger.warning("%s", warning)
        return plan

    def match(
        self,
        schema: pa.Schema,
        key: str,
        columns: Sequence[TableColumn],
        unique: Sequence[Unique],
    ) -> Plan:
        """Compare the DataFrame with columns and unique indexes of a table.

        :raises SchemaMismatch: it does not fit.
        """
        options, mode = self.options, f"{self.name}.mode"
        operation, table = options.operation_column, options.table
        written = without_operation(schema, operation, [column.name for column in columns], table)
        matched = match_columns(written, columns, table, KeyedRules(self))
        key_columns: tuple[str, ...] = ()
        if options.mode == "upsert":
            key_columns = upsert_key(table, unique, matched, mode).columns
            refuse_other_key(table, options.layout, key_columns)
        else:
            refuse_unique(table, unique, matched, mode)
        return Plan(
            key=key,
            target=self.name,
            table=self.table_name,
            columns=with_operation(matched, schema, operation),
            operations=dict(options.words) if operation else {},
            unavailable=options.unavailable_value,
            details={KEY: list(key_columns)} if key_columns else {},
        )

    # --- a new table ---

    def new_table(self, schema: pa.Schema, layout: Layout) -> str:
        """Return what makes a table for the DataFrame.

        :raises SchemaMismatch: the database has no type for a column, or cuts its name; or the layout names
            one that lacks.
        """
        written = self._written(schema)
        refuse_unknown_columns(layout, written)
        most, unit = self.longest
        names = [self.options.data.table, *written.names]
        sizes = {name: len(name.encode() if unit == "bytes" else name) for name in names}
        if long := [name for name in names if sizes[name] > most]:
            raise SchemaMismatch(
                f"{', '.join(long)}: longer than {most} {unit}, the most that {self.title} takes of a name.",
                f'Rename a column, .withColumnRenamed("{long[-1]}", …), or the table, in option table.',
            )
        strange = [field for field in written if not new_type(self.new, field.type, key=False)]
        if strange:
            types = (f"{field.name} ({spark_ddl(field.type)})" for field in strange)
            raise SchemaMismatch(
                f"{self.title} has no type for {', '.join(types)}.",
                f"Make texts of them in the DataFrame: {''.join(map(_as_text, strange))}.",
            )
        type_of, end = partial(self.type_of, layout=layout), self.table_end(layout.partition)
        return create_statement(self.table_name, written, layout, type_of, self.quote, end)

    def type_of(self, field: pa.Field, layout: Layout) -> str:
        """Return the type of a new column."""
        is_key = field.name in (*layout.key, *layout.partition)
        return new_type(self.new, field.type, key=is_key) or ""

    def _written(self, schema: pa.Schema) -> pa.Schema:
        """Return the columns of the DataFrame that go into a new table."""
        return without_operation(schema, self.options.operation_column, (), self.options.table)

    def _make(self, connection: Any, statement: str) -> None:
        """Make the table."""
        try:
            run(connection, statement)
            connection.commit()
            logger.info("made the table: %s", statement)
        except Exception:
            connection.rollback()
            if not self.columns(connection):  # else another process was quicker
                raise


class KeyedRules(CastRules):
    """What a database says of types, and its statements that alter a table."""

    def __init__(self, target: KeyedTarget) -> None:
        super().__init__(target.arrow_type, target.table_name)
        self._target = target

    def about_type(self, field: pa.Field, column: TableColumn) -> Sequence[str]:
        """Say how a column gets a type that can be written, where no cast leads to its own."""
        type_ = new_type(self._target.new, field.type, key=False)
        statement = self._target.altered(column, type_) if type_ else ""
        if not statement or self._target.arrow_type(column.type) is not None:
            return super().about_type(field, column)
        remedy = f"No cast leads to that type. Run: {statement} Or drop it from the DataFrame."
        return [self.types_differ(field, column.type, remedy)]

    def is_castable(self, source: pa.DataType, words: str, holds: pa.DataType) -> bool:
        """Return True if the column takes the type of the DataFrame."""
        return self._target.takes(source, words, holds)

    def to_add(self, field: pa.Field) -> str:
        """Return the statement."""
        type_ = new_type(self._target.new, field.type, key=False)
        add = f"ALTER TABLE {self._table} ADD COLUMN {self._target.quote(field.name)} {type_}"
        return f"run: {add};" if type_ else ""

    def to_allow_null(self, column: TableColumn) -> str:
        """Return the statement."""
        statement = self._target.altered(column, None)
        return f"run: {statement}" if statement else super().to_allow_null(column)


def _as_text(field: pa.Field) -> str:
    """Return what makes a text of a column."""
    if is_array(field.type) or pt.is_map(field.type) or pt.is_struct(field.type):
        return with_column(field.name, f'F.to_json("{field.name}")')
    return cast_to(field.name, "string")

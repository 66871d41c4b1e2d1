"""The class of the target `sql`. Tasks import it without SQLAlchemy."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from wal_sink.model.plan import Plan
from wal_sink.options import Options
from wal_sink.targets.columns import refuse_equal_but_for_case
from wal_sink.targets.ddl import Layout
from wal_sink.targets.refusals import Savepoints
from wal_sink.targets.sql.keyed_target import KeyedTarget
from wal_sink.targets.sql.types import parse
from wal_sink.targets.sqlalchemy.catalogue import SqlAlchemyCatalogue
from wal_sink.targets.sqlalchemy.dialects import GENERIC
from wal_sink.targets.sqlalchemy.options import SqlAlchemyOptions

_KEY_CHARACTERS = 768
"""The most characters of a key in MariaDB and MySQL, in all its columns together. The servers accept 3,072
bytes, and count four for each character."""
_PARAMETERS = {"qmark": "?", "numeric": ":1", "named": ":1"}
"""The placeholder of a value, by the driver's `paramstyle` of PEP 249; `%s` for other styles."""


class SqlAlchemyTarget(KeyedTarget):
    """Writes to a database that SQLAlchemy reaches, each window in one transaction with its ledger row."""

    name = "sql"
    options_type: type[Options] = SqlAlchemyOptions
    options: SqlAlchemyOptions
    catalogue = SqlAlchemyCatalogue

    def __init__(self, options: SqlAlchemyOptions) -> None:
        super().__init__(options)
        self.dialect = options.dialect
        self.title, self.error_codes = self.dialect.title, self.dialect.error_codes
        self.types, self.new = self.dialect.types, self.dialect.new
        self.ledger_suffix = self.dialect.ledger_suffix
        self.longest = self.dialect.longest, "characters"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.options,)

    def connector(self) -> Callable[[Any], Any]:
        """Import SQLAlchemy. Return the function that connects."""
        from wal_sink.targets.sqlalchemy.connection import connect  # noqa: PLC0415 -- loads SQLAlchemy

        return connect

    @property
    def shape(self) -> Mapping[str, str]:
        """The options on which a plan depends, and the database. Each database has types of its own."""
        return {"database": self.options.backend, **super().shape}

    # --- statements ---

    @functools.cached_property
    def _sqlalchemy(self) -> Any:
        """SQLAlchemy's dialect. None for DuckDB, which SQLAlchemy does not know."""
        if self.options.backend == "duckdb":
            return None
        from wal_sink.targets.sqlalchemy.connection import dialect_of  # noqa: PLC0415 -- loads SQLAlchemy

        return dialect_of(self.options)

    @property
    def parameter(self) -> str:  # type: ignore[override]
        """The placeholder of a value in a statement."""
        style = "qmark" if self._sqlalchemy is None else self._sqlalchemy.paramstyle
        return _PARAMETERS.get(style, "%s")

    def quote(self, name: str) -> str:
        """Quote an exact name as the database does. A `%` is not doubled."""
        if (dialect := self._sqlalchemy) is None:
            return super().quote(name)
        exact = dialect.denormalize_name(name) if dialect.requires_name_normalize else name
        return str(dialect.identifier_preparer.quote_identifier(exact)).replace("%%", "%")

    @functools.cached_property
    def savepoints(self) -> Savepoints | None:  # type: ignore[override]
        """The statements for savepoints. None for DuckDB, which has none."""
        if (dialect := self._sqlalchemy) is None:
            return None
        from sqlalchemy.sql import elements  # noqa: PLC0415 -- loads SQLAlchemy

        clauses = elements.SavepointClause, elements.RollbackToSavepointClause
        return Savepoints(*(str(c("wal_sink_rows").compile(dialect=dialect)) for c in clauses))

    def table_end(self, partition: Sequence[str]) -> str:
        """Return the end of CREATE TABLE. Only MariaDB and MySQL have partitions, see the options."""
        by = ", ".join(map(self.quote, partition))
        return f"{self.ledger_suffix}{f' PARTITION BY KEY ({by}) PARTITIONS 16' if by else ''}"

    def new_table(self, schema: pa.Schema, layout: Layout) -> str:
        """Return the CREATE TABLE. All databases with a dialect of their own ignore the case of columns."""
        if self.dialect is not GENERIC:
            refuse_equal_but_for_case(self._written(schema).names, self.title)
        return super().new_table(schema, layout)

    # --- types ---

    def fits(self, type_: str, values: pa.Array) -> pa.BooleanArray | None:
        """Return which values a column of this type accepts."""
        return self.dialect.fits(type_, values)

    def takes(self, source: pa.DataType, type_: str, held: pa.DataType) -> bool:
        """Return True also for an instant and a type without time zone if the database has no better type."""
        is_instant = pt.is_timestamp(source) and source.tz
        return (is_instant and parse(type_).base in self.dialect.instants) or super().takes(
            source, type_, held
        )

    def type_of(self, field: pa.Field, layout: Layout) -> str:
        """Return the type of a new column. In MariaDB and MySQL a text in the key gets a shorter type."""
        words = super().type_of(field, layout)
        if words != "varchar(255)" or not self.dialect.is_mysql:
            return words
        return f"varchar({min(255, _KEY_CHARACTERS // len(layout.key or layout.partition))})"

    # --- the database ---

    def insert(self, connection: Any, plan: Plan, batch: pa.RecordBatch) -> None:
        """Write rows in the open transaction."""
        from wal_sink.targets.sqlalchemy.write import write  # noqa: PLC0415 -- no task needs it

        write(self, self.dialect, connection, plan, batch)

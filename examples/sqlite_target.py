"""A complete target for SQLite: rows and ledger row change in one transaction.

Use it by `.option("target", "sqlite_target:SqliteTarget").option("sqlite.path", "/data/shop.db")`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Annotated, Any

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import field

from wal_sink.options import CONNECTS, about
from wal_sink.targets import ErrorClass
from wal_sink.targets.sql import SqlOptions, SqlTarget, TableColumn

TYPES = {"INTEGER": pa.int64(), "REAL": pa.float64(), "TEXT": pa.string(), "BLOB": pa.binary()}


class SqliteOptions(SqlOptions, frozen=True, kw_only=True):
    """The options of this target, in addition to `table`."""

    ledger_table: str = field(name="sqlite.ledgerTable", default="wal_sink_ledger")
    path: Annotated[str, about("file of the database", CONNECTS)] = field(name="sqlite.path")


class SqliteTarget(SqlTarget):
    """Adds rows to a table of a SQLite file."""

    interface = 2
    name = "sqlite"
    options_type = SqliteOptions
    options: SqliteOptions

    def classify(self, error: Exception) -> ErrorClass:
        """Retry errors of the file, such as a lock, but not those of a statement, such as a missing table."""
        if not isinstance(error, sqlite3.OperationalError):
            return "fatal"
        is_of_statement = getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_ERROR
        return "fatal" if is_of_statement else "retry"

    def open(self) -> sqlite3.Connection:
        """Open the file; a lock of another connection raises an error after a second."""
        connection = sqlite3.connect(self.options.path, timeout=1, check_same_thread=False)
        connection.execute(
            "PRAGMA synchronous = EXTRA"
        )  # by default a power loss may undo a COMMIT
        return connection

    def columns(self, connection: Any) -> Sequence[TableColumn]:
        """Read the table's columns from SQLite."""
        return [
            TableColumn(name, type_.upper(), required=bool(required), default=default is not None)
            for _, name, type_, required, default, _ in connection.execute(
                f"PRAGMA table_info({self.table_name})"
            )
        ]

    def arrow_type(self, type_: str) -> pa.DataType | None:
        """Return the Arrow type of a column, for the four types that SQLite stores."""
        return TYPES.get(type_)

    def fits(self, type_: str, values: pa.Array) -> pa.BooleanArray | None:
        """Return False for NaN, which SQLite would store as null."""
        return pc.invert(pc.is_nan(values)) if type_ == "REAL" else None

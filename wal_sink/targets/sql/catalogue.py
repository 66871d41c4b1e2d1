"""The base class of readers of a database's catalogue, for the targets `postgresql` and `sql`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from wal_sink.targets.columns import TableColumn
from wal_sink.targets.sql.options import KeyedOptions, TableName


class Unique(NamedTuple):
    """A unique index, which may belong to a primary key or a constraint."""

    name: str
    columns: tuple[str, ...]
    """The columns in the order of the index, without expressions."""
    plain: bool = True
    """True if the index can be the key of an upsert. It then has only whole columns, covers all rows, and is
    checked by each statement instead of at COMMIT."""

    @property
    def text(self) -> str:
        """The index with its columns, for errors."""
        part = [] if self.plain else ["by a part or an expression, or deferrable"]
        return f"{self.name} ({', '.join([*self.columns, *part])})"


class Catalogue(ABC):
    """Reads the target's table from the database's catalogue, over one connection.

    The methods raise the driver's errors.

    :param quoted: returns the name of a table as statements contain it.
    """

    def __init__(
        self, connection: Any, options: KeyedOptions, quoted: Callable[[TableName], str]
    ) -> None:
        self._connection = connection
        self._quoted = quoted
        self._table, self._ledger = options.destination, options.ledger

    @abstractmethod
    def columns(self) -> Sequence[TableColumn]:
        """Read the columns of the table. Return no column if the table does not exist.

        :raises SchemaMismatch: table or ledger has a property by which rows can be lost.
        """

    @abstractmethod
    def unique(self) -> Sequence[Unique]:
        """Read the unique indexes of the table, the primary key first."""

    @abstractmethod
    def has_schema(self, schema: str) -> bool:
        """Return True if the database has a schema of this name."""

    @abstractmethod
    def other_tables(self) -> Iterable[str]:
        """Read the names of tables that the user may have meant, in the form of the option `table`."""

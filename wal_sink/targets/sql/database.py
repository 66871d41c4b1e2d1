"""What a SQL database has of its own: statements, catalogue, types, and what the codes of its errors mean."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from wal_sink.errors import InvalidRow, TargetUnavailable
from wal_sink.model.plan import Column, Plan
from wal_sink.targets.base import ErrorClass
from wal_sink.targets.casts import is_castable, recast, stored_by
from wal_sink.targets.columns import TableColumn
from wal_sink.targets.names import quote
from wal_sink.targets.refusals import Savepoints
from wal_sink.targets.sql.ledger import DDL, with_values

Code = int | str | None


class LockHolder(NamedTuple):
    """Another session that holds a lock."""

    what: str
    """Table, session, user and since when, as errors name them."""
    end: str
    """The statement that ends the session."""


class Errors(NamedTuple):
    """What the errors of a database's drivers mean, by their codes."""

    read: Callable[[BaseException], Code]
    passing: frozenset[int | str]
    """Codes of errors that may pass by themselves; a text stands for all that begin with it."""
    refusing: frozenset[int | str]
    """Codes of errors that say that a row is wrong; the same."""
    of_statement: frozenset[int | str] = frozenset()
    """Codes among these that say that the statement is wrong."""
    locked: frozenset[int | str] = frozenset()
    """Codes among the passing ones that say that another session holds a lock."""
    remedies: Mapping[int | str, str] = MappingProxyType({})
    """What to do at a start, by codes that have nothing to do with user, password or rights."""

    def is_locked(self, error: Exception) -> bool:
        """Return True if another session holds a lock, and the wait for it has ended."""
        code = self.read(driver_error(error))
        return code is not None and is_among(code, self.locked)

    def remedy(self, error: Exception) -> str:
        """Return what to do about an error at a start; empty: it may be about user, password or rights."""
        code = self.read(driver_error(error))
        return "" if code is None else self.remedies.get(code, "")

    def kind(self, error: Exception) -> ErrorClass:
        """Return what an error means. One without a code is of a connection that is lost, or never was."""
        if isinstance(error, TargetUnavailable):
            return "retry"
        error = driver_error(error)
        names = {base.__name__ for base in type(error).__mro__}
        if not names & {"Error", "DatabaseError"}:  # every driver has one of these, by PEP 249
            return "fatal"
        code = self.read(error)
        if code is None:
            return "retry" if names & {"OperationalError", "InterfaceError"} else "fatal"
        return "retry" if is_among(code, self.passing) else "fatal"

    def refuses(self, error: Exception) -> bool:
        """Return True if the database says that a row is wrong."""
        if isinstance(error, InvalidRow):
            return True
        code = self.read(driver_error(error))
        return code is not None and is_among(code, self.refusing) and code not in self.of_statement


def driver_error(error: Exception) -> Exception:
    """Return the driver's own error of one that SQLAlchemy has wrapped."""
    inner = getattr(error, "orig", None)
    return inner if isinstance(inner, Exception) else error


def is_among(code: int | str, codes: frozenset[int | str]) -> bool:
    """Return True for a code, or the beginning of one, that is listed."""
    if isinstance(code, int):
        return code in codes
    return code.startswith(tuple(listed for listed in codes if isinstance(listed, str)))


def numbers(codes: str) -> frozenset[int | str]:
    """Return codes that are numbers, from a text."""
    return frozenset(map(int, codes.split()))


def texts(codes: str) -> frozenset[int | str]:
    """Return codes that are texts, from one text."""
    return frozenset(codes.split())


class NamesTables(Protocol):
    """What `SqlTarget` reads of its options."""

    @property
    def table(self) -> str:
        """Where rows go."""

    @property
    def ledger_table(self) -> str:
        """Where the ledger is."""


class Database(ABC):
    """What `SqlTarget` and its sessions ask of a database."""

    parameter = "?"
    """What stands for a value in a statement, by the driver's `paramstyle`; set on the class."""
    text_type, number_type = "VARCHAR(128)", "BIGINT"
    """Types of the ledger's columns: texts, which are compared as bytes, and numbers; set on the class."""
    ledger_suffix = ""
    """What ends the statement that creates the ledger's table, such as `ENGINE=InnoDB`; set on the class."""

    errors: Errors | None = None
    """What the errors of the drivers mean, by their codes; set on the class. None: `transient` says it."""
    savepoints: Savepoints | None = Savepoints()
    """Statements of the database; None: it has none, and a row that it refuses stops the flush; set on the
    class."""

    options: NamesTables

    @abstractmethod
    def open(self) -> Any:
        """Connect: a connection of PEP 249 that commits nothing by itself, for one thread at a time.

        :raises Exception: of the driver.
        """

    @abstractmethod
    def columns(self, connection: Any) -> Sequence[TableColumn]:
        """Read the table's columns from the database's catalogue; none when there is no such table."""

    def other_changes(self, connection: Any, plan: Plan) -> Sequence[str]:  # noqa: ARG002 -- as below
        """Return what else of a table that exists is no longer as planned, in an error's words."""
        return ()

    @abstractmethod
    def arrow_type(self, type_: str) -> pa.DataType | None:
        """Return the Arrow type that holds a type of the catalogue exactly; None: it cannot be written.

        Called in tasks, without a connection.
        """

    def fits(self, type_: str, values: pa.Array) -> pa.BooleanArray | None:  # noqa: ARG002
        """Return which values the database takes in a column of a type of the catalogue; None: all.

        For what Arrow's type holds and the database's does not, such as a text that is too long. A null in
        the answer is a value that is taken. Called in tasks, without a connection.

        :param values: of the type that `arrow_type` returned.
        """
        return None

    def holds(self, now: TableColumn, planned: Column) -> bool:
        """Return True if an altered column takes what was planned for it, row by row (`recast`)."""
        held, source = self.arrow_type(now.type), self.arrow_type(planned.type)
        return held is not None and source is not None and is_castable(source, held)

    def recast(self, batch: pa.RecordBatch, plan: Plan) -> pa.RecordBatch:
        """Cast rows of the log to the types of a table that was altered since they were checked.

        :param plan: as the table is now.
        :raises InvalidRow: a row cannot be written any more.
        """
        return recast(batch, plan, stored_by(self.arrow_type, self.fits))

    @abstractmethod
    def classify(self, error: Exception) -> ErrorClass:
        """Return what an error means: see `Target.classify`."""

    def refuses(self, error: Exception) -> bool:
        """Return True if an error of `insert` or COMMIT says that a row is wrong, and would be again."""
        return self.errors is not None and self.errors.refuses(error)

    def is_locked(self, error: Exception) -> bool:
        """Return True if an error says that another session holds a lock."""
        return self.errors is not None and self.errors.is_locked(error)

    def remedy(self, error: Exception) -> str:
        """Return what to do about an error at a start; empty: it may be about user, password or rights."""
        return "" if self.errors is None else self.errors.remedy(error)

    def lock_holders(self, connection: Any) -> Sequence[LockHolder]:  # noqa: ARG002 -- as above
        """Return sessions that hold locks on the table or the ledger's, as far as the user may see them."""
        return ()

    def make_table(self, connection: Any, schema: pa.Schema) -> str:  # noqa: ARG002 -- for those that do
        """Make the table in the open transaction, where option createTable asks for it.

        :returns: the statement that made it; empty where there is such a table, or none is to be made.
        :raises OptionError, SchemaMismatch: it cannot be made by these options, or for this DataFrame.
        """
        return ""

    def insert(self, connection: Any, plan: Plan, batch: pa.RecordBatch) -> None:
        """Add rows in the open transaction; in bulk where the driver knows how.

        :param batch: columns as `arrow_type` has them, at least one row.
        """
        names = ", ".join(self.quote(column.name) for column in plan.columns)
        into = with_values(f"{self.table_name} ({names})", self.parameter)
        values = ", ".join([self.parameter] * len(plan.columns))
        rows = zip(*(column.to_pylist() for column in batch.columns), strict=True)
        statement = f"INSERT INTO {into} VALUES ({values})"  # noqa: S608 -- quoted names
        with contextlib.closing(connection.cursor()) as cursor:
            cursor.executemany(statement, list(rows))

    def quote(self, name: str) -> str:
        """Quote a name as it is, by the SQL standard. A `%` stays one: the class knows when to double it."""
        return quote(name)

    @property
    def table_name(self) -> str:
        """The table, as statements without values write it."""
        return ".".join(map(self.quote, self.options.table.split(".")))

    @property
    def ledger_name(self) -> str:
        """The ledger's table, as statements without values write it."""
        return ".".join(map(self.quote, self.options.ledger_table.split(".")))

    @property
    def ledger_statement(self) -> str:
        """The statement that creates the ledger's table."""
        columns = {"text": self.text_type, "number": self.number_type}
        return DDL.format(table=self.ledger_name, suffix=self.ledger_suffix, **columns).rstrip()

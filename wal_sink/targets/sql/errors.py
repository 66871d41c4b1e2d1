"""What the errors of a database's drivers mean, by their codes: which pass, and which refuse a row. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from wal_sink.errors import InvalidRow, TargetUnavailable
from wal_sink.targets.base import Kind

Code = int | str | None


class Errors(NamedTuple):
    """What the errors of a database's drivers mean, by their codes."""

    read: Callable[[BaseException], Code]
    passing: frozenset[int | str]
    """Codes of errors that may pass by themselves; a text stands for all that begin with it."""
    refusing: frozenset[int | str]
    """Codes of errors that say that a row is wrong; the same."""
    of_statement: frozenset[int | str] = frozenset()
    """Codes among these that say that the statement is wrong."""

    def kind(self, error: Exception) -> Kind:
        """Return what an error means. One without a code is of a connection that is lost, or never was."""
        if isinstance(error, TargetUnavailable):
            return "retry"
        error = driver_error(error)
        names = {each.__name__ for each in type(error).__mro__}
        if not names & {"Error", "DatabaseError"}:  # every driver has one of these, by PEP 249
            return "fatal"
        code = self.read(error)
        if code is None:
            return "retry" if names & {"OperationalError", "InterfaceError"} else "fatal"
        return "retry" if _among(code, self.passing) else "fatal"

    def refuses(self, error: Exception) -> bool:
        """Whether the database says that a row is wrong, or the writing of it."""
        if isinstance(error, InvalidRow):
            return True
        code = self.read(driver_error(error))
        return code is not None and _among(code, self.refusing) and code not in self.of_statement


def driver_error(error: Exception) -> Exception:
    """Return the driver's own error of one that SQLAlchemy has wrapped."""
    inner = getattr(error, "orig", None)
    return inner if isinstance(inner, Exception) else error


def _among(code: int | str, codes: frozenset[int | str]) -> bool:
    if isinstance(code, int):
        return code in codes
    return code.startswith(tuple(each for each in codes if isinstance(each, str)))


def numbers(codes: str) -> frozenset[int | str]:
    """Return codes that are numbers, from a text."""
    return frozenset(map(int, codes.split()))


def texts(codes: str) -> frozenset[int | str]:
    """Return codes that are texts, from one text."""
    return frozenset(codes.split())


def _sqlstate(error: BaseException) -> Code:
    """Of psycopg, of psycopg2, of pg8000."""
    found = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    if found is None and error.args and isinstance(error.args[0], dict):
        found = error.args[0].get("C")
    return found if isinstance(found, str) else None


POSTGRESQL_ERRORS = Errors(
    _sqlstate,
    # Connection, serialization and deadlock, resources, locks, an operator, the system, a replica. Of class
    # 55 two alone: an upsert by a deferrable key, for one, would be refused for ever.
    passing=texts("08 25006 25P03 40 53 55006 55P03 57 58"),
    # Values, constraints, WITH CHECK OPTION, RAISE, what is too long for an index.
    refusing=texts("22 23 44 P0001 54000"),
    of_statement=texts("22P03 22P04"),  # COPY cannot read its input
)

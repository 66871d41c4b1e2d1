"""What the errors of a SQL database's drivers mean, by their codes; and who holds a lock. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from wal_sink.errors import InvalidRow, TargetUnavailable
from wal_sink.targets.base import ErrorClass

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
    locked: frozenset[int | str] = frozenset()
    """Codes among the passing ones that say that another session holds a lock."""
    remedies: Mapping[Code, str] = MappingProxyType({})
    """What to do, by the codes of errors that neither pass nor refuse a row."""

    def is_locked(self, error: Exception) -> bool:
        """Return True if another session holds a lock, and the wait for it has ended."""
        return is_among(self.read(driver_error(error)), self.locked)

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
        return isinstance(error, InvalidRow) or is_among(
            self.read(driver_error(error)), self.refusing
        )


def driver_error(error: Exception) -> Exception:
    """Return the driver's own error of one that SQLAlchemy has wrapped."""
    inner = getattr(error, "orig", None)
    return inner if isinstance(inner, Exception) else error


def is_among(code: Code, codes: frozenset[int | str]) -> bool:
    """Return True for a code, or the beginning of one, that is listed."""
    if isinstance(code, str):
        return code.startswith(tuple(listed for listed in codes if isinstance(listed, str)))
    return code in codes


def numbers(codes: str) -> frozenset[int | str]:
    """Return codes that are numbers, from a text."""
    return frozenset(map(int, codes.split()))


def texts(codes: str) -> frozenset[int | str]:
    """Return codes that are texts, from one text."""
    return frozenset(codes.split())

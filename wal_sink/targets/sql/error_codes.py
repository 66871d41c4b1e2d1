"""Classifies the errors of a database's drivers by their codes. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from wal_sink.errors import InvalidRow, TargetUnavailable
from wal_sink.targets.base import ErrorClass

Code = int | str | None
"""The code of an error; None if the error has no code."""
Codes = frozenset[int | str]


class ErrorCodes(NamedTuple):
    """The error codes of a database, sorted by their meaning.

    A text in `passing`, `refusing` or `locked` stands for all codes that begin with it.
    """

    read: Callable[[BaseException], Code]
    """Reads the code of a driver's error."""
    passing: Codes
    """Codes of errors that may pass by themselves."""
    refusing: Codes
    """Codes of errors that refuse a row."""
    locked: Codes = frozenset()
    """The codes in `passing` that report a lock of another session."""
    remedies: Mapping[Code, str] = MappingProxyType({})
    """What to do about errors that neither pass nor refuse a row."""

    def is_locked(self, error: Exception) -> bool:
        """Return True if the wait for another session's lock has timed out."""
        return matches(self.read(driver_error(error)), self.locked)

    def classify(self, error: Exception) -> ErrorClass:
        """Return "retry" for an error that may pass by itself, otherwise "fatal".

        An OperationalError or InterfaceError without a code is a lost connection, and may pass.
        """
        if isinstance(error, TargetUnavailable):
            return "retry"
        error = driver_error(error)
        names = {base.__name__ for base in type(error).__mro__}
        if not names & {"Error", "DatabaseError"}:  # PEP 249: a driver's errors derive from these
            return "fatal"
        code = self.read(error)
        if code is None:
            return "retry" if names & {"OperationalError", "InterfaceError"} else "fatal"
        return "retry" if matches(code, self.passing) else "fatal"

    def refuses(self, error: Exception) -> bool:
        """Return True if the database refuses a row."""
        code = self.read(driver_error(error))
        return isinstance(error, InvalidRow) or matches(code, self.refusing)


def driver_error(error: Exception) -> Exception:
    """Return the driver's error inside an error of SQLAlchemy; any other error as it is."""
    inner = getattr(error, "orig", None)
    return inner if isinstance(inner, Exception) else error


def matches(code: Code, codes: Codes) -> bool:
    """Return True if a code is among some codes, or begins with one of their texts."""
    if isinstance(code, str):
        return code.startswith(tuple(prefix for prefix in codes if isinstance(prefix, str)))
    return code in codes


def numbers(codes: str) -> Codes:
    """Split a text into codes that are numbers."""
    return frozenset(map(int, codes.split()))


def texts(codes: str) -> Codes:
    """Split a text into codes that are texts."""
    return frozenset(codes.split())

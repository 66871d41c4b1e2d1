"""Errors of SQL targets: the meaning of a driver's error codes, and the errors that targets raise. No I/O.

In all functions `ledger` is the quoted name of the ledger's table, and `statement` creates a missing table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from wal_sink.errors import InvalidRow, SchemaMismatch, TargetRefused, TargetUnavailable
from wal_sink.targets.base import ErrorClass
from wal_sink.targets.client import shortly
from wal_sink.targets.ddl import CREATE_TABLE

Code = int | str | None
"""The code of an error. None if the error has no code."""
Codes = frozenset[int | str]


class ErrorCodes(NamedTuple):
    """The error codes of a database, sorted by their meaning.

    A text in `passing`, `refusing` or `locked` stands for all codes that begin with the text.
    """

    read: Callable[[BaseException], Code]
    """Reads the code of a driver's error."""
    passing: Codes
    """Codes of errors that may pass by themselves, such as a lost connection."""
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

        An OperationalError or InterfaceError without a code is a lost connection.
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

    def remedy(self, error: Exception) -> str:
        """Return what to do about an error, from `remedies`. Empty if no remedy is known."""
        return self.remedies.get(self.read(driver_error(error)), "")

    def refuses(self, error: Exception) -> bool:
        """Return True if the database refuses a row."""
        code = self.read(driver_error(error))
        return isinstance(error, InvalidRow) or matches(code, self.refusing)


def driver_error(error: Exception) -> Exception:
    """Return the driver's error inside an error of SQLAlchemy. Return any other error unchanged."""
    inner = getattr(error, "orig", None)
    return inner if isinstance(inner, Exception) else error


def matches(code: Code, codes: Codes) -> bool:
    """Return True if a code is in `codes`, or begins with a text of `codes`."""
    if isinstance(code, str):
        return code.startswith(tuple(prefix for prefix in codes if isinstance(prefix, str)))
    return code in codes


def texts(codes: str) -> Codes:
    """Return the words of a text, as codes."""
    return frozenset(codes.split())


# --- the errors that targets raise ---


class LockHolder(NamedTuple):
    """A session that holds a lock."""

    what: str
    """The table, the session, its user, and since when it holds the lock, as errors show them."""
    end: str
    """The statement that ends the session."""


def answer(error: Exception) -> str:
    """Return class and text of a driver's error in one line. The failed statement is left out."""
    return f"{type(error).__name__}: {shortly(error).partition(' LINE 1: ')[0].rstrip('.')}"


# --- the table of the rows ---


def missing_table(table: str, hint: str = "", statement: str = "") -> SchemaMismatch:
    """Return the error of a table that does not exist.

    :param hint: a sentence with the name that the user may have meant. Empty if no table has a similar name.
    :param statement: the statement that creates the table. Empty if the target cannot make the statement.
    """
    create = (
        f" Set {CREATE_TABLE} to true if this query has not written to the table yet. Otherwise restore the"
        f" table from a backup, or run:\n{statement};"
    )
    return SchemaMismatch(
        f"There is no table {table}. {hint}".rstrip(),
        f"Correct option table, or create the table.{create if statement else ''}",
    )


def not_created(
    what: str, error: Exception, statement: str, *, fatal: bool
) -> SchemaMismatch | TargetUnavailable:
    """Return the error of a table or schema that a start cannot create.

    :param what: the noun and the quoted name.
    :param fatal: True if a second try would fail, too. The error is then `SchemaMismatch`.
    """
    kind = SchemaMismatch if fatal else TargetUnavailable
    return kind(
        f"{what} is missing, and cannot be created: {shortly(error)}",
        "Change what the answer names; or, if this user may not create it, run as a user who may:\n"
        f"{statement};",
    )


def refused_by_server(error: Exception, remedy: str) -> TargetRefused:
    """Return the error of a refused statement whose remedy is known."""
    return TargetRefused(f"The target refuses: {answer(error)}", remedy)


def refused_commit(epoch: int, error: Exception) -> TargetRefused:
    """Return the error of a COMMIT that the server refuses.

    :param epoch: the last epoch of the window.
    """
    return TargetRefused(
        f"COMMIT of epoch {epoch} is refused, as by a deferred constraint: {answer(error)}.",
        "Change in the target what refuses it; the flush goes on by itself.",
    )


def locked(table: str, holders: Sequence[LockHolder]) -> TargetUnavailable:
    """Return the error of a lock that another session holds.

    :param holders: empty if the user cannot see the sessions.
    """
    sessions = "; ".join(holder.what for holder in holders) or "this user cannot see which one"
    end = f" To end that session, run: {' or '.join(holder.end for holder in holders)}"
    return TargetUnavailable(
        f"Another session holds a lock on {table}, or on the ledger's table: {sessions}.",
        f"The flush goes on by itself when the lock is released.{end if holders else ''}",
    )


# --- the ledger's table ---


def unreadable_ledger(ledger: str, error: Exception, statement: str) -> TargetRefused:
    """Return the error of a ledger that a flusher cannot read."""
    return TargetRefused(
        f"The ledger's table {ledger} cannot be read: {answer(error)}.",
        "If the user lacks a privilege, grant it. If there is no such table, the options name another"
        " database, schema or ledger table than before, or the table was dropped. Name the former one, or"
        " restore the table from a backup. If neither is possible, create it, and the next error says how to"
        f" go on. Run:\n{statement};",
    )


def ledger_without_rollback(ledger: str) -> SchemaMismatch:
    """Return the error of a ledger whose changes stay after ROLLBACK."""
    return SchemaMismatch(
        f"A change of the ledger's table {ledger} stays after ROLLBACK: the table has no transactions, or the"
        " connection commits by itself.",
        "Make it a table with transactions (in MariaDB and MySQL: ALTER TABLE … ENGINE=InnoDB), and let the"
        " target open connections without autocommit.",
    )


def ledger_that_ignores_case(ledger: str) -> SchemaMismatch:
    """Return the error of a ledger that takes "a" and "A" for equal."""
    return SchemaMismatch(
        f"The ledger's table {ledger} compares texts without upper and lower case: a flusher could mistake"
        " another row for its own.",
        "Give its columns a collation that compares bytes (in MariaDB and MySQL: ALTER TABLE … CONVERT TO"
        " CHARACTER SET utf8mb4 COLLATE utf8mb4_bin).",
    )


def count_of_changed_rows(count: int) -> TargetRefused:
    """Return the error of a driver whose row count leaves out rows that an UPDATE does not change."""
    return TargetRefused(
        f"An UPDATE that finds its one row, and changes nothing, has the rowcount {count}: a flusher could"
        " not tell that from a refusal.",
        "Let the driver count the rows that are found, not those that change (MariaDB and MySQL:"
        " CLIENT.FOUND_ROWS). If the driver counts none (-1), let `open` return a connection whose cursors"
        " do.",
    )


def rival_ledger_row(error: Exception) -> TargetUnavailable:
    """Return the error of a ledger row that another process creates at the same time."""
    return TargetUnavailable(
        f"The new ledger row is refused: {shortly(error)}.",
        "No action needed: another process creates the row, and the flush goes on with that row.",
    )

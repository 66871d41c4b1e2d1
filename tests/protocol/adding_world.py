"""A query whose target adds rows to a table without a key, each window in one transaction: SQLite's."""

from __future__ import annotations

import sqlite3
import uuid
from pathlib import Path

from sqlite_target import SqliteOptions, SqliteTarget
from tests.protocol.engine import World, in_memory
from wal_sink.model.ledger import LedgerState, Owner


class RefusingTarget(SqliteTarget):
    """Takes a row that breaks a constraint for wrong. Its host never loses power."""

    def open(self) -> sqlite3.Connection:
        connection = super().open()
        connection.execute("PRAGMA synchronous = OFF")
        return connection

    def refuses(self, error: Exception) -> bool:
        return isinstance(error, sqlite3.IntegrityError)


class AddingWorld(World):
    """Checkpoint and log in memory, the table in a file.

    :param folder: of the table's file.
    """

    adds = True

    def __init__(self, folder: Path) -> None:
        self.path = folder / f"{uuid.uuid4().hex}.db"
        with sqlite3.connect(self.path) as connection:
            connection.execute("CREATE TABLE t (k TEXT, v INTEGER)")
        connection.close()
        target = RefusingTarget(SqliteOptions(path=str(self.path), table="t"))
        super().__init__(*in_memory(), target)

    def visible(self) -> list[tuple[str, int]]:
        """Read the table as another client does."""
        connection = sqlite3.connect(self.path)
        try:
            return connection.execute("SELECT k, v FROM t").fetchall()
        finally:
            connection.close()

    def ledger(self) -> LedgerState | None:
        """Read the ledger as another client does; there is none before the first plan."""
        with self.target.connect(Owner(self.query_id, "", "")) as session:
            try:
                return session.read_ledger()
            except sqlite3.OperationalError as error:
                if "no such table" not in str(error):
                    raise
                return None

    def forget(self) -> None:
        """Delete the table's file, too."""
        super().forget()
        self.path.unlink()

"""A target whose rows and ledger need not be restored together, such as two topics of Kafka."""

from __future__ import annotations

from sqlite_target import SqliteTarget


class Apart(SqliteTarget):
    """A table of SQLite that says so of itself."""

    restores_together = False

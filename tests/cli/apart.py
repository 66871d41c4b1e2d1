"""A target whose rows and ledger row may be restored to different moments, such as Kafka's two topics."""

from __future__ import annotations

from sqlite_target import SqliteTarget


class Apart(SqliteTarget):
    """A SQLite table that claims that its rows and ledger row may be restored to different moments."""

    restores_together = False

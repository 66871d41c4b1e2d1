"""SQL databases that SQLAlchemy reaches by a URL, as the target `sql`; docs/sql.md has the list.

It stands on `wal_sink.targets.sql`: each window in one transaction with its ledger row. SQLAlchemy opens the
connection and reads the catalogue; statements and errors are those of the driver. Only `connection` and
`catalogue` load SQLAlchemy, and `target` imports them late: tasks check rows without it.
"""

from wal_sink.targets.sqlalchemy.options import SqlAlchemyOptions
from wal_sink.targets.sqlalchemy.target import SqlAlchemyTarget

__all__ = ["SqlAlchemyOptions", "SqlAlchemyTarget"]

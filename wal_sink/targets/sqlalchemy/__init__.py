"""The target `sql`: databases that SQLAlchemy reaches by a URL. docs/sql.md lists them.

The package extends `wal_sink.targets.sql`. SQLAlchemy opens the connection and reads the catalogue;
statements and errors are those of the database's driver. Tasks check rows without SQLAlchemy: only
`connection` imports it, and `target` imports `connection` when it connects.
"""

from wal_sink.targets.sqlalchemy.options import SqlAlchemyOptions
from wal_sink.targets.sqlalchemy.target import SqlAlchemyTarget

__all__ = ["SqlAlchemyOptions", "SqlAlchemyTarget"]

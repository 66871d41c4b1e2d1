"""The target `sql`: databases that SQLAlchemy reaches by a URL. docs/sql.md lists them.

The package extends `wal_sink.targets.sql`. SQLAlchemy opens the connection and reads the catalogue.
Statements and errors are those of the database's driver. Tasks import the package without SQLAlchemy: only
`connection` imports SQLAlchemy, and only a flusher or a start imports `connection`.
"""

from __future__ import annotations

from wal_sink.targets.sqlalchemy.options import SqlAlchemyOptions
from wal_sink.targets.sqlalchemy.target import SqlAlchemyTarget

__all__ = ["SqlAlchemyOptions", "SqlAlchemyTarget"]

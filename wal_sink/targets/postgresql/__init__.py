"""The target `postgresql`. docs/postgresql.md describes its types, keys and transactions.

The package extends `wal_sink.targets.sql`. Only `connection` imports the driver, and `target` imports
`connection` when it connects.
"""

from wal_sink.targets.postgresql.options import PostgresqlOptions
from wal_sink.targets.postgresql.target import PostgresqlTarget

__all__ = ["PostgresqlOptions", "PostgresqlTarget"]

"""PostgreSQL as a target; docs/postgresql.md says how it treats types, keys and transactions.

It stands on `wal_sink.targets.sql`: each window in one transaction with its ledger row. Of the modules here
only `connection` loads the driver, and `target` imports it late.
"""

from wal_sink.targets.postgresql.options import PostgresqlOptions
from wal_sink.targets.postgresql.target import PostgresqlTarget

__all__ = ["PostgresqlOptions", "PostgresqlTarget"]

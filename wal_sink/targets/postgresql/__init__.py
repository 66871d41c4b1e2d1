"""PostgreSQL as a target; docs/postgresql.md says how it treats types, keys and transactions.

It stands on `wal_sink.targets.sql`: each window in one transaction with its ledger row. Of the modules here
only `connection` and `copy` load the driver, and `target` imports them late:

===========  ===================================================================
`target`     the entrance
`plan`       agrees with the server: `catalogue` (the table as it is), `compare`
`check`      casts and refuses rows, in tasks; with `json_text`
`copy`       rows into the table
`types`      what fits into which type
ground       `connection`, `options`, `names`, `key`
===========  ===================================================================
"""

from wal_sink.targets.postgresql.options import PostgresqlOptions
from wal_sink.targets.postgresql.target import PostgresqlTarget

__all__ = ["PostgresqlOptions", "PostgresqlTarget"]

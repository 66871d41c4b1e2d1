"""The target `postgresql`. docs/postgresql.md describes its types, keys and transactions.

The package extends `wal_sink.targets.sql`. Tasks import it without the driver: only `connection` and `write`
import the driver, and only a flusher or a start imports these modules.
"""

from __future__ import annotations

from wal_sink.targets.postgresql.options import PostgresqlOptions
from wal_sink.targets.postgresql.target import PostgresqlTarget

__all__ = ["PostgresqlOptions", "PostgresqlTarget"]

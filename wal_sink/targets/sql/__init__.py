"""The common part of targets for SQL databases.

`SqlTarget` writes each window in one transaction with its ledger row, over any driver that keeps PEP 249. A
target for a database adds a connection, a catalogue and types: see `examples/sqlite_target.py`. The package
of the target named `sql` is `targets/sqlalchemy/`.
"""

from __future__ import annotations

from wal_sink.targets.columns import TableColumn
from wal_sink.targets.sql.options import SqlOptions
from wal_sink.targets.sql.target import SqlTarget

__all__ = ["SqlOptions", "SqlTarget", "TableColumn"]

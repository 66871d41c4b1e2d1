"""What SQL databases have in common: a target for one of them is a connection, a catalogue and types.

`SqlTarget` delivers a window in one transaction with its ledger row, over any
driver that keeps PEP 249. `examples/sqlite_target.py` is a whole target on it.
The target that option `target` calls `sql` is `targets/sqlalchemy/`.
"""

from __future__ import annotations

from wal_sink.targets.columns import TableColumn
from wal_sink.targets.sql.options import SqlOptions
from wal_sink.targets.sql.target import SqlTarget

__all__ = ["SqlOptions", "SqlTarget", "TableColumn"]

"""The ledger row of a query: a snapshot of the table without rows, under a tag of its own. No I/O.

Three places were compared:

- **Properties of the table** change in one commit with its rows. But no catalog has a condition on a
  property: a REST catalog accepts the commits of two flushers at once.
- **The summary of the snapshot with the rows** is lost when that snapshot is expired, which may happen after
  any compaction.
- **A tag** has neither fault. A catalog compares the snapshot of a tag (`assert-ref-snapshot-id`) in one step
  with all other changes of a commit. No clean-up of snapshots removes a tagged snapshot.

The tagged snapshot has no files, so it keeps no file from being cleaned up. Each change of the row adds a new
snapshot and removes the last one. So the main branch has one snapshot for each window.
"""

from __future__ import annotations

import re

import msgspec

from wal_sink.errors import CorruptLog
from wal_sink.model.ledger import LedgerRow

ROW = "wal-sink.ledger"
"""The property of the snapshot's summary with the row."""

MAX_REF_AGE_MS = 2**63 - 1
"""The age limit of the tag. Otherwise `history.expire.max-ref-age-ms` of the table would remove it."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """The row in a summary."""

    ledger: LedgerRow
    rows: int | None = None
    """The snapshot of the main branch with the query's newest rows. None if the query has no rows yet."""

    def to_text(self) -> str:
        """Encode the row for the summary."""
        return msgspec.json.encode(self).decode()


def tag(query_id: str) -> str:
    """Return the name of a query's tag."""
    return "wal_sink_" + re.sub(r"[^A-Za-z0-9_-]", lambda m: f".{ord(m[0]):x}.", query_id)


def decode(text: str, table: str) -> Row:
    """Return the row of a summary.

    :raises CorruptLog: this version of wal_sink cannot read the row.
    """
    try:
        return msgspec.json.decode(text, type=Row)
    except msgspec.DecodeError as error:
        raise CorruptLog(
            f"The ledger row in table {table} is not what this version of wal_sink writes: {error}",
            "Flush with the newer version that wrote it. Do not drop the tag: it says which epochs the table"
            " has.",
        ) from error


def epochs(first: int, last: int) -> str:
    """Return the range of epochs for the summary of a snapshot."""
    return f"{first}" if first == last else f"{first} to {last}"

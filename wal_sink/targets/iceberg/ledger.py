"""The ledger row of a query: a snapshot of the table without rows, under a tag of its own. No I/O.

Three places were weighed. **Properties of the table** change in one commit with its rows, but no catalog has
a condition on a property: a REST catalog that is asked by two flushers at once takes both. **The summary of
the snapshot with the rows** goes when that snapshot is expired, as soon as a compaction lies above it. **A
tag** has both: a catalog compares the snapshot that a tag names (`assert-ref-snapshot-id`), in one step with
all else that a commit changes, and no clean-up of snapshots removes what a tag names. The snapshot under the
tag has no files, so it keeps none from being cleaned up; each change of the row makes a new one and removes
the last. So the main branch has one snapshot for a window.
"""

from __future__ import annotations

import re

import msgspec

from wal_sink.errors import CorruptLog
from wal_sink.model.ledger import LedgerRow

ROW = "wal-sink.ledger"
"""The property of the snapshot's summary that has the row."""

MAX_REF_AGE_MS = 2**63 - 1
"""The age of the tag: `history.expire.max-ref-age-ms` of the table would have it removed otherwise."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """The row in a summary."""

    ledger: LedgerRow
    rows: int | None = None
    """The snapshot of the main branch that has the newest rows of the query; None: it has none yet."""

    def to_text(self) -> str:
        """Encode for the summary."""
        return msgspec.json.encode(self).decode()


def tag(query_id: str) -> str:
    """Return the name of a query's tag."""
    return "wal_sink_" + re.sub(r"[^A-Za-z0-9_-]", lambda m: f".{ord(m[0]):x}.", query_id)


def decode(text: str, table: str) -> Row:
    """Return the row that a summary has.

    :raises CorruptLog: it is not what this version writes.
    """
    try:
        return msgspec.json.decode(text, type=Row)
    except msgspec.DecodeError as error:
        raise CorruptLog(
            f"The ledger row in table {table} is not what this version of wal_sink writes: {error}",
            "Flush with the newer version that wrote it. Do not drop the tag: it says what is in the table"
            " already.",
        ) from error


def epochs(first: int, last: int) -> str:
    """Return what the summary of a snapshot says of its rows."""
    return f"{first}" if first == last else f"{first} to {last}"

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
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from wal_sink.errors import CorruptLog
from wal_sink.model.ledger import LedgerRow, Outcome

ROW = "wal-sink.ledger"
"""The property of the snapshot's summary that has the row."""

_KEPT = 32
"""Most former snapshots that a row names: of as many flushers that move it while one waits for an answer."""

_FOREVER_MS = 2**63 - 1
MAX_REF_AGE_MS = _FOREVER_MS
"""Of the tag: `history.expire.max-ref-age-ms` of the table would have it removed otherwise."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """What the summary has."""

    ledger: LedgerRow
    former: tuple[int, ...] = ()
    """The snapshots that had this row before, the newest first."""
    rows: int | None = None
    """The snapshot of the main branch that has the newest rows of the query; None: it has none yet."""
    sequence: int = 0
    """Its sequence number."""

    def to_text(self) -> str:
        """Encode for the summary."""
        return msgspec.json.encode(self).decode()


class Seen(NamedTuple):
    """The row as it was read from the table; None: there is none."""

    snapshot: int | None
    row: Row | None

    @property
    def ledger(self) -> LedgerRow | None:
        """The ledger row, as flushers know it."""
        return None if self.row is None else self.row.ledger

    def next(self, ledger: LedgerRow) -> Row:
        """Return the row that comes after this one, without rows of the main branch."""
        former = () if self.snapshot is None else (self.snapshot,)
        if self.row is None:
            return Row(ledger=ledger, former=former)
        kept = (former + self.row.former)[:_KEPT]
        return msgspec.structs.replace(self.row, ledger=ledger, former=kept)


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


def conflict_outcome(replaced: Seen, new: int, now: Seen) -> Outcome | None:
    """Say what became of a commit that the catalog calls a conflict; None: it may be tried again.

    A client or a proxy may have repeated a request whose answer was lost, and the second one meets the first.
    Each change has a snapshot id of its own, and a row names those before it: that tells a commit that
    landed, if another flusher has moved on, from one that came too late.

    :param replaced: the row that the commit was to replace.
    :param new: the snapshot that it was to make.
    :param now: the row now.
    """
    if now.snapshot == new:
        return Outcome.APPLIED
    if now.snapshot == replaced.snapshot:
        return None
    if now.row is None:
        return Outcome.UNKNOWN  # someone has removed the tag
    if new in now.row.former:
        return Outcome.APPLIED
    # The commit's condition was the tag on the row that was seen. It never comes back there.
    whole = len(now.row.former) < _KEPT or replaced.snapshot in now.row.former
    return Outcome.CONFLICT if whole else Outcome.UNKNOWN


def are_rows_gone(
    row: Row, head: int | None, parents: Mapping[int, int | None], sequences: Mapping[int, int]
) -> bool:
    """Return True if the table was replaced, or rolled back to before the rows of the query.

    False where snapshots that would tell were expired.

    :param head: the newest snapshot of the main branch.
    :param parents: of each snapshot that the table has.
    :param sequences: sequence numbers of each.
    """
    if row.rows is None:
        return False
    if head is None or sequences[head] < row.sequence:
        return True
    if row.rows not in parents:
        return False
    at: int | None = head
    while at is not None and at != row.rows:
        if at not in parents:
            return False
        at = parents[at]
    return at is None


def epochs(first: int, last: int) -> str:
    """Return what the summary of a snapshot says of its rows."""
    return f"{first}" if first == last else f"{first} to {last}"

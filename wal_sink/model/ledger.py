"""The ledger row: how far one target is with one query, kept in the target itself. No I/O."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

from wal_sink.errors import CorruptLog

_SENDING = "+"
"""In the column `digest`, between the digest and the number of the sending."""


class LedgerRow(NamedTuple):
    """The ledger row. It moves by compare-and-set of all of it (rule `ledger`)."""

    query_id: str
    """The key, see `ledger_key`."""
    log_id: str
    """The log whose epochs the target has."""
    epoch: int
    """Every epoch up to this one is in the target; the target's first epoch - 1 if it has none."""
    digest: str
    """SHA-256 of the manifest of `epoch`, hexadecimal; empty if the target has no epoch."""
    sending: int = 0
    """How many times rows of the next window were sent, or were about to be. Counted only for rows that must
    not be sent twice with one write timestamp: those of lists that are not frozen."""

    @property
    def cells(self) -> tuple[str, str, int, str]:
        """Return the cells of a table: query id, log id, epoch, digest. Equal rows have equal cells."""
        digest = f"{self.digest}{_SENDING}{self.sending}" if self.sending else self.digest
        return self.query_id, self.log_id, self.epoch, digest

    @classmethod
    def from_cells(cls, cells: Sequence[Any], where: str) -> Self:
        """Make the row from the cells of a table.

        :param where: for errors, such as "the ledger shop.wal_sink_ledger".
        :raises CorruptLog: the cells are not what wal_sink writes.
        """
        query_id, log_id, epoch, text = cells
        is_row = isinstance(epoch, int) and all(
            isinstance(cell, str) for cell in (query_id, log_id, text)
        )
        digest, _, sending = text.partition(_SENDING) if is_row else ("", "", "")
        number = int(sending) if sending.isdecimal() else 0
        row = cls(query_id, log_id, epoch, digest, number)
        if not is_row or row.cells != tuple(cells):
            raise CorruptLog(
                f"The ledger row of query {query_id} in {where} holds {tuple(cells)!r}.",
                "Restore the row from a backup of the target. Or delete it, and write it again:"
                " `wal-sink set-mark"
                " CHECKPOINT --to EPOCH`, where EPOCH is the last epoch whose rows the target has.",
            )
        return row


def ledger_key(query_id: str, target: str) -> str:
    """Return the key of a query's ledger row.

    :param target: the target's name where the query names several: two may share a ledger table. Empty for a
        query with one target.
    """
    return f"{query_id}/{target}" if target else query_id


class Outcome(enum.Enum):
    """The result of `Session.finish`."""

    APPLIED = "applied"
    """The ledger row is `new`, durably, and the rows count."""
    CONFLICT = "conflict"
    """The ledger row was not `seen`. The call had no effect, and will have none."""
    UNKNOWN = "unknown"
    """The answer was lost. `Session.read` tells what became of the call."""

"""The ledger row: the last epoch of one query that one target has. The target stores the row. No I/O."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

from wal_sink.errors import CorruptLog, TargetRefused

SENDINGS = 16
"""How many times the rows of an epoch may be sent, if each sending needs write timestamps of its own."""

_SENDING = "+"
"""Separates digest and number of the sending in the column `digest`: `<digest>+2`."""


class LedgerRow(NamedTuple):
    """The ledger row. An update replaces the whole row by compare-and-set (rule `ledger`)."""

    query_id: str
    """The key of the row, see `ledger_key`."""
    log_id: str
    """Id of the log whose epochs the target has."""
    epoch: int
    """The target has every epoch up to this number. Until it has its first epoch, the number is that epoch -
    1."""
    digest: str
    """SHA-256 of the manifest of `epoch`, hexadecimal; empty if the target has no epoch."""
    sending: int = 0
    """How many sendings of the next epoch's rows flushers have claimed, see `claim_sending`. Always 0 unless
    the table has lists that are not frozen, since only such rows must not be sent twice with one write
    timestamp."""

    @property
    def cells(self) -> tuple[str, str, int, str]:
        """Return the cells of a table: query id, log id, epoch, digest. Equal rows have equal cells."""
        digest = f"{self.digest}{_SENDING}{self.sending}" if self.sending else self.digest
        return self.query_id, self.log_id, self.epoch, digest

    @classmethod
    def from_cells(cls, cells: Sequence[Any], where: str) -> Self:
        """Make the row from the cells of a table.

        :param where: names the ledger in errors, such as "the ledger shop.wal_sink_ledger".
        :raises CorruptLog: wal_sink did not write these cells.
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


def claim_sending(row: LedgerRow) -> LedgerRow:
    """Return the ledger row that claims one more sending of the next epoch.

    Elements of a list that is not frozen are doubled if they are sent twice with one timestamp. So row i has
    the timestamp `first_us + (s - 1) * rows + i` in sending s = 1, 2, …, and an epoch reserves `SENDINGS *
    rows` timestamps. A flusher claims the sending by compare-and-set of the ledger row before it sends rows.
    A flusher whose claim was overwritten cannot finish.

    :raises TargetRefused: the epoch has used all its timestamps.
    """
    if row.sending == SENDINGS:
        raise TargetRefused(
            f"Epoch {row.epoch + 1} was sent {SENDINGS} times, and no sending was finished. The epoch has no"
            " more write timestamps, and rows with a list that is not frozen need new ones for each sending.",
            "Repair the cause that stops the flush. Then give the epoch up:"
            f" `wal-sink give-up CHECKPOINT --epoch {row.epoch + 1}`. Its rows stay in the log.",
        )
    return row._replace(sending=row.sending + 1)


def ledger_key(query_id: str, target: str) -> str:
    """Return the key of a query's ledger row.

    :param target: name of the target; empty if the query has one target. Two targets of a query may share a
        ledger table, so their keys have the name.
    """
    return f"{query_id}/{target}" if target else query_id


class Outcome(enum.Enum):
    """The result of `Session.finish`."""

    APPLIED = "applied"
    """The new ledger row is durable, and so are the rows of the window."""
    CONFLICT = "conflict"
    """The ledger row was not the expected row. The call had no effect, and will have none."""
    UNKNOWN = "unknown"
    """The answer was lost. `Session.read` returns the row as it is now."""

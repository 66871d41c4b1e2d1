"""A ledger row whose cells are of the future: updates are acknowledged and change nothing (rule 16). Pure."""

from __future__ import annotations

from wal_sink import remedies
from wal_sink.errors import LedgerShadowed
from wal_sink.targets.base import Mark

_CLOCKS_DIFFER_US = 60_000_000


def refuse_shadowed(mark: Mark, written_us: int | None, now_us: int) -> None:
    """See that the row can still be updated, before an update is lost.

    :param written_us: when the target says that the row's newest cell was written.
    :raises LedgerShadowed: further in the future than clocks differ.
    """
    if written_us is not None and written_us > now_us + _CLOCKS_DIFFER_US:
        raise LedgerShadowed(
            f"The ledger row, which says that epoch {mark.flushed} is flushed, was written"
            f" {(written_us - now_us) // 1_000_000} seconds in the future: until then no conditional"
            " update of it counts",
            shadow_remedy(mark.flushed),
        )


def shadow_remedy(flushed: int) -> str:
    """Say what to do: a conditional update has the time of now, so this row is lost for long.

    Deleting it leaves a tombstone of the same future, so that is no way out.
    """
    return (
        "Somebody wrote to the ledger row with a timestamp in the future, by a plain UPDATE or a clock"
        " that runs ahead: see WRITETIME(flushed). Deleting the row does not help, as what is inserted"
        " after it is older. Make it anew in another table:"
        f" {remedies.rewind(flushed)} --option cassandra.ledgerTable=NAME. Then start the query with"
        " that option. What was begun is written again, which changes nothing."
    )

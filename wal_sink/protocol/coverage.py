"""Decides whether a record about an epoch is still about what Spark has under that number. Pure.

A record names an epoch by its number. An operator may set the checkpoint back behind it, and Spark then
computes the number again, from other source offsets perhaps. A run that does so starts after the record was
written, so it claims a generation above all that were claimed by then (rules 2 and 3); and no other run
publishes an epoch that is checkpointed (rule 5).
"""

from __future__ import annotations

from collections.abc import Iterable


def still_covers(
    highest: int | None, digest: str, generations: Iterable[int], planned: str | None
) -> bool:
    """Whether a record about an epoch holds for what is under its number now.

    :param highest: the highest generation claimed when the record was written; None: it does not say.
    :param digest: of the source offsets that the record is about; empty: it does not say.
    :param generations: those that have published the epoch.
    :param planned: digest of the source offsets from which Spark has planned the epoch; None: purged.
    """
    if planned is not None and digest and planned != digest:
        return False
    return highest is None or all(generation <= highest for generation in generations)

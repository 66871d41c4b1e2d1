"""Which checkpointed epochs are begun and finished together (rule 10). Pure.

A backlog of many small epochs would cost two conditional updates for each; in a window they share them.

*Why that is as safe as one by one.* Each epoch of a window is chosen by `choice.choose` on its own, from what
was read after `commits/` (rule 9), and only choices that nothing read later can overturn are joined: one
manifest, or a proof. `begin` names every attempt with its timestamps (rule 14), so whoever comes next
finishes the same rows; the model finds two attempts mixed when only the first one is named. The mark
moves over the whole window or not at all.

*What ends a window.* An epoch that is passed over, waits, or whose choice is unproven, or at which the line
would stop, is left for the next window, as its first: so the mark stands right before it, as if epochs were
flushed one by one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeGuard

from wal_sink.errors import WalSinkError
from wal_sink.protocol.steps import Begin, Choose, ManifestMissing, PassOver, Rest

Choice = Begin | PassOver | ManifestMissing | Rest
"""What `choice.choose` says of one epoch, and `joined` of several."""

MOST_EPOCHS = 64
"""The ledger's row names each epoch of a window in about 500 bytes."""

MOST_BYTES = 64 * 1024 * 1024
"""Bytes of segments after which a window takes no further epoch: the mark should move now and then, since
an interrupted window is written again from its beginning."""


def following(first: Choose, checkpointed: int) -> Iterator[Choose]:
    """Yield the epochs that one window may have, as one is to be chosen after the other."""
    for epoch in range(first.epoch, min(checkpointed, first.epoch + MOST_EPOCHS - 1) + 1):
        yield first._replace(epoch=epoch)


def joined(choices: Iterator[Choice]) -> Choice:
    """Join the choices about contiguous epochs, as far as they may share a window.

    :param choices: made when they are asked for; at least one.
    :raises WalSinkError: the first choice cannot be made.
    """
    first = next(choices)
    if not is_final(first):
        return first
    taken = [first]
    try:
        for choice in choices:
            if not is_final(choice):
                break
            taken.append(choice)
    except WalSinkError:
        pass  # the flush does not stop before the epochs that can be flushed: the next window raises it
    return Begin(
        tuple(attempt for each in taken for attempt in each.attempts),
        manifests=tuple(published for each in taken for published in each.manifests),
    )


def fits(taken: int, more: int) -> bool:
    """Whether a window with so many bytes takes an epoch of `more`; alone, each fits whatever its size."""
    return taken == 0 or taken + more <= MOST_BYTES


def is_final(choice: Choice) -> TypeGuard[Begin]:
    """Whether nothing that is read later can overturn it."""
    return isinstance(choice, Begin) and choice.proven

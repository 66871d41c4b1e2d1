"""Decides which checkpointed epochs are begun and finished together (rule 10).

A backlog of many small epochs would cost two conditional updates for each; in a window they share them. Only
choices that nothing read later can overturn share one: a single manifest, or a proof. Any other epoch, and
one at which the flush would stop, becomes the first of the next window, so the mark stands right before it.
Why that is as safe as one by one: `docs/protocol.md#epochs-that-share-a-window`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import TypeGuard

from wal_sink.errors import WalSinkError
from wal_sink.model.manifest import Attempt
from wal_sink.protocol.steps import Begin, Choose, ManifestMissing, PassOver, Rest

Choice = Begin | PassOver | ManifestMissing | Rest
"""What `choose_attempt.choose` says of one epoch, and `joined` of several."""

MOST_EPOCHS = 64
"""The ledger's row names each epoch of a window in about 500 bytes."""

MOST_BYTES = 64 * 1024 * 1024
"""Most bytes of segments that the epochs of a window have together; a larger epoch shares its window with no
other rows. A window that is interrupted is written again from its beginning."""


def following(first: Choose, checkpointed: int) -> Iterator[Choose]:
    """Yield the epochs that one window may have, to be chosen one after the other."""
    for epoch in range(first.epoch, min(checkpointed, first.epoch + MOST_EPOCHS - 1) + 1):
        yield first._replace(epoch=epoch)


def named(attempts: Sequence[Attempt], epoch: int) -> Sequence[Attempt]:
    """Return the attempts at one epoch.

    :param attempts: those at any number of epochs, ascending: each of thousands that wait is looked up.
    """
    return attempts[bisect_left(attempts, (epoch,)) : bisect_left(attempts, (epoch + 1,))]


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
    """Whether a window of `taken` bytes takes an epoch of `more`; alone, an epoch of any size fits."""
    return taken == 0 or taken + more <= MOST_BYTES


def to_sync(first: int, last: int, checkpointed: int) -> set[int]:
    """Return the epochs whose files of the checkpoint have to be durable before a window is begun (rule 8).

    They say that Spark goes on behind the window, and from what. The files of the others decide nothing once
    the ledger names these epochs.

    :param first: the first epoch of the window; `last` is its last one.
    :param checkpointed: the highest epoch that `commits/` covers.
    """
    of_window = {max(first, last - 1), last}
    return of_window if checkpointed == last else {*of_window, checkpointed - 1, checkpointed}


def is_final(choice: Choice) -> TypeGuard[Begin]:
    """Whether nothing that is read later can overturn it."""
    return isinstance(choice, Begin) and choice.proven

"""Decides which checkpointed epochs are begun and finished together (rule 10). Pure.

A backlog of many small epochs would cost two conditional updates for each; in a window they share them.
Only epochs whose choice nothing read later can overturn share one: a single manifest, or a proof. Any other
epoch, and one at which the flush would stop, becomes the first of the next window, so `flushed` stands
right before it. Why that is as safe as one by one: `docs/protocol/rules.md#rule-10`.

Also here: which task of a Spark job writes which rows of a window. The pieces of a window follow each
other, each as long as its segment has bytes, and are cut into stretches of equal length, one a task. Two
tasks read a segment in which a cut falls, and each verifies the digest of the whole file, so segments are
cut no more often.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeGuard

import msgspec

from wal_sink.errors import WalSinkError
from wal_sink.model.manifest import SegmentRef
from wal_sink.model.plan import Plan
from wal_sink.protocol.next_step import Begin, Choose, Idle, ManifestMissing, PassOver

Choice = Begin | PassOver | ManifestMissing | Idle
"""What `attempts.choose` says of one epoch, and `merged` of several."""

WINDOW_EPOCHS = 64
"""The ledger's row names each epoch of a window in about 500 bytes."""

WINDOW_BYTES = 64 * 1024 * 1024
"""Most bytes of segments that the epochs of a window have together; a larger epoch shares its window with no
other rows. A window that is interrupted is written again from its beginning."""


def following(first: Choose, checkpointed: int) -> Iterator[Choose]:
    """Yield the epochs that one window may have, to be chosen one after the other."""
    for epoch in range(first.epoch, min(checkpointed, first.epoch + WINDOW_EPOCHS - 1) + 1):
        yield first._replace(epoch=epoch)


def merged(choices: Iterator[Choice]) -> Choice:
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
    return taken == 0 or taken + more <= WINDOW_BYTES


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


MOST_READERS = 8
"""How many tasks there are for each segment at most. SHA-256 runs at some 1,000 MB/s and rows are sent at
some 10 MB/s of segments, so that at 8 readers verifying costs a tenth of sending."""

_SMALLEST = 8
"""A task gets at least this part of the threshold: starting it and connecting cost up to a second."""


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """Consecutive rows of one segment. Pickles; travels to a task."""

    epoch: int
    plan: Plan
    """What the epoch was checked against."""
    segment: SegmentRef
    start: int
    """The first row, counted from 0 in the segment."""
    stop: int
    """The row behind the last one."""
    first_us: int
    """Write timestamp of row `start`; row i of the segment has `first_us + i - start` (rule 15)."""
    passed: tuple[int, ...] = ()
    """Write timestamps of rows that are in quarantine: they are passed over (rule 24)."""

    def between(self, start: int, stop: int) -> Piece:
        """Return the rows from `start` up to `stop`, counted in the segment."""
        first_us = self.first_us + start - self.start
        return msgspec.structs.replace(self, start=start, stop=stop, first_us=first_us)


def is_large(size: int, above_bytes: int) -> bool:
    """Whether a window with so many bytes of segments may be written by a job.

    :param above_bytes: the threshold; a negative one means never.
    """
    return 0 <= above_bytes < size


def share_out(pieces: Sequence[Piece], *, above_bytes: int, slots: int) -> list[tuple[Piece, ...]]:
    """Share the pieces out to tasks, balanced by bytes; no tasks when no job is worth it, or may write them.

    A job of one task would be as fast as the driver, but for what the job costs. Spark runs a task again, or
    twice, so no job writes rows that may be sent once with each timestamp (rule 26).

    :param pieces: whole segments, in the order of their rows.
    :param above_bytes: see `is_large`.
    :param slots: tasks that can run at the same time; one of them is left to the query.
    :returns: every row exactly once, at most `slots - 1` shares, none of them empty.
    """
    size = sum(piece.segment.bytes for piece in pieces)
    demands = [piece.plan.demands for piece in pieces]
    alone = any(each.one_session or each.sent_once for each in demands)
    if alone or not is_large(size, above_bytes):
        return []
    smallest = max(above_bytes // _SMALLEST, 1)
    tasks = min(slots - 1, size // smallest, MOST_READERS * len(pieces))
    shares = _cut(pieces, tasks) if tasks > 1 else []
    return shares if len(shares) > 1 else []


def _cut(pieces: Sequence[Piece], tasks: int) -> list[tuple[Piece, ...]]:
    """Cut the pieces into `tasks` stretches; drop those in which no row begins.

    In units of a byte divided by `tasks`, so that every cut is at a whole number.
    """
    shares: list[list[Piece]] = [[] for _ in range(tasks)]
    stretch = sum(_length(piece) for piece in pieces)
    begin = 0
    for piece in pieces:
        length = _length(piece) * tasks
        for task in range(begin // stretch, -(-(begin + length) // stretch)):
            cuts = (max(task * stretch - begin, 0), min((task + 1) * stretch - begin, length))
            start, stop = (piece.start + cut * (piece.stop - piece.start) // length for cut in cuts)
            if start < stop:
                shares[task].append(piece.between(start, stop))
        begin += length
    return [tuple(share) for share in shares if share]


def _length(piece: Piece) -> int:
    return max(piece.segment.bytes, 1)

"""Decides what a flusher writes into the ledger row, and what the answers mean (rules 14, 16, 17 and 26)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from statistics import median_low
from typing import Literal

import msgspec

from wal_sink import errors
from wal_sink.errors import LedgerBehindLog, LedgerShadowed, TargetUnavailable
from wal_sink.model import paths
from wal_sink.model.ledger import BegunEpoch, LedgerState, Outcome, Owner, Window
from wal_sink.model.manifest import Published
from wal_sink.model.plan import NO_DEMANDS, WriteDemands
from wal_sink.model.records import FlushedEpoch
from wal_sink.protocol.next_step import PassOver

CLOCKS_DIFFER_US = 60_000_000
"""How far two clocks may lie apart before one of them is taken to be wrong."""

NODES_DIFFER_US = 30_000_000
"""How far apart the clocks of a target's servers may lie, where they date rows themselves."""


def create(owner: Owner, flushed: int) -> LedgerState:
    """Return the first row of a query (rule 13).

    :param flushed: every epoch up to this one counts as flushed.
    """
    return LedgerState(
        log_id=owner.log_id,
        checkpoint=owner.checkpoint,
        flushed=flushed,
        last_us=0,
        begun=None,
        last=None,
    )


def begin(state: LedgerState, window: Window) -> LedgerState:
    """Return the row that begins a window, or another sending of the begun one (rules 14 and 26)."""
    assert window.first == state.flushed + 1
    assert state.begun is None or (window.sent_once and state.begun.first == window.first)
    return msgspec.structs.replace(state, begun=window)


def finish(state: LedgerState) -> LedgerState:
    """Return the row that finishes the window which is begun (rule 16)."""
    window = state.begun
    assert window is not None
    return msgspec.structs.replace(
        state, flushed=window.last, last_us=window.last_us, begun=None, last=window
    )


def clocks_differ(now_us: int, target_us: Sequence[int]) -> bool:
    """Whether the clocks of flusher and target differ more than synchronized ones do.

    :param target_us: times by the target's clocks, microseconds since 1970; empty: it has none.
    """
    return bool(target_us) and abs(now_us - median_low(target_us)) > CLOCKS_DIFFER_US


def bounded_now(now_us: int, target_us: Sequence[int]) -> int:
    """Return the time of `begin`: the flusher's, but at most `CLOCKS_DIFFER_US` after the target's (rule 14).

    Of several answers the one in the middle counts: a single node of the target may be wrong.

    :param now_us: the flusher's clock, microseconds since 1970.
    :param target_us: times by the target's clocks; empty: it has none.
    """
    return min(now_us, median_low(target_us) + CLOCKS_DIFFER_US) if target_us else now_us


def after_dated(row: LedgerState, target_us: int) -> LedgerState:
    """Return the ledger row from which a window is planned after rows that the target has dated (rule 14).

    Its `last_us` lies above all that the target can have given to rows that it has acknowledged.

    :param target_us: what the target's clock says, now.
    """
    return msgspec.structs.replace(row, last_us=max(row.last_us, target_us + NODES_DIFFER_US))


def refuse_dated_early(row: LedgerState, target_us: int) -> None:
    """Refuse to begin rows that the target dates, while it may date them before those that are there.

    :param target_us: what the target's clock says, now.
    :raises TargetUnavailable: it may; this passes by itself.
    """
    early_us = row.last_us + NODES_DIFFER_US - target_us
    if row.last_us and not row.target_dated and early_us > 0:
        raise TargetUnavailable(
            f"The target dates the rows of epoch {row.flushed + 1} itself, and what is there may be newer by"
            f" up to {early_us / 1_000_000:.0f} s: it might hide them",
            "Nothing: the flush goes on by itself after that time. If it is too long, as a clock was wrong,"
            f" {errors.reset_timestamps(row.flushed)}",
        )


def new_window(
    manifests: Sequence[Published],
    row: LedgerState,
    now_us: int,
    nonce: str,
    demands: WriteDemands = NO_DEMANDS,
) -> Window:
    """Fix attempts and write timestamps of a window (rule 14).

    :param manifests: one an epoch, contiguous.
    :param now_us: the flusher's clock as `bounded_now` has it, microseconds since 1970.
    :param demands: of the plans of all these epochs. Where rows may be sent once, `published` does not count:
        a row that was restored may lack a sending with it. The flusher that resumes such a window begins
        another sending of it, see `next_sending` (rule 26).

    `base = max(min(published, now), last + 1)`: near the time when the rows were computed, and above every
    timestamp used before; `docs/protocol/rules.md#rule-14` says why. Refused rows have the timestamps right
    before it, which then lie above those used before, too (rule 24).
    """
    epochs: list[BegunEpoch] = []
    last_us = row.last_us
    for manifest, digest in manifests:
        near_us = now_us if demands.sent_once else min(manifest.published_us, now_us)
        epochs.append(
            BegunEpoch(
                epoch=manifest.epoch,
                generation=manifest.generation,
                manifest=paths.MANIFEST.path(manifest.attempt),
                digest=digest,
                offsets_digest=manifest.offsets_digest,
                base_us=max(near_us, last_us + 1 + manifest.refused_rows),
                rows=manifest.rows,
                bytes=manifest.bytes,
                published_us=manifest.published_us,
            )
        )
        last_us = epochs[-1].last_us
    return Window(
        nonce=nonce,
        begun_us=now_us,
        epochs=tuple(epochs),
        sending=1 if demands.sent_once else 0,
        target_dated=demands.target_dated,
    )


def next_sending(window: Window, now_us: int, nonce: str) -> Window:
    """Fix the write timestamps of another sending of a begun window: above all of those before (rule 26).

    :param now_us: see `new_window`. A row that was restored may lack sendings below it.
    """
    epochs: list[BegunEpoch] = []
    used_us = max(window.last_us, now_us - 1)
    for begun in window.epochs:
        epochs.append(msgspec.structs.replace(begun, base_us=used_us + 1))
        used_us = epochs[-1].last_us
    return msgspec.structs.replace(
        window, nonce=nonce, epochs=tuple(epochs), sending=window.sending + 1
    )


def new_window_without_rows(
    step: PassOver, row: LedgerState, now_us: int, nonce: str, *, target_dated: bool = False
) -> Window:
    """Fix the window of an epoch that is passed over (rules 12 and 22): it uses up a timestamp.

    :param now_us: the flusher's clock, microseconds since 1970.
    :param target_dated: the target may have dated rows before it.
    """
    begun = BegunEpoch(
        epoch=step.epoch,
        generation=step.generation,
        manifest="",
        digest="",
        offsets_digest=step.offsets_digest,
        base_us=max(now_us, row.last_us + 1),
        rows=0,
        bytes=0,
        published_us=now_us,
    )
    return Window(
        nonce=nonce,
        begun_us=now_us,
        epochs=(begun,),
        target_dated=target_dated,
    )


def is_mine(outcome: Outcome, window: Window, read_back: LedgerState | None) -> bool:
    """Whether a window was begun: acknowledged, or read back after a lost or negative answer (rule 14).

    :param read_back: the ledger read after the answer; not looked at when it was APPLIED.
    """
    if outcome is Outcome.APPLIED:
        return True
    return read_back is not None and read_back.begun == window


def after_finish(
    window: Window,
    row: LedgerState | None,
    *,
    applied: bool,
    atomic: bool = False,
    before: LedgerState | None = None,
) -> Literal["finished", "again", "superseded"]:
    """Decide what became of `finish`, from its answers and the ledger read after it (rule 16).

    "superseded" says nothing about the window: the row has moved on without naming it, by a flusher that
    finished it and a later one, or after a rewind by another log. The flusher looks again, and records
    nothing: a flusher that moves the row past a window has recorded that window first (rule 17).

    "again" is safe for `atomic` even if the target had acknowledged `finish`: a database that has lost the
    transaction by now, in a failover to a replica that lagged behind, has lost its rows with the row.

    :param applied: whether the target has acknowledged `finish`, now or at an earlier try.
    :param atomic: rows and `finish` are one transaction; "again" then means all rows, too.
    :param before: the row that has begun the window, or in which it was found begun; None: not known.
    :raises LedgerShadowed: an update was acknowledged, of `finish` or of `begin`, but is not there.
    :raises LedgerBehindLog: the row is gone.
    """
    if row is None:
        raise LedgerBehindLog(
            f"The ledger row vanished while epoch {window.last} was flushed",
            f"Restore the ledger table, or make the row anew: {errors.rewind(window.first - 1)}.",
        )
    if row.flushed >= window.last:
        return "finished" if applied or row.last == window else "superseded"
    if row.begun == window and (atomic or not applied):
        return "again"
    if atomic:
        return "superseded"
    if row.flushed != window.first - 1 or row.begun not in (None, window):
        return "superseded"  # neither as before `begin` nor as after it: it was rewound meanwhile
    moved = before is not None and (row.last, row.last_us) != (before.last, before.last_us)
    if moved and row.last != window:
        return "superseded"  # a rewind, or another log, has brought it to the same epoch
    raise LedgerShadowed(
        f"The ledger acknowledged an update for epoch {window.last}, but its row still says that"
        f" epoch {row.flushed} is flushed",
        errors.shadow_remedy(window.first - 1),
    )


def flushed_records(window: Window, now_us: int, given_up: Collection[int]) -> list[FlushedEpoch]:
    """Say of each epoch of a window what was flushed; see `flushed_record`.

    :param given_up: the epochs that are passed over.
    """
    return [
        flushed_record(begun, window, now_us, given_up=begun.epoch in given_up)
        for begun in window.epochs
    ]


def flushed_record(
    begun: BegunEpoch, window: Window, now_us: int, *, given_up: bool = False
) -> FlushedEpoch:
    """Say what was flushed, from the ledger alone (rule 17).

    :param now_us: the flusher's clock, microseconds since 1970.
    :param given_up: an operator gave the epoch up after it was begun: it is passed over (rule 22).
    """
    if given_up:
        begun = msgspec.structs.replace(begun, manifest="", digest="", rows=0, bytes=0)
    return FlushedEpoch(
        **msgspec.structs.asdict(begun), begun_us=window.begun_us, recorded_us=now_us
    )


def refuse_shadowed(row: LedgerState, written_us: int | None, now_us: int) -> None:
    """Check that the row can still be updated, before an update is lost.

    :param written_us: when the target says that the row's newest cell was written.
    :raises LedgerShadowed: further in the future than clocks differ.
    """
    if written_us is not None and written_us > now_us + CLOCKS_DIFFER_US:
        raise LedgerShadowed(
            f"The ledger row, which says that epoch {row.flushed} is flushed, was written"
            f" {(written_us - now_us) // 1_000_000} seconds in the future: until then no conditional"
            " update of it counts",
            errors.shadow_remedy(row.flushed),
        )

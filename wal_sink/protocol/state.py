"""The state of a log and its nine transitions: pure functions.

A log has one state, an object that changes by compare-and-set: number n + 1 is created once, from n. Each
transition takes a state and returns the next one, or None where nothing has to change, or raises where the
rules refuse (rule `one-publisher`, and the others). `docs/protocol/README.md` draws the states of
an epoch and names the twelve rules, and `tests/protocol/state_model/` explores every order of steps
over these very functions.

*Publish* makes an attempt the newest of the log. *Settle* makes it final. The *mark* of a target is
the last epoch that the log knows to be in it. To *give up* is an operator's act: the target does without.

`create`, `open_run`, `publish` and the acts of operators are tried again from the newer state when their
compare-and-set is lost. `settle`, `mark`, `went_back` and `trim` are tried once, from the state that the
flusher has read: after a lost race it starts its pass again. An error counts only if the state is still the
one that was read; else what was read beside it may be newer, and the pass starts again, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from wal_sink.errors import (
    REPORT_IT,
    LogFull,
    OptionError,
    WalSinkError,
    WrongOwner,
)
from wal_sink.model import paths
from wal_sink.model.ledger import LedgerRow
from wal_sink.model.state import (
    Change,
    EpochManifest,
    GivenUp,
    Mark,
    Predecessor,
    Run,
    State,
    Sums,
    TargetState,
)
from wal_sink.protocol.flush_order import Chain, compared
from wal_sink.protocol.refusals import (
    already_published,
    fenced,
    lacks_epochs,
    missing_manifest,
    refuse_completed,
    set_back,
)
from wal_sink.protocol.retention import Retention, earlier_marks, trimmable

OPENED = 32
"""How many runs that opened a state names. A process would have to survive as many restarts to open again."""


class Actor(NamedTuple):
    """Who makes a transition, and when."""

    by: str
    """Process and host: two processes never make equal states."""
    now_us: int


class Opening(NamedTuple):
    """What a run says about itself as it opens."""

    query_id: str
    checkpoint: str
    run_id: str
    targets: tuple[str, ...]
    options: Mapping[str, str]
    after: str = ""
    """Id of the run that had opened last when this batch was planned, before its tasks ended;
    empty: none had."""


# --- the log and its runs ------------------------------------------------------------------------


def create(opening: Opening, log_id: str, committed: int, actor: Actor) -> State:
    """Return the first state of a log. The caller has found none, and no manifests without one.

    The log begins after what Spark has completed so far. A `batch_writer` says what was completed when it was
    made: its query completes epochs before the first call.

    :param committed: last epoch of `commits/`; -1 if there is none.
    """
    last = _unpublished(committed)
    return State(
        number=1,
        changed=Change(by=actor.by, at_us=actor.now_us, reason="create"),
        query_id=opening.query_id,
        log_id=log_id,
        checkpoint=opening.checkpoint,
        first=committed + 1,
        last=last,
        settled=committed,
        trimmed=committed,
        targets=tuple(_added(name, last, actor.now_us) for name in opening.targets),
    )


def open_run(
    state: State, opening: Opening, epoch: int, committed: int, actor: Actor
) -> State | None:
    """Let a run publish, and no earlier one any more. None: it is open.

    A run opens in its first `commit()`. It reads `commits/` before, and again after: a run that computes an
    epoch that is completed meanwhile is an old one, which should not stop a newer one.

    A run that opened and was superseded never opens again, so its work is garbage at once (`is_garbage`). And
    a run opens only if no other one has since its batch was planned. Else a worker in which `commit()` runs,
    and which outlives its driver for a while, could replace what the next run has published, while Spark
    completes that.

    The targets may differ from those of the state only if none lacks an epoch: all marks are at `last`, and
    `last` is settled. A target that comes starts after `last`, one that goes is forgotten.

    :param epoch: the one that the run wants to publish.
    :raises WrongOwner: the state names another checkpoint.
    :raises Fenced: the epoch is completed, or another run has opened since this one did.
    :raises OptionError: other targets, and epochs that some target lacks.
    """
    refuse_other_place(state, opening.query_id, opening.checkpoint)
    if state.run is not None and state.run.run_id == opening.run_id:
        return None
    if opening.run_id in state.opened or last_opened(state) != opening.after:
        raise fenced(state, epoch)
    refuse_completed(state, epoch, committed)
    return _next(
        state,
        actor,
        f"run {opening.run_id} opens",
        run=Run(
            number=state.number + 1,
            run_id=opening.run_id,
            options=dict(opening.options),
        ),
        opened=(*state.opened, opening.run_id)[-OPENED:],
        targets=_targets(state, opening.targets, actor.now_us),
    )


def last_opened(state: State) -> str:
    """Return the id of the run that opened last; empty if none has."""
    return state.opened[-1] if state.opened else ""


def predecessor_for(
    state: State, run_id: str, epoch: int, offsets_digest: str, committed: int
) -> Predecessor | None:
    """Return what the manifest of an epoch names as its predecessor. None: publish nothing, Spark goes on.

    None is for a replay: Spark computes the newest epoch again after `commits/` lost it, by a power loss or a
    backup, and the log has settled that epoch from the same source offsets. Its attempt stays.

    Spark plans N + 1 after it has completed N, so N + 1 or, again, N are the only epochs that fit.

    :raises Fenced: the run may not publish, or the epoch is completed.
    :raises Diverged: the checkpoint was set back, by more than the newest epoch or to other source offsets.
    :raises MissingManifest: an epoch in between was completed and not published.
    """
    if state.run is None or state.run.run_id != run_id:
        raise fenced(state, epoch)
    refuse_completed(state, epoch, committed)
    last = state.last
    if epoch > last.epoch + 1:
        raise missing_manifest(state, last.epoch + 1)
    if epoch < last.epoch or committed < epoch - 1:
        raise set_back(
            f"Spark computes epoch {epoch} after epoch {committed}, and the log has epoch {last.epoch}:"
            " the checkpoint was set back by more than its newest epoch, so two histories have that number."
        )
    if epoch == last.epoch + 1:
        return last.as_predecessor()
    if epoch > state.settled:
        return last.predecessor
    if last.offsets_digest == offsets_digest:
        return None
    raise set_back(
        f"Epoch {epoch} is final in the log, and Spark computes it again from other source offsets: the"
        " checkpoint was set back."
    )


def has_space(state: State, predecessor: Predecessor, max_bytes: int) -> bool:
    """Return True if the log has space for an epoch of any size after `predecessor`.

    Counted is what the predecessor ends: those epochs are completed, so a flusher can settle and flush all of
    them while this run waits. What a dead run has published at the same epoch does not count, else it would
    block its successor for ever. Pending is what some target lacks; a target that was given up lacks nothing.
    """
    pending = pending_bytes(state, predecessor)
    return pending <= 0 or pending < max_bytes


def pending_bytes(state: State, predecessor: Predecessor) -> int:
    """Return the bytes of the epochs up to `predecessor` that some target lacks."""
    marks = (target.mark.sums.bytes for target in state.live)
    return max((predecessor.sums.bytes - mark for mark in marks), default=0)


def publish(
    state: State,
    run_id: str,
    manifest: EpochManifest,
    committed: int,
    max_bytes: int,
    actor: Actor,
) -> State | None:
    """Make an attempt the newest of the log. None: it is already, or the epoch is a replay.

    Before, the manifest, its segments and `offsets/N` are durable, and so is `commits/N-1`. An epoch without
    rows is published, too. While the attempt is not settled, a later run may replace it: then its rows were
    never in a target, since a target gets settled epochs only.

    The manifest continues timestamps and sums of its predecessor. So a row of a later epoch is newer for a
    target that decides by timestamps, and what is pending is a difference of two sums.

    Spark has completed N - 1 as it computes N. So `last` - 1 is always settled, and only the newest epoch can
    have rivals.

    :raises WalSinkError: see `predecessor_for`.
    :raises AlreadyPublished: the run has published the epoch with other contents.
    :raises LogFull: see `has_space`.
    """
    epoch, last = manifest.epoch, state.last
    predecessor = predecessor_for(state, run_id, epoch, manifest.offsets_digest, committed)
    if predecessor is None or manifest == last:
        return None
    if manifest.manifest == last.manifest:
        raise already_published(epoch)
    sums = manifest.sums
    if (
        manifest.predecessor != predecessor
        or not predecessor.last_us < manifest.first_us <= manifest.last_us
        or sums.rows < predecessor.sums.rows
        or sums.bytes < predecessor.sums.bytes
    ):
        raise WalSinkError(
            f"The manifest {manifest.manifest} does not continue epoch {epoch - 1}: it names"
            f" {manifest.predecessor}, and the log has {predecessor}",
            REPORT_IT,
        )
    if not has_space(state, predecessor, max_bytes):
        raise LogFull(
            f"Epoch {epoch} is not published: the log has {max_bytes:,} bytes or more that are not flushed.",
            "Find out why the flush lags: `wal-sink status CHECKPOINT`. Or raise wal.maxBytes.",
        )
    return _next(
        state, actor, f"publish {epoch}", last=manifest, settled=max(state.settled, epoch - 1)
    )


# --- the flusher ---------------------------------------------------------------------------------


def settle(state: State, committed: int, actor: Actor) -> State | None:
    """Make the attempt at every completed epoch final. None: it is.

    The order is: read the state, read `commits/`, compare-and-set from exactly that state. Spark completes an
    epoch after its run has published it. So what `commits/` covers is an attempt that was published before
    `commits/` was read; and as the state has not changed since, it is the one that the state names. With
    `commits/` before the state, or with a newer state, another run may have published N again in between.

    :param committed: last epoch of `commits/`, read after the state.
    """
    settled = min(committed, state.last.epoch)
    if settled <= state.settled:
        return None
    return _next(state, actor, f"settle {settled}", settled=settled)


def mark(
    state: State, name: str, row: LedgerRow, chain: Chain, retention: Retention, actor: Actor
) -> State:
    """Record that a target has an epoch, after its ledger row has moved. The epoch is settled, too.

    The row is in the target, so its attempt is the one that counts, whatever a restored log says: a run that
    finds the epoch settled publishes nothing from the same offsets, and else is told that the histories
    differ. What may be trimmed rides on the same change.

    :raises Diverged: the chain has another digest for that epoch, or does not have the epoch.
    :raises MissingManifest: nobody can say which digest the chain has.
    """
    target = live_target(state, name)
    link = compared(state, target, row, chain)
    former = target.mark
    moved = Mark(
        epoch=row.epoch,
        digest=row.digest,
        sums=link.sums,
        at_us=actor.now_us,
        earlier=earlier_marks(former, link.sums.bytes, retention, actor.now_us),
    )
    new = _next(
        state,
        actor,
        f"mark {row.epoch} of {name}",
        targets=_with(state, target, mark=moved),
        settled=max(state.settled, row.epoch),
    )
    trimmed = trimmable(new, retention, actor.now_us)
    return msgspec.structs.replace(new, trimmed=max(state.trimmed, trimmed))


def went_back(state: State, name: str, row: LedgerRow, chain: Chain, actor: Actor) -> State:
    """Set the mark back to the ledger row of a target that was restored or failed over to a lagging replica.

    The flush goes on from there. It can, if nothing after the row may be deleted: `trimmed` says so, and is
    raised before anything is deleted, by a compare-and-set that this one is ordered with. No clock decides.

    :raises LedgerBehindLog: epochs after the row may be gone.
    :raises Diverged: the chain has another digest for that epoch.
    """
    target = live_target(state, name)
    if row.epoch < state.trimmed:
        raise lacks_epochs(
            state,
            target,
            f"went back to epoch {row.epoch}, and the log begins after {state.trimmed}",
        )
    link = compared(state, target, row, chain)
    earlier = tuple(flushed for flushed in target.mark.earlier if flushed.epoch <= row.epoch)
    moved = Mark(
        epoch=row.epoch, digest=row.digest, sums=link.sums, at_us=actor.now_us, earlier=earlier
    )
    return _next(
        state, actor, f"{name} went back to {row.epoch}", targets=_with(state, target, mark=moved)
    )


def trim(state: State, retention: Retention, actor: Actor) -> State | None:
    """Record in the state up to which epoch may be deleted, before anything is. None: nothing new.

    Only then are objects deleted, from the oldest epoch on. A flusher that pauses while it deletes deletes
    what no `went_back` can need: that one compares with `trimmed`.
    """
    trimmed = trimmable(state, retention, actor.now_us)
    if trimmed <= state.trimmed:
        return None
    return _next(state, actor, f"trim {trimmed}", trimmed=trimmed)


def is_garbage(state: State, epoch: int, run_id: str) -> bool:
    """Return True if a manifest or segment of an epoch, made by a run, may be deleted.

    At or below `trimmed` it is flushed everywhere, or lost to an attempt that is. From `last` on it is
    garbage if its run opened and was superseded, and `last` is not its attempt: the run cannot
    publish any more. What a run left that has never opened may be at work: it goes with its epoch.
    What was given up stays.
    """
    if any(item.epoch == epoch for item in state.given_up):
        return False
    if epoch <= state.trimmed:
        return True
    superseded = run_id in state.opened and (state.run is None or state.run.run_id != run_id)
    return (
        superseded
        and epoch >= state.last.epoch
        and state.last.manifest != paths.MANIFEST.path(paths.ManifestName(epoch, run_id))
    )


# --- operators -----------------------------------------------------------------------------------


def give_up_epoch(state: State, name: str, epoch: int, actor: Actor) -> State | None:
    """Let a target do without an epoch, the next one that it would get. None: it does already.

    The ledger row moves over it with the digest that the chain has. Its files stay in the log.

    :raises OptionError: it is not the next one, or not final yet.
    """
    target = live_target(state, name)
    item = GivenUp(epoch=epoch, target=name)
    if item in state.given_up:
        return None
    if epoch != target.mark.epoch + 1 or epoch > state.settled:
        raise OptionError(
            f"Epoch {epoch} cannot be given up for target {name}: the target has epoch {target.mark.epoch},"
            f" and epoch {state.settled} is the last one that is final.",
            f"Only the next epoch can be given up: {target.mark.epoch + 1}, once Spark has completed it.",
        )
    return _next(state, actor, f"give up {epoch} for {name}", given_up=(*state.given_up, item))


def give_up_missing(
    state: State, manifest: EpochManifest, committed: int, actor: Actor
) -> State | None:
    """Let all targets do without an epoch that Spark has completed and nobody has published.

    Such are an epoch of a `foreachBatch` function that did not write, and one that Spark's offline state
    repartition has made. The command publishes a manifest without segments for it, so the chain has no hole.

    :raises OptionError: the epoch is not the one that is missing.
    """
    epoch = manifest.epoch
    if manifest == state.last:
        return None
    if epoch != state.last.epoch + 1 or epoch > committed:
        raise OptionError(
            f"Epoch {epoch} is not missing: the log has epoch {state.last.epoch}, and Spark has completed"
            f" {committed}",
            "Only the epoch right after the newest one of the log, which Spark has completed, is missing.",
        )
    items = (GivenUp(epoch=epoch, target=target.name) for target in state.targets)
    return _next(
        state,
        actor,
        f"give up {epoch}, which is missing",
        last=manifest,
        settled=epoch,
        given_up=(*state.given_up, *items),
    )


def give_up_target(state: State, name: str, actor: Actor) -> State | None:
    """Let a target get nothing more; no mark, budget or open waits for it. None: it is so already.

    It comes back, with what is published then, after a start without it and another one with it.
    """
    target = named_target(state, name)
    if target.given_up:
        return None
    return _next(
        state, actor, f"give up target {name}", targets=_with(state, target, given_up=True)
    )


def adopt(state: State, log_id: str, checkpoint: str, actor: Actor) -> State:
    """Make this log the owner of its targets. `adopted_row` is set in each ledger then.

    A copy that goes on finds another log id in the ledger row, and stops with `WrongOwner`. At a new place no
    run is open: one that goes on at the former place is superseded. If the command dies in between, the
    flush stops with `WrongOwner` until it is run again.
    """
    run = state.run
    if run is not None and checkpoint != state.checkpoint:
        run = msgspec.structs.replace(run, run_id="")  # its options stay, for commands
    return _next(
        state,
        actor,
        f"adopt {log_id}",
        log_id=log_id,
        checkpoint=checkpoint,
        run=run,
    )


def adopted_row(state: State, row: LedgerRow) -> LedgerRow:
    """Return the ledger row of a target that the log adopts; it moves from what was read.

    The row keeps its epoch and digest: if they are not of this log, the flush says so. A row right before the
    first epoch gets the digest that the log has there, which is none: a new log after an old row.
    """
    digest = "" if row.epoch == state.first - 1 else row.digest
    return row._replace(query_id=state.query_id, log_id=state.log_id, digest=digest)


def refuse_other_place(state: State, query_id: str, checkpoint: str) -> None:
    """Raise if the log belongs to another checkpoint: a run, a flusher and a command ask first.

    :raises WrongOwner: it does.
    """
    if (state.query_id, state.checkpoint) == (query_id, checkpoint):
        return
    raise WrongOwner(
        f"The log belongs to query {state.query_id} at {state.checkpoint}, and this is query {query_id} at"
        f" {checkpoint}. Two copies would write the same epochs with other rows.",
        "A copy starts with a new checkpoint. If checkpoint and log were moved, and nothing runs at the"
        " former place: `wal-sink adopt CHECKPOINT`.",
    )


# --- what several transitions need ---------------------------------------------------------------


def _next(state: State, actor: Actor, reason: str, **changes: Any) -> State:
    """Return the next state, with some fields changed."""
    changed = Change(by=actor.by, at_us=actor.now_us, reason=reason)
    return msgspec.structs.replace(state, number=state.number + 1, changed=changed, **changes)


def _unpublished(epoch: int) -> EpochManifest:
    """Return what `last` is before the first epoch."""
    return EpochManifest(
        epoch=epoch,
        manifest="",
        digest="",
        offsets_digest="",
        first_us=0,
        last_us=0,
        sums=Sums(),
        predecessor=Predecessor(),
    )


def _added(name: str, last: EpochManifest, now_us: int) -> TargetState:
    """Return a target that starts after the newest epoch."""
    at_last = Mark(epoch=last.epoch, digest=last.digest, sums=last.sums, at_us=now_us)
    return TargetState(name=name, first=last.epoch + 1, mark=at_last)


def _targets(state: State, names: tuple[str, ...], now_us: int) -> tuple[TargetState, ...]:
    """Return the targets of a run that opens."""
    last = state.last
    if set(names) == {target.name for target in state.targets}:
        if not state.live:
            raise OptionError(
                f"Every target of the query was given up: {', '.join(names)}. Its rows would go nowhere.",
                "Start the query with a new checkpoint.",
            )
        return state.targets
    lacking = [target.name for target in state.live if target.mark.epoch != last.epoch]
    if lacking or state.settled < last.epoch:
        former = ", ".join(target.name for target in state.targets)
        raise OptionError(
            f"The query has other targets than the log, which has {former}. Epoch {last.epoch} is not in"
            f" {', '.join(lacking) or 'every target'} yet, and would be lost.",
            f"Start once with the former targets, {former}, until `wal-sink status CHECKPOINT` shows no lag;"
            " then start with the new ones. A target that is dead:"
            " `wal-sink give-up CHECKPOINT --target NAME`.",
        )
    return tuple(state.target(name) or _added(name, last, now_us) for name in names)


def _with(state: State, target: TargetState, **changes: Any) -> tuple[TargetState, ...]:
    """Return all targets, one of them changed."""
    new = msgspec.structs.replace(target, **changes)
    return tuple(new if other.name == target.name else other for other in state.targets)


def named_target(state: State, name: str) -> TargetState:
    """Return a target of the log by its name.

    :raises OptionError: the log has none of this name.
    """
    target = state.target(name)
    if target is None:
        names = ", ".join(target.name for target in state.targets)
        raise OptionError(f"The log has no target {name}.", f"Its targets are: {names}.")
    return target


def live_target(state: State, name: str) -> TargetState:
    """Return a target of the log that gets epochs.

    :raises OptionError: the log has none of this name, or an operator has given it up.
    """
    target = named_target(state, name)
    if target.given_up:
        raise OptionError(
            f"Target {name} was given up, and gets nothing more.",
            "Start the query once without it, and then with it: it gets what is published then.",
        )
    return target

"""The state of a log and its nine transitions, as pure functions.

The state is one object that changes by compare-and-set: number n + 1 is created once, from n. A transition
takes a state and returns the next one. A transition returns None if nothing has to change, and raises an
error if a rule refuses the change. `docs/protocol/README.md` has the states of an epoch, the terms and the
twelve rules. `tests/protocol/state_model/` explores every order of steps over these functions.

After a lost compare-and-set, `create`, `open_run`, `publish` and the operators' transitions are tried again
from the newer state. `settle`, `mark`, `went_back` and `trim` are tried once, from the state that the flusher
read. After a lost compare-and-set, the flusher starts its pass again. An error counts only if the state has
not changed since it was read. Otherwise the flusher may have combined an old state with newer data, so it
starts its pass again, too.
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
from wal_sink.protocol.flush_decisions import Chain, verified_link
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
"""Most ids in `State.opened`. If the id of a superseded run is no longer in it, the run could open again."""


class Actor(NamedTuple):
    """The process that makes a transition, and the time."""

    by: str
    """Host and process id."""
    now_us: int


class Opening(NamedTuple):
    """The values that a run writes into the state of a log when the run opens the log."""

    query_id: str
    checkpoint: str
    run_id: str
    targets: tuple[str, ...]
    options: Mapping[str, str]
    after: str = ""
    """Id of the newest run in the log when Spark planned the micro-batch. Empty if the log had no run."""


# --- the log and its runs ------------------------------------------------------------------------


def create(opening: Opening, log_id: str, committed: int, actor: Actor) -> State:
    """Return the first state of a log. The caller has found neither a state nor manifests.

    The log begins after the epochs that Spark has completed. For `batch_writer`, the log begins after the
    epochs that were completed when the writer was made, since the query may complete epochs before its first
    call of the writer.

    :param committed: the last completed epoch; -1 for none.
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
    """Let a run publish, and no other run (rule `one-publisher`). Return None if the run is open already.

    A run opens in its first `commit()`, and reads `commits/` before and after. A run whose epoch is completed
    is an old run, and must not stop a newer run.

    A superseded run never opens again, so its unpublished objects are garbage at once (`is_garbage`). A run
    opens only if no other run has opened since its batch was planned. Otherwise a `commit()` that outlives
    its driver could replace what the next run has published, while Spark completes the next run's attempt.

    The targets may differ from the targets of the state only if every target has every epoch. Then all marks
    are at `last`, and `last` is settled. A new target starts after `last`. A target that is no longer named
    is forgotten.

    :param epoch: the epoch that the run wants to publish.
    :param committed: the last epoch of `commits/`.
    :raises WrongOwner: the state names another checkpoint.
    :raises Fenced: the epoch is completed, or another run has opened since this run did.
    :raises OptionError: the targets differ, and a target lacks an epoch.
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
        targets=_targets_of_run(state, opening.targets, actor.now_us),
    )


def last_opened(state: State) -> str:
    """Return the id of the run that opened last; empty if no run has opened."""
    return state.opened[-1] if state.opened else ""


def predecessor_for(
    state: State, run_id: str, epoch: int, offsets_digest: str, committed: int
) -> Predecessor | None:
    """Return the predecessor that the manifest of an epoch must name; None if the run must publish nothing.

    In a replay, `commits/` has lost the newest epoch by a power loss or a backup, and Spark computes the
    epoch again from the same source offsets. If the log has settled the epoch, None is returned, and the
    settled attempt stays.

    Spark plans N + 1 after it has completed N. So the run may publish only `last` + 1, or `last` again.

    :raises Fenced: the run may not publish, or the epoch is completed.
    :raises Diverged: the checkpoint was set back by more than its newest epoch, or to other source offsets.
    :raises MissingManifest: an epoch before `epoch` was completed and not published.
    """
    if state.run is None or state.run.run_id != run_id:
        raise fenced(state, epoch)
    refuse_completed(state, epoch, committed)
    last = state.last
    if epoch > last.epoch + 1:
        raise missing_manifest(state, last.epoch + 1)
    if epoch < last.epoch or committed < epoch - 1:
        raise set_back(
            f"Spark computes epoch {epoch} after epoch {committed}, and the log already has epoch"
            f" {last.epoch}. The checkpoint was set back by more than its newest epoch."
        )
    if epoch == last.epoch + 1:
        return last.as_predecessor()
    if epoch > state.settled:
        return last.predecessor
    if last.offsets_digest == offsets_digest:
        return None
    raise set_back(
        f"Epoch {epoch} is final in the log, and Spark computes it again from other source offsets. The"
        " checkpoint was set back."
    )


def has_space(state: State, predecessor: Predecessor, max_bytes: int) -> bool:
    """Return True if the epoch after `predecessor` may be published. The size of that epoch does not matter.

    Only the bytes up to `predecessor` that a target still lacks are compared with `max_bytes`. These epochs
    are completed, so a flusher can flush them while this run waits. An attempt of a dead run at the epoch
    after `predecessor` is not counted: no flusher can flush that attempt, so this run would wait forever.
    """
    pending = pending_bytes(state, predecessor)
    return pending <= 0 or pending < max_bytes


def pending_bytes(state: State, predecessor: Predecessor) -> int:
    """Return the bytes of the epochs up to `predecessor` that the slowest live target lacks."""
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
    """Make an attempt the newest of the log. Return None if it already is the newest, or is a replay.

    The caller has made the manifest, its segments, `offsets/N` and `commits/N-1` durable. An epoch without
    rows is published, too. A later run may replace an attempt that is not settled. No target has rows of such
    an attempt, since targets get settled epochs only.

    The manifest continues timestamps and sums of its predecessor. So rows of a later epoch have later
    timestamps, and the pending bytes are a difference of two sums.

    :raises WalSinkError: see `predecessor_for`; or the manifest does not continue its predecessor.
    :raises AlreadyPublished: the run has published the epoch with different content.
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
            f" {manifest.predecessor}, and the log has {predecessor}.",
            REPORT_IT,
        )
    if not has_space(state, predecessor, max_bytes):
        raise LogFull(
            f"Epoch {epoch} is not published: {max_bytes:,} bytes or more in the log are not flushed.",
            "Find out why the flush lags: `wal-sink status CHECKPOINT`. Or raise wal.maxBytes.",
        )
    return _next(
        state, actor, f"publish {epoch}", last=manifest, settled=max(state.settled, epoch - 1)
    )


# --- the flusher ---------------------------------------------------------------------------------


def settle(state: State, committed: int, actor: Actor) -> State | None:
    """Make the attempt at every completed epoch final. Return None if all are final.

    The caller reads the state, then `commits/`, and then makes the compare-and-set from exactly that state.
    Spark completes an epoch after its run has published it. So an epoch in `commits/` was published before
    `commits/` was read. As the state has not changed, the state names this attempt. In any other order,
    another run may have published the epoch again in between.

    :param committed: the last epoch of `commits/`, read after the state.
    """
    settled = min(committed, state.last.epoch)
    if settled <= state.settled:
        return None
    return _next(state, actor, f"settle {settled}", settled=settled)


def mark(
    state: State, name: str, row: LedgerRow, chain: Chain, retention: Retention, actor: Actor
) -> State:
    """Record that a target has an epoch, after its ledger row has moved. This settles the epoch, too.

    The target has rows of this attempt, so the attempt is final, even if the log was restored. If a run
    computes the epoch again from the same source offsets, the run publishes nothing. If the source offsets
    differ, the run gets `Diverged`. The same change may raise `trimmed`.

    :param row: the ledger row that the target has now.
    :raises Diverged: the chain has another digest for the epoch, or the epoch is after `last`.
    :raises MissingManifest: the chain does not have the digest of the epoch.
    """
    target = live_target(state, name)
    link = verified_link(state, target, row, chain)
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
        targets=_with_changed(state, target, mark=moved),
        settled=max(state.settled, row.epoch),
    )
    trimmed = trimmable(new, retention, actor.now_us)
    return msgspec.structs.replace(new, trimmed=max(state.trimmed, trimmed))


def went_back(state: State, name: str, row: LedgerRow, chain: Chain, actor: Actor) -> State:
    """Set the mark back to the ledger row of a target that was restored or failed over.

    The flush continues from the row, if no epoch after the row may be deleted. A compare-and-set raises
    `trimmed` before objects are deleted. So the order of the states decides whether the flush can continue,
    and no clock.

    :raises LedgerBehindLog: epochs after the row may be deleted.
    :raises Diverged: the chain has another digest for the epoch of the row.
    """
    target = live_target(state, name)
    if row.epoch < state.trimmed:
        raise lacks_epochs(
            state,
            target,
            f"went back to epoch {row.epoch}, and the log begins after {state.trimmed}",
        )
    link = verified_link(state, target, row, chain)
    earlier = tuple(flushed for flushed in target.mark.earlier if flushed.epoch <= row.epoch)
    moved = Mark(
        epoch=row.epoch, digest=row.digest, sums=link.sums, at_us=actor.now_us, earlier=earlier
    )
    return _next(
        state,
        actor,
        f"{name} went back to {row.epoch}",
        targets=_with_changed(state, target, mark=moved),
    )


def trim(state: State, retention: Retention, actor: Actor) -> State | None:
    """Record up to which epoch objects may be deleted. Return None if nothing new may be deleted.

    Objects are deleted after this change. A flusher that pauses in the middle of a deletion does no harm:
    `went_back` refuses every epoch below `trimmed`.
    """
    trimmed = trimmable(state, retention, actor.now_us)
    if trimmed <= state.trimmed:
        return None
    return _next(state, actor, f"trim {trimmed}", trimmed=trimmed)


def is_garbage(state: State, epoch: int, run_id: str) -> bool:
    """Return True if a manifest or segment of an epoch, made by a run, may be deleted.

    - Objects of an epoch that was given up stay.
    - Up to `trimmed`, every live target has the epoch, so all objects are garbage.
    - Between `trimmed` and the epoch of `last`, objects stay.
    - From the epoch of `last` on, the objects of a run that opened and was superseded are garbage, since this
      run cannot publish any more. The manifest `last` stays. A run that has not opened may still publish, so
      its objects stay.
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
    """Skip the next epoch of a target. Return None if the epoch is given up already.

    The flusher moves the ledger row over the epoch, with the digest that the chain has. The files of the
    epoch stay in the log.

    :raises OptionError: the epoch is not the next epoch of the target, or is not settled.
    """
    target = live_target(state, name)
    item = GivenUp(epoch=epoch, target=name)
    if item in state.given_up:
        return None
    if epoch != target.mark.epoch + 1 or epoch > state.settled:
        raise OptionError(
            f"Epoch {epoch} cannot be given up for target {name}. The target has epoch {target.mark.epoch},"
            f" and epoch {state.settled} is the last final one.",
            f"Give up the next epoch, {target.mark.epoch + 1}, after Spark has completed it.",
        )
    return _next(state, actor, f"give up {epoch} for {name}", given_up=(*state.given_up, item))


def give_up_missing(
    state: State, manifest: EpochManifest, committed: int, actor: Actor
) -> State | None:
    """Skip an epoch for all targets, if Spark has completed the epoch and no run has published it.

    Such an epoch is left by a `foreachBatch` function that did not write, or by Spark's offline state
    repartition. The caller has created a manifest without segments for the epoch, so that the chain has no
    gap.

    :raises OptionError: the epoch is not `last` + 1, or Spark has not completed it.
    """
    epoch = manifest.epoch
    if manifest == state.last:
        return None
    if epoch != state.last.epoch + 1 or epoch > committed:
        raise OptionError(
            f"Epoch {epoch} cannot be skipped as missing: the newest epoch of the log is {state.last.epoch},"
            f" and the newest epoch that Spark has completed is {committed}.",
            f"Only epoch {state.last.epoch + 1} can be skipped, once Spark has completed it.",
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
    """Give up a target, so that no budget, trim or run waits for it. Return None if it is given up already.

    Start the query once without the target, and then with it, to write to the target again. The target then
    gets the epochs that are published from that time on.
    """
    target = named_target(state, name)
    if target.given_up:
        return None
    return _next(
        state, actor, f"give up target {name}", targets=_with_changed(state, target, given_up=True)
    )


def adopt(state: State, log_id: str, checkpoint: str, actor: Actor) -> State:
    """Make this log the owner of its targets. The caller then sets `adopted_row` in each ledger.

    A copy of the query that continues finds another log id in the ledger row, and stops with `WrongOwner`. If
    the checkpoint has a new place, no run is open afterwards, so the run at the former place is superseded.
    If the command dies before all ledger rows are set, the flush stops with `WrongOwner` until the command is
    run again.
    """
    run = state.run
    if run is not None and checkpoint != state.checkpoint:
        run = msgspec.structs.replace(run, run_id="")  # commands use the options, which stay
    return _next(
        state,
        actor,
        f"adopt {log_id}",
        log_id=log_id,
        checkpoint=checkpoint,
        run=run,
    )


def adopted_row(state: State, row: LedgerRow) -> LedgerRow:
    """Return the ledger row of a target that the log adopts.

    The row keeps epoch and digest. If this log has another digest for the epoch, the flush stops with an
    error. A row whose epoch is right before the first epoch of the log gets an empty digest, since the log
    has no manifest of that epoch.
    """
    digest = "" if row.epoch == state.first - 1 else row.digest
    return row._replace(query_id=state.query_id, log_id=state.log_id, digest=digest)


def refuse_other_place(state: State, query_id: str, checkpoint: str) -> None:
    """Raise `WrongOwner` if the log belongs to another query or another checkpoint."""
    if (state.query_id, state.checkpoint) == (query_id, checkpoint):
        return
    raise WrongOwner(
        f"The log belongs to query {state.query_id} at {state.checkpoint}, and this is query {query_id} at"
        f" {checkpoint}. Two copies would write the same epochs with different rows.",
        "Start a copy with a new checkpoint. If checkpoint and log were moved, and nothing runs at the"
        " former place: `wal-sink adopt CHECKPOINT`.",
    )


# --- shared by several transitions ---------------------------------------------------------------


def _next(state: State, actor: Actor, reason: str, **changes: Any) -> State:
    changed = Change(by=actor.by, at_us=actor.now_us, reason=reason)
    return msgspec.structs.replace(state, number=state.number + 1, changed=changed, **changes)


def _unpublished(epoch: int) -> EpochManifest:
    """Return the value of `State.last` before the first epoch."""
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
    """Return the state of a new target, which gets the epochs after `last`."""
    at_last = Mark(epoch=last.epoch, digest=last.digest, sums=last.sums, at_us=now_us)
    return TargetState(name=name, first=last.epoch + 1, mark=at_last)


def _targets_of_run(state: State, names: tuple[str, ...], now_us: int) -> tuple[TargetState, ...]:
    """Return the targets of the state after a run opens."""
    last, live = state.last, ", ".join(target.name for target in state.live)
    opened = tuple(state.target(name) or _added(name, last, now_us) for name in names)
    if all(target.given_up for target in opened):
        given_up = ", ".join(names)
        raise OptionError(
            f"Every target of the query was given up: {given_up}. No target would get its rows.",
            f"Start the query once with {live}. A later start may name {given_up} again."
            if live
            else "Start the query with a new checkpoint.",
        )
    if set(names) == {target.name for target in state.targets}:
        return state.targets
    lacking = [target.name for target in state.live if target.mark.epoch != last.epoch]
    if lacking or state.settled < last.epoch:
        former = ", ".join(target.name for target in state.targets)
        raise OptionError(
            f"The query names other targets than the log, which has {former}. Epoch {last.epoch} is not in"
            f" {', '.join(lacking) or 'every target'} yet, and would be lost.",
            "Run `wal-sink flush CHECKPOINT`, and start the query again. If the error repeats, Spark has not"
            f" completed the epoch: start the query once with the former targets, {former}."
            " To drop a target that is dead: `wal-sink give-up CHECKPOINT --target NAME`.",
        )
    return opened


def _with_changed(state: State, target: TargetState, **changes: Any) -> tuple[TargetState, ...]:
    """Return all targets, with some fields of one target changed."""
    new = msgspec.structs.replace(target, **changes)
    return tuple(new if other.name == target.name else other for other in state.targets)


def named_target(state: State, name: str) -> TargetState:
    """Return a target of the log by its name.

    :raises OptionError: the log has no target of this name.
    """
    target = state.target(name)
    if target is None:
        names = ", ".join(target.name for target in state.targets)
        raise OptionError(f"The log has no target {name}.", f"Its targets are: {names}.")
    return target


def live_target(state: State, name: str) -> TargetState:
    """Return a target that was not given up.

    :raises OptionError: the log has no target of this name, or an operator has given it up.
    """
    target = named_target(state, name)
    if target.given_up:
        raise OptionError(
            f"Target {name} was given up, and gets nothing more.",
            "Start the query once without the target, and then with it. The target gets the epochs that are"
            " published after that.",
        )
    return target

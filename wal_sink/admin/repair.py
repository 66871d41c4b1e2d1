"""`give-up`, `set-mark` and `adopt`: change the state of a query after its flush has stopped.

Each command checks that the change is possible, asks the operator to confirm the consequences, and makes the
change. A command that died can be run again.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from functools import partial

import msgspec

from wal_sink.admin.query import Query, actor, connected, one_target
from wal_sink.checkpoint.checkpoint import Offsets
from wal_sink.errors import FlusherAtWork, OptionError, WrongOwner
from wal_sink.flush.pipeline import Pipeline
from wal_sink.model import paths
from wal_sink.model.ledger import LedgerRow
from wal_sink.model.manifest import Appended, Execution
from wal_sink.model.state import State
from wal_sink.progress.flusher_report import age_s, is_alive, read_report
from wal_sink.protocol import state as protocol
from wal_sink.protocol.flush_decisions import row_at
from wal_sink.protocol.refusals import refuse_other_log
from wal_sink.units import counted, now_us
from wal_sink.wal.location import store_errors
from wal_sink.wal.manifests import ManifestChain, create_manifest, new_manifest
from wal_sink.wal.store import LogStore, advance, update

Confirm = Callable[[str], object]
"""Called before a change with its consequences; raises an error if the operator does not agree."""


def agree(_consequences: str) -> None:
    """Agree to a change without asking the operator."""


class GaveUp(msgspec.Struct, frozen=True, kw_only=True):
    """What `give-up` changed. `wal-sink give-up --json` prints this class."""

    query_id: str
    targets: tuple[str, ...]
    epoch: int | None
    """None if the target itself was given up."""
    state: int
    """Number of the new state."""


@store_errors()
def give_up(query: Query, epoch: int | None, name: str, confirm: Confirm = agree) -> GaveUp:
    """Skip an epoch for one or all targets, or give up a target. A second call changes nothing.

    :param epoch: the next epoch of the target; None to give up the target itself.
    :param name: the target; empty for every target that lacks the epoch.
    :raises OptionError: neither an epoch nor a target is named, or the epoch cannot be given up.
    """
    if epoch is None and not name:
        raise OptionError(
            "The command names neither an epoch nor a target, so it gives up nothing.",
            "Add --epoch N, or --target NAME.",
        )
    state, committed = query.settled()
    if epoch is None:
        return _give_up_target(query, state, name, confirm)
    if state.last.epoch + 1 == epoch <= committed:
        return _give_up_missing(query, state, committed, name, confirm)
    return _skip_epoch(query, state, epoch, name, confirm)


def _give_up_target(query: Query, state: State, name: str, confirm: Confirm) -> GaveUp:
    lacks = state.last.epoch - protocol.named_target(state, name).mark.epoch
    confirm(
        f"Target {name} will get no more rows. It lacks the last {counted(lacks, 'published epoch')}."
        " The log will keep no epochs for this target. To write later epochs to it again, start the query"
        " once without the target, and then with it."
    )
    new = update(query.store, lambda newest: protocol.give_up_target(newest, name, actor()))
    return GaveUp(query_id=query.query_id, targets=(name,), epoch=None, state=new.number)


def _skip_epoch(query: Query, state: State, epoch: int, name: str, confirm: Confirm) -> GaveUp:
    """Skip a published epoch for one target, or for every target that lacks the epoch."""
    lacking = (
        [protocol.named_target(state, name)]
        if name
        else [target for target in state.live if target.mark.epoch < epoch]
    )
    if not lacking:
        raise OptionError(
            f"Every target has epoch {epoch}. It cannot be skipped any more.",
            "Run `wal-sink status CHECKPOINT` to see the next epoch.",
        )
    changes = [partial(protocol.give_up_epoch, name=target.name, epoch=epoch) for target in lacking]
    for change in changes:  # an impossible change raises an error before the operator is asked
        change(state, actor=actor())
    targets = tuple(target.name for target in lacking)
    confirm(
        f"Epoch {epoch} is skipped for {', '.join(targets)}: its rows are not written, or not all of them."
        " The log keeps the files of the epoch."
    )
    for change in changes:
        state = update(query.store, partial(change, actor=actor()))
    return GaveUp(query_id=query.query_id, targets=targets, epoch=epoch, state=state.number)


def _give_up_missing(
    query: Query, state: State, committed: int, name: str, confirm: Confirm
) -> GaveUp:
    """Publish an empty epoch in place of an epoch that Spark has completed, but that no run has published."""
    epoch, store = state.last.epoch + 1, query.store
    if name:
        raise OptionError(
            f"Epoch {epoch} was never published, so every target lacks it.", "Leave --target out."
        )
    confirm(
        f"Spark has completed epoch {epoch}, and no run has published it. If the epoch has rows, no target"
        " gets them. The log gets an empty epoch in its place."
    )
    plans = (paths.PLAN.parse(path) for path in store.list(paths.PLAN.folder))
    manifest = new_manifest(
        Appended(
            execution=Execution(query.query_id, f"given-up-{uuid.uuid4().hex}", epoch), segments=()
        ),
        query.checkpoint.offsets(epoch) or Offsets("", ""),
        state.last.as_predecessor(),
        plan=next((name.plan for name in plans if name is not None), "0"),
        published_us=now_us(),
    )
    path = paths.MANIFEST.path(paths.ManifestName(epoch, manifest.run_id))
    # A publication first makes Spark's files durable, in the order in which Spark wrote them.
    query.checkpoint.make_durable([f"commits/{epoch - 1}", f"offsets/{epoch}", f"commits/{epoch}"])
    made = create_manifest(store, path, manifest)

    def publish(newest: State) -> State | None:
        if newest.last.as_predecessor() != made.predecessor and newest.last != made:
            raise OptionError(
                f"The log has changed during the command: its newest epoch is {newest.last.epoch}.",
                "If the epoch is still missing, run the command again.",
            )
        return protocol.give_up_missing(newest, made, committed, actor())

    new = update(store, publish)
    targets = tuple(target.name for target in new.targets)
    return GaveUp(query_id=query.query_id, targets=targets, epoch=epoch, state=new.number)


class MarkSet(msgspec.Struct, frozen=True, kw_only=True):
    """What `set-mark` changed. `wal-sink set-mark --json` prints this class."""

    query_id: str
    target: str
    former: int | None
    """The epoch of the ledger row before the command; None without a row."""
    epoch: int
    """The epoch of the ledger row now. The flush continues with the next epoch."""


@store_errors()
def set_mark(query: Query, epoch: int, name: str, confirm: Confirm = agree) -> MarkSet:
    """Set the ledger row of a target to an epoch. If the mark in the state is later, set the mark back, too.

    :param name: the target; empty for the only target.
    :raises FlusherAtWork: a flusher is alive, or the row has changed since it was read.
    :raises OptionError: the epoch is not final, or the log lacks the epochs after it.
    :raises WrongOwner: the row is of another log.
    :raises MissingManifest: the log does not have the digest of the epoch.
    """
    state, committed = query.settled()
    target = protocol.live_target(state, one_target(state, name).name)
    name = target.name
    (pipeline,) = query.pipelines(state, name)
    refuse_beside_flusher(query.store, name)
    last = min(committed, state.last.epoch)
    lowest = max(state.trimmed, target.first - 1)
    if lowest > last:
        raise OptionError(
            f"Target {name} begins after epoch {lowest}, which Spark has not completed yet.",
            "Wait until Spark has completed the epoch.",
        )
    if not lowest <= epoch <= last:
        possible = f"one of {lowest} to {last}" if lowest < last else str(lowest)
        raise OptionError(
            f"The flush cannot continue after epoch {epoch}: the log has the epochs after {lowest}, and ends"
            f" with epoch {last}.",
            f"Give --to {possible}. The epochs after it are flushed again.",
        )
    with connected(pipeline) as connection:
        former = connection.row()
    if former is not None:
        refuse_other_log(state, target, former)
    chain = ManifestChain(query.store).chain(state, epoch)
    row = row_at(state, epoch, chain)
    if former is not None and former.epoch == epoch:
        # The new row keeps the count of sends of the next epoch.
        row = row._replace(sending=former.sending)
    present = "no ledger row" if former is None else f"a ledger row with epoch {former.epoch}"
    confirm(
        f"Target {name} has {present}. From now on every epoch up to {epoch} counts as written. The flush"
        f" continues with epoch {epoch + 1}. If the target lacks rows of epochs up to {epoch}, they stay"
        " missing. If it has rows of later epochs, they are written again. The target then has them twice,"
        " unless they have keys. Elements of lists that are not frozen are doubled even with keys."
    )
    _replace_row(pipeline, former, row)

    def set_back(newest: State) -> State | None:
        if protocol.named_target(newest, name).mark.epoch <= epoch:
            return None  # the next flusher moves the mark to the ledger row
        return protocol.went_back(newest, name, row, chain, actor())

    update(query.store, set_back)
    return MarkSet(
        query_id=query.query_id,
        target=name,
        former=None if former is None else former.epoch,
        epoch=epoch,
    )


def refuse_beside_flusher(store: LogStore, target: str) -> None:
    """Refuse a command while a flusher of the target is alive.

    :raises FlusherAtWork: a flusher has reported within the last 30 s.
    """
    report, now = read_report(store, target), now_us()
    if report is not None and is_alive(report, now):
        raise _flusher_at_work(
            f"{report.flusher} (host:process) flushes target {target}. Its last report is"
            f" {age_s(report, now):.0f} s old.",
            " A process that was killed on another host counts as alive until 30 s after its last report.",
        )


class Adopted(msgspec.Struct, frozen=True, kw_only=True):
    """What `adopt` changed. `wal-sink adopt --json` prints this class."""

    query_id: str
    former: dict[str, str]
    """Log id, checkpoint and log before the command."""
    names: dict[str, str]
    """Log id, checkpoint and log now."""


@store_errors()
def adopt(query: Query, confirm: Confirm = agree) -> Adopted:
    """Bind checkpoint, log and ledger rows to each other, after one of them was moved or made again.

    First the state gets a new log id and the present checkpoint. Then the checkpoint gets the place of the
    log, and at last the ledger rows get the new log id. A flusher that reads another log id in its ledger row
    stops with `WrongOwner`. So the flushers of every other copy stop, and all flushers stop if the command
    dies before its end.

    :raises WrongOwner: the log belongs to another query.
    :raises OptionError: checkpoint, log and ledger rows belong together already.
    :raises FlusherAtWork: the log or a ledger row has changed since it was read.
    """
    state, checkpoint, log = query.state(), query.checkpoint, query.store.url
    if state.query_id != query.query_id:
        raise WrongOwner(
            f"{log} is the log of query {state.query_id}, and the checkpoint belongs to query"
            f" {query.query_id}.",
            "Restore the log of this query. If it is lost, delete the folder of the log, and start the query"
            " again.",
        )
    rows = []
    for pipeline in query.pipelines(state):
        with connected(pipeline) as connection:
            rows.append((pipeline, connection.row()))
    named = checkpoint.log_url() or ""
    places = (state.checkpoint, named) == (checkpoint.url, log)
    if places and all(row is None or row.log_id == state.log_id for _, row in rows):
        raise OptionError(
            "Checkpoint, log and ledger rows belong together already. The command changes nothing.",
            "Run `wal-sink status CHECKPOINT --deep` to see why the flush stops.",
        )
    confirm(
        f"The log {log} will belong to the checkpoint {checkpoint.url} and to the ledger rows of the query in"
        f" {', '.join(pipeline.target_name for pipeline, _ in rows)}. Now the state names the checkpoint"
        f" {state.checkpoint}, and the checkpoint names the log {named or '(none)'}. No other copy of the"
        " query will publish or flush any more. If another copy should continue, answer no."
    )
    new = protocol.adopt(state, uuid.uuid4().hex, checkpoint.url, actor())
    if not advance(query.store, state, new):
        raise _flusher_at_work(
            "The log has changed during the command: another process works on the query."
        )
    checkpoint.replace_log_url(log)
    for pipeline, row in rows:
        if row is not None:
            _replace_row(pipeline, row, protocol.adopted_row(new, row))
    return Adopted(
        query_id=query.query_id,
        former={"log_id": state.log_id, "checkpoint": state.checkpoint, "log": named},
        names={"log_id": new.log_id, "checkpoint": new.checkpoint, "log": log},
    )


def _replace_row(pipeline: Pipeline, expected: LedgerRow | None, new: LedgerRow) -> None:
    """Replace the ledger row of a target by compare-and-set.

    :param expected: the row that was read before; None for no row.
    :raises FlusherAtWork: the row has changed since it was read.
    """
    with connected(pipeline) as connection:
        row = connection.row()
        if row == expected and (row == new or connection.finish(expected, new)):
            return
        row = connection.row()
    now = "it is gone" if row is None else f"it has epoch {row.epoch}"
    raise _flusher_at_work(
        f"The ledger row of target {pipeline.target_name} has changed during the command: {now}."
    )


def _flusher_at_work(what: str, more: str = "") -> FlusherAtWork:
    return FlusherAtWork(
        what, f"Stop the query and every `wal-sink flush`, and run this command again.{more}"
    )

"""`give-up`, `set-mark` and `adopt`: what an operator decides when the flush has stopped.

Each checks that the change can be made, lets the operator confirm its consequences, and makes it. Each can be
run again after it died.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from functools import partial

import msgspec

from wal_sink.admin.query import Query, actor, at_work, connected, move_row, one_target
from wal_sink.clock import now_us
from wal_sink.errors import OptionError, WrongOwner
from wal_sink.model import paths
from wal_sink.model.manifest import Manifest
from wal_sink.model.state import State
from wal_sink.progress.report import age_s, is_alive, read_report
from wal_sink.protocol import state as protocol
from wal_sink.protocol.flush_order import row_at
from wal_sink.protocol.refusals import refuse_other_log
from wal_sink.text import counted
from wal_sink.wal.location import store_errors
from wal_sink.wal.manifests import ManifestChain, create_manifest
from wal_sink.wal.states import advance, update
from wal_sink.wal.store import LogStore

Confirm = Callable[[str], object]
"""Called with the consequences of a change, before it is made; raises if the operator refuses."""


def confirmed(_consequences: str) -> None:
    """Agree: the answer was given before."""


class GaveUp(msgspec.Struct, frozen=True, kw_only=True):
    """The document of `give-up`."""

    query_id: str
    targets: tuple[str, ...]
    epoch: int | None
    """None: the target gets nothing more."""
    state: int
    """Number of the state that says so."""


@store_errors()
def give_up(query: Query, epoch: int | None, name: str, confirm: Confirm = confirmed) -> GaveUp:
    """Let targets do without an epoch, or let one get nothing more. To repeat it changes nothing.

    :param epoch: None: the target gets nothing more.
    :param name: of the target; empty: every one that lacks the epoch.
    :raises OptionError: neither is given; or the epoch is not the next one of the target, or not final.
    """
    if epoch is None and not name:
        raise OptionError(
            "Nothing is given up: neither an epoch nor a target is named.",
            "Add --epoch N, or --target NAME.",
        )
    state, committed = query.settled()
    if epoch is None:
        lacks = state.last.epoch - protocol.named_target(state, name).mark.epoch
        confirm(
            f"Target {name} gets nothing more, and lacks the last {counted(lacks, 'published epoch')}."
            " Nothing waits for it any longer. To give it later epochs again, start the query once without"
            " it, and then with it."
        )
        new = update(query.store, lambda state: protocol.give_up_target(state, name, actor()))
        return GaveUp(query_id=query.query_id, targets=(name,), epoch=None, state=new.number)
    if epoch == state.last.epoch + 1 <= committed:
        return _give_up_missing(query, state, committed, name, confirm)
    lacking = (
        [protocol.named_target(state, name)]
        if name
        else [target for target in state.live if target.mark.epoch < epoch]
    )
    if not lacking:
        raise OptionError(
            f"Every target has epoch {epoch}.", "See `wal-sink status CHECKPOINT` for the next one."
        )
    changes = [partial(protocol.give_up_epoch, name=target.name, epoch=epoch) for target in lacking]
    for change in changes:  # refuses before it asks
        change(state, actor=actor())
    targets = tuple(target.name for target in lacking)
    confirm(
        f"Epoch {epoch} is skipped for {', '.join(targets)}: its rows are not written, or not all of them."
        " What the log has of it stays there."
    )
    for change in changes:
        state = update(query.store, partial(change, actor=actor()))
    return GaveUp(query_id=query.query_id, targets=targets, epoch=epoch, state=state.number)


def _give_up_missing(
    query: Query, state: State, committed: int, name: str, confirm: Confirm
) -> GaveUp:
    """Publish an epoch without rows for one that Spark has completed and nobody has published."""
    epoch, store = state.last.epoch + 1, query.store
    if name:
        raise OptionError(
            f"Epoch {epoch} was never published, so every target lacks it.", "Leave --target out."
        )
    confirm(
        f"Spark has completed epoch {epoch}, and nobody has published it: no target gets its rows, if it has"
        " some. The log gets an empty epoch in its place."
    )
    manifest = _empty(query, state)
    path = paths.MANIFEST.path(paths.ManifestName(epoch, manifest.run_id))
    # As a run does, in the order in which Spark wrote them.
    query.checkpoint.make_durable([f"commits/{epoch - 1}", f"offsets/{epoch}", f"commits/{epoch}"])
    published = create_manifest(store, path, manifest)
    made = published.manifest.as_epoch(path, published.digest)

    def publish(state: State) -> State | None:
        if state.last.as_predecessor() != made.predecessor and state.last != made:
            raise OptionError(
                f"The log has changed: its newest epoch is {state.last.epoch}.",
                "Run the command again, if the epoch is still missing.",
            )
        return protocol.give_up_missing(state, made, committed, actor())

    new = update(store, publish)
    targets = tuple(target.name for target in new.targets)
    return GaveUp(query_id=query.query_id, targets=targets, epoch=epoch, state=new.number)


def _empty(query: Query, state: State) -> Manifest:
    """Return the manifest, without a segment, of the epoch that nobody has published."""
    epoch, predecessor, now = state.last.epoch + 1, state.last.as_predecessor(), now_us()
    offsets = query.checkpoint.offsets(epoch)
    first_us = max(now, predecessor.last_us + 1)
    plans = (paths.PLAN.parse(path) for path in query.store.list(paths.PLAN.folder))
    return Manifest(
        epoch=epoch,
        query_id=query.query_id,
        run_id=f"given-up-{uuid.uuid4().hex}",
        nonce=uuid.uuid4().hex,
        plan=next((name.plan for name in plans if name is not None), "0"),
        segments=(),
        offsets=offsets.text if offsets is not None else "",
        offsets_digest=offsets.digest if offsets is not None else "",
        published_us=now,
        first_us=first_us,
        last_us=first_us,
        sums=predecessor.sums,
        predecessor=predecessor,
    )


class MarkSet(msgspec.Struct, frozen=True, kw_only=True):
    """The document of `set-mark`."""

    query_id: str
    target: str
    former: int | None
    """The epoch that the ledger row had; None: there was no row."""
    epoch: int
    """The epoch that it has now. The flush goes on after it."""


@store_errors()
def set_mark(query: Query, epoch: int, name: str, confirm: Confirm = confirmed) -> MarkSet:
    """Set the ledger row of a target, then the mark, if that is ahead.

    :param name: of the target; empty: the only one.
    :raises FlusherAtWork: a flusher reports, or the row was moved since it was read.
    :raises OptionError: the log does not have what follows on the epoch, or the epoch is not final.
    :raises WrongOwner: the row is of another log.
    :raises MissingManifest: nobody can say which digest the epoch has.
    """
    state, committed = query.settled()
    target = one_target(state, name)
    name = protocol.live_target(state, target.name).name
    (pipeline,) = query.pipelines(state, name)
    refuse_flusher(query.store, name)
    last = min(committed, state.last.epoch)
    first = max(state.trimmed, target.first - 1)
    if not first <= epoch <= last:
        possible = f"one of {first} to {last}" if first < last else str(first)
        raise OptionError(
            f"--to {epoch} is not possible: the log has what follows on epoch {first}, and ends with {last}.",
            f"Name {possible}. Epochs after it are flushed again.",
        )
    with connected(pipeline) as connection:
        former = connection.row()
    if former is not None:
        refuse_other_log(state, target, former)
    chain = ManifestChain(query.store).chain(state, epoch)
    row = row_at(state, epoch, chain)
    if former is not None and former.epoch == epoch:
        row = row._replace(sending=former.sending)  # rows of the next epoch were sent so often
    has = "no ledger row" if former is None else f"epoch {former.epoch}"
    confirm(
        f"Target {name} has {has}. From now on it counts as having every epoch up to {epoch}, and the flush"
        f" goes on with epoch {epoch + 1}. Rows of earlier epochs that it lacks are not written. Rows of"
        " later epochs that it has come again: where rows are added, or elements to lists that are not"
        " frozen, they are then there twice."
    )
    move_row(pipeline, former, row)

    def follow(state: State) -> State | None:
        if protocol.named_target(state, name).mark.epoch <= epoch:
            return None  # the flusher marks what the row says
        return protocol.went_back(state, name, row, chain, actor())

    update(query.store, follow)
    return MarkSet(
        query_id=query.query_id,
        target=name,
        former=None if former is None else former.epoch,
        epoch=epoch,
    )


def refuse_flusher(store: LogStore, target: str) -> None:
    """Refuse to go on while a flusher of the target reports.

    :raises FlusherAtWork: one does, or did a moment ago on another host.
    """
    report, now = read_report(store, target), now_us()
    if report is not None and is_alive(report, now):
        raise at_work(
            f"{report.flusher} (host:process) flushes target {target}; it reported"
            f" {age_s(report, now):.0f} s ago.",
            " A process that was killed on another host counts as gone 30 s after its last report.",
        )


class Adopted(msgspec.Struct, frozen=True, kw_only=True):
    """The document of `adopt`."""

    query_id: str
    former: dict[str, str]
    """The names that state, checkpoint and ledger rows had."""
    names: dict[str, str]
    """Those that they have now."""


@store_errors()
def adopt(query: Query, confirm: Confirm = confirmed) -> Adopted:
    """Let checkpoint, log and ledger rows belong together, after one was moved or made again.

    First the state gets a new log id and the places as they are, then the checkpoint names the log, then the
    ledger row of each target names the new log id. A copy that goes on finds another id in the row, and stops
    with `WrongOwner`. So does every flusher if the command dies in between, until it is run again.

    :raises WrongOwner: the log is another query's.
    :raises OptionError: nothing is to be adopted.
    :raises FlusherAtWork: log or ledger row have changed since they were read.
    """
    state, checkpoint, log = query.state(), query.checkpoint, query.store.url
    if state.query_id != query.query_id:
        raise WrongOwner(
            f"{log} is the log of query {state.query_id}, and the checkpoint is that of query"
            f" {query.query_id}.",
            "Restore the log of this query; or delete what is there, and start the query again.",
        )
    rows = []
    for pipeline in query.pipelines(state):
        with connected(pipeline) as connection:
            rows.append((pipeline, connection.row()))
    named = checkpoint.log_url() or ""
    places = (state.checkpoint, named) == (checkpoint.url, log)
    if places and all(row is None or row.log_id == state.log_id for _, row in rows):
        raise OptionError(
            "Checkpoint, log and ledger rows belong together already.",
            "Nothing has to be adopted: `wal-sink status CHECKPOINT --deep` says what is wrong.",
        )
    confirm(
        f"The log {log} will belong to the checkpoint {checkpoint.url}, and own what the query has in"
        f" {', '.join(pipeline.target_name for pipeline, _ in rows)}. The state names the checkpoint"
        f" {state.checkpoint} now, and the checkpoint names the log {named or '(none)'}. Another copy of the"
        " query can no longer flush or publish: if there is one that should go on, answer no."
    )
    new = protocol.adopt(state, uuid.uuid4().hex, checkpoint.url, actor())
    if not advance(query.store, state, new):
        raise at_work("The log has changed: another process works on the query.")
    checkpoint.replace_log_url(log)
    for pipeline, row in rows:
        if row is not None:
            move_row(pipeline, row, protocol.adopted_row(new, row))
    return Adopted(
        query_id=query.query_id,
        former={"log_id": state.log_id, "checkpoint": state.checkpoint, "log": named},
        names={"log_id": new.log_id, "checkpoint": new.checkpoint, "log": log},
    )

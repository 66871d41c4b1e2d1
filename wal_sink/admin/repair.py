"""`give-up` and `set-mark`: what an operator decides when the flush has stopped.

A change is planned first: it can be made, and says its consequences. `carry_out` makes it.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from wal_sink.admin.query import Query, actor, connected, move_row, one_target
from wal_sink.clock import now_us
from wal_sink.errors import FlusherAtWork, OptionError
from wal_sink.flush.pipeline import Pipeline
from wal_sink.model import paths
from wal_sink.model.ledger import LedgerRow
from wal_sink.model.manifest import Manifest
from wal_sink.model.state import State
from wal_sink.progress.report import age_s, is_alive, read_report
from wal_sink.protocol import state as protocol
from wal_sink.protocol.flush_order import Chain, row_at
from wal_sink.protocol.refusals import refuse_other_log
from wal_sink.text import counted
from wal_sink.wal.location import store_errors
from wal_sink.wal.manifests import ManifestChain, create_manifest
from wal_sink.wal.states import update
from wal_sink.wal.store import LogStore


class GaveUp(msgspec.Struct, frozen=True, kw_only=True):
    """The document of `give-up`."""

    query_id: str
    targets: tuple[str, ...]
    epoch: int | None
    """None: the target gets nothing more."""
    state: int
    """Number of the state that says so."""


class GiveUp(NamedTuple):
    """The change that `give-up` makes."""

    query: Query
    targets: tuple[str, ...]
    epoch: int | None
    manifest: Manifest | None
    """For an epoch that nobody published: the manifest, which names no segment."""
    consequences: str
    """What the operator agrees to."""

    @store_errors()
    def carry_out(self) -> GaveUp:
        """Change the state of the log; to repeat it changes nothing.

        :raises OptionError: the epoch is not the next one any more.
        """
        if self.manifest is not None:
            state = self._publish(self.manifest)
        else:
            for name in self.targets:
                state = update(self.query.store, self._change(name))
        return GaveUp(
            query_id=self.query.query_id,
            targets=self.targets,
            epoch=self.epoch,
            state=state.number,
        )

    def _change(self, name: str) -> Callable[[State], State | None]:
        if self.epoch is None:
            return lambda state: protocol.give_up_target(state, name, actor())
        epoch = self.epoch
        return lambda state: protocol.give_up_epoch(state, name, epoch, actor())

    def _publish(self, manifest: Manifest) -> State:
        store, committed = self.query.store, self.query.checkpoint.last_commit()
        epoch = manifest.epoch
        path = paths.MANIFEST.path(paths.ManifestName(epoch, manifest.run_id))
        # As a run does, in the order in which Spark wrote them.
        self.query.checkpoint.make_durable(
            [f"commits/{epoch - 1}", f"offsets/{epoch}", f"commits/{epoch}"]
        )
        published = create_manifest(store, path, manifest)
        made = published.manifest.as_epoch(path, published.digest)

        def publish(state: State) -> State | None:
            if state.last.as_predecessor() != made.predecessor and state.last != made:
                raise OptionError(
                    f"The log has changed: its newest epoch is {state.last.epoch}.",
                    "Run the command again, if the epoch is still missing.",
                )
            return protocol.give_up_missing(state, made, committed, actor())

        return update(store, publish)


@store_errors()
def plan_give_up(query: Query, epoch: int | None, name: str) -> GiveUp:
    """Check that an epoch or a target can be given up.

    :param epoch: None: the target.
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
        protocol.give_up_target(state, name, actor())
        return GiveUp(query, (name,), None, None, _without_target(state, name))
    if epoch == state.last.epoch + 1 <= committed:
        if name:
            raise OptionError(
                f"Epoch {epoch} was never published, so every target lacks it.",
                "Leave --target out.",
            )
        names = tuple(target.name for target in state.targets)
        text = (
            f"Spark has completed epoch {epoch}, and nobody has published it: no target gets its rows, if it"
            " has some. The log gets an empty epoch in its place."
        )
        return GiveUp(query, names, epoch, _empty(query, state), text)
    lacking = (
        (protocol.named_target(state, name),)
        if name
        else tuple(target for target in state.live if target.mark.epoch < epoch)
    )
    if not lacking:
        raise OptionError(
            f"Every target has epoch {epoch}.", "See `wal-sink status CHECKPOINT` for the next one."
        )
    for target in lacking:
        protocol.give_up_epoch(state, target.name, epoch, actor())
    names = tuple(target.name for target in lacking)
    text = (
        f"Epoch {epoch} is skipped for {', '.join(names)}: its rows are not written, or not all of them. What"
        " the log has of it stays there."
    )
    return GiveUp(query, names, epoch, None, text)


def _without_target(state: State, name: str) -> str:
    lacks = state.last.epoch - protocol.named_target(state, name).mark.epoch
    return (
        f"Target {name} gets nothing more, and lacks the last {counted(lacks, 'published epoch')}. Nothing"
        " waits for it any longer. To give it later epochs again, start the query once without it, and then"
        " with it."
    )


def _empty(query: Query, state: State) -> Manifest:
    """Return the manifest of the epoch that nobody has published."""
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


class SetMark(NamedTuple):
    """The change that `set-mark` makes."""

    query: Query
    pipeline: Pipeline
    former: LedgerRow | None
    row: LedgerRow
    chain: Chain

    @property
    def consequences(self) -> str:
        """What the operator agrees to, as sentences."""
        name, epoch = self.pipeline.target_name, self.row.epoch
        has = "no ledger row" if self.former is None else f"epoch {self.former.epoch}"
        return (
            f"Target {name} has {has}. From now on it counts as having every epoch up to {epoch}, and the"
            f" flush goes on with epoch {epoch + 1}. Rows of earlier epochs that it lacks are not written."
            " Rows of later epochs that it has come again: where rows are added, or elements to lists that"
            " are not frozen, they are then there twice."
        )

    @store_errors()
    def carry_out(self) -> MarkSet:
        """Set the ledger row, then the mark, if that is ahead; can be repeated at any point.

        :raises FlusherAtWork: the row was moved since it was read.
        """
        name = self.pipeline.target_name
        move_row(self.pipeline, self.former, self.row)

        def follow(state: State) -> State | None:
            if protocol.named_target(state, name).mark.epoch <= self.row.epoch:
                return None  # the flusher marks what the row says
            return protocol.went_back(state, name, self.row, self.chain, actor())

        update(self.query.store, follow)
        return MarkSet(
            query_id=self.query.query_id,
            target=name,
            former=None if self.former is None else self.former.epoch,
            epoch=self.row.epoch,
        )


@store_errors()
def plan_set_mark(query: Query, epoch: int, name: str) -> SetMark:
    """Check that the ledger row of a target can be set to an epoch.

    :param name: of the target; empty: the only one.
    :raises FlusherAtWork: a flusher reports.
    :raises OptionError: the log does not have what follows on the epoch, or the epoch is not final.
    :raises WrongOwner: the row is of another log.
    :raises MissingManifest: nobody can say which digest the epoch has.
    """
    state, committed = query.settled()
    target = one_target(state, name)
    protocol.live_target(state, target.name)
    (pipeline,) = query.pipelines(state, target.name)
    refuse_flusher(query.store, target.name)
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
    return SetMark(query, pipeline, former, row, chain)


def refuse_flusher(store: LogStore, target: str) -> None:
    """Refuse to go on while a flusher of the target reports.

    :raises FlusherAtWork: one does, or did a moment ago on another host.
    """
    report, now = read_report(store, target), now_us()
    if report is None or not is_alive(report, now):
        return
    raise FlusherAtWork(
        f"{report.flusher} (host:process) flushes target {target}; it reported"
        f" {age_s(report, now):.0f} s ago.",
        "Stop the query and every `wal-sink flush`, and run this again. A process that was killed on another"
        " host counts as gone 30 s after its last report.",
    )

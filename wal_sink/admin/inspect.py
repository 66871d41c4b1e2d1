"""`inspect`: lists what the log holds, epoch by epoch. Changes nothing; the query may run."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal, NamedTuple

import msgspec

from wal_sink.admin.ledger_row import ledger_row
from wal_sink.admin.query import Query
from wal_sink.clock import iso
from wal_sink.errors import WalSinkError
from wal_sink.flush.choose_window import WindowChooser
from wal_sink.model.ledger import Window
from wal_sink.model.manifest import Attempt, Manifest
from wal_sink.model.records import FlushedEpoch
from wal_sink.progress.given_up import in_force, newest_decision
from wal_sink.progress.scan import read_manifests
from wal_sink.protocol.steps import Begin, Choose
from wal_sink.targets.base import Target

State = Literal[
    "flushed",
    "begun",
    "waiting",
    "not checkpointed",
    "superseded",
    "given up",
    "damaged",
    "no manifest",
]
"""`superseded`: Spark has kept another attempt at the epoch. `no manifest`: `verify` says what to do."""


class EpochLine(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt at an epoch, or what is known of the epoch without any."""

    epoch: int
    generation: int | None = None
    state: State
    segments: int | None = None
    """None: not known any more, since the manifest is trimmed, or not known yet."""
    rows: int | None = None
    bytes: int | None = None
    published: str | None = None
    """ISO 8601 in UTC."""
    problem: str | None = None


class Inspected(msgspec.Struct, frozen=True, kw_only=True):
    """What the log holds; epoch ids are -1 for none."""

    query_id: str
    checkpoint: str
    log: str
    checkpointed: int
    flushed: int
    begun_known: bool
    """Whether the ledger was asked. Else what is begun is listed as waiting."""
    epochs: tuple[EpochLine, ...]
    """Ascending; of what is flushed the newest ones, of what is not the oldest."""
    left_out_flushed: int
    left_out_waiting: int


class Standing(NamedTuple):
    """What decides about the state of an attempt."""

    checkpointed: int
    attempts: tuple[Attempt, ...]
    """All manifests there are."""
    given_up: Collection[int]
    begun: Collection[Attempt]


def inspect(query: Query, begun: Window | None, most: int, *, asked: bool = False) -> Inspected:
    """List the epochs that the log holds.

    :param begun: the window that the ledger says is begun; None for none, or where the ledger was not asked.
    :param most: lists at most so many flushed epochs, and at most so many others.
    :param asked: whether the ledger was asked.
    """
    checkpointed = query.checkpoint.last_commit()
    recorded = query.log.flushed_epochs()
    flushed = max(recorded, default=-1)
    standing = read_standing(query, checkpointed, begun)
    above = {attempt.epoch for attempt in standing.attempts if attempt.epoch > flushed}
    if (identity := query.log.identity()) is not None:
        above |= set(range(max(flushed + 1, identity.first_epoch), checkpointed + 1))
    newest = recorded[max(0, len(recorded) - most) :]
    done = query.log.flushed_since(newest[0] - 1) if newest else []
    lines = [_recorded(record, standing.given_up) for record in done]
    for epoch in sorted(above)[:most]:
        lines += _unflushed(query, epoch, standing)
    return Inspected(
        query_id=query.query_id,
        checkpoint=query.checkpoint.url,
        log=query.log.url,
        checkpointed=checkpointed,
        flushed=flushed,
        begun_known=asked,
        epochs=tuple(lines),
        left_out_flushed=max(0, len(recorded) - most),
        left_out_waiting=max(0, len(above) - most),
    )


def begun_window(query: Query, target: Target) -> Window | None:
    """Ask the ledger what is begun.

    :raises TargetUnavailable, SchemaMismatch: it cannot be asked.
    :raises WrongOwner, OptionError: see `Query.identity`.
    """
    with ledger_row(target, query.owner(query.identity())) as row:
        mark = row.read()
    return mark.begun if mark else None


def read_standing(query: Query, checkpointed: int, begun: Window | None) -> Standing:
    """Read what decides about the states of attempts."""
    window = begun.epochs if begun else ()
    return Standing(
        checkpointed,
        query.log.attempts(),
        frozenset(query.log.decided()),
        frozenset(Attempt(epoch.epoch, epoch.generation) for epoch in window if epoch.manifest),
    )


def states(query: Query, epoch: int, standing: Standing) -> dict[Attempt, State]:
    """Tell the states of the attempts at an epoch that is not flushed.

    :raises WalSinkError: at which a flusher would stop, too, such as `Diverged`.
    """
    attempts = [attempt for attempt in standing.attempts if attempt.epoch == epoch]
    found: dict[Attempt, State] = dict.fromkeys(attempts, "given up")
    later = _not_given_up(query, epoch, standing)
    if epoch > standing.checkpointed:
        return found | dict.fromkeys(later, "not checkpointed")
    taken = [attempt for attempt in later if attempt in standing.begun]
    state: State = "begun" if taken else "waiting"
    chosen = taken or (_chosen(query, epoch, standing) if later else ())
    return found | {attempt: state if attempt in chosen else "superseded" for attempt in later}


def _not_given_up(query: Query, epoch: int, standing: Standing) -> list[Attempt]:
    """Return the attempts at an epoch that no operator has given up."""
    attempts = [attempt for attempt in standing.attempts if attempt.epoch == epoch]
    if epoch not in standing.given_up:
        return attempts
    chooser = WindowChooser(query.log, query.checkpoint, query.query_id)
    decision, step = chooser.since_decided(Choose(epoch, tuple(attempts)))
    return [] if decision else list(step.attempts)


def _chosen(query: Query, epoch: int, standing: Standing) -> Sequence[Attempt]:
    """Choose as a flusher does that has seen no event of Spark (rule 11)."""
    chooser = WindowChooser(query.log, query.checkpoint, query.query_id)
    step = chooser.epoch(Choose(epoch, standing.attempts))
    return step.attempts if isinstance(step, Begin) else ()


def _recorded(record: FlushedEpoch, given_up: Collection[int]) -> EpochLine:
    return EpochLine(
        epoch=record.epoch,
        generation=record.generation or None,
        state="given up" if record.epoch in given_up and not record.manifest else "flushed",
        rows=record.rows,
        bytes=record.bytes,
        published=iso(record.published_us),
    )


def _unflushed(query: Query, epoch: int, standing: Standing) -> list[EpochLine]:
    attempts = [attempt for attempt in standing.attempts if attempt.epoch == epoch]
    if not attempts and (record := query.log.flushed(epoch)) is not None:
        return [_recorded(record, standing.given_up)]  # flushed and trimmed since
    if not attempts:
        decision = newest_decision(query.log, epoch)
        given_up = decision is not None and in_force(query.log, decision, (), query.checkpoint)
        return [EpochLine(epoch=epoch, state="given up" if given_up else "no manifest")]
    found = read_manifests(query.log, attempts)
    problem = None
    known: dict[Attempt, State] = {}
    try:
        known = states(query, epoch, standing)
    except WalSinkError as error:
        problem = error.summary
    lines = []
    for attempt in attempts:
        if (damage := found.damaged.get(attempt)) is not None:
            lines.append(
                EpochLine(
                    epoch=epoch,
                    generation=attempt.generation,
                    state="damaged",
                    problem=damage.summary,
                )
            )
        elif attempt in found.manifests:
            state = known.get(attempt, "waiting")
            lines.append(_published(found.manifests[attempt], state, problem))
    return lines


def _published(manifest: Manifest, state: State, problem: str | None) -> EpochLine:
    return EpochLine(
        epoch=manifest.epoch,
        generation=manifest.generation,
        state=state,
        segments=len(manifest.segments),
        rows=manifest.rows,
        bytes=manifest.bytes,
        published=iso(manifest.published_us),
        problem=problem,
    )

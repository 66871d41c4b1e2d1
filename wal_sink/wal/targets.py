"""Which targets a log has, and how far all of them are (`docs/protocol/targets.md#several-targets`).

A target is announced before it is attached: a flusher that trims lists `targets/` after it has read what is
flushed, and trims nothing while a target is only announced. So one whose listing lacks the target trims
nothing above what is found flushed after that, see `trimmable_unseen`.

Also here: the options of a log's newest run, from its claim, with which its pending rows were published.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from msgspec.structs import replace

from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.errors import NoFlusher, OptionError
from wal_sink.log_context import line_logger
from wal_sink.model import paths
from wal_sink.model.paths import StateName
from wal_sink.model.records import (
    KNOWN_FLUSHED,
    Claim,
    FlushedEpoch,
    Gap,
    TargetState,
    first_epoch,
    gaps,
)
from wal_sink.wal.log import Log

logger = line_logger(__name__)


def target_names(log: Log, *, fresh: bool = False) -> list[str]:
    """List the names of a log's targets, those that are detached too; none where it has one without a name.

    :param fresh: to conclude from a name that is missing, see `StateBackend.list_fresh`.
    """
    listed = map(paths.TARGET_STATE.parse, log.names(paths.TARGET_STATE.folder, fresh=fresh))
    return sorted({name.target for name in listed if name is not None})


def views(log: Log, *, fresh: bool = False) -> list[Log]:
    """Return the log as each of its targets sees it, those that are detached too."""
    if log.target or not log.several:
        return [log]
    return [log.of(name) for name in target_names(log, fresh=fresh)]


def view_of(log: Log, target: str) -> Log:
    """Return the log as a target sees it that a person names; empty: as it is.

    :raises OptionError: the log has no such target.
    """
    names = target_names(log) if log.several else []
    if target and target not in names:
        known = f"has the targets {', '.join(names)}" if names else "has one target, without a name"
        raise OptionError(
            f"There is no target {target}: {log.url} {known}.",
            f"Name {' or '.join(names)}."
            if names
            else "Leave the name out. Only one of several targets can be detached or attached.",
        )
    return log.of(target) if target else log


def state_of(log: Log, *, fresh: bool = False) -> TargetState | None:
    """Return the newest state of the target whose view this is; None: it was never announced.

    :param fresh: see `target_names`.
    """
    names = log.state_names(fresh=fresh)
    return log.read_once(paths.TARGET_STATE, names[-1]) if names else None


def not_attached(log: Log, *, fresh: bool = False) -> NoFlusher | None:
    """Return the error that a target is not attached; None if it is.

    :param fresh: see `target_names`.
    """
    if not log.target:
        return None
    state = state_of(log, fresh=fresh)
    if state is not None and state.verb == "attached":
        return None
    attach = f"`wal-sink attach CHECKPOINT --target {log.target}`"
    if state is not None and state.verb == "detached":
        return NoFlusher(
            f"target {log.target} is detached ({state.why}). Nothing is flushed to it",
            f"{attach} brings it back.",
        )
    return NoFlusher(
        f"target {log.target} is announced, and not attached yet. Nothing is flushed to it, and no epoch"
        " leaves the log",
        f"Attaching it was interrupted: run {attach}; or `wal-sink detach` in place of `attach`.",
    )


def is_attached(log: Log, *, fresh: bool = False) -> bool:
    """Whether the target whose view this is holds back what is trimmed; a target without a name does.

    :param fresh: see `target_names`.
    """
    if not log.target:
        return True
    state = state_of(log, fresh=fresh)
    return state is not None and state.verb != "detached"


def flushed_epoch(log: Log) -> int:
    """Return the last epoch that is flushed: to the target whose view this is, else to all that are attached.

    -1 for none. Of a target that was added later, epochs before its first count as flushed.
    """
    if not log.several:
        return log.mark()
    if log.target:
        states = log.states()
        has = states[-1].epoch if states and states[-1].verb == "announced" else -1
        return max(has, first_epoch(states) - 1, log.mark())
    return min((limit for _, limit in flushed_limits(log)), default=-1)


def flushed_limits(log: Log, *, fresh: bool = False, before: str = "") -> Iterator[tuple[Log, int]]:
    """Yield each attached target's view with its last flushed epoch, or what lies before its first one.

    :param fresh: see `target_names`.
    :param before: the target that comes before the others; each costs a listing when it is asked for.
    """
    for view in sorted(views(log.of(""), fresh=fresh), key=lambda each: each.target != before):
        states = view.states(fresh=fresh)
        if states and states[-1].verb != "detached":
            attached = states[-1].verb == "attached"
            yield view, max(first_epoch(states) - 1, view.mark()) if attached else -1


class Trimmable(NamedTuple):
    """Of what a flusher may delete something that has not seen a target announced."""

    flushed: int
    """The last epoch that has a record of any target, -1 for none."""
    upto: int
    """The last epoch of which it may delete something: its record may have been taken back."""


def trimmable_unseen(log: Log) -> Trimmable:
    """Say what a flusher may delete that has not seen a target announced; asked after it was announced.

    Such a flusher trims what had a record before that, of a target that was attached then. A rewind may have
    taken that record back since, or an attach of that target.
    """
    flushed, back = -1, [-1]
    for view in views(log.of(""), fresh=True):
        flushed = max(flushed, view.mark(fresh=True))
        before = (
            done.before.get(KNOWN_FLUSHED) for done in view.interventions("rewind", fresh=True)
        )
        back += [int(epoch) for epoch in before if epoch]
        back += [state.epoch for state in view.states(fresh=True) if state.verb != "attached"]
    return Trimmable(flushed, max(flushed, *back))


def slowest_view(log: Log) -> Log:
    """Return the log as that of its attached targets sees it which is flushed least far."""
    if log.target or not log.several:
        return log
    slowest = min(flushed_limits(log), key=lambda each: each[1], default=None)
    return slowest[0] if slowest else log


def mark_anywhere(log: Log, *, fresh: bool = False) -> int:
    """Return the last epoch that has a record of any target, -1 for none: it is history (rules 5 and 18).

    :param fresh: see `target_names`.
    """
    return max((view.mark(fresh=fresh) for view in views(log, fresh=fresh)), default=-1)


def record_anywhere(log: Log, epoch: int) -> FlushedEpoch | None:
    """Read the record of an epoch; of the targets the one whose view this is comes first."""
    if (record := log.flushed(epoch)) is not None or not log.several:
        return record
    found = (view.flushed(epoch) for view in views(log.of("")))
    return next((record for record in found if record is not None), None)


def refuse_other_targets(log: Log, names: Collection[str]) -> None:
    """Refuse options that do not fit the targets that the log has.

    :param names: of the option `targets`; empty: the query has one target, without a name.
    :raises OptionError: they do not.
    """
    known = target_names(log, fresh=True)
    if known and not names:
        raise OptionError(
            f"{log.url} has the targets {', '.join(known)}, and option targets is not given.",
            f'Add .option("targets", "{",".join(known)}") again, and the options of each.',
        )
    if names and not known and log.identity() is not None:
        raise OptionError(
            f"Option targets is {', '.join(names)}, but {log.url} was begun for one target without a name.",
            "Leave targets out, and give its options without a name; or start with a new checkpoint. A query"
            " that may get further targets later begins with targets and one name.",
        )
    left = [each for each in known if each not in names and is_attached(log.of(each), fresh=True)]
    if names and left:
        raise OptionError(
            f"{log.url} keeps epochs for {', '.join(left)}, which option targets does not name any more.",
            "Name it again; or, if it is to get nothing any more, run"
            f" `wal-sink detach CHECKPOINT --target {left[0]}` once.",
        )


def attach_targets(
    log: Log, checkpoint: Checkpoint, names: Iterable[str], now_us: int, by: str
) -> None:
    """Attach the targets that the log does not have yet: from the next epoch on each of them gets all.

    Called before Spark reads the checkpoint. Can be repeated at any point.

    :param now_us: microseconds since 1970.
    """
    for name in names:
        view = log.of(name)
        why = "named in the option targets"
        if not (states := view.states()):
            announce(view, 0, now_us, by, why)
        if len(states) < 2:  # in an old listing, too: what stands already is not changed
            first = first_for_new(log, checkpoint)
            if attach(view, 1, first, now_us, by, why) and first:
                logger.warning(
                    "target %s gets the epochs from %d on. Earlier epochs are not written to it",
                    name,
                    first,
                )
        elif (error := not_attached(view)) is not None:
            logger.warning("%s", error.one_line)


def first_for_new(log: Log, checkpoint: Checkpoint) -> int:
    """Return the first epoch that an announced target can get for sure: the next one of the query."""
    flushed = mark_anywhere(log.of(""), fresh=True)
    return max(checkpoint.last_commit(fresh=True), flushed) + 1


def announce(
    log: Log, seen: int, now_us: int, by: str, why: str, has: int = -1
) -> TargetState | None:
    """Announce the target whose view this is: from now on nothing is trimmed until it is attached.

    :param seen: how many states of it the caller has read before it decided.
    :param has: the last epoch that it has, -1 for none.
    :return: the state; None: another process has added one meanwhile, and nothing is changed.
    """
    return _add(log, seen, TargetState(verb="announced", epoch=has, by=by, at_us=now_us, why=why))


def attach(
    log: Log, seen: int, first: int, now_us: int, by: str, why: str, rows: int = 0
) -> TargetState | None:
    """Attach the target whose view this is, which was announced; else as `announce`.

    :param first: the first epoch that it gets.
    :param rows: how many rows it lacks of epochs before that one; -1: not known.
    """
    state = TargetState(verb="attached", epoch=first, by=by, at_us=now_us, why=why, rows=rows)
    return _add(log, seen, state)


def detach(log: Log, seen: int, now_us: int, by: str, why: str) -> TargetState | None:
    """Let the target whose view this is hold back nothing any more; else as `announce`.

    If the others were detached meanwhile, it is announced at once: it is the last one.
    """
    newest = state_of(log)
    # After an attach that died, the records may say more than the target has.
    has = newest.epoch if newest is not None and newest.verb == "announced" else log.mark()
    state = TargetState(verb="detached", epoch=has, by=by, at_us=now_us, why=why)
    added = _add(log, seen, state)
    if added is not None and not any(flushed_limits(log, fresh=True)):
        announce(log, seen + 1, now_us, by, "all others were detached", has)
        return None
    return added


def lacking(log: Log) -> list[Gap]:
    """Return which epochs a target lacks since it was detached, or a rewind has taken back then."""
    states = log.states()
    if states and states[-1].verb == "detached":
        states[-1] = replace(states[-1], epoch=min(states[-1].epoch, flushed_epoch(log)))
    return gaps(states)


def is_lacked(log: Log, epoch: int) -> bool:
    """Whether any target lacks an epoch since it was detached."""
    found = (gap for view in views(log.of("")) for gap in lacking(view))
    return any(gap.first <= epoch and (gap.last is None or epoch <= gap.last) for gap in found)


def _add(log: Log, seen: int, state: TargetState) -> TargetState | None:
    """Add a state behind those that were seen: what was decided from them holds only then."""
    stands = log.create_or_read(paths.TARGET_STATE, StateName(log.target, seen), state)
    return state if stands == state else None


def options_of_newest_run(log: Log) -> Mapping[str, str]:
    """Return the options of the newest run that has published, or has claimed its generation in order to.

    Without secrets; empty where no run has claimed one. A run that claims as it starts counts only where
    there is no other: it may never publish.
    """
    generations = log.keys(paths.CLAIM)  # commands that only look may not write
    claim = log.read(paths.CLAIM, max(generations, default=0))
    if claim is not None and claim.early:
        claim = _newest_at_work(log) or claim
    return {} if claim is None else claim.options


def _newest_at_work(log: Log) -> Claim | None:
    """Return the newest claim of a run that has published, or claimed in order to; None for none."""
    newest = [view.newest_flushed() for view in views(log)]
    generations = [record.generation for record in newest if record is not None]
    generations += [attempt.generation for attempt in log.attempts()]
    published = max(generations, default=0)
    for generation in reversed(log.keys(paths.CLAIM)):
        claim = log.read(paths.CLAIM, generation)
        if claim is not None and (generation <= published or not claim.early):
            return claim
    return None
